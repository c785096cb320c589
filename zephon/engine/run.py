"""One iteration of a pipeline: everything that is started for it, and everything that is closed after it."""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

import pyarrow as pa

from zephon.dataset import Dataset
from zephon.engine.bottleneck import Setup
from zephon.engine.context import Fetched, LaneContext
from zephon.engine.counts import token_counts
from zephon.engine.drivers import BackgroundPump, ForegroundPump
from zephon.engine.fetch import Fetcher
from zephon.engine.lane import Lane
from zephon.engine.ledger import Ledger
from zephon.engine.meter import Meter, clock
from zephon.engine.pump import Cut, Delivery, Pump, finished, locate
from zephon.engine.quarantine import Quarantine
from zephon.engine.spill import Spill
from zephon.engine.stages import Level, Note, Report, shown_inputs
from zephon.engine.state import LaneState
from zephon.engine.tasks import Load
from zephon.engine.tune import Part, Tuner
from zephon.errors import RunnerError, Where, ZephonError, at, wrap
from zephon.options import Options
from zephon.plan.source import CHUNK_BYTES, Chunk, Plan
from zephon.runners.base import Groups, Runner, Work
from zephon.runners.pool import ThreadPool
from zephon.runners.switching import Turns
from zephon.waiting import Promise

_SETTLE_EVERY = 256
_FORKED = "begin another iteration in the child, or hand batches to it"

log = logging.getLogger("zephon.engine")


@dataclass(frozen=True)
class Definition:
    """What a run is made of; all of it is decided before anything starts."""

    plan: Plan
    datasets: Sequence[Dataset]
    levels: Sequence[Level]
    columns: Sequence[str] | None
    options: Options
    owned: Sequence[int]
    cut: Cut
    seed: int
    schema: pa.Schema | None
    """Of the sequences, as far as it is known before running."""
    recipe: Mapping[str, Any]
    tokens_per_record: Mapping[str, float] | None
    """As the plan has it; both belong to this run's states, whatever becomes of the pipeline and its source meanwhile."""


class Run:
    """Starts runner, threads and lanes; delivers; closes. Use it as an iterator and call `close` when done.

    Args:
        definition: what to run.
        start: the state of each owned lane.
        padding: sequences that the rank's padding lane delivered before.
        make_runner: makes the runner; the engine does not know which.
    """

    def __init__(
        self, definition: Definition, start: Mapping[int, LaneState], make_runner: Callable[[], Runner], *, padding: int = 0
    ) -> None:
        self.definition = definition
        options = definition.options
        self._budget = options.byte_budget  # its default asks the system
        self.ledger = Ledger([d.name for d in definition.datasets])
        self.spill = Spill(options.spill_dir)
        self.lane_states = dict(start)
        self.padding = padding
        self._quarantine = Quarantine(options, definition.datasets, self.ledger)
        self._inline = options.runner == "inline"
        self._runner = make_runner()
        self._turns = Turns(options.switch_interval_s if options.runner == "threads" else None)
        self._local: ThreadPool[_Read] | None = None
        self._tuner: Tuner | None = None
        # a view keeps the whole block in memory that it is of, also after the fetcher let it go
        fit = self._blocks_fit()
        self._views = fit and self._bare and _takes_views(definition.levels[1:], options.runner)
        self.shows = not options.copy and all(level.stage.moves for level in definition.levels)
        """Batches hold views of text and bytes where these lie, in mapped files and in data sets in memory."""
        self.fetcher = Fetcher(
            definition.plan,
            definition.datasets,
            columns=definition.columns,
            keep_bytes=self._budget // 2,
            policy=options.on_error,
            keys=self._bare,
            views=self._views,
            shows=self.shows,
            shown=_shown(definition) if fit else frozenset(),
        )
        self._load = Load(
            room=self._budget // 4,
            budget=self._budget * 5 // 16,
            at_once=1 if self._inline else options.worker_count + 2,
        )
        self.pump = self._make_pump(start, padding)
        leaving = getattr(self._runner, "leave_core", None)
        self._driver: ForegroundPump | BackgroundPump = (
            ForegroundPump(self.pump)
            if self._inline
            else BackgroundPump(self.pump, watchdog_s=options.watchdog_s, describe=self._describe, leaving=leaving)
        )
        self.meter = Meter(lambda: self.pump.cpu_s, lambda: self.pump.full.seconds)
        self._local_work: dict[int, Work] = {}
        self._finalizer: Any = None

    @property
    def _bare(self) -> bool:
        """Whether the first stage has no operators, so that fetching does its part."""
        return self.definition.levels[0].stage.trivial

    def _blocks_fit(self) -> bool:
        """Whether the open shuffle blocks of all lanes fit into their part of the budget; a warning if not."""
        lanes, budget = len(self.definition.owned), self._budget
        wanted = self.definition.plan.open_bytes(lanes)
        if wanted <= budget // 4:
            return True
        log.warning(
            "the open shuffle blocks of %d lanes weigh about %d MiB, but max_bytes=%d MiB keeps a quarter of itself for them: "
            "they will be read again and again; raise max_bytes, or lower shuffle_block_size",
            lanes,
            wanted >> 20,
            budget >> 20,
        )
        return False

    def _make_pump(self, start: Mapping[int, LaneState], padding: int) -> Pump:
        definition, options = self.definition, self.definition.options
        chunk_bytes = min(CHUNK_BYTES * 4, self._budget // 8)
        context = LaneContext(
            plan=definition.plan,
            levels=definition.levels,
            seed=definition.seed,
            window_chunks=options.flush_every_chunks,
            ledger=self.ledger,
            submit_fetch=self._submit_fetch,
            submit_stage=self._submit_stage,
            do_here=self._do_here,
            on_failures=self._quarantine.take,
            chunk_bytes=chunk_bytes,
            load=self._load,
            worked=self._worked,
            woke=lambda: self._driver.wake(),
            per_step=definition.cut.per_step,
            park=self.spill.park,
        )
        return Pump(
            [Lane(number, context, start[number]) for number in definition.owned],
            definition.cut,
            ledger=self.ledger,
            load=self._load,
            # what is admitted below it may grow by a chunk, and allocators keep an eighth of what they gave free for the next
            budget=self._budget * 3 // 8 - chunk_bytes,
            tasks=0 if self._inline else 2,
            prefetch=1 if self._inline else options.prefetch_batches,
            empty_rows=self._make_empty_row,
            padding=padding,
        )

    def start(self) -> None:
        """Start the runner and the threads."""
        try:
            if not self._inline:
                self._local = ThreadPool(lambda: _Read.__call__, self._reads, name="zephon-fetch")
            self._runner.start([level.stage for level in self.definition.levels])
            if not self._inline:
                self._set_tasks(max(self._runner.workers, self._reads) + 2)
                if self.definition.options.workers == "auto":
                    self._tuner = self._make_tuner(self._local)
            self.meter.start()
            self._turns.shorten()
            self._driver.start()
        except BaseException:
            self.close()
            raise
        self._finalizer = weakref.finalize(self, _close_parts, self._driver, self._runner, self._local, self._turns)

    @property
    def _reads(self) -> int:
        options = self.definition.options
        return options.fetch_parallelism or options.worker_count

    def _set_tasks(self, tasks: int) -> None:
        self.pump.tasks = self._load.at_once = tasks
        self._driver.wake()

    def _make_tuner(self, local: ThreadPool[_Read] | None) -> Tuner:
        options = self.definition.options
        parts: list[Part] = []

        def resize(pool: Callable[[int], None]) -> Callable[[int], None]:
            def change(size: int) -> None:
                pool(size)
                self._set_tasks(max(part.size for part in parts) + 2)

            return change

        if not all(level.stage.trivial for level in self.definition.levels):
            parts.append(Part("workers", self._runner.workers, resize(self._runner.resize), lambda times: times.working))
        if local is not None and options.fetch_parallelism is None:
            parts.append(Part("reads at once", self._reads, resize(local.resize), lambda times: times.reading))

        def hold(batches: int) -> None:
            self.pump.prefetch = batches

        return Tuner(self.meter, parts, cores=options.cores, hold=hold, most_ready=options.prefetch_batches)

    def setup(self) -> Setup:
        """What this run has at hand now."""
        options = self.definition.options
        sizes = {part.name: part.size for part in self._tuner.parts} if self._tuner is not None else {}
        return Setup(
            runner=options.runner,
            workers=sizes.get("workers", self._runner.workers),
            reads=sizes.get("reads at once", self._reads),
            cores=options.cores,
            max_bytes=self._budget,
            tuned=self._tuner is not None,
        )

    def deliveries(self) -> Iterator[Delivery]:
        """Microbatches to the end; `lane_states` follows what was delivered."""
        count = 0
        process = None if self._inline else os.getpid()
        while True:
            if process is not None and process != os.getpid():
                raise RunnerError(
                    "this iteration was begun by another process, whose threads a fork doesn't have", hint=_FORKED
                )
            asked = clock()
            try:
                made = self._driver.next()
                if made is not None and made.first_of_step and self._is_over(made):
                    self._end()
                    made = None
                if self.shows and made is not None and made.group is not None:
                    self.fetcher.check_shown(made.group)
            except ZephonError as error:
                raise self._located(error) from error.__cause__
            if made is None:
                return self._warn_if_nothing()
            self.meter.delivered(asked)
            if self._tuner is not None:
                self._tuner.look()
            if made.lane < 0:
                self.padding = made.state.total
            else:
                self.lane_states[made.lane] = made.state
                count += 1
                if count % _SETTLE_EVERY == 0:
                    self.settle()
            yield made

    def _is_over(self, made: Delivery) -> bool:
        """Whether the run ends before the step that begins with this delivery; on several ranks they all say the same."""
        cut, agree = self.definition.cut, self.definition.options.agree
        if agree is None:
            return made.over and cut.agreed
        # `agree` is a logical AND. With `drop_last` one rank's word is enough to end, so the ranks are asked the opposite
        return not agree(not made.over) if cut.ends_short else agree(made.over)

    def _end(self) -> None:
        """Count what `drop_last` leaves, which needs the lanes run to their ends."""
        if not self.definition.cut.ends_short:
            return
        self._driver.close()
        self.pump.drain(self.definition.options.watchdog_s, self._describe)
        self.ledger.drop_rest(self.lane_states, "batch", "drop_last")

    def settle(self) -> None:
        """Bring the counts of what was delivered up to date."""
        for lane, state in self.lane_states.items():
            self.ledger.settle(lane, state)

    def accounting(self) -> dict[str, Any]:
        """The ledger, exact to the last delivered sequence."""
        return self.ledger.report(self.lane_states)

    def _warn_if_nothing(self) -> None:
        dropped = self.ledger.losses.rows.get(("batch", "drop_last"))
        if dropped and not any(state.total for state in self.lane_states.values()):
            cut = self.definition.cut
            warnings.warn(
                f"not one batch: {len(self.definition.owned)} lanes hold {sum(dropped.values())} records in all, "
                f"and drop_last wants {cut.per_step} sequences per lane and step",
                stacklevel=3,
            )

    def close(self) -> None:
        """Stop and join everything. Idempotent."""
        if self._finalizer is not None and not self._finalizer.alive:
            return  # the program has ended and closed it; an iterator that goes after that finds modules without their names
        _close_parts(self._driver, self._runner, self._local, self._turns)
        if self._finalizer is not None:
            self._finalizer.detach()  # not before: a Ctrl-C may come while parts are closed, and leave it the others
            self._finalizer = None
        self._quarantine.close()
        self.fetcher.close()
        self.spill.close()

    # ---------------------------------------------------------------------------------------------------- tasks

    def _submit_fetch(self, chunk: Chunk) -> Future[Fetched]:
        where = Where(lane=chunk.lane)
        if self.definition.levels[0].stage.trivial and self.fetcher.at_hand(chunk):
            return _now(lambda: self._fetch(chunk), where)
        place = self.fetcher.line.place()  # of two lanes that ask at once, the one that is wanted next is read first
        return self._elsewhere(lambda: self._fetch(chunk, place), where)

    def _fetch(self, chunk: Chunk, place: int | None = None) -> Fetched:
        begun, cpu = clock(), thread_time()
        group, losses, content = self.fetcher.fetch(chunk, place)
        self.meter.read(clock() - begun, thread_time() - cpu)
        losses.tokens_in = token_counts(group)
        if not self._bare or not len(group):
            return group, losses, None
        return group, losses, Report(hash=content)

    def _submit_stage(self, level: int, given: Groups, note: Note, label: str) -> Future[tuple[Groups, Any]]:
        return self._runner.submit(level, given, note, label=label)

    def _do_here(self, level: int, given: Groups, note: Note) -> tuple[Groups, Report]:
        # moving memory is not worth a trip to another thread: with the interpreter lock handed to and fro it takes twice as long
        with at(operator=self.definition.levels[level].stage.name):
            made: tuple[Groups, Report] = self._bound(level)(given, note)
        return made

    def _elsewhere(self, work: Callable[[], Any], where: Where) -> Future[Any]:
        """Run in the fetch threads; in line where there are none."""
        if self._local is None:
            return _now(work, where)
        read = _Read(work, where)
        self._local.add(read)
        return read.future

    def _worked(self, level: int, report: Report) -> None:
        if not self.definition.levels[level].stage.trivial:  # else it was part of the pump's time
            self.meter.worked(report.spent)

    def _make_empty_row(self) -> pa.RecordBatch | None:
        """The empty sequence: made by the last packer, sent through all that follows it."""
        levels = self.definition.levels
        first = max((i for i, level in enumerate(levels) if level.can_be_empty), default=None)
        if first is None:
            return None
        made, _ = self._bound(first)([], Note(empty=True, schema=self._built_schema(first)))
        for level in range(first + 1, len(levels)):
            if not made:
                return None
            made, _ = self._bound(level)(made, Note(plain=True))
        return made[0].slice(0, 1) if made else None  # an operator may have made several of it

    def _built_schema(self, number: int) -> pa.Schema | None:
        """Of what the accumulator before a level builds; None where that is known only by its rows."""
        schema: pa.Schema | None = self.fetcher.made_schema
        for level in self.definition.levels[: number + 1]:
            if schema is not None and level.stage.builder is not None:
                schema = level.stage.builder.output_schema(schema)
            for op, _ in () if level is self.definition.levels[number] else level.stage.steps:
                schema = None if schema is None else op.output_schema(schema)
        return schema

    def _bound(self, level: int) -> Work:
        """A stage bound in this process, once: for what isn't worth a trip to a worker."""
        work = self._local_work.get(level)
        if work is None:
            work = self._local_work[level] = self.definition.levels[level].stage.bind()
        return work

    def _located(self, error: ZephonError) -> ZephonError:
        datasets = self.definition.datasets
        return locate(error, [d.name for d in datasets], lambda component, shard: datasets[component].shards[shard].path)

    def _describe(self) -> str:
        lanes = self.pump.lanes
        return f"{sum(lane.outstanding for lane in lanes)} tasks outstanding, {sum(lane.available for lane in lanes)} sequences ready"


def _takes_views(levels: Sequence[Level], runner: str) -> bool:
    """Whether the groups that come from the source may share memory: the first accumulator can, and no other process gets them."""
    first = levels[0] if levels else None
    return (
        first is not None
        and getattr(first.deciders[0], "takes_views", False)
        and (first.stage.trivial or runner in ("inline", "threads"))
    )


def _shown(definition: Definition) -> frozenset[str]:
    """The columns that the first operator takes as views: none where another process gets the groups."""
    if definition.options.runner not in ("inline", "threads"):
        return frozenset()
    first, *others = definition.levels
    return shown_inputs([op for op, _ in first.stage.steps], others[0].deciders[0] if others else None)


def _now(work: Callable[[], Any], where: Where) -> Future[Any]:
    try:
        return finished(work())
    except Exception as error:  # noqa: BLE001 - it must reach the lane, whatever it is
        return finished(error=wrap(error, where))


@dataclass(eq=False)
class _Read:
    """A chunk to read in one of the fetch threads."""

    work: Callable[[], Any]
    where: Where
    future: Future[Any] = field(default_factory=Promise)

    @property
    def label(self) -> str:
        return f"reading [{self.where}]"

    def __call__(self) -> Any:
        try:
            return self.work()
        except Exception as error:
            raise wrap(error, self.where) from error


def _close_parts(
    driver: ForegroundPump | BackgroundPump, runner: Runner, local: ThreadPool[_Read] | None, turns: Turns
) -> None:
    turns.close()  # first: whatever happens to the others
    driver.close()
    runner.close()
    if local is not None:
        local.close()

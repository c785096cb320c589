"""All lanes of this process: who gets the next task, when a batch is complete, and how it ends."""

from __future__ import annotations

import faulthandler
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from zephon import groups
from zephon.engine.counts import record_counts
from zephon.engine.faults import joined
from zephon.engine.lane import Lane
from zephon.engine.ledger import Ledger
from zephon.engine.meter import Stopwatch
from zephon.engine.state import LaneState
from zephon.engine.tasks import Load
from zephon.errors import ZephonError, at
from zephon.waiting import Bell, Promise

log = logging.getLogger("zephon.engine")

_READY_AHEAD = 8 << 20
"""Bytes of finished sequences beyond which nothing more is started once every lane has two steps: memory that is used again
soon stays in the processor's caches."""


class Delivery(NamedTuple):
    """One microbatch as it leaves the pump."""

    group: pa.RecordBatch | None
    lane: int
    step: int
    microbatch: int
    empty: int
    """How many rows at the end train on nothing."""
    state: LaneState
    """The lane's state once this is delivered; of a rank's padding lane (number -1) only `total` means something."""
    first_of_step: bool
    over: bool
    """This rank would end the run before this step: no lane of this process has a sequence left; with `Cut.ends_short`, some lane has too
    few for the step."""


@dataclass(frozen=True)
class Cut:
    """How lanes' sequences are cut into steps and microbatches."""

    per_step: int
    microbatch: int
    drop_last: bool
    padding_lanes: int
    """Lanes without data that this rank delivers at the end of a step, to have as many microbatches as the others."""
    finite: bool
    max_steps: int | None
    agreed: bool = False
    """The ranks end at one step together (they agree on it, or there is only one), not each lane by itself within `max_steps`."""

    @property
    def ends_short(self) -> bool:
        """Whether the run ends before the first step that some lane can't fill; what is left then is counted as dropped."""
        return self.finite and self.drop_last and self.agreed


class PaddingLane:
    """A lane that has nothing, for ranks with fewer lanes than others."""

    number = -1
    error = None
    ended = True
    available = 0

    def __init__(self, total: int) -> None:
        self.state = LaneState(total=total)

    def take(self, count: int) -> list[pa.RecordBatch]:
        """Nothing; only the count moves on."""
        self.state = LaneState(total=self.state.total + count)
        return []

    def drop_rest(self) -> None:
        """There is no rest."""


class Pump:
    """Feeds the runner and forms microbatches. `turn` does what can be done now; it never waits.

    It can't stand still, however small the budget. What is outstanding in a lane either runs, or waits to be started, which it may be
    whatever the load is while the lane has too little for a step. So once nothing runs, a lane with too little has nothing outstanding: it
    has ended, has its error, or may ask for a chunk whatever the load is. And the batch that is due waits for nothing but such a lane.

    Args:
        lanes: the lanes of this process, ascending.
        cut: how to cut.
        ledger: counts what is dropped at the end.
        load: what the lanes hold together.
        budget: bytes that all lanes together may hold.
        tasks: how many tasks to keep outstanding.
        prefetch: microbatches to hold ready.
        empty_rows: makes the empty sequence (a group of one row) when first needed; None: there is none.
        padding: sequences that the padding lane, if there is one, has delivered.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        cut: Cut,
        *,
        ledger: Ledger,
        load: Load,
        budget: int,
        tasks: int,
        prefetch: int,
        empty_rows: Callable[[], pa.RecordBatch | None],
        padding: int = 0,
    ) -> None:
        self.lanes = list(lanes)
        self.cut = cut
        self.wake = Bell()
        self.deliveries: deque[Delivery] = deque()
        self.error: BaseException | None = None
        self.finished = False
        self.peak_bytes = 0
        self.cpu_s = 0.0
        """Of the threads that turn this, for that; not counted where the consumer always does."""
        self.full = Stopwatch()
        """How long the lanes held all the bytes that they may hold."""
        self._ledger = ledger
        self._load = load
        self._budget = budget
        self._ahead = min(_READY_AHEAD, budget // 4)
        self.tasks = tasks
        self.prefetch = prefetch
        self._empty_rows = empty_rows
        self._empty: pa.RecordBatch | None = None
        self._empty_known = False
        self._order: list[Lane | PaddingLane] = [*lanes, *(PaddingLane(padding) for _ in range(cut.padding_lanes))]
        self._step = min(lane.state.total for lane in self._order) // cut.per_step  # the first step that is not complete
        self._turn = 0
        self._step_open = False
        self._first = False
        self._batch_bytes = 0
        self._eager = 1
        """Doubled when a batch waits for a lane that was held back and has nothing left to build: reading takes longer than was thought."""
        self._over = False

    def turn(self) -> bool:
        """Move finished tasks on, submit new ones, form batches; whether anything moved."""
        moved = self._advance()
        self.peak_bytes = max(self.peak_bytes, self._load.nbytes)
        return self.deliver() or self._feed() or moved

    @property
    def busy(self) -> bool:
        """Whether a task runs, whose end will be heard of."""
        return self._load.tasks > self._load.waiting

    def _advance(self) -> bool:
        """Move on what is finished, and start what waits for room; whether there was anything."""
        lanes = [lane for lane in self.lanes if lane.dirty or lane.startable]
        for lane in lanes:
            lane.dirty = False
        moved = len(lanes) > 0
        for phase in range(lanes[0].phases if lanes else 0):
            for lane in lanes:
                lane.advance(phase)
        # what is built next is what is wanted next, also where it was another lane's task whose end made room
        lanes = self.lanes if self._load.waiting else []
        while lanes := [lane for lane in lanes if lane.startable]:
            min(lanes, key=lambda lane: lane.begun).start_waiting()
        return moved

    def deliver(self) -> bool:
        """Form microbatches as long as their sequences are there; whether any was formed."""
        moved = False
        while len(self.deliveries) < self.prefetch and not self.finished and not self._enough_bytes() and self._deliver():
            moved = True
        return moved

    def _enough_bytes(self) -> bool:
        """Whether the batches that are held ready are heavy (pixels): then two are enough."""
        return len(self.deliveries) >= 2 and len(self.deliveries) * self._batch_bytes > self._ahead

    # -------------------------------------------------------------------------------------------------- feeding

    def _feed(self) -> bool:
        moved = False
        while not self.finished:
            needed = self._needed()
            if needed is not None and needed.held_back and not needed.decided:
                needed.held_back = False
                self._eager *= 2
            if needed is not None and needed.can_submit and not needed.outstanding:
                # the lane that the next batch waits for always gets on, else a full budget would be a deadlock
                needed.submit()
                moved = True
                continue
            full = self._load.nbytes >= self._budget
            self.full.set(full)
            if full or self._load.coming >= self.tasks:
                return moved
            candidates = [lane for lane in self.lanes if lane.can_submit]
            if not candidates:
                return moved
            lane = self._neediest(candidates)
            if self._load.ready >= self._ahead and lane.supplied(2):
                return moved  # every lane is ahead: more would only fill memory
            if self._load.stocked and lane.stocked(self._eager):
                lane.held_back = True
                return moved
            lane.submit()
            moved = True
        return moved

    def _needed(self) -> Lane | None:
        """The lane that the next batch waits for, if it has too little and can still get more."""
        here = self._order[self._turn]
        waiting = [here] if self._step_open or not self.cut.finite else [here, *self.lanes]
        for lane in waiting:
            if isinstance(lane, Lane) and lane.available < self.cut.per_step and (lane.can_submit or lane.outstanding):
                return lane
        return None

    def _neediest(self, candidates: Sequence[Lane]) -> Lane:
        """The lane with the fewest steps ahead; among equals the one whose turn comes first, then the one with fewer tasks."""
        size = self.cut.per_step
        # a step of a finite run begins when every lane shows something: then none gets a second task before all have one
        first = 1 if self.cut.finite and not self._step_open else 0

        def need(lane: Lane) -> tuple[int, int, int, int]:
            steps = (lane.state.total + lane.available + lane.decided) // size
            return steps, (lane.outstanding + first) // 2, lane.state.total // size, lane.number

        return min(candidates, key=need)

    # ------------------------------------------------------------------------------------------------ delivering

    def _deliver(self) -> bool:
        """Form the next microbatch if its sequences are there."""
        if self.cut.max_steps is not None and self._step >= self.cut.max_steps:
            self.finished = True
            return True
        if not self._step_open and not self._open_step():
            return False
        if self.finished:
            return True
        lane = self._order[self._turn]
        done = lane.state.total - self._step * self.cut.per_step
        if done >= self.cut.per_step:
            self._next_lane()
            return True
        want = min(self.cut.microbatch, self.cut.per_step - done)
        # a lane that gave empty sequences had too few for a step: also where the run was resumed inside of that step, they are left out
        whole = self.cut.drop_last and (done == 0 or lane.state.empty > 0)
        if not lane.ended and lane.available < (self.cut.per_step if whole else want):
            if lane.error is not None:
                raise lane.error
            return False
        if whole and lane.available < self.cut.per_step:
            self._drop(lane)
        first, self._first = self._first, False
        missing = max(want - lane.available, 0)
        parts = lane.take(want)
        group: pa.RecordBatch | None = parts[0] if parts else None
        empty = 0
        if missing or len(parts) > 1:
            with at(operator="batch", lane=lane.number):
                group, empty = self._fill(parts, missing)
        index = done // self.cut.microbatch
        if not self._batch_bytes and group is not None:
            self._batch_bytes = groups.nbytes(group)
        self.deliveries.append(Delivery(group, lane.number, self._step, index, empty, lane.state, first, self._over))
        if lane.state.total >= (self._step + 1) * self.cut.per_step:
            self._next_lane()
        return True

    def _open_step(self) -> bool:
        """At the start of a step of a finite run: wait until every lane shows whether it has anything left."""
        # a run that was resumed inside a step: its ranks agreed on this step when it began, so they don't again
        begun = any(lane.state.total > self._step * self.cut.per_step for lane in self._order)
        if self.cut.finite and not begun:
            need = self.cut.per_step if self.cut.drop_last else 1
            for lane in self.lanes:
                if lane.available < need and not lane.ended:
                    if lane.error is not None:
                        raise lane.error
                    return False
            short = [lane.available < need for lane in self.lanes]
            self._over = any(short) if self.cut.ends_short else all(short)
            if self._over and self.cut.ends_short:
                # nobody can want this step: only the word that it is over goes out
                self.deliveries.append(Delivery(None, -1, self._step, 0, 0, LaneState(), True, True))
                self.finished = True
                return True
            if self._over and self.cut.drop_last:
                for lane in self.lanes:
                    self._drop(lane)
        self._step_open, self._first = True, not begun
        return True

    def drain(self, watchdog_s: float, describe: Callable[[], str]) -> None:
        """After the end, with nobody turning the pump: run every lane to its end, so that the ledger knows all that is left.

        Args:
            watchdog_s: dump all stacks when nothing moved for so long.
            describe: says where the run is, for that.

        Raises:
            ZephonError: what stops a lane; it would have stopped the run, had another lane not been shorter.
        """
        self.finished = True
        self.deliveries.clear()
        quiet_since = time.monotonic()
        while True:
            self.wake.clear()
            for lane in self.lanes:
                if lane.error is not None:
                    raise lane.error
                lane.drop_rest()
            moved = self._advance()
            for lane in self.lanes:
                while lane.can_submit and (not lane.outstanding or self._load.tasks < self.tasks):
                    if self._load.nbytes >= self._budget and lane.outstanding:
                        break
                    lane.submit()
                    moved = True
            if all(lane.ended for lane in self.lanes):
                return
            if moved:
                quiet_since = time.monotonic()
                continue
            self.wake.wait(1.0)
            if time.monotonic() - quiet_since > watchdog_s:
                bark(time.monotonic() - quiet_since, describe())
                quiet_since = time.monotonic()

    def _next_lane(self) -> None:
        self._turn += 1
        if self._turn == len(self._order):
            self._turn = 0
            self._step += 1
            self._step_open = False

    def _drop(self, lane: Lane | PaddingLane) -> None:
        rest = lane.drop_rest()
        if rest is not None:
            rows, tokens = record_counts(rest)
            self._ledger.losses.drop("batch", "drop_last", rows, tokens)

    def _fill(self, parts: list[pa.RecordBatch], missing: int) -> tuple[pa.RecordBatch | None, int]:
        if missing:
            empty = self._empty_row()
            if empty is not None:
                parts = [*parts, *([empty] * missing)]
            else:
                missing = 0
        return (joined(parts) if parts else None), missing

    def _empty_row(self) -> pa.RecordBatch | None:
        if not self._empty_known:
            self._empty, self._empty_known = self._empty_rows(), True
        return self._empty


def bark(seconds: float, where: str) -> None:
    """Say that nothing moves, with the stacks of all threads."""
    log.warning("no batch for %.0f s; %s; the stacks of all threads follow on stderr", seconds, where)
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)


def locate(error: ZephonError, names: Sequence[str], paths: Callable[[int, int], str]) -> ZephonError:
    """Turn the numbers of data set and shard, all that a worker knows, into names."""
    where: Any = error.where
    changes: dict[str, Any] = {}
    component = where.component
    if component is not None and 0 <= component < len(names):
        changes["dataset"] = where.dataset or names[component]
        changes["component"] = None
        if isinstance(where.shard, int):
            changes["shard"] = paths(component, where.shard)
    if changes:
        values: Mapping[str, Any] = {**vars(where), **changes}
        error.where = type(where)(**values)
    return error


def finished(value: Any = None, error: BaseException | None = None) -> Future[Any]:
    """A future that is done."""
    future: Future[Any] = Promise()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
    return future

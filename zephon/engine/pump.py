"""All lanes of this process: who gets the next task, when a batch is complete, and how it ends."""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from zephon.engine.counts import record_counts
from zephon.engine.faults import joined
from zephon.engine.lane import Lane, Load
from zephon.engine.ledger import Ledger
from zephon.engine.meter import Stopwatch
from zephon.engine.state import LaneState
from zephon.errors import InternalError, ZephonError, at

log = logging.getLogger("zephon.engine")

_READY_AHEAD = 8 << 20
"""Bytes of finished sequences beyond which nothing more is started once every lane has two steps: memory that is used again
soon stays in the processor's caches."""

_LINGER_S = 0.002
"""How long a consumer that waits is left asleep while the pump can form more batches."""


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
        self.wake = threading.Event()
        self.deliveries: deque[Delivery] = deque()
        self.error: BaseException | None = None
        self.finished = False
        self.peak_bytes = 0
        self.cpu_s = 0.0
        """Of the thread that turns this, where it has one of its own."""
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
        self._over = False

    def turn(self) -> bool:
        """Move finished tasks on, submit new ones, form batches; whether anything moved."""
        moved = False
        for lane in self.lanes:
            if lane.dirty or lane.startable:
                lane.dirty = False
                lane.advance()
                moved = True
        self.peak_bytes = max(self.peak_bytes, self._load.nbytes)
        return self.deliver() or self._feed() or moved

    def deliver(self) -> bool:
        """Form microbatches as long as their sequences are there; whether any was formed."""
        moved = False
        while len(self.deliveries) < self.prefetch and not self.finished and not self._enough_bytes() and self._deliver():
            moved = True
        return moved

    @property
    def half_full(self) -> bool:
        """Whether half of the batches that are to be held ready are."""
        return 2 * len(self.deliveries) >= self.prefetch or self._enough_bytes()

    def _enough_bytes(self) -> bool:
        """Whether the batches that are held ready are heavy (pixels): then two are enough."""
        return len(self.deliveries) >= 2 and len(self.deliveries) * self._batch_bytes > self._ahead

    # -------------------------------------------------------------------------------------------------- feeding

    def _feed(self) -> bool:
        moved = False
        while not self.finished:
            needed = self._needed()
            if needed is not None and needed.can_submit and not needed.outstanding:
                # the lane that the next batch waits for always gets on, else a full budget would be a deadlock
                needed.submit()
                moved = True
                continue
            full = self._load.nbytes >= self._budget
            self.full.set(full)
            if full or self._load.tasks >= self.tasks:
                return moved
            candidates = [lane for lane in self.lanes if lane.can_submit]
            if not candidates:
                return moved
            lane = self._neediest(candidates)
            if self._load.ready >= self._ahead and lane.available >= 2 * self.cut.per_step:
                return moved  # every lane is ahead: more would only fill memory
            lane.submit()
            moved = True
        return moved

    def _needed(self) -> Lane | None:
        """The lane that the next batch waits for, if it has too little."""
        here = self._order[self._turn]
        waiting = [here] if self._step_open or not self.cut.finite else [here, *self.lanes]
        for lane in waiting:
            if isinstance(lane, Lane) and lane.available < self.cut.per_step and not lane.ended:
                return lane
        return None

    def _neediest(self, candidates: Sequence[Lane]) -> Lane:
        """The lane with the fewest steps ahead; among equals the one whose turn comes first, then the one with fewer tasks."""
        size = self.cut.per_step
        # a step of a finite run begins when every lane shows something: then none gets a second task before all have one
        first = 1 if self.cut.finite and not self._step_open else 0

        def need(lane: Lane) -> tuple[int, int, int, int]:
            steps = (lane.state.total + lane.available) // size
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
        if not lane.ended and lane.available < (self.cut.per_step if self.cut.drop_last and done == 0 else want):
            if lane.error is not None:
                raise lane.error
            return False
        if self.cut.drop_last and done == 0 and lane.available < self.cut.per_step:
            self._drop(lane)
        first, self._first = self._first, False
        available = min(want, lane.available)
        with at(operator="batch", lane=lane.number):
            group, empty = self._fill(lane.take(want), available, want)
        index = done // self.cut.microbatch
        if not self._batch_bytes and group is not None:
            self._batch_bytes = group.nbytes
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
            moved = False
            for lane in self.lanes:
                if lane.dirty:
                    lane.dirty, moved = False, True
                    lane.advance()
                if lane.error is not None:
                    raise lane.error
                lane.drop_rest()
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

    def _fill(self, parts: list[pa.RecordBatch], available: int, want: int) -> tuple[pa.RecordBatch | None, int]:
        missing = want - available
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


class BackgroundPump:
    """A thread that turns the pump while the training step runs."""

    def __init__(self, pump: Pump, *, watchdog_s: float, describe: Callable[[], str]) -> None:
        self._pump = pump
        self._stop = threading.Event()
        self._ready = threading.Condition()
        self._watchdog_s = watchdog_s
        self._describe = describe
        self._hungry = False
        """The consumer sleeps until it is told that there is a batch."""
        self._hungry_since = 0.0
        self._thread = threading.Thread(target=self._run, name="zephon-pump", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        pump = self._pump
        try:
            while not self._stop.is_set() and not pump.finished:
                pump.wake.clear()
                moved = pump.turn()
                pump.cpu_s = time.thread_time()
                if self._hungry and pump.deliveries and (not moved or self._worth_waking()):
                    self._tell()
                if not moved:
                    pump.wake.wait(1.0)
        except BaseException as error:  # noqa: BLE001 - it must reach the consumer, whatever it is
            pump.error = error
        finally:
            with self._ready:
                pump.finished = True
                self._ready.notify_all()

    def _worth_waking(self) -> bool:
        """Whether to wake the consumer while there is more to do.

        Waking a sleeping thread and being put to sleep by it, at the interpreter lock, costs as much as forming several batches.
        """
        return self._pump.half_full or time.monotonic() - self._hungry_since > _LINGER_S

    def _tell(self) -> None:
        with self._ready:
            self._hungry = False
            self._ready.notify_all()

    def next(self) -> Delivery | None:
        """The next delivery, waiting for it; None at the end. Raises what stopped the pump."""
        pump = self._pump
        quiet_since = time.monotonic()
        if pump.deliveries:
            return self._taken(pump.deliveries.popleft())  # only this thread takes
        with self._ready:
            while not pump.deliveries:
                if pump.finished:
                    if pump.error is not None:
                        raise pump.error
                    return None
                if self._stop.is_set():
                    raise InternalError("the pump is closed")
                if not self._hungry:
                    self._hungry_since = time.monotonic()
                    self._hungry = True
                    pump.wake.set()
                    continue  # the pump may have delivered and gone to sleep just before
                self._ready.wait(1.0)
                if time.monotonic() - quiet_since > self._watchdog_s:
                    bark(time.monotonic() - quiet_since, self._describe())
                    quiet_since = time.monotonic()
            self._hungry = False
            made = pump.deliveries.popleft()
        return self._taken(made)

    def _taken(self, made: Delivery) -> Delivery:
        # not for every batch: each hand-over between two threads costs more than forming a batch
        if 2 * len(self._pump.deliveries) <= self._pump.prefetch and not self._pump.wake.is_set():
            self._pump.wake.set()
        return made

    def close(self) -> None:
        """Stop the thread. Idempotent."""
        self._stop.set()
        self._pump.wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


class ForegroundPump:
    """Turns the pump in the consumer's own thread, when a batch is asked for: no thread at all."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def start(self) -> None:
        """Nothing runs before a batch is asked for."""

    def next(self) -> Delivery | None:
        """The next delivery; None at the end."""
        pump = self._pump
        while True:
            if not pump.deliveries:
                pump.deliver()  # may only move on to another lane
            if pump.deliveries:
                return pump.deliveries.popleft()
            if pump.finished:
                return None
            if not pump.turn() and not pump.deliveries and not pump.finished:
                raise InternalError("the pump stands still")

    def close(self) -> None:
        """Nothing to stop."""


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
    future: Future[Any] = Future()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
    return future

"""One lane: chunks become tasks in first-in-first-out order, go through accumulators, and come out as sequences."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.engine.balance import Both
from zephon.engine.context import Fetched, LaneContext
from zephon.engine.counts import record_counts
from zephon.engine.deciders import Deciders, shows_sources, used_sources, weighed
from zephon.engine.faults import Losses, joined
from zephon.engine.ledger import decision_counts
from zephon.engine.replay import Replay
from zephon.engine.spill import Source, in_memory
from zephon.engine.stages import INDEX, Note, Report
from zephon.engine.state import LaneState
from zephon.engine.tasks import Mark, Origin, Queue, Ready, Supply, Task
from zephon.errors import DataError, Where, ZephonError
from zephon.hashing import hash_group
from zephon.keys import U64, mix, placed
from zephon.plan.source import Chunk
from zephon.plugin import Decision, LaneWindow
from zephon.runners.base import Groups

_MASK = (1 << 64) - 1


class Lane:
    """One lane from a state onward. Only the pump's thread touches it.

    Invariant 1: nothing here depends on when a future finishes, only on the order of the queues.
    """

    def __init__(self, number: int, context: LaneContext, start: LaneState) -> None:
        self.number = number
        self.state = start
        self.error: ZephonError | None = None
        """What ends the lane behind the sequences that are ready."""
        self._failed: ZephonError | None = None
        """The same while it is on its way through the queues, as `Mark.ERROR`."""
        self.ended = False
        self.available = 0
        self.nbytes = 0
        self.outstanding = 0
        """Tasks that are not yet consumed."""
        self.dirty = False
        """Something may have to move on."""
        self._context = context
        self._last = len(context.levels) - 1
        last = context.levels[-1].stage
        self._heavy = not last.trivial and (self._last > 0 or last.max_rows is not None)
        """The last stage's tasks are started as there is room for what they make."""
        self._chunks = context.plan.lane_chunks(number)
        # lanes flush at different times (the first window of a lane is shorter by its share), so that the flow of the whole is even
        self._ahead = number % context.window_chunks
        self._next_chunk = max(0, start.window * context.window_chunks - self._ahead)
        self._closed = False
        self._fetching: deque[tuple[Future[Fetched], Chunk] | Mark] = deque()
        self._queues = [Queue() for _ in context.levels]
        self._supply = Supply()
        self.held_back = False
        """It could have asked for a chunk, and had so much to build that it didn't."""
        self._running = 0
        self._waiting: deque[Task] = deque()
        """Tasks of the last stage that are not started; they stand in its queue, too."""
        self._waiting_rows = 0
        self._deciders: list[Deciders | None] = [None] * len(context.levels)
        self._balances = [
            context.ledger.balance(level.stage.builder.name) if level.stage.builder and level.stage.counted else None
            for level in context.levels
        ]
        self._chain = [0] * len(context.levels)
        self._windows = [start.window] * len(context.levels)
        self._sequences = start.before
        """What the last level's deciders have decided, all windows of the lane together."""
        self._ready: deque[Ready | Mark] = deque()
        self._replay = Replay(number, start, last, first=not self._last)
        self._position = 0
        self._out_window = start.window
        self._barren = 0
        """Records drawn in windows that gave no sequence, since the last one that did."""

    # ---------------------------------------------------------------------------------------------- submitting

    @property
    def can_submit(self) -> bool:
        """Whether there is a chunk left to ask for."""
        return not self._closed

    def _hold(self, nbytes: int, tasks: int = 0) -> None:
        self.nbytes += nbytes
        self.outstanding += tasks
        self._context.load.nbytes += nbytes
        self._context.load.tasks += tasks

    def _done(self, future: Future[Any]) -> None:
        del future
        self.dirty = True
        self._context.woke()

    def submit(self) -> None:
        """Ask for the next chunk."""
        self.dirty = True
        number = self._next_chunk
        per_window = self._context.window_chunks
        if self._chunks is not None and number >= self._chunks:
            if number and (number + self._ahead) % per_window:
                self._fetching.append(Mark.FLUSH)
            self._fetching.append(Mark.END)
            self._closed = True
            return
        chunk = self._context.plan.chunk(self.number, number)
        future = self._context.submit_fetch(chunk)
        self._fetching.append((future, chunk))
        self._hold(self._context.chunk_bytes, 1)
        future.add_done_callback(self._done)
        self._next_chunk += 1
        if (self._next_chunk + self._ahead) % per_window == 0:
            self._fetching.append(Mark.FLUSH)

    # ------------------------------------------------------------------------------------------------ advancing

    @property
    def phases(self) -> int:
        """How many phases `advance` has."""
        return len(self._queues) + 1

    def advance(self, phase: int) -> None:
        """Move on what is finished: in phase 0 what was fetched, then level by level. An error goes its way through the queues like what
        it stands for: what is ahead of it still comes, and then it waits in `error` until the lane is needed.

        The pump goes through all its lanes phase by phase, because code and data that were just used are in the processor's caches: what
        follows itself takes half the time.
        """
        try:
            if not phase:
                self._advance_fetches()
            else:
                self._advance_level(phase - 1)
        except ZephonError as error:
            error.where = error.where.within(Where(lane=self.number))
            self._stop(phase - 1, error)

    def _stop(self, level: int, error: ZephonError) -> None:
        """Nothing behind an error of a level (-1: reading) counts, however far it got; so timing can't tell what comes before it."""
        self._closed, self._failed = True, error
        behind = [item for queue in self._queues[: level + 1] for item in queue if isinstance(item, Task)]
        chunks = sum(not isinstance(item, Mark) for item in self._fetching)
        self._hold(-sum(task.nbytes for task in behind) - chunks * self._context.chunk_bytes, -len(behind) - chunks)
        self._fetching.clear()
        for queue in self._queues[: level + 1]:
            queue.clear()
        if level < self._last:
            self._queues[level + 1].append(Mark.ERROR)
            return
        self._context.load.running -= self._running
        self._context.load.waiting -= len(self._waiting)
        self._running = self._waiting_rows = 0
        self._waiting.clear()
        self.error = error

    def _advance_fetches(self) -> None:
        while self._fetching:
            head = self._fetching[0]
            if not isinstance(head, Mark) and not head[0].done():
                return
            self._fetching.popleft()
            if isinstance(head, Mark):
                self._queues[0].append(head)
                if not self._last:
                    self._replay.decided()
                continue
            future, chunk = head
            self._hold(-self._context.chunk_bytes, -1)
            self._fetched(chunk, *future.result())

    def _fetched(self, chunk: Chunk, group: pa.RecordBatch, losses: Losses, report: Report | None) -> None:
        context = self._context
        context.ledger.source(chunk.counts)
        context.ledger.count(losses)
        context.on_failures(self.number, -1, losses)
        if not len(group):
            return
        if report is not None:
            # the first stage has nothing to do, so fetching did its part: one hand-over less
            self._queues[0].put(Task(Origin(0), 0, here=lambda: ([group], report)))
            self._hold(0, 1)
        else:
            label = f"lane {self.number}, chunk {chunk.number}"
            # what an accumulator gets comes whole: its decisions' digests begin with the chunk's
            size = len(group) if self._last else context.levels[0].stage.max_rows or len(group)
            if not self._last:
                self._supply.chunks += 1
                self._supply.came(len(group))
            for start in range(0, len(group), size):
                self._part(group.slice(start, size), label)

    def _part(self, rows: pa.RecordBatch, label: str) -> None:
        """Have the first stage work on rows of a chunk."""
        origin = Origin(0)
        if not self._last:
            base = hash_group(rows) if self._replay.skips else 0
            origin, rows = self._unbuilt(base, rows, record_counts)
        if len(rows):
            self._push(0, rows, (), 0, Note(hash=not origin.base), origin, label)

    def _push(
        self, level: int, rows: pa.RecordBatch, sources: Sequence[Source], held: int, note: Note, origin: Origin, label: str
    ) -> None:
        """Have a stage work on rows and their sources, of `held` bytes. Those that are parked are read when the task starts."""
        context, count = self._context, len(rows)
        if context.levels[level].stage.trivial:

            def here() -> tuple[Groups, Report]:
                return context.do_here(level, [rows, *in_memory(sources)], note)

            self._queues[level].put(Task(origin, 0, here=here, rows=count))
            self._hold(0, 1)
            return

        def start() -> Future[tuple[Groups, Report]]:
            return context.submit_stage(level, [rows, *in_memory(sources)], note, label)

        nbytes = groups.nbytes(rows) + held
        if level == self._last and self._heavy:
            # At a flush a whole window is decided at once. Built at once, its pixels would be many times the budget
            task = Task(origin, nbytes, start=start, rows=count)
            self._queues[level].put(task)
            self._waiting.append(task)
            self._waiting_rows += count
            context.load.waiting += 1
            self._hold(nbytes, 1)
            self.dirty = True
            return
        future = start()
        nbytes = 0 if future.done() else nbytes
        self._queues[level].put(Task(origin, nbytes, future, rows=count))
        self._hold(nbytes, 1)
        future.add_done_callback(self._done)

    @property
    def decided(self) -> int:
        """Sequences beyond those that are ready: decided, and not built yet."""
        return self._queues[-1].rows

    def supplied(self, steps: int) -> bool:
        """Whether so many steps are ready, and twice as many decided where building takes long: a packer may need chunks for the next."""
        wanted = steps * self._context.per_step
        return self.available >= wanted and (not self._heavy or self.decided >= 2 * wanted)

    def stocked(self, times: int) -> bool:
        """Whether it has so much to build that its next chunks would only fill memory meanwhile; see `Supply.lasts`."""
        coming = self.outstanding - self._running - len(self._waiting)
        return self._heavy and self._supply.lasts(self.decided, coming, least=2 * self._context.per_step, times=times)

    @property
    def startable(self) -> bool:
        """Whether a task of the last stage waits and may start: there is room, or the lane has too little for a step."""
        if not self._waiting or self.error is not None:
            return False
        return not self._context.load.full or (not self._running and self.available < self._context.per_step)

    def start_waiting(self) -> None:
        """Start the next one of the last stage, which must be `startable`."""
        task = self._waiting.popleft()
        assert task.start is not None
        self._waiting_rows -= task.rows
        self._running += 1
        self._context.load.begin()
        task.future, task.start = task.start(), None
        task.future.add_done_callback(self._done)
        self.dirty = True

    @property
    def begun(self) -> int:
        """Sequences of the lane in all that are delivered, ready, or being built."""
        return self.state.total + self.available + self.decided - self._waiting_rows

    def _advance_level(self, level: int) -> None:
        queue = self._queues[level]
        while queue:
            head = queue[0]
            if isinstance(head, Mark):
                queue.popleft()
                self._mark(level, head)
                continue
            if not head.finished:
                return
            queue.take()
            self._hold(-head.nbytes, -1)
            if level == self._last and self._running:
                self._running -= 1
                self._context.load.running -= 1
            made, report = head.result()
            self._context.worked(level, report)
            self._context.ledger.count(report.losses)
            balance = self._balances[level]
            if balance is not None and report.gathered is not None:
                balance.went(report.gathered)
            self._context.on_failures(self.number, level, report.losses)
            if level == self._last:
                self._replay.note(head, sum(map(len, made)))
            for group in made:
                self._arrive(level, group, head, report.hash)

    def _arrive(self, level: int, group: pa.RecordBatch, task: Task, content: int) -> None:
        base = task.origin.base or content  # only of the first level's tasks the key comes with what they made
        if level == self._last:
            self._make_ready(group, base, task.origin.skipped)
            return
        deciders = self._deciders[level + 1]
        if deciders is None:
            first = self._sequences if level + 1 == self._last else 0
            where = LaneWindow(self._context.seed, self.number, self._windows[level + 1], first, self._context.per_step)
            deciders = self._deciders[level + 1] = Deciders(self._context.levels[level + 1].deciders, where, self._context.park)
        self._chain[level + 1] = mix(self._chain[level + 1] ^ base)
        self._supply.chunks += not level
        losses = Losses()
        held = deciders.nbytes
        made = deciders.add(group, losses)
        self._hold(deciders.nbytes - held)
        self._context.ledger.count(losses)
        balance = self._balances[level + 1]
        if balance is not None:
            balance.came(record_counts(group), losses)
        self._decided(level + 1, made)

    def _mark(self, level: int, mark: Mark) -> None:
        balance = self._balances[level]
        if balance is not None and mark is Mark.FLUSH:
            balance.settle()
        if level == self._last and mark is Mark.ERROR:
            self.error = self._failed
            return
        if level == self._last:
            self._replay.end()
            self._ready.append(mark)
            self._check_barren()
            self._out_window, self._position = self._out_window + 1, 0
            self.ended = self.ended or mark is Mark.END
            return
        if mark is Mark.FLUSH:
            deciders = self._deciders[level + 1]
            if deciders is not None:
                losses = Losses()
                self._hold(-deciders.nbytes)
                made = deciders.flush(losses)
                self._context.ledger.count(losses)
                if (before := self._balances[level + 1]) is not None:
                    before.left_out(losses)
                self._decided(level + 1, made)
            if (after := self._balances[level + 1]) is not None:
                after.close()
            self._deciders[level + 1] = None
            self._chain[level + 1] = 0
            self._windows[level + 1] += 1
            if level + 1 == self._last:
                self._replay.decided()
        self._queues[level + 1].append(mark)

    def _decided(self, level: int, decisions: Sequence[Decision]) -> None:
        stage = self._context.levels[level].stage
        if level == self._last:
            self._supply.came(sum(len(decision.rows) for decision in decisions))
        for decision in decisions:
            count = len(decision.rows)
            if not count:
                continue
            if level == self._last:
                self._sequences += count
            base = mix(hash_group(decision.rows) ^ self._chain[level])
            size = stage.max_rows or count
            if size >= count:
                self._dispatch(level, decision, mix(base), sorted(int(n) for n in decision.sources))
                continue
            for start in range(0, count, size):
                part = replace(decision, rows=decision.rows.slice(start, size))
                self._dispatch(level, part, mix(base ^ start), used_sources(part.rows))

    def _dispatch(self, level: int, decision: Decision, base: int, numbers: Sequence[int]) -> None:
        """Have the rows of a decision built; `numbers` are the sources that they draw on."""
        rows, origin = decision.rows, Origin(base)
        if level == self._last:
            shown = shows_sources(rows)
            origin, rows = self._unbuilt(
                base, rows, (lambda gone: decision_counts(gone, decision.sources, INDEX)) if shown else None
            )
            numbers = used_sources(rows) if len(rows) < len(decision.rows) else numbers
        if len(rows):
            label = f"lane {self.number}, window {self._windows[level]}"
            sources, note = [decision.sources[n] for n in numbers], Note(numbers=tuple(numbers))
            held = 0 if self._context.levels[level].stage.trivial else weighed(decision, numbers)  # asked where there is a task
            self._push(level, rows, sources, held, note, origin, label)

    # --------------------------------------------------------------------------------------------------- ready

    def _keys(self, base: int, start: int, stop: int) -> U64:
        """What rows [start, stop) of a task's output add to the digest, at their place in the window."""
        return placed(base, start, stop, (self._out_window << 32) + self._position)

    def _unbuilt(
        self, base: int, rows: pa.RecordBatch, counts: Callable[[pa.RecordBatch], Both] | None
    ) -> tuple[Origin, pa.RecordBatch]:
        """A new task of the last level, and what of its rows must be built. Invariant 3: what an earlier run delivered is decided again,
        but not built again, where `counts` can tell what it was."""
        place, unbuilt, gave = self._replay.skip(len(rows) if counts else 0)
        if unbuilt and counts:
            gone, rows = counts(rows.slice(0, unbuilt)), rows.slice(unbuilt)
            self._context.ledger.replayed(gone)
            if (balance := self._balances[self._last]) is not None:
                balance.went(gone)
            self._past(base, 0, gave)
        return Origin(base, gave, place), rows

    def _past(self, base: int, start: int, count: int) -> None:
        """Rows of a task's output come by that an earlier run delivered."""
        keys = self._keys(base, start, start + count)
        self._position += count
        self._replay.past(keys)

    def _check_barren(self) -> None:
        """An endless lane whose records are all left out would look for a sequence for ever."""
        context = self._context
        self._barren = 0 if self._position else self._barren + context.window_chunks * context.plan.chunk_size
        if self._chunks is None and self._barren > 2 * context.plan.rows_per_pass(self.number):
            reasons = sorted({f"{operator}: {reason}" for operator, reason in context.ledger.losses.rows})
            raise DataError(
                f"the last {self._barren:,} records of lane {self.number}, two whole passes and more, gave no sequence "
                f"({'; '.join(reasons) or 'operators made no rows of them'})",
                hint="an operator leaves out everything: see pipeline.accounting()",
            )

    def _make_ready(self, group: pa.RecordBatch, base: int, offset: int) -> None:
        if self._replay.left:
            gone = min(self._replay.left, len(group))
            self._context.ledger.replayed(record_counts(group.slice(0, gone)))
            self._past(base, offset, gone)
            group, offset = group.slice(gone), offset + gone
        if not len(group):
            return
        keys = self._keys(base, offset, offset + len(group))
        self._context.ledger.ready(self.number, self._out_window, self._position, group)
        self._position += len(group)
        size, load = groups.nbytes(group), self._context.load
        if self._heavy:
            load.made = (3 * load.made + size) // 4 if load.made else size
        self._ready.append(Ready(group, size, [0, *np.cumsum(keys).tolist()], self._replay.odd))
        self.available += len(group)
        self._hold(size)
        load.ready += size

    def take(self, count: int) -> list[pa.RecordBatch]:
        """The next `count` sequences, fewer at the lane's end; `state` moves on by that."""
        taken: list[pa.RecordBatch] = []
        window, delivered = self.state.window, self.state.delivered
        digest, window_digest, odd = self.state.digest, self.state.window_digest, self.state.odd
        left = count
        while left and self._ready:
            head = self._ready[0]
            if isinstance(head, Mark):
                if head is Mark.END:
                    break
                self._ready.popleft()
                window, delivered, window_digest, odd = window + 1, 0, 0, None
                continue
            size = min(left, len(head.group) - head.at)
            stop = head.at + size
            taken.append(head.group.slice(head.at, size))
            gained = (head.prefix[stop] - head.prefix[head.at]) & _MASK
            digest, window_digest = (digest + gained) & _MASK, (window_digest + gained) & _MASK
            head.at, odd = stop, head.odd
            if stop == len(head.group):
                self._ready.popleft()
                self._hold(-head.nbytes)
                self._context.load.ready -= head.nbytes
            delivered += size
            left -= size
        self.available -= count - left
        # empty sequences after the end count in `total`, so that every lane's total says the step
        self.state = LaneState(window, delivered, self.state.total + count, digest, window_digest, self.state.empty + left, odd)
        return taken

    def drop_rest(self) -> pa.RecordBatch | None:
        """Give up the sequences that are ready (at the lane's end: too few for a step); what they were, for the ledger."""
        given_up = [r for r in self._ready if isinstance(r, Ready)]
        left = [r.group.slice(r.at) for r in given_up]
        gone = sum(r.nbytes for r in given_up)
        self._hold(-gone)
        self._context.load.ready -= gone
        self._ready = deque([Mark.END])
        self.available = 0
        return joined(left) if left else None

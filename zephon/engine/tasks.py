"""What a lane's queues hold, and what all lanes of a process hold together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from zephon.engine.stages import Report
from zephon.engine.state import Odd
from zephon.runners.base import Groups


class Mark(Enum):
    """What travels through the queues besides tasks."""

    FLUSH = "the window ends here"
    END = "the lane ends here"
    ERROR = "the lane can't go on from here"


class Origin(NamedTuple):
    """What the keys of a task's output rows follow from, and where they lie."""

    base: int
    """The digest key of the task's input; 0: it comes with the result."""
    skipped: int = 0
    """How many rows of the output aren't made, because an earlier run delivered them."""
    place: int = 0
    """Of a last stage: the task's number among all of its window, built or not."""


@dataclass
class Task:
    """A record group on its way through a stage."""

    origin: Origin
    nbytes: int
    future: Future[tuple[Groups, Report]] | None = None
    start: Callable[[], Future[tuple[Groups, Report]]] | None = None
    """Not started yet; see `Lane.start_waiting`."""
    here: Callable[[], tuple[Groups, Report]] | None = None
    """Done by the lane itself when its turn comes."""
    rows: int = 0
    """Of its input: of a last stage that keeps them, sequences."""
    number: int = -1
    """Its place among the tasks of its lane and stage."""

    @property
    def finished(self) -> bool:
        """Whether `result` is there, or a matter of moving memory."""
        return self.here is not None or (self.future is not None and self.future.done())

    def result(self) -> tuple[Groups, Report]:
        """What it made."""
        if self.here is not None:
            return self.here()
        assert self.future is not None
        return self.future.result()


class Queue(deque["Task | Mark"]):
    """The tasks of one lane and stage in the order in which they were given, whichever is finished first: the reorder buffer."""

    def __init__(self) -> None:
        super().__init__()
        self._given = self._taken = 0
        self.rows = 0
        """Of the tasks in it."""

    def put(self, task: Task) -> None:
        """At the end."""
        self.rows += task.rows
        task.number, self._given = self._given, self._given + 1
        self.append(task)

    def take(self) -> Task:
        """The first, which is a task."""
        task = self.popleft()
        assert isinstance(task, Task)
        assert task.number == self._taken, f"task {self._taken} is missing; {task.number} is here"
        self._taken += 1
        self.rows -= task.rows
        return task

    def clear(self) -> None:
        """Give up what is in it."""
        super().clear()
        self.rows = 0


@dataclass
class Ready:
    """Finished sequences of one window, from row `at` on."""

    group: pa.RecordBatch
    nbytes: int
    prefix: list[int]
    """prefix[i]: the digest of rows [0, i) of this group, modulo 2**64."""
    odd: Odd | None
    """See `LaneState`; up to the task that made this group."""
    at: int = 0


@dataclass
class Supply:
    """What a lane's chunks have given its last stage to build."""

    chunks: int = 0
    """Those that got so far."""
    rows: int = 0
    burst: int = 0
    """The most rows in one go."""

    def came(self, rows: int) -> None:
        """So many were decided, or read, in one go."""
        self.rows += rows
        self.burst = max(self.burst, rows)

    def lasts(self, waiting: int, coming: int, *, least: int, times: int) -> bool:
        """Whether what waits to be built, with what so many chunks that are on their way can be expected to give, is enough for a while:
        `least`, and half of what comes in one go when the lane goes on (a whole window, at a flush), so many `times`."""
        expected = coming * self.rows // self.chunks if self.chunks else 0
        return waiting + expected >= times * max(least, self.burst // 2)


@dataclass
class Load:
    """What all lanes of a process hold together."""

    nbytes: int = 0
    tasks: int = 0
    ready: int = 0
    """Bytes of finished sequences that wait to be delivered; part of `nbytes`."""
    room: int = 1 << 62
    """What `ready` and the results of running tasks may come to at most before more of the last stage is started."""
    budget: int = 1 << 62
    """What `nbytes` should stay below: what waits in buffers leaves less room, or lanes that refill theirs would starve beside
    finished sequences that nobody asks for yet."""
    at_once: int = 1 << 30
    """So many of its tasks run, or stand in the runner's queue: all workers have work, and lanes take turns."""
    running: int = 0
    waiting: int = 0
    """So many are not started yet."""
    made: int = 0
    """Bytes that its last tasks made, each."""

    def begin(self) -> None:
        """One that waited runs now."""
        self.waiting -= 1
        self.running += 1

    @property
    def stocked(self) -> bool:
        """Whether as many wait as can run at once."""
        return self.waiting >= self.at_once

    @property
    def coming(self) -> int:
        """Tasks that lead to decisions, not those that build what was decided."""
        return self.tasks - self.running - self.waiting

    @property
    def full(self) -> bool:
        """Whether the last stage has to wait."""
        if self.running >= self.at_once:
            return True
        # of all lanes but one the rest of the last task may be ready, so with less than twice what can run, workers would have to wait
        least = self.at_once * self.made
        left = max(self.budget - (self.nbytes - self.ready), 2 * least)
        return self.ready + self.running * self.made >= max(min(self.room, left), least)

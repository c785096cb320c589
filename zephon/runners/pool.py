"""What runners with a pool share: tasks, who may hand them in, and threads whose number may change."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import RLock, Thread, current_thread
from typing import Any, Generic, Protocol, TypeVar

from zephon.crews import listen
from zephon.errors import RunnerError, Where
from zephon.runners.base import Groups, StageSpec
from zephon.runners.worker import STOPS, cancel, fail, ours, succeed
from zephon.waiting import Promise

_PATIENCE_S = 5.0
"""How long `close` waits for running tasks. A thread can't be killed; one that takes longer is left behind and its result ignored."""


@dataclass(eq=False)
class Task:
    """One piece of work for a stage, and where its result goes."""

    stage: int
    groups: Groups
    note: Any
    label: str
    future: Future[tuple[Groups, Any]] = field(default_factory=Promise)


@dataclass(frozen=True, eq=False)
class _Help:
    """A part in somebody else's task, who does without it if need be."""

    give: Callable[[], None]


class Pool(ABC):
    """Workers from `start` to `close`. What another process's fork holds of it is dead."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._closing = False

    def refused(self, job: Job) -> bool:
        """Whether this pool takes no more tasks; then the future says why."""
        if self._owner != os.getpid():
            fail(job.future, RunnerError("the runner was started by another process", hint="start a new one after a fork"))
        elif self._closing:
            fail(job.future, RunnerError(f"the runner is closed, so it can't do {job.label!r}"))
        return job.future.done()

    @abstractmethod
    def add(self, task: Any) -> None:
        """Queue a task, or fail its future."""

    @abstractmethod
    def resize(self, workers: int) -> None:
        """Run so many tasks at once from now on; what runs is not interrupted."""

    @abstractmethod
    def close(self) -> None:
        """See `Runner`."""


class PooledRunner(ABC):
    """A runner that opens a pool at each `start`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: Pool | None = None
        self._finalizer: Any = None

    @abstractmethod
    def open(self, stages: Sequence[StageSpec]) -> Pool:
        """A pool for these stages."""

    def start(self, stages: Sequence[StageSpec]) -> None:
        """Open the pool. Raises `RunnerError` naming a stage that can't be sent to a worker."""
        self.close()
        self._pool = self.open(stages)
        # Collected, or the interpreter ends: both close. The pool's threads hold the pool, never the runner.
        self._finalizer = weakref.finalize(self, self._pool.close)

    def submit(self, stage: int, groups: Groups, note: Any, *, label: str) -> Future[tuple[Groups, Any]]:
        """Queue one task; after `close` its future fails with `RunnerError`."""
        task = Task(stage, groups, note, label)
        if self._pool is None:
            fail(task.future, RunnerError(f"the runner is not running, so it can't do {label!r}"))
        else:
            self._pool.add(task)
        return task.future

    def resize(self, workers: int) -> None:
        """See `Pool`."""
        self.workers = workers
        if self._pool is not None:
            self._pool.resize(workers)

    def close(self) -> None:
        """Cancel what waits, and end the workers."""
        if self._pool is not None:
            self._pool.close()
        if self._finalizer is not None:
            self._finalizer.detach()  # closed: it would only be where Python drops a Ctrl-C, as it does in every finalizer


class Job(Protocol):
    """What a pool is given."""

    future: Future[Any]

    @property
    def label(self) -> str:
        """What it is, for errors."""
        ...


J = TypeVar("J", bound=Job)


class ThreadPool(Pool, Generic[J]):
    """Threads of this process.

    Args:
        make: called once in each thread; gives the function that does a job there.
        workers: how many threads.
        name: of the threads, before their number.
    """

    def __init__(self, make: Callable[[], Callable[[J], Any]], workers: int, *, name: str) -> None:
        super().__init__()
        self._make = make
        self._name = name
        self._queue: SimpleQueue[J | _Help | None] = SimpleQueue()
        self._idle: set[Thread] = set()
        self._running: dict[Thread, J] = {}
        self._threads: list[Thread] = []
        self._wanted = 0
        self._made = 0
        self._guard = RLock()  # re-entrant: the collector may run `close` in a thread that holds it
        self.resize(workers)

    def resize(self, workers: int) -> None:
        """Start threads, or have some end once they have done what was queued before."""
        with self._guard:
            if self._closing:
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for _ in range(workers - self._wanted):
                # Daemons, because the interpreter joins other threads *before* it runs exit handlers: a main thread that just ends
                # would wait for them for ever. The exit handler (weakref.finalize) joins them while they can still finish.
                thread = Thread(target=self._work, name=f"{self._name}-{self._made}", daemon=True)
                self._made += 1
                self._threads.append(thread)
                thread.start()
            for _ in range(self._wanted - workers):
                self._queue.put(None)
            self._wanted = workers

    @property
    def threads(self) -> Sequence[Thread]:
        """Those that were started; some may have ended."""
        return self._threads

    def add(self, job: J) -> None:
        """Queue a job; its future fails when the pool is closed."""
        if self.refused(job):
            return
        self._queue.put(job)
        if self._closing:  # since just now: either this sees the job, or `close` does, or a worker
            self._empty_queue()

    def close(self) -> None:
        """Cancel pending jobs and wait for running ones, up to 5 seconds."""
        if self._owner != os.getpid():
            return  # a fork's copy: it has none of the threads
        with self._guard:
            self._closing = True
        self._empty_queue()
        end = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            if thread is not current_thread():  # the collector may run `close` in a worker
                thread.join(max(0.0, end - time.monotonic()))
        for thread, job in list(self._running.items()):
            if thread is not current_thread():
                fail(job.future, RunnerError(f"closing didn't wait any longer for {job.label!r} in {thread.name}"))

    def _empty_queue(self) -> None:
        """Cancel what waits, and tell every thread to stop (again, since this may have taken the earlier word)."""
        with contextlib.suppress(Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None and not isinstance(job, _Help):
                    cancel(job.future)
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        do = self._make()
        listen(self._offer)
        while (job := self._next()) is not None:
            if isinstance(job, _Help):
                job.give()
            elif self._closing:
                cancel(job.future)
            elif job.future.set_running_or_notify_cancel():
                self._running[current_thread()] = job
                _run(job, do)
                del self._running[current_thread()]
            del job  # or its groups would live on while this thread waits

    def _next(self) -> J | _Help | None:
        here = current_thread()
        self._idle.add(here)
        try:
            return self._queue.get()
        finally:
            self._idle.discard(here)

    def _offer(self, give: Callable[[], None]) -> None:
        """See `listen`. One who has just been given something may count as idle; then this comes too late for him, and does no harm."""
        if self._idle and self._queue.empty():
            self._queue.put(_Help(give))


def _run(job: J, do: Callable[[J], Any]) -> None:
    try:
        result = do(job)
    except STOPS as word:
        fail(job.future, word)
    except BaseException as error:
        fail(job.future, ours(error, Where()))
    else:
        succeed(job.future, result)

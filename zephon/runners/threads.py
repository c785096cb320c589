"""Tasks on threads of this process: for work that releases the GIL, such as decoding, tokenising and Arrow."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any

from zephon.errors import RunnerError, Where
from zephon.runners.base import Groups, StageSpec
from zephon.runners.worker import STOPS, BoundStages, cancel, fail, ours, succeed

_PATIENCE_S = 5.0
"""How long `close` waits for running tasks. A thread can't be killed; one that takes longer is left behind and its result ignored."""


@dataclass(eq=False)
class _Task:
    stage: int
    groups: Groups
    note: Any
    label: str
    future: Future[tuple[Groups, Any]] = field(default_factory=Future)


class Threads:
    """A pool of threads. Each binds a stage at its first task of it, since bound functions need not be thread-safe."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: _Pool | None = None

    def start(self, stages: Sequence[StageSpec]) -> None:
        """Start the threads."""
        self.close()
        self._pool = _Pool(stages, self.workers)
        # Collected, or the interpreter ends: both close. The threads hold the pool, never the runner.
        weakref.finalize(self, self._pool.close)

    def submit(self, stage: int, groups: Groups, note: Any, *, label: str) -> Future[tuple[Groups, Any]]:
        """Queue one task; after `close` its future fails with `RunnerError`."""
        task = _Task(stage, groups, note, label)
        if self._pool is None:
            fail(task.future, RunnerError(f"the runner is not running, so it can't do {label!r}"))
        else:
            self._pool.add(task)
        return task.future

    def close(self) -> None:
        """Cancel pending tasks and wait for running ones, up to 5 seconds."""
        if self._pool is not None:
            self._pool.close()


class _Pool:
    def __init__(self, stages: Sequence[StageSpec], workers: int) -> None:
        self._owner = os.getpid()
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._running: dict[Thread, _Task] = {}
        self._closing = False
        # Daemons, because the interpreter joins other threads *before* it runs exit handlers: a main thread that just ends
        # would wait for them for ever. The exit handler (weakref.finalize) joins them while they can still finish.
        self._threads = [
            Thread(target=self._work, args=(stages,), name=f"zephon-worker-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, task: _Task) -> None:
        if self._owner != os.getpid():
            fail(task.future, RunnerError("the runner was started by another process", hint="start a new one after a fork"))
            return
        if self._closing:
            fail(task.future, RunnerError(f"the runner is closed, so it can't do {task.label!r}"))
            return
        self._queue.put(task)
        if self._closing:  # since just now: either this sees the task, or `close` does, or a worker
            self._empty_queue()

    def close(self) -> None:
        if self._owner != os.getpid():
            return  # a fork's copy: it has none of the threads
        self._closing = True
        self._empty_queue()
        end = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            if thread is not current_thread():  # the collector may run `close` in a worker
                thread.join(max(0.0, end - time.monotonic()))
        for thread, task in list(self._running.items()):
            if thread is not current_thread():
                fail(task.future, RunnerError(f"closing didn't wait any longer for {task.label!r} in {thread.name}"))

    def _empty_queue(self) -> None:
        """Cancel what waits, and tell every thread to stop (again, since this may have taken the earlier word)."""
        with contextlib.suppress(Empty):
            while True:
                if (task := self._queue.get_nowait()) is not None:
                    cancel(task.future)
        for _ in self._threads:
            self._queue.put(None)

    def _work(self, stages: Sequence[StageSpec]) -> None:
        bound = BoundStages(stages)
        while (task := self._queue.get()) is not None:
            if self._closing:
                cancel(task.future)
            elif task.future.set_running_or_notify_cancel():
                self._running[current_thread()] = task
                _run(task, bound)
                del self._running[current_thread()]
            del task  # or its groups would live on while this thread waits


def _run(task: _Task, bound: BoundStages) -> None:
    try:
        result = bound.run(task.stage, task.groups, task.note)
    except STOPS as word:
        fail(task.future, word)
    except BaseException as error:
        fail(task.future, ours(error, Where()))
    else:
        succeed(task.future, result)

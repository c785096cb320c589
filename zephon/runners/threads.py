"""Tasks on threads of this process: for work that releases the GIL, such as decoding, tokenising and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zephon.runners.base import StageSpec
from zephon.runners.pool import PooledRunner, Task, ThreadPool
from zephon.runners.spreading import Spread
from zephon.runners.worker import BoundStages


class Threads(PooledRunner):
    """A pool of threads. Each binds a stage at its first task of it, since bound functions need not be thread-safe."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.leave_core = Spread(lambda: self._pool.threads if isinstance(self._pool, ThreadPool) else ())
        """To be called by a thread that is about to sleep, and leaves its core to the workers."""

    def open(self, stages: Sequence[StageSpec]) -> ThreadPool[Task]:
        """Start the threads."""

        def make() -> Callable[[Task], Any]:
            bound = BoundStages(stages)
            return lambda task: bound.run(task.stage, task.groups, task.note)

        return ThreadPool(make, self.workers, name="zephon-worker")

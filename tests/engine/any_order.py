"""A run whose tasks are finished one by one in an order that a seed gives, without a thread: every schedule can be tried, and played again.

Operators, lanes and pump are the real ones; so is the code by which the consumer turns the pump. What stands in is the machine: which
task takes how long, how far the pump gets while the training step runs, and when a worker dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any

from zephon.engine.run import Run
from zephon.engine.tasks import Mark, Task
from zephon.errors import RunnerError, Where, ZephonError
from zephon.runners.base import Groups, StageSpec
from zephon.runners.worker import BoundStages


class StandsStill(Exception):
    """The pump waits, and no task is left that could wake it: in a real run nothing would ever move again."""


class AnyOrder:
    """Runner, threads that read, and what the pump waits on: waiting finishes some task.

    Args:
        random: chooses.
        lives: after so many tasks the workers are dead; those that were not finished fail, as with a real runner.
    """

    def __init__(self, random: Random, stages: Sequence[StageSpec], lives: int | None = None) -> None:
        self.workers = random.randint(1, 3)
        self._random = random
        self._bound = BoundStages(stages)
        self._lives = lives
        self._open: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, stage: int, groups: Groups, note: Any, *, label: str) -> Future[Any]:
        del label
        return self._later(lambda: self._bound.run(stage, groups, note))

    def add(self, read: Any) -> None:
        """A chunk to read."""
        self._open.append((read.future, read))

    def _later(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._open.append((future, work))
        return future

    def finish(self, most: int) -> None:
        """Finish up to so many tasks, the oldest ones no sooner than others."""
        for _ in range(min(most, len(self._open))):
            future, work = self._open.pop(self._random.randrange(len(self._open)))
            if self._lives is not None:
                self._lives -= 1
            try:
                if self._lives is not None and self._lives < 0:
                    raise RunnerError("worker 0 died with signal 9")
                future.set_result(work())
            except ZephonError as error:
                future.set_exception(error)

    def wait(self, timeout: float) -> None:
        """What an event does for the pump: come back when something has happened."""
        del timeout
        if not self._open:
            raise StandsStill
        self.finish(self._random.randint(1, len(self._open)))

    def set(self) -> None:
        """There is nobody to wake."""

    def is_set(self) -> bool:
        return True

    def clear(self) -> None:
        """There is nothing to forget."""

    def close(self) -> None:
        """Nobody waits for these any more."""
        self._open.clear()


class AnyOrderRun(Run):
    """A run over `AnyOrder`; `random` and `lives` are set by a subclass."""

    random: Random
    lives: int | None = None

    def start(self) -> None:
        """Instead of runner, threads and the pump's thread."""
        random: Any = self.random
        order: Any = AnyOrder(random, [level.stage for level in self.definition.levels], self.lives)
        self._runner.close()
        self._runner = self._local = self.pump.wake = self._order = order
        self._set_tasks(random.randint(1, 8))
        self.meter.start()

    def _submit_fetch(self, chunk: Any) -> Any:
        if self.random.random() < 0.3:
            return super()._submit_fetch(chunk)
        return self._elsewhere(lambda: self._fetch(chunk), Where(lane=chunk.lane))

    def deliveries(self) -> Any:
        driver: Any = self._driver
        for made in super().deliveries():
            self._check_load()
            yield made
            # the training step: the pump's thread goes on meanwhile
            for _ in range(self.random.choice([0, 0, 1, 2, 5])):
                self._order.finish(self.random.randint(0, 3))
                driver._turn()

    def _check_load(self) -> None:
        """What all lanes hold together is what each of them holds, also after one of them failed."""
        load, lanes = self._load, self.pump.lanes
        assert load.tasks == sum(lane.outstanding for lane in lanes)
        assert load.nbytes == sum(lane.nbytes for lane in lanes)
        assert load.running == sum(lane._running for lane in lanes)
        assert load.waiting == sum(len(lane._waiting) for lane in lanes)
        for lane in lanes:
            queued = [task for queue in lane._queues for task in queue if isinstance(task, Task)]
            assert lane.outstanding == len(queued) + sum(not isinstance(item, Mark) for item in lane._fetching)
            assert lane.decided == sum(task.rows for task in lane._queues[-1] if isinstance(task, Task))

"""Tasks in the caller's thread: the reference that every other runner must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from zephon.errors import RunnerError
from zephon.runners.base import Groups, StageSpec
from zephon.runners.worker import BoundStages
from zephon.waiting import Promise


class Inline:
    """Runs a task when it is submitted. `workers` is accepted like everywhere and is always 1."""

    def __init__(self, workers: int = 1) -> None:
        del workers
        self.workers = 1
        self._bound: BoundStages | None = None

    def start(self, stages: Sequence[StageSpec]) -> None:
        """Remember the stages; each is bound at its first task."""
        self._bound = BoundStages(stages)

    def submit(self, stage: int, groups: Groups, note: Any, *, label: str) -> Future[tuple[Groups, Any]]:
        """A finished future. A Ctrl-C while the task runs is the caller's, so it is raised and not put into the future."""
        future: Future[tuple[Groups, Any]] = Promise()
        try:
            if self._bound is None:
                raise RunnerError(f"the runner is not running, so it can't do {label!r}")
            future.set_result(self._bound.run(stage, groups, note))
        except Exception as error:
            future.set_exception(error)
        return future

    def resize(self, workers: int) -> None:
        """There is one thread, the caller's."""

    def close(self) -> None:
        """Forget the stages."""
        self._bound = None

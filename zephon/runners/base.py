"""What the engine asks of a runner: bind stages once per worker, run tasks, close."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import pyarrow as pa

Groups = Sequence[pa.RecordBatch]
Work = Callable[[Groups, Any], tuple[Groups, Any]]
"""What a worker does with a task: `(groups, note) -> (groups, note)`. Notes are small plain picklable values."""


class StageSpec(Protocol):
    """The definition of a stage: picklable (cloudpickle), bound once in each worker."""

    @property
    def name(self) -> str:
        """The operators' names, joined; it appears in errors about a worker."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of the settings. A worker computes it again from what it received; a difference is an error
        (a wrapper that loses a field in pickling must not lose it silently)."""
        ...

    def bind(self) -> Work:
        """Make the heavy things (tokenizer, decoder) and return the function that does the work."""
        ...


class Runner(Protocol):
    """Executes tasks. `submit` may be called from one thread (the pump) only; `close` from any, any number of times."""

    workers: int
    """How many tasks can run at once."""

    def start(self, stages: Sequence[StageSpec]) -> None:
        """Get ready to run tasks of these stages. Raises `RunnerError` naming a stage that can't be sent to a worker."""
        ...

    def submit(self, stage: int, groups: Groups, note: Any, *, label: str) -> Future[tuple[Groups, Any]]:
        """Run one task of stage number `stage`; `label` says what it is ("dataset 'wiki', rows 0-99"), for errors.

        The future's exception, if any, is a `ZephonError` (foreign ones are wrapped where they are raised), or the
        KeyboardInterrupt or SystemExit of user code.
        """
        ...

    def resize(self, workers: int) -> None:
        """Run so many tasks at once from now on. What runs is not interrupted, and no byte changes."""
        ...

    def close(self) -> None:
        """Stop now: pending tasks are cancelled, no thread, process or shared memory is left. Idempotent."""
        ...

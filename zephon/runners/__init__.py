"""Runners by name. They only execute tasks: which one does changes no byte of any stream."""

from __future__ import annotations

import importlib

from zephon.errors import RecipeError, unknown
from zephon.runners.base import Runner

_HOME = {
    "inline": ("zephon.runners.inline", "Inline"),
    "process": ("zephon.runners.processes", "Processes"),
    "processes": ("zephon.runners.processes", "Processes"),
    "threads": ("zephon.runners.threads", "Threads"),
}


def make_runner(name: str, *, workers: int) -> Runner:
    """The runner called `name`, not started: no thread and no process exists before its `start`.

    Raises:
        RecipeError: there is no runner of this name, or `workers` isn't a positive integer.
    """
    if name not in _HOME:
        raise RecipeError(unknown("runner", name, _HOME))
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise RecipeError(
            f"workers is {workers!r}; a runner needs at least 1", hint="give the number of tasks that may run at once"
        )
    module, kind = _HOME[name]
    runner: Runner = getattr(importlib.import_module(module), kind)(workers)
    return runner

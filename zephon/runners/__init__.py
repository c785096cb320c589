"""Runners by name. They only execute tasks: which one does changes no byte of any stream."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from zephon.errors import RecipeError, unknown
from zephon.runners.base import Runner

_HOME = {
    "inline": ("zephon.runners.inline", "Inline"),
    "process": ("zephon.runners.processes", "Processes"),
    "processes": ("zephon.runners.processes", "Processes"),
    "ray": ("zephon.runners.ray", "Ray"),
    "threads": ("zephon.runners.threads", "Threads"),
}

BIND_HERE = ("inline", "threads")
"""Runners that bind stages in this process."""


def make_runner(name: str, *, workers: int | None, resources: Mapping[str, Mapping[str, Any]] | None = None) -> Runner:
    """The runner called `name`, not started: no thread and no process exists before its `start`.

    `workers` may be None for "ray" (the cluster's cores), which alone looks at `resources` (by operator).

    Raises:
        RecipeError: there is no runner of this name, it isn't installed, or `workers` isn't a positive integer.
    """
    if name not in _HOME:
        raise RecipeError(unknown("runner", name, _HOME))
    given = workers if name != "ray" or workers is not None else 1
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise RecipeError(
            f"workers is {workers!r}; a runner needs at least 1", hint="give the number of tasks that may run at once"
        )
    if name == "ray":
        return _make_ray(workers, resources or {})
    module, kind = _HOME[name]
    runner: Runner = getattr(importlib.import_module(module), kind)(workers)
    return runner


def _make_ray(workers: int | None, resources: Mapping[str, Mapping[str, Any]]) -> Runner:
    try:
        module = importlib.import_module(_HOME["ray"][0])
    except ModuleNotFoundError as error:
        raise RecipeError(f"runner='ray' needs a package: {error}", hint="pip install 'zephon[ray]'") from error
    runner: Runner = module.Ray(workers, resources)
    return runner

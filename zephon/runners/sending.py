"""Pickling of stages, and which part of one can't be pickled."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from zephon.errors import RunnerError
from zephon.runners.base import StageSpec

_DEEP = 20


def pickled_stage(stage: StageSpec) -> bytes:
    """The stage pickled: what is defined in the main module, lambdas and closures by value, the rest by reference.

    Raises:
        RunnerError: it can't be pickled; the message names the stage and the smallest part at fault.
    """
    try:
        return bytes(cloudpickle.dumps(stage))
    except Exception as error:
        path, part, reason = _culprit(stage, "", error)
        raise RunnerError(
            f"stage {stage.name!r} can't be sent to a worker process: {path.lstrip('.') or 'it'} is a {type(part).__name__}: {reason}",
            hint="make it in the worker, in the operator's `bind`; or use runner='threads'",
        ) from error


def _culprit(value: Any, path: str, error: Exception, depth: int = 0) -> tuple[str, Any, Exception]:
    if depth < _DEEP:
        for step, child in _parts(value):
            try:
                cloudpickle.dumps(child)
            except Exception as why:
                return _culprit(child, path + step, why, depth + 1)
    return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object consists of, with how it is reached."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif inspect.ismethod(value):
        yield ".__self__", value.__self__
    elif inspect.isfunction(value):
        yield from _variables(value)
    else:
        yield from ((f".{name}", child) for name, child in getattr(value, "__dict__", {}).items())


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f".__defaults__[{index}]", child) for index, child in enumerate(function.__defaults__ or ()))
    try:
        names = inspect.getclosurevars(function)
    except (TypeError, ValueError):  # a closure over a name that has no value yet
        return
    yield from ((f"'s variable {name!r}", child) for name, child in names.nonlocals.items())
    yield from ((f"'s global {name!r}", child) for name, child in names.globals.items())

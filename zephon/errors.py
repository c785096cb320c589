"""What can go wrong, and where.

* ZephonError
  x RecipeError      wrong whatever the records are: settings, schemas, composition
  x PluginError      a reader or operator is unknown, broken or claimed twice
  x DataError        a record, file or operator failed; `.where` says which
    . LimitError     too much of the data can't be used
  x CheckpointError  a state does not fit this recipe
  x RunnerError      a worker died, hung or ran out of something
  x InternalError    a bug of ours: please report
"""

from __future__ import annotations

import difflib
import errno
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

_UNSAID = "str() failed>"
"""What `traceback` puts in the place of an exception's text when making it raised anything at all."""
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_SCARCE_HINT = "the process ran out of memory or of open files (`ulimit -n`); no record is at fault, so none is left out for it"


@dataclass(frozen=True, kw_only=True)
class Where:
    """A place in the data or in the recipe; unknown parts are None."""

    dataset: str | None = None
    shard: str | int | None = None
    """Its path; in a worker, which doesn't know paths, its number, until the engine looks it up."""
    row: int | None = None
    rows: str | None = None
    operator: str | None = None
    lane: int | None = None
    worker: str | None = None
    component: int | None = None
    """The data set's number, where only that is known; the engine turns it into its name."""

    def within(self, outer: Where) -> Where:
        """Fill what this place does not know from `outer`; the inner place wins."""
        missing = {f.name: getattr(outer, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)

    def __str__(self) -> str:
        known = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not None]
        return ", ".join(f"{name} {value!r}" for name, value in known)


class ZephonError(Exception):
    """The root of all errors that Zephon raises on purpose.

    Attributes:
        message: what happened, without the place.
        where: the place, as far as it is known.
        hint: what to do about it, or None.
        trace: the traceback of the original exception as text, since `__cause__` is lost between processes.
    """

    def __init__(self, message: str, *, where: Where | None = None, hint: str | None = None, trace: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where or Where()
        self.hint = hint
        self.trace = trace

    def __str__(self) -> str:
        place = str(self.where)
        text = f"{self.message} [{place}]" if place else self.message
        return f"{text}\n  → {self.hint}" if self.hint else text

    def again(self) -> ZephonError:
        """A copy, to which other places may be added."""
        return _rebuild(type(self), self.message, self.where, self.hint, self.trace)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.where, self.hint, self.trace)


def _rebuild(kind: type[ZephonError], message: str, where: Where, hint: str | None, trace: str) -> ZephonError:
    made = kind.__new__(kind)  # a subclass of a user's may take other arguments
    ZephonError.__init__(made, message, where=where, hint=hint, trace=trace)
    return made


class RecipeError(ZephonError, ValueError):
    """Something in the recipe is wrong; raised before the run starts, or at the first records of a type that is only known then."""


class PluginError(ZephonError):
    """A reader or operator is unknown, broken, or claimed by two packages."""


class DataError(ZephonError):
    """A record, a file or an operator failed."""


class LimitError(DataError):
    """Too much of the data can't be used. No policy leaves records out for it: which ones would depend on the workers."""


class CheckpointError(ZephonError, ValueError):
    """A state does not fit this recipe, or is not a state at all."""


class LaneCountError(CheckpointError, RuntimeError):
    """A state was saved with another number of lanes."""


class RunnerError(ZephonError, RuntimeError):
    """A worker died, hung, or ran out of something."""


class InternalError(ZephonError):
    """A bug of ours."""


@contextmanager
def at(**place: Any) -> Iterator[None]:
    """Add this place to whatever is raised in the block; foreign exceptions become `DataError`, and a lack of memory or open files, which
    is of the machine and not of the data, becomes `RunnerError`.

    Enter it once per record group, never per record.
    """
    try:
        yield
    except ZephonError as error:
        error.where = error.where.within(Where(**place))
        if isinstance(error, DataError) and is_scarcity(error.__cause__):
            raise RunnerError(error.message, where=error.where, hint=_SCARCE_HINT, trace=error.trace) from error
        raise
    except Exception as error:
        raise wrap(error, Where(**place)) from error


@contextmanager
def writing(
    place: str, kind: type[ZephonError], hint: str = "name a place that exists, has room, and can be written to"
) -> Iterator[None]:
    """Where the system refuses what the block writes to a place that the user named, raise `kind`, with the place in the user's words."""
    try:
        yield
    except BrokenPipeError:  # whoever read the output has gone: nothing is wrong with the place
        raise
    except OSError as error:
        raise kind(f"{place} can't be written: {error.strerror or error}", hint=hint) from error


def wrap(error: BaseException, where: Where) -> ZephonError:
    """The foreign exception `error` as one of ours, with its traceback as text."""
    if isinstance(error, ZephonError):
        error.where = error.where.within(where)
        return error
    text, trace = f"{type(error).__name__}: {error}", trace_of(error)
    if is_scarcity(error) or isinstance(error, MemoryError):
        return RunnerError(text, where=where, hint=_SCARCE_HINT, trace=trace)
    return DataError(text, where=where, trace=trace)


def is_scarcity(error: BaseException | None) -> bool:
    """Whether the system said, here or in a cause of it, that there is no memory or open file left. Not of a `MemoryError`: a damaged
    file may ask for any size, which is its own fault; readers say so."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, OSError) and error.errno in _SCARCE:
            return True
        seen.append(error)
        error = error.__cause__
    return False


def trace_of(error: BaseException) -> str:
    """Its traceback as text.

    Raises:
        KeyboardInterrupt: a Ctrl-C came while the text of an exception was made, where `traceback` takes it for a failure of that.
    """
    trace = "".join(traceback.format_exception(error))
    if _UNSAID in trace:
        again = "".join(traceback.format_exception(error))
        if again.count(_UNSAID) < trace.count(_UNSAID):  # it can be made, after all
            raise KeyboardInterrupt
    return trace


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for an unknown name, with the nearest known one: `unknown option 'lane'; did you mean 'lanes'?`"""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    tail = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}; {tail}"

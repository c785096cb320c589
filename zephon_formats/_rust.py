"""What libraries written in Rust raise, as errors of ours: their panics are no `Exception`, and their texts end in a backtrace."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from zephon.plugin import DataError, errors

_NOISE = re.compile(r"\s*(stack )?backtrace:.*|, [^\s,]*\.rs:\d+:\d+", re.DOTALL | re.IGNORECASE)
"""A backtrace, and places in the library's source."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TEXT = 600


@contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """What is raised in the block becomes a `DataError` whose message begins with `what`; our own errors pass as they are.

    `pyo3_runtime.PanicException` derives from `BaseException`, so that `except Exception` doesn't see a panic.
    """
    try:
        yield
    except errors.ZephonError:
        raise
    except MemoryError:
        raise
    except BaseException as error:  # a panic is nothing less
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {said(error)}", trace=errors.trace_of(error)) from error


@contextmanager
def system_errors() -> Iterator[None]:
    """What the system refused, a full disk say, and the library tells in words, becomes the `OSError` that it was."""
    try:
        yield
    except Exception as error:
        found = _OS_ERROR.search(str(error))
        if found is None or isinstance(error, OSError):
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def said(error: BaseException) -> str:
    """The message of an error without its backtrace."""
    text = _NOISE.sub("", str(error)).strip() or type(error).__name__
    return text if len(text) <= _TEXT else text[:_TEXT] + "…"

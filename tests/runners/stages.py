"""Stages for the tests of runners; a module of its own, since workers import it by name."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from zephon.errors import DataError, Where


@dataclass(frozen=True)
class Stage:
    """A stage of one function, `(groups, note) -> (groups, note)`."""

    name: str
    work: Callable[..., Any]
    make: Callable[[], Any] | None = None
    fingerprint: str = "f"

    def bind(self) -> Callable[..., Any]:
        return self.work if self.make is None else functools.partial(self.work, self.make())


def echo(groups: Any, note: Any) -> Any:
    return groups, note


def reverse(groups: Any, note: Any) -> Any:
    """Rows in reverse: the result is made in the worker."""
    return [
        pa.concat_batches([g.slice(i, 1) for i in range(min(len(g), 50))[::-1]]) if len(g) else g for g in groups[::-1]
    ], note


def nap(groups: Any, note: float) -> Any:
    time.sleep(note)
    return groups, note


def whoami(_groups: Any, note: Any) -> Any:
    return [], (os.getpid(), os.environ.get("OMP_NUM_THREADS"), os.environ.get("TOKENIZERS_PARALLELISM"), pa.cpu_count(), note)


class Token:
    """Made by a bind; `number` tells one from another."""

    def __init__(self) -> None:
        self.number = f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"


def which_bind(token: Token, _groups: Any, _note: Any) -> Any:
    return [], token.number


def break_bind() -> Any:
    raise FileNotFoundError("vocab.json")


class LockedError(Exception):
    """An exception that can't be pickled."""

    def __init__(self, *, item: int) -> None:
        super().__init__(f"item {item} is bad")
        self.client = threading.Lock()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def raise_it(_groups: Any, note: Any) -> Any:
    if note == "locked":
        raise LockedError(item=3)
    if note == "unprintable":
        raise UnprintableError
    if note == "exit":
        raise SystemExit(3)
    if note == "interrupt":
        raise KeyboardInterrupt
    if note == "placed":
        raise DataError("bad row", where=Where(dataset="wiki", row=7), hint="fix it")
    raise KeyError(note)


def unpicklable_note(groups: Any, _note: Any) -> Any:
    return groups, threading.Lock()


def die(_groups: Any, note: Any) -> Any:
    if note == "exit":
        os._exit(7)
    if note != "live":
        os.kill(os.getpid(), getattr(signal, note))
    return [], note


def leave_a_child(_groups: Any, note: str) -> Any:
    """Dies, and leaves a child that holds the worker's socket."""
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    Path(note).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Forgetful:
    """Loses a field in pickling, as a careless wrapper does."""

    name: str = "forgetful"
    field: str | None = "kept"

    @property
    def fingerprint(self) -> str:
        return str(self.field)

    def bind(self) -> Any:
        return echo

    def __reduce__(self) -> Any:
        return Forgetful, (self.name, None)

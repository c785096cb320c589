"""A tokenizer that loads in the background: who waits for it never waits for a thread that is no more."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from zephon.keys import I64
from zephon.operators.token_backends.ahead import Ahead
from zephon.operators.token_backends.base import I32, FlatEncoder, Ready, flat


class Lengths:
    """The ids are the texts' lengths."""

    name = "lengths"

    def __init__(self, fails_with: BaseException | None = None) -> None:
        self._fails_with = fails_with

    def unsure(self, ready: Ready) -> Sequence[str]:
        return ()

    def version(self) -> str:
        return "1"

    def load(self, ready: Ready) -> FlatEncoder:
        return self.begin(ready)()

    def begin(self, ready: Ready) -> Callable[[], FlatEncoder]:
        def load() -> FlatEncoder:
            if self._fails_with is not None:
                raise self._fails_with
            return self

        return load

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        return flat([(np.array([len(text)], dtype=np.int32), np.ones(1, dtype=np.int64)) for text in texts])


READY = Ready("{}", None, allow_special=True)


def in_time(ask: Callable[[], Any]) -> Any:
    """What it gives; it must come back."""
    given: list[Any] = []

    def run() -> None:
        try:
            given.append(ask())
        except BaseException as error:
            given.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert given, "it waits for ever"
    return given[0]


@pytest.mark.parametrize("error", [MemoryError("none left"), KeyboardInterrupt(), ValueError("bad")])
def test_what_loading_raises_reaches_whoever_asks(error: BaseException) -> None:
    lengths = Lengths(error)
    ahead = in_time(lambda: Ahead(lambda: READY, lambda ready: lengths))
    assert in_time(lambda: ahead.load(lengths, READY)) is error


def test_a_thread_that_dies_before_it_loads_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(frame: Any, event: str, what: Any) -> None:
        if event == "call" and frame.f_code.co_name == "_run":
            sys.setprofile(None)
            raise MemoryError

    died: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(args.exc_type))
    lengths = Lengths()

    def begin() -> Ahead:
        threading.setprofile(no_memory)
        try:
            return Ahead(lambda: READY, lambda ready: lengths)
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    ahead = in_time(begin)
    assert died == [MemoryError]
    assert in_time(lambda: ahead.load(lengths, READY)) is lengths

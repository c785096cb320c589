"""A Ctrl-C ends an iteration with `KeyboardInterrupt`, wherever in the consumer's thread it comes, and leaves no thread behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from signal import SIGINT, raise_signal

import pytest
from interrupts import interrupted_at

from zephon.engine.keep import Line
from zephon.errors import Where, wrap
from zephon.storage.prefetch import Prefetcher
from zephon.waiting import Promise

SCRIPT = """
import json, signal, sys, threading
sys.path.insert(0, {tests!r})
from strategies import MIXED

FILES = ("/threading.py", "/concurrent/futures/_base.py", "/zephon/engine/drivers.py", "/zephon/waiting.py", "/zephon/runners/pool.py")
seen, wanted, came = {{}}, None, 0

def look(frame, event, what):
    # Python looks for signals where a function of its own begins, and where one of C's has returned
    global came
    if event in ("call", "c_return") and frame.f_code.co_filename.endswith(FILES):
        back = frame.f_back
        place = frame.f_code.co_filename, frame.f_lineno, event, back.f_lineno, back.f_back and back.f_back.f_lineno
        seen[place] = None
        if place == wanted:
            came += 1
            if came == 1:
                signal.raise_signal(signal.SIGINT)

def iterate():
    batches = 0
    try:
        sys.setprofile(look)
        for _ in MIXED.pipeline(runner="threads", workers=2, max_steps=3):
            batches += 1
        return "the end", batches
    except BaseException as error:
        return type(error).__name__, batches
    finally:
        sys.setprofile(None)

_, every = iterate()
places, wrong, interrupted = list(seen)[::2], [], 0
for wanted in places:
    before, came = set(threading.enumerate()), 0
    how, batches = iterate()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    interrupted += how == "KeyboardInterrupt"
    # `Thread.start` of the standard library has an event of its own, which complains that it is unlocked
    ended = how == "KeyboardInterrupt" or (how == "RuntimeError" and not batches) or not came
    # what was being started, or closed, may be left
    if not ended or (0 < batches < every and left):
        wrong.append([wanted, how, batches, left])
print(json.dumps([interrupted, wrong]))
"""


def test_at_any_place_that_takes_a_lock() -> None:
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    interrupted, wrong = json.loads(done.stdout)
    assert wrong == []
    assert interrupted > 50


def leave_a_line() -> tuple[Callable[[], None], Callable[[], None]]:
    line = Line()
    return lambda: line.leave(line.place()), lambda: line.leave(0)


def fetch_ahead() -> tuple[Callable[[], None], Callable[[], None]]:
    gate = threading.Event()
    ahead = Prefetcher(lambda path, stopped: gate.wait(20), 1)
    ahead.add(["a"])  # its thread is there: none is started while a Ctrl-C comes

    def by_another() -> None:
        gate.set()
        ahead.add(["c"])

    return lambda: ahead.add(["b"]), by_another


def wait_in_a_line() -> tuple[Callable[[], None], Callable[[], None]]:
    line = Line()
    line.patience_s = 0.001
    line.place()
    place = line.place()
    return lambda: line.wait(place), lambda: line.leave(0)


def cancel_what_is_fetched() -> tuple[Callable[[], None], Callable[[], None]]:
    gate = threading.Event()
    ahead = Prefetcher(lambda path, stopped: gate.wait(20), 1)
    ahead.add(["a"])

    def by_another() -> None:
        ahead.cancel(0.001)
        gate.set()
        ahead.cancel(20)

    return lambda: ahead.cancel(0.001), by_another


def wait_for_a_promise() -> tuple[Callable[[], None], Callable[[], None]]:
    promise: Promise[int] = Promise()

    def wait() -> None:
        with suppress(TimeoutError):
            promise.result(0.001)

    return wait, lambda: promise.set_result(1)


@pytest.mark.parametrize("make", [leave_a_line, fetch_ahead, wait_in_a_line, cancel_what_is_fetched, wait_for_a_promise])
def test_what_other_threads_wait_on_is_not_left_taken(
    make: Callable[[], tuple[Callable[[], None], Callable[[], None]]],
) -> None:
    for number in count():
        use, by_another = make()
        came = interrupted_at(number, use)
        other = threading.Thread(target=by_another, daemon=True)
        other.start()
        other.join(20)
        assert not other.is_alive(), f"interrupted at place {number}, it was left taken"
        if not came:
            break
    assert number > 5


def test_while_the_text_of_an_error_is_made() -> None:
    class Interrupted(ValueError):
        texts = 0

        def __str__(self) -> str:
            self.texts += 1
            if self.texts == 2:  # the first is for the message, this one for the traceback
                raise_signal(SIGINT)
            return "a bad row"

    with pytest.raises(KeyboardInterrupt):
        wrap(Interrupted(), Where())

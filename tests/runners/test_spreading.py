"""Threads that share a core while another one has nothing to do are moved apart, and may run where they might before."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zephon.runners import spreading
from zephon.runners.spreading import Spread

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)


@contextmanager
def busy(count: int) -> Iterator[list[threading.Thread]]:
    """Threads that work without the interpreter lock."""
    over, data = threading.Event(), bytes(1 << 20)

    def work() -> None:
        while not over.is_set():
            hashlib.sha256(data).digest()

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_of_two_threads_on_one_core_one_is_moved_and_neither_is_bound() -> None:
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    with busy(2) as threads:
        tids = [thread.native_id or 0 for thread in threads]
        end = time.monotonic() + 20
        moved = False
        while not moved and time.monotonic() < end:
            for tid in tids:
                os.sched_setaffinity(tid, {one})
            os.sched_setaffinity(0, allowed - {one})  # the caller is elsewhere
            for tid in tids:
                os.sched_setaffinity(tid, allowed)
            moved = Spread(lambda: threads)()  # unless the system was quicker
            os.sched_setaffinity(0, allowed)
        assert moved
        assert [os.sched_getaffinity(tid) for tid in tids] == [allowed, allowed]


def test_a_thread_that_is_bound_stays_where_it_is() -> None:
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    with busy(2) as threads:
        tids = [thread.native_id or 0 for thread in threads]
        for tid in tids:
            os.sched_setaffinity(tid, one)
        os.sched_setaffinity(0, allowed - one)
        try:
            assert not any(Spread(lambda: threads)() for _ in range(20))
        finally:
            os.sched_setaffinity(0, allowed)
        assert [os.sched_getaffinity(tid) for tid in tids] == [one, one]


def test_it_does_nothing_where_the_system_refuses_and_does_not_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(threads: object) -> bool:
        asked.append(threads)
        raise PermissionError

    monkeypatch.setattr(spreading, "_spread", refuse)
    monkeypatch.setattr(spreading, "_EVERY_S", 0.0)
    with busy(2) as threads:
        spread = Spread(lambda: threads)
        assert not spread()
        assert not spread()
    assert len(asked) == 1

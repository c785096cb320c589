"""Threads that share a core while another one has nothing to do.

Where there are as many workers as cores and a consumer beside them, a worker often wakes (from its wait for the interpreter lock) while the
consumer runs on the core that it had, and then queues up behind another worker. Once the consumer sleeps its core is idle, and Linux (6.18
here) took 4 to 12 ms to move one of the two there, in half of all waits. So who goes to sleep looks first, and has one of them moved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Thread, get_native_id

_EVERY_S = 0.004
"""So often at most: sharing a core for less doesn't matter."""
_MOST = 8
"""Of more threads looking takes longer than it is worth."""


class Spread:
    """Called by a thread that is about to sleep: if two of `threads` run on one core, one of them gets the caller's.

    What threads may run on (their affinity) stays as it is. Elsewhere than on Linux, and where the system refuses, it does nothing.
    """

    def __init__(self, threads: Callable[[], Sequence[Thread]]) -> None:
        self._threads = threads
        self._looked = 0.0
        self._works = hasattr(os, "sched_setaffinity") and os.path.exists("/proc/self/task")

    def __call__(self) -> bool:
        """Whether one was moved."""
        now = time.monotonic()
        if not self._works or now - self._looked < _EVERY_S:
            return False
        self._looked = now
        threads = [thread.native_id for thread in self._threads() if thread.native_id is not None and thread.is_alive()]
        if not 2 <= len(threads) <= _MOST:
            return False
        try:
            return _spread(threads)
        except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
            return False
        except OSError:
            self._works = False
            return False


def _spread(threads: Sequence[int]) -> bool:
    at = [(thread, core) for thread in threads for runs, core in [_place(thread)] if runs]
    cores = [core for _, core in at]
    crowded = next((thread for n, (thread, core) in enumerate(at) if core in cores[:n]), None)
    if crowded is None:
        return False
    _, mine = _place(get_native_id())
    allowed = os.sched_getaffinity(crowded)
    if mine in cores or mine not in allowed:
        return False
    try:
        os.sched_setaffinity(crowded, {mine})
    finally:  # a Ctrl-C in between would leave it bound
        os.sched_setaffinity(crowded, allowed)
    return True


def _place(thread: int) -> tuple[bool, int]:
    """Whether a thread of this process runs, or could, and the core that it was on last."""
    with open(f"/proc/self/task/{thread}/stat", "rb") as file:
        text = file.read()
    fields = text[text.rindex(b")") + 2 :].split()  # the name before may hold anything
    return fields[0] == b"R", int(fields[36])

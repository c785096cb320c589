"""How long a thread may keep the interpreter lock while others wait for it, shortened as long as runs need it."""

from __future__ import annotations

import sys
from threading import RLock


class Turns:
    """Shorter turns at the interpreter lock, from `shorten` to `close`; of several at once the shortest counts.

    A task on a thread lets go of the lock for its work and must have it back many times, for microseconds each. Python lets whoever has it
    keep it for 5 ms meanwhile (`sys.getswitchinterval`): the consumer's and the pump's Python then holds up every worker, and theirs the
    training step. The interval is the whole process's; a program that wants another one sets it while a run iterates, and keeps it.

    Args:
        seconds: of a turn at most; None leaves the interval alone.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds if _has_lock() else None
        self._interval = _INTERVAL

    def shorten(self) -> None:
        """Begin. Idempotent."""
        if self._seconds is not None:
            self._interval.hold(self, self._seconds)

    def close(self) -> None:
        """Put back what was there before, with the last one. Idempotent."""
        self._interval.release(self)


class _Interval:
    """The process's switch interval, and who holds it short."""

    def __init__(self) -> None:
        self._guard = RLock()  # re-entrant: the collector may close a run in a thread that holds it
        self._held: dict[Turns, float] = {}
        # a run that is left open is closed when the interpreter ends, and modules have lost their names
        self._get, self._put = sys.getswitchinterval, sys.setswitchinterval
        self._before = self._ours = self._get()

    def hold(self, who: Turns, seconds: float) -> None:
        with self._guard:
            if not self._held:
                self._before = self._ours = self._get()
            self._held[who] = seconds
            self._set()

    def release(self, who: Turns) -> None:
        with self._guard:
            if self._held.pop(who, None) is not None:
                self._set()

    def _set(self) -> None:
        if self._get() != self._ours:
            return  # the program chose another one since: that stays
        self._put(min([self._before, *self._held.values()]))
        self._ours = self._get()  # it is rounded to microseconds


_INTERVAL = _Interval()
"""One, since the interpreter has one."""


def _has_lock() -> bool:
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is None or bool(enabled())

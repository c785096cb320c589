"""What threads wait on, whole at whatever moment a Ctrl-C comes.

Python runs the handler of a signal in the main thread, between two of its instructions: also just after `threading.Condition.__enter__`,
which is written in Python, has taken the lock, and before the `with` around it knows. Then nobody ever gives the lock back, and every
thread that comes to it stands still, closing included. Events and futures have such a condition inside. A lock's own `acquire`,
`release` and `with` are single instructions.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


class Bell:
    """An event that one thread at a time waits for; hearing it clears it."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def set(self) -> None:
        """Any thread may, also when it is set already."""
        try:  # noqa: SIM105 - a line of Python, as `suppress` is, lets a Ctrl-C come in between
            self._silent.release()
        except RuntimeError:  # it is set
            pass

    def clear(self) -> None:
        """Forget what was heard of before."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        """Wait so many seconds at most; whether it was set."""
        return self._silent.acquire(timeout=timeout)


class Flag:
    """An event that nobody waits for, which needs no lock: it is looked at now and then."""

    def __init__(self) -> None:
        self._up = False

    def set(self) -> None:
        """Any thread may."""
        self._up = True

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._up


class Guard(threading.Condition):
    """A condition whose `with` finds the lock's own methods, without a line of Python in between. Its lock is taken once at a time."""

    def __init__(self) -> None:
        super().__init__()
        lock: Any = self._lock  # type: ignore[attr-defined]
        self.enter, self.exit = lock.__enter__, lock.__exit__

    __enter__: Any = property(attrgetter("enter"))
    __exit__: Any = property(attrgetter("exit"))

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until there is a notice, or for so many seconds; whether there was one. The lock is taken again whatever
        comes, for the `with` around would tell that it isn't, in place of the Ctrl-C: what `threading` has can leave without it."""
        lock: Any = self._lock  # type: ignore[attr-defined]
        waiters: Any = self._waiters  # type: ignore[attr-defined]
        notice = threading.Lock()
        notice.acquire()
        waiters.append(notice)
        try:
            lock.release()
            return notice.acquire() if timeout is None else notice.acquire(timeout=max(timeout, 0))
        finally:
            try:
                lock.acquire()
            except BaseException:
                if not self._is_owned():  # type: ignore[attr-defined]
                    lock.acquire()
                raise
            finally:
                if notice in waiters:
                    waiters.remove(notice)


class Promise(Future[T]):
    """A future that can't stay locked."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Guard()

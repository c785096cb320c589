"""A byte-bounded cache of things that several lanes need and one thread should make."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from zephon.crews import Crew
from zephon.waiting import Guard, Promise

T = TypeVar("T")
U = TypeVar("U")


class Line:
    """Threads pass in the order in which their places were given out, however they are woken: what was asked for first is begun first.

    The order is a wish: one whose turn doesn't come for `patience_s` passes all the same.
    """

    patience_s = 0.25

    def __init__(self) -> None:
        self._given = 0
        self._passed: set[int] = set()
        self._front = 0
        self._moved = Guard()

    def place(self) -> int:
        """The next one. Who takes it calls `leave`, whatever becomes of him."""
        self._given += 1
        return self._given - 1

    def wait(self, place: int) -> None:
        """Until all who were before have left."""
        with self._moved:
            self._moved.wait_for(lambda: self._front >= place, self.patience_s)

    def leave(self, place: int) -> None:
        """Let those behind pass; more than once is the same."""
        with self._moved:
            if place >= self._front:
                self._passed.add(place)
            while self._front in self._passed:
                self._passed.remove(self._front)
                self._front += 1
            self._moved.notify_all()


class Keep(Generic[T]):
    """Least recently used values up to `limit` bytes; while one thread makes a value, others that want it wait for it.

    A value that is larger than the limit is kept until the next one comes, so that the lanes which share it find it.
    """

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        self.limit = limit
        self.nbytes = 0
        self.made = 0
        self._size = size
        self._values: OrderedDict[Hashable, tuple[Future[T], int]] = OrderedDict()
        self._crews: dict[Hashable, Crew] = {}
        """Of the values that are being made."""
        self._guard = threading.Lock()

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """The value of that name, made now if it isn't there. What `make` raises reaches every waiter, and nothing is kept."""
        return self._get(name, lambda _: make(), helps=False)

    def together(self, name: Hashable, make: Callable[[Crew], T], noted: Callable[[], None] | None = None) -> T:
        """The same, where `make` shares its jobs with its crew before it does much else: threads that want the value meanwhile do their
        part of them, and so do those that come to make another one, so that what was asked for first is there first. `noted` is called
        when others can see that it is asked for."""
        return self._get(name, make, noted, helps=True)

    def _get(self, name: Hashable, make: Callable[[Crew], T], noted: Callable[[], None] | None = None, *, helps: bool) -> T:
        others: list[Crew] = []
        with self._guard:
            found = self._values.get(name)
            if found is not None:
                self._values.move_to_end(name)
                crew = self._crews.get(name)
            else:
                future: Future[T] = Promise()
                self._values[name] = future, 0
                others += self._crews.values() if helps else ()
                mine = self._crews[name] = Crew()
        if noted is not None:
            noted()
        if found is not None:
            if crew is not None:
                crew.help()
            return found[0].result()
        try:
            for other in others:  # each waits for older ones only
                other.help()
            value = make(mine)
        except BaseException as error:
            with self._guard:
                self._values.pop(name, None)
            future.set_exception(error)
            raise
        finally:
            mine.close()
            with self._guard:
                self._crews.pop(name, None)
        future.set_result(value)
        self._settle(name, future, self._size(value))
        return value

    def _settle(self, name: Hashable, future: Future[T], nbytes: int) -> None:
        with self._guard:
            self.made += 1
            self._values[name] = future, nbytes
            self._values.move_to_end(name)
            self.nbytes += nbytes
            while self.nbytes > self.limit and len(self._values) > 1:
                oldest = next((n for n, (f, _) in self._values.items() if f.done() and n != name), None)
                if oldest is None:
                    break
                self.nbytes -= self._values.pop(oldest)[1]

    def has(self, name: Hashable) -> bool:
        """Whether `get` would answer at once."""
        with self._guard:
            found = self._values.get(name)
            return found is not None and found[0].done()

    def look(self, name: Hashable) -> T | None:
        """The value, where it is there and made; else None."""
        with self._guard:
            found = self._values.get(name)
            if found is None or not found[0].done():
                return None
            self._values.move_to_end(name)
        return found[0].result()

    def drop(self, name: Hashable) -> None:
        """Forget one value, if it is there and made."""
        with self._guard:
            found = self._values.get(name)
            if found is not None and found[0].done():
                self.nbytes -= self._values.pop(name)[1]

    def clear(self) -> None:
        """Forget everything."""
        with self._guard:
            self._values.clear()
            self.nbytes = 0


class Taken:
    """Counts what was taken of kept values. Once all of one was, nobody wants it before the next pass, and it goes."""

    def __init__(self, kept: Keep[Any]) -> None:
        self._kept = kept
        self._guard = threading.Lock()
        self._counts: dict[Hashable, int] = {}

    def add(self, name: Hashable, count: int, whole: int) -> None:
        """So many more of the `whole` were taken. Any thread may call it."""
        with self._guard:
            taken = self._counts.pop(name, 0) + count
            if taken < whole:
                self._counts[name] = taken
                return
        self._kept.drop(name)

"""A byte-bounded cache of things that several lanes need and one thread should make."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


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
        self._guard = threading.Lock()

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """The value of that name, made now if it isn't there. What `make` raises reaches every waiter, and nothing is kept."""
        with self._guard:
            found = self._values.get(name)
            if found is not None:
                self._values.move_to_end(name)
            else:
                future: Future[T] = Future()
                self._values[name] = future, 0
        if found is not None:
            return found[0].result()
        try:
            value = make()
        except BaseException as error:
            with self._guard:
                self._values.pop(name, None)
            future.set_exception(error)
            raise
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

"""Memory that is used again for every image: pages fresh from the system cost as much as filling them (a third of a JPEG's decode)."""

from __future__ import annotations

import math
import threading
import time
import weakref
from bisect import bisect_left, insort_right
from typing import Any

import numpy as np

from zephon_vision.policies.base import Pixels

_MOST = 192 << 20
"""Bytes that are kept for the next image; what one giant image needed is given back."""
_LEAST = 16 << 20
"""What an arena begins with: images of four megapixels. What isn't written to takes no memory."""
_ALIGN = 64
_SMALL = 1 << 16


class Pool:
    """Memory for results: a piece comes back by itself when nobody holds it any more. Any number of threads may use it."""

    def __init__(self, most: int = 1 << 30, idle: float = 30.0, waste: float = 4.0) -> None:
        """At most `most` bytes are kept for the next one who asks, and none for longer than `idle` seconds and once more that long; a piece
        may be `waste` times larger than what it is used for."""
        self._most = most
        self._idle = idle
        self._waste = waste
        self._free: list[tuple[float, Pixels]] = []
        """Since when, and what; the smallest first."""
        self._looked = 0.0
        """When for what had been free too long."""
        self._lock = threading.RLock()  # what is collected while it is held may give memory back
        self.kept = 0
        """Bytes that wait."""

    def lease(self, size: int) -> Pixels:
        """uint8[size], not filled. Any view of it keeps it, and so does a buffer that is made of it."""
        return self.lend(size)[0]

    def lend(self, size: int) -> tuple[Pixels, weakref.finalize[..., Pixels]]:
        """The same, and what gives it back; detached, the memory goes to the system instead."""
        memory = None
        with self._lock:
            place = bisect_left(self._free, size, key=_size)
            if place < len(self._free) and _size(self._free[place]) <= self._waste * size + _SMALL:
                memory = self._take(place)
        if memory is None:
            memory = np.empty(size + size // 8, dtype=np.uint8)
        # another object than any that stays here; and views of an array of an array would keep only the innermost
        shown: Any = memory
        piece = np.frombuffer(memoryview(shown), dtype=np.uint8, count=size)
        back = weakref.finalize(piece, self._give_back, memory)
        back.atexit = False
        return piece, back

    def _take(self, place: int) -> Pixels:
        memory = self._free.pop(place)[1]
        self.kept -= len(memory)
        return memory

    def _give_back(self, memory: Pixels) -> None:
        now = time.monotonic()
        with self._lock:
            insort_right(self._free, (now, memory), key=_size)
            self.kept += len(memory)
            if now - self._looked > self._idle:
                self._looked = now
                for old in [n for n, (since, _) in enumerate(self._free) if since < now - self._idle][::-1]:
                    self._take(old)
            if self.kept > self._most:
                self._make_room()

    def _make_room(self) -> None:
        """Let go of what has waited longest: an eighth at once, since to find it is to look at all that is free."""
        by_age = sorted(self._free, key=_since)
        while by_age and self.kept > self._most - self._most // 8:
            self.kept -= len(by_age.pop(0)[1])
        self._free = sorted(by_age, key=_size)


def _size(free: tuple[float, Pixels]) -> int:
    return len(free[1])


def _since(free: tuple[float, Pixels]) -> float:
    return free[0]


class Arena:
    """Pieces of memory for the work on a few images, one after the other; `reset` takes all of them back. For one thread."""

    def __init__(self, pool: Pool | None = None) -> None:
        """With memory from `pool`, so that what one thread leaves is the next one's."""
        self._pool = pool if pool is not None else Pool(most=0)
        self._memory = np.empty(0, dtype=np.uint8)
        self._back: weakref.finalize[..., Pixels] | None = None
        self.used = 0
        """Bytes of the pieces that are taken."""
        self._peak = 0
        self._target: Pixels | None = None

    def aim(self, target: Pixels) -> None:
        """The next piece of `target`'s shape is `target` itself."""
        self._target = target

    def back_to(self, used: int) -> None:
        """Take back all pieces since `used` was what it is here: whoever still holds one may see it change. No target counts any more."""
        self._peak = max(self._peak, self.used)
        self.used = used
        self._target = None

    def reset(self) -> None:
        """Take back all of them."""
        self.back_to(0)
        if not len(self._memory) or len(self._memory) < self._peak <= _MOST:
            size = max(self._peak + self._peak // 4, _LEAST)
            if self._back is not None:
                self._back.detach()  # outgrown: in the pool it would only lie about
            self._memory = np.empty(0, dtype=np.uint8)
            self._memory, self._back = self._pool.lend(size)
        self._peak = 0

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """uint8 of this shape, contiguous, not filled."""
        target = self._target
        if target is not None and target.shape == shape:
            self._target = None
            return target
        size = math.prod(shape)
        begin = self.used
        self.used += -(-size // _ALIGN) * _ALIGN
        if self.used > len(self._memory):
            return np.empty(shape, dtype=np.uint8)  # this once; the next image finds enough
        return self._memory[begin : begin + size].reshape(shape)

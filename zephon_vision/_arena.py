"""Memory that is used again for every image: pages fresh from the system cost as much as filling them (a third of a JPEG's decode)."""

from __future__ import annotations

import math

import numpy as np

from zephon_vision.policies.base import Pixels

_MOST = 128 << 20
"""Bytes that are kept for the next image; what one giant image needed is given back."""
_ALIGN = 64


class Arena:
    """Pieces of memory for the work on one image, one after the other; `reset` takes all of them back. For one thread."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)
        self._used = 0
        self._target: Pixels | None = None

    def reset(self, target: Pixels | None = None) -> None:
        """Begin anew: whoever still holds a piece may see it change. The first piece of `target`'s shape is `target` itself."""
        self._target = target
        if self._used > len(self._memory) and self._used <= _MOST:
            self._memory = np.empty(self._used + self._used // 4, dtype=np.uint8)
        self._used = 0

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """uint8 of this shape, contiguous, not filled."""
        target = self._target
        if target is not None and target.shape == shape:
            self._target = None
            return target
        size = math.prod(shape)
        begin = self._used
        self._used += -(-size // _ALIGN) * _ALIGN
        if self._used > len(self._memory):
            return np.empty(shape, dtype=np.uint8)  # this once; the next image finds enough
        return self._memory[begin : begin + size].reshape(shape)

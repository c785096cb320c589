"""The pixels of a group: one piece of memory that is used again when the batch is gone, and the columns over it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.errors import DataError
from zephon_vision._arena import Pool
from zephon_vision.policies.base import Plan, Policy

ArrowArray = Any

POOL = Pool()
"""What pixels are written to."""


class Blocks:
    """The pixels of a group in one piece of memory, with a place for each image."""

    def __init__(self, plans: Sequence[tuple[Policy, Plan]]) -> None:
        self.shapes = [tuple(policy.block_shape(plan)) for policy, plan in plans]
        self._ends = [0, *accumulate(map(math.prod, self.shapes))]
        total = self._ends[-1]
        if total >= 2**31:
            raise DataError(f"the images of a few rows make {total:,} bytes of pixels", hint="pack with fewer patches")
        self._memory = POOL.lease(total)

    def place(self, index: int) -> npt.NDArray[np.uint8]:
        """Where image `index` goes."""
        return self._memory[self._ends[index] : self._ends[index + 1]].reshape(self.shapes[index])

    def arrays(self, bad: Sequence[int]) -> tuple[ArrowArray, ArrowArray]:
        """`(binary, list<int32>)`: the pixels, null for the images `bad`, and the shapes."""
        count = len(self.shapes)
        valid: ArrowArray = None
        if bad:
            flags = np.ones(count, dtype=bool)
            flags[list(bad)] = False
            bits: Any = np.packbits(flags, bitorder="little")
            valid = pa.py_buffer(bits)
        ends: Any = np.array(self._ends, np.int32)
        memory: Any = self._memory
        pixels = pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(ends), pa.py_buffer(memory)])
        return pixels, lists(self.shapes)


def lists(rows: Sequence[Sequence[int]]) -> ArrowArray:
    """`list<int32>`."""
    ends = np.array([0, *accumulate(map(len, rows))], np.int32)
    return groups.make_list(ends, np.fromiter(chain.from_iterable(rows), np.int32, ends[-1]))

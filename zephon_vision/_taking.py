"""Files out of a column of files, left where they are if that can be done."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.arrays import to_arrow, to_numpy

Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""


def taken(array: Array, index: npt.NDArray[np.int64]) -> Array:
    """`array.take(index)` for `binary` or `string`; -1 gives null.

    Values that lie one after the other are not copied: those that are left out in between are then null or empty, as the places of texts
    are in a list of images.
    """
    if len(index) and int(index.min()) >= 0 and array.type in (pa.binary(), pa.string()):
        _, ends, data = array.buffers()
        offsets = np.frombuffer(ends, np.int32)[array.offset : array.offset + len(array) + 1]
        begin, end = offsets[index], offsets[index + 1]
        if np.array_equal(begin[1:], end[:-1]):
            bits: Any = np.packbits(to_numpy(array.is_valid())[index], bitorder="little") if array.null_count else None
            bounds: Any = np.append(begin, end[-1:])
            valid = None if bits is None else pa.py_buffer(bits)
            return pa.Array.from_buffers(array.type, len(index), [valid, pa.py_buffer(bounds), data])
    place: Array = to_arrow(index, null=index < 0)
    return array.take(place)

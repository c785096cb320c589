"""Files out of a column of files, left where they are if that can be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.arrays import to_arrow, to_numpy
from zephon.views import take
from zephon_vision import columns

Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""
_VIEW, _TEXT_VIEW = pa.binary_view().id, pa.string_view().id


def references(data: Array, path: Array) -> Array:
    """Images as `columns.IMAGE_REF`, or the same with views of the bytes."""
    path = path.cast(pa.string()) if path.type.id == _TEXT_VIEW else path
    fields: list[Any] = [field.with_type(part.type) for field, part in zip(columns.IMAGE_REF, (data, path), strict=True)]
    make: Any = pa.StructArray.from_arrays
    return make([data, path], fields=fields)


def together(parts: Sequence[Array]) -> Array:
    """Columns of bytes one after the other: as views, which leave them where they are, if one of them is."""
    if any(part.type.id == _VIEW for part in parts):
        parts = [part if part.type.id == _VIEW else part.cast(pa.binary_view()) for part in parts]
    return pa.concat_arrays(parts)


def taken(array: Array, index: npt.NDArray[np.int64]) -> Array:
    """`array.take(index)` for `binary`, `string`, or views of these; -1 gives null.

    Of views only these are copied. Values that lie one after the other are not copied either: those that are left out in between are
    then null or empty, as the places of texts are in a list of images.
    """
    missing = len(index) > 0 and int(index.min()) < 0
    if array.type.id in (_VIEW, _TEXT_VIEW):
        if missing:
            array, index = pa.concat_arrays([array, pa.nulls(1, array.type)]), np.where(index < 0, len(array), index)
        return take(array, index)
    if len(index) and not missing and array.type in (pa.binary(), pa.string()):
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

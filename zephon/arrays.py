"""Numbers between numpy and Arrow, over the same memory.

`pyarrow.array` and `Array.to_numpy` do the same, but their first call imports pandas where it is installed (0.5 s and 50 MB in
every process), to see whether it was given one of its objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_KINDS = tuple(np.dtype(kind) for kind in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
_ARROW = {kind: pa.from_numpy_dtype(kind) for kind in _KINDS}
_NUMPY = {arrow.id: kind for kind, arrow in _ARROW.items()}  # by number: the hash of a type is that of its text, and slow
_BOOLEAN = pa.bool_().id


def to_arrow(values: npt.ArrayLike) -> Any:
    """`[N]` numbers or booleans as an Arrow array without nulls; numbers are not copied where they lie one after the other."""
    array = np.asarray(values)
    kind = _ARROW.get(array.dtype)
    if kind is not None and array.ndim == 1:
        data: Any = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(data)], 0)
    if array.dtype == np.bool_ and array.ndim == 1:
        bits: Any = np.packbits(array, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(array), [None, pa.py_buffer(bits)], 0)
    return pa.array(array)


def to_numpy(array: Any) -> npt.NDArray[Any]:
    """A column as numpy `[N]`: a view (not to be written to) of numbers without nulls; all else is what `Array.to_numpy` gives."""
    if isinstance(array, pa.ChunkedArray) or array.null_count:
        return _any(array)
    number = array.type.id
    kind = _NUMPY.get(number)
    if kind is not None:
        data = array.buffers()[1]
        return np.empty(0, kind) if data is None else np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)
    if number == _BOOLEAN:
        bits = array.buffers()[1]
        if bits is None:
            return np.empty(0, np.bool_)
        here = slice(array.offset, array.offset + len(array))
        return np.unpackbits(np.frombuffer(bits, np.uint8), count=here.stop, bitorder="little")[here].view(np.bool_)
    return _any(array)


def _any(array: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values

"""Numbers between numpy and Arrow, over the same memory, Arrow arrays of Python values, and what Arrow says of an expression.

`pyarrow.array`, `pyarrow.scalar`, `Array.to_numpy` and what calls them (`fill_null` with a value, `pyarrow.compute` with a plain number)
do the same, but the first such call imports pandas where it is installed (0.35 s and 50 MB in every process), to see whether it was
given one of its objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_KINDS = tuple(np.dtype(kind) for kind in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"])
_ARROW = {kind: pa.from_numpy_dtype(kind) for kind in _KINDS}
_NUMPY = {arrow.id: kind for kind, arrow in _ARROW.items()}  # by number: the hash of a type is that of its text, and slow
_BOOLEAN = pa.bool_().id
_TEXTS = (pa.string().id, pa.large_string().id)
_SMALL_BYTES = (pa.string().id, pa.binary().id)
_LARGE_BYTES = (pa.large_string().id, pa.large_binary().id)
_LISTS = (pa.list_(pa.null()).id, pa.large_list(pa.null()).id)


def to_arrow(values: npt.ArrayLike, *, null: npt.NDArray[np.bool_] | None = None) -> Any:
    """`[N]` numbers or booleans as an Arrow array, with nulls where `null` says so; numbers are not copied where they lie one after the
    other."""
    array = np.asarray(values)
    valid = None if null is None or not null.any() else _bits(~null)
    kind = _ARROW.get(array.dtype)
    if kind is not None and array.ndim == 1:
        data: Any = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return pa.Array.from_buffers(kind, len(array), [valid, pa.py_buffer(data)])
    if array.dtype == np.bool_ and array.ndim == 1:
        return pa.Array.from_buffers(pa.bool_(), len(array), [valid, _bits(array)])
    return pa.array(array, mask=null)


def from_values(values: Sequence[Any], kind: Any) -> Any:
    """Numbers, booleans, texts or bytes, None for null, as an array of the type `kind`, which is one of these; what
    `pyarrow.array(values, type=kind)` gives.

    Raises:
        UnicodeEncodeError: a text with a lone surrogate.
        pyarrow.ArrowCapacityError: 2 GiB or more for a type whose offsets have 32 bits.
    """
    missing = np.fromiter((v is None for v in values), np.bool_, len(values))
    valid = _bits(~missing) if missing.any() else None
    if kind.id in _SMALL_BYTES or kind.id in _LARGE_BYTES:
        texts = kind.id in _TEXTS
        parts = [b"" if v is None else v.encode() if texts else v for v in values]
        ends = np.zeros(len(parts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=ends[1:])
        if kind.id in _SMALL_BYTES and ends[-1] > 2**31 - 1:
            raise pa.ArrowCapacityError(f"{ends[-1]:,} bytes in an array of {kind}")
        offsets: Any = ends if kind.id in _LARGE_BYTES else ends.astype(np.int32)
        return pa.Array.from_buffers(kind, len(parts), [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))])
    if kind.id != _BOOLEAN and kind.id not in _NUMPY:
        return pa.array(values, type=kind)
    dtype = np.dtype(np.bool_) if kind.id == _BOOLEAN else _NUMPY[kind.id]
    return to_arrow(np.array([0 if v is None else v for v in values] if valid else values, dtype), null=missing)


def inferred(values: Sequence[Any]) -> Any:
    """What `pyarrow.array(values)` gives, which is not asked where all values are `None` or of one plain type: numbers, booleans, texts,
    bytes, or lists of such, whose type is plain to see.

    Raises:
        pyarrow.ArrowInvalid, pyarrow.ArrowTypeError: values of types that don't go together, or that Arrow doesn't know.
        UnicodeEncodeError: a text with a lone surrogate.
        OverflowError: a number of more than 64 bits.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is list:
            return _lists(values)
        if kind in _PLAIN and (kind is not int or all(v is None or -_INT64 <= v < _INT64 for v in values)):
            return from_values(values, _PLAIN[kind])
    return pa.array(values)


_PLAIN = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
_INT64 = 1 << 63


def _lists(values: Sequence[list[Any] | None]) -> Any:
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter((len(v or ()) for v in values), np.int64, len(values)), out=ends[1:])
    items = inferred([item for value in values if value for item in value])
    if ends[-1] > 2**31 - 1 or not isinstance(items, pa.Array):
        return pa.array(values)
    missing = np.fromiter((v is None for v in values), np.bool_, len(values))
    offsets: Any = ends.astype(np.int32)
    valid = _bits(~missing) if missing.any() else None
    return pa.Array.from_buffers(pa.list_(items.type), len(values), [valid, pa.py_buffer(offsets)], children=[items])


def _bits(flags: npt.NDArray[np.bool_]) -> Any:
    bits: Any = np.packbits(flags, bitorder="little")
    return pa.py_buffer(bits)


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is one of integers, floats or booleans."""
    return kind.id in _NUMPY or kind.id == _BOOLEAN


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


def filled(array: Any, value: int = 0) -> npt.NDArray[Any]:
    """A column of numbers or booleans as numpy `[N]` (not to be written to), with `value` in place of nulls."""
    if not array.null_count:
        return to_numpy(array)
    plain = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], 0, array.offset)
    numbers = to_numpy(plain)
    return np.where(to_numpy(array.is_valid()), numbers, numbers.dtype.type(value))


def list_sizes(array: Any) -> npt.NDArray[np.int64]:
    """int64[N]: how many elements each row of a list column has; null lists have none."""
    if array.type.id in _LISTS and not array.null_count:  # a third of the calls
        ends = to_numpy(array.offsets)
        sizes: npt.NDArray[np.int64] = (ends[1:] - ends[:-1]).astype(np.int64)
        return sizes
    return filled(array.value_lengths()).astype(np.int64)


def struct_parts(array: Any) -> dict[str, Any]:
    """The fields of a struct column by name, null where the struct is."""
    return dict(zip((field.name for field in array.type), array.flatten(), strict=True))


def refusal(expression: Any, schema: pa.Schema) -> Exception | None:
    """Why an Arrow expression can't filter a table with these columns; None: it can."""
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        return error
    return None


def _any(array: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values

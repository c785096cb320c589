"""Rows from many places into new memory, each value copied once and without the interpreter lock where it is long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from zephon import groups
from zephon.arrays import to_arrow, to_numpy
from zephon.groups import ArrowArray, IntArray

_VIEW = np.dtype([("length", "<i4"), ("inline", "u1", 12)])
"""An element of Arrow's binary_view: up to 12 bytes in place, else (4 bytes that only comparisons look at, buffer number, offset)."""
_SHORT = 12
_WIDEST = 2**31
_OFFSETS: dict[int, np.dtype[Any]] = {
    **dict.fromkeys((pa.string().id, pa.binary().id), np.dtype(np.int32)),
    **dict.fromkeys((pa.large_string().id, pa.large_binary().id), np.dtype(np.int64)),
}


def take_from(parts: Sequence[pa.RecordBatch], which: IntArray, index: IntArray) -> pa.RecordBatch:
    """Row i is row `index[i]` of `parts[which[i]]`; one copy for numbers, text, bytes, lists of 4-byte numbers and structs of these.

    All parts have one schema; there is at least one.
    """
    if len(parts) == 1:
        return groups.take(parts[0], index)
    places = _Places([len(p) for p in parts], which, index)
    arrays = [_taken([p.column(number) for p in parts], places) for number in range(parts[0].num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=parts[0].schema)


class _Places:
    """Where the rows are: `rows[k]` of part k go to `slots[k]`."""

    def __init__(self, lengths: Sequence[int], which: IntArray, index: IntArray) -> None:
        self.which, self.index = which, index
        self.slots = [np.flatnonzero(which == k) for k in range(len(lengths))]
        self.rows = [index[slots] for slots in self.slots]
        self.flat = np.cumsum([0, *lengths[:-1]])[which] + index
        """The row in all parts one after the other."""


def _taken(columns: Sequence[ArrowArray], places: _Places) -> ArrowArray:
    kind = columns[0].type
    if not any(c.null_count for c in columns):
        if pa.types.is_struct(kind) and kind.num_fields:
            children: Any = zip(*(c.flatten() for c in columns), strict=True)
            return pa.StructArray.from_arrays([_taken(child, places) for child in children], fields=list(kind))
        made = _copied(columns, places)
        if made is not None:
            return made
    together = groups.concat([pa.RecordBatch.from_arrays([c], names=["c"]) for c in columns])
    return groups.take(together, places.flat).column(0)


def _copied(columns: Sequence[ArrowArray], places: _Places) -> ArrowArray | None:
    """Columns without nulls; None: not of these kinds, or too long."""
    kind = columns[0].type
    if kind.id in _OFFSETS:
        return _bytes(columns, places)
    if pa.types.is_list(kind) and kind.value_type.id in (pa.int32().id, pa.uint32().id, pa.float32().id):
        return _lists(columns, places)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return to_arrow(np.concatenate([to_numpy(c) for c in columns])[places.flat])
    return None


def _lists(columns: Sequence[ArrowArray], places: _Places) -> ArrowArray | None:
    values, begin, length = [], np.zeros(len(places.which), np.int64), np.zeros(len(places.which), np.int64)
    for array, slots, rows in zip(columns, places.slots, places.rows, strict=True):
        if array.values.null_count:
            return None
        offsets, numbers = groups.list_parts(array)
        first = int(offsets[0])
        begin[slots] = offsets[rows] - first
        length[slots] = offsets[rows + 1] - first - begin[slots]
        values.append(numbers[first : int(offsets[-1])])
    ends = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    return groups.make_list(ends, gather_ranges(values, places.which, begin, length)) if int(ends[-1]) < _WIDEST // 4 else None


def _bytes(columns: Sequence[ArrowArray], places: _Places) -> ArrowArray | None:
    kind = columns[0].type
    values, begin, length = [], np.zeros(len(places.which), np.int64), np.zeros(len(places.which), np.int64)
    for array, slots, rows in zip(columns, places.slots, places.rows, strict=True):
        starts, sizes, data = byte_spans(array)
        if not len(slots):
            data = data[:0]
        begin[slots], length[slots] = starts[rows], sizes[rows]
        values.append(data)
    total = int(length.sum())
    if total >= _WIDEST or any(len(data) >= _WIDEST for data in values):
        return None
    packed = gather_bytes(values, places.which, begin, length)
    ends = np.zeros(len(length) + 1, _OFFSETS[kind.id])
    np.cumsum(length, out=ends[1:])
    given: Any = [ends, packed]
    return pa.Array.from_buffers(kind, len(length), [None, *(pa.py_buffer(g) for g in given)], 0)


def hash_spread(parts: Sequence[pa.RecordBatch], which: IntArray, index: IntArray, more: pa.RecordBatch) -> int:
    """`groups.hash_group` of `take_from(parts, which, index)` with the columns of `more`, without gathering long text and bytes."""
    digest = xxhash.xxh3_64()
    places = _Places([len(p) for p in parts], which, index)
    for number, name in enumerate(parts[0].schema.names):
        digest.update(name.encode())
        _hash_spread(digest, [p.column(number) for p in parts], places)
    for name, array in zip(more.schema.names, more.columns, strict=True):
        digest.update(name.encode())
        groups.hash_array(digest, array)
    return digest.intdigest()


def _hash_spread(digest: Any, columns: Sequence[ArrowArray], places: _Places) -> None:
    kind = columns[0].type
    known = not any(c.null_count for c in columns)
    if known and pa.types.is_struct(kind):
        digest.update(f"{kind}{len(places.which)}".encode())
        for child in zip(*(c.flatten() for c in columns), strict=True):
            _hash_spread(digest, child, places)
    elif known and kind.id in _OFFSETS and len(places.which):
        digest.update(f"{kind}{len(places.which)}".encode())
        _hash_bytes(digest, columns, places)
    else:
        groups.hash_array(digest, _taken(columns, places))


def _hash_bytes(digest: Any, columns: Sequence[ArrowArray], places: _Places) -> None:
    spans = [byte_spans(c) for c in columns]
    length = np.empty(len(places.which), np.int64)
    for (_, sizes, _), slots, rows in zip(spans, places.slots, places.rows, strict=True):
        length[slots] = sizes[rows]
    digest.update(length)
    # rows that are neighbours where they come from in one go
    border = np.flatnonzero((np.diff(places.which) != 0) | (np.diff(places.index) != 1)) + 1
    for first, stop in zip([0, *border.tolist()], [*border.tolist(), len(length)], strict=True):
        begin, sizes, data = spans[int(places.which[first])]
        start, last = int(places.index[first]), int(places.index[stop - 1])
        digest.update(data[int(begin[start]) : int(begin[last] + sizes[last])])


def byte_spans(array: ArrowArray) -> tuple[IntArray, IntArray, IntArray]:
    """Text or bytes without nulls as `(begin int[N], length int[N], uint8 data)`, of which data is only what the rows span."""
    kind = _OFFSETS[array.type.id]
    if not len(array):
        return np.zeros(0, kind), np.zeros(0, kind), np.zeros(0, np.uint8)
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, kind, len(array) + 1, array.offset * kind.itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    span = np.frombuffer(data, np.uint8, last - first, first) if last > first else np.zeros(0, np.uint8)
    return offsets[:-1] - offsets[0], np.diff(offsets), span


def gather_ranges(arrays: Sequence[IntArray], which: IntArray, begin: IntArray, length: IntArray) -> IntArray:
    """All of `arrays[which[i]][begin[i]:begin[i] + length[i]]`, one after the other, in new memory.

    The arrays hold 4-byte numbers of one dtype, fewer than 2**29 each.
    """
    kind = arrays[0].dtype if arrays else np.dtype(np.int32)
    data = [np.ascontiguousarray(a).view(np.uint8) for a in arrays]
    return gather_bytes(data, which, begin * 4, length * 4).view(kind)


def gather_bytes(arrays: Sequence[IntArray], which: IntArray, begin: IntArray, length: IntArray) -> IntArray:
    """The same for arrays of bytes (uint8, contiguous), fewer than 2**31 each.

    The ranges become an Arrow binary_view, whose cast to binary copies them in one call without the interpreter lock; a loop of slice
    copies is 3 times as slow and lets no other thread run.
    """
    total = int(length.sum())
    if not total:
        return np.zeros(0, np.uint8)
    views = np.zeros(len(which), dtype=_VIEW)
    views["length"] = length
    inside = views["inline"].view("<i4")
    inside[:, 1] = which
    inside[:, 2] = begin
    short = np.flatnonzero(length <= _SHORT)
    for number in np.unique(which[short]).tolist() if len(short) else ():
        here = short[which[short] == number]
        place = begin[here, None] + np.arange(_SHORT)
        shown = np.arange(_SHORT) < length[here, None]
        data = arrays[number]
        views["inline"][here] = np.where(shown, data[np.minimum(place, len(data) - 1)], 0) if len(data) else 0
    given: list[Any] = [views, *arrays]
    binary: ArrowArray = pa.Array.from_buffers(pa.binary_view(), len(views), [None, *(pa.py_buffer(g) for g in given)])
    packed: Any = binary.cast(pa.large_binary() if total >= _WIDEST else pa.binary()).buffers()[2]
    return np.frombuffer(packed, np.uint8, total)

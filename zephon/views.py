"""Rows that are left where they are: text, bytes and lists of numbers as views, which say where a value lies and share its memory.

Views are internal. They stand for columns of ordinary types, and `plain` makes those of them, with one copy of each value; `buffers` shows
what they show.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.arrays import to_arrow, to_numpy
from zephon.errors import DataError
from zephon.gathers import gather_bytes, gather_ranges
from zephon.groups import ArrowArray, IntArray
from zephon.hashing import hash_array

_TEXT: dict[int, Any] = {
    **dict.fromkeys((pa.string().id, pa.large_string().id), pa.string_view()),
    **dict.fromkeys((pa.binary().id, pa.large_binary().id), pa.binary_view()),
}
_VIEWS = (pa.string_view().id, pa.binary_view().id)
_LIST, _LARGE_LIST, _LIST_VIEW = (make(pa.int32()).id for make in (pa.list_, pa.large_list, pa.list_view))
_STRUCT = pa.struct([]).id
BYTES: frozenset[int] = frozenset(_VIEWS)
LISTS: frozenset[int] = frozenset((_LIST_VIEW,))
"""Types of views, for `plain`."""
_VIEWED_LISTS = (pa.list_(pa.int32()), pa.list_(pa.uint8()))
_ELEMENT = np.dtype("V16")
"""An element of Arrow's view types: up to 12 bytes in place, else where they are."""
_WIDEST = 2**31


def view_type(kind: Any) -> Any:
    """The type of views of text or bytes."""
    return _TEXT[kind.id]


def stands_for(kind: Any, wanted: Any) -> bool:
    """Whether a column of type `kind` shows values of the ordinary type `wanted`."""
    if kind.id == _STRUCT and wanted.id == _STRUCT:
        names = [f.name for f in kind] == [f.name for f in wanted]
        return names and all(
            one.type == other.type or stands_for(one.type, other.type) for one, other in zip(kind, wanted, strict=True)
        )
    return kind.id in _VIEWS and wanted.id in _TEXT and bool(_TEXT[wanted.id] == kind)


def viewed(array: ArrowArray) -> ArrowArray:
    """The values left where they are: as `string_view`, `binary_view` or `list_view`, structs child by child; other types as they are."""
    kind = array.type
    if kind.id in _TEXT:
        try:
            return array.cast(_TEXT[kind.id])
        except pa.ArrowInvalid:  # further apart than a view reaches
            return array
    if _is_open(array):
        return _struct([viewed(child) for child in array.flatten()], kind)
    return viewed_list(array)


def viewed_columns(group: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:
    """The group with these columns as views."""
    arrays = [viewed(array) if name in names else array for name, array in zip(group.schema.names, group.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=group.schema.names)


def viewable(kind: Any) -> bool:
    """Whether it is text or bytes, or a struct of such, so that views of it say what it is: of the large types they don't."""
    if kind.id == _STRUCT:
        return kind.num_fields > 0 and all(viewable(field.type) for field in kind)
    return bool(kind in (pa.string(), pa.binary(), pa.null()))


def viewed_list(array: ArrowArray) -> ArrowArray:
    """A list of token ids or mask bytes without nulls as a `list_view`; everything else as it is."""
    # other widths are converted on the way by whoever packs them, which is cheaper once than in each gather
    if array.type.id != _LIST or array.type not in _VIEWED_LISTS or array.null_count or array.values.null_count:
        return array
    offsets, values = to_numpy(array.offsets), array.values
    begin, length = offsets[:-1], np.diff(offsets)
    if values.offset:  # `list_spans` looks at buffers
        begin = begin + values.offset
        values = pa.Array.from_buffers(values.type, values.offset + len(values), values.buffers())
    return _list_view(begin, length, values)


def plain(array: ArrowArray, kind: Any, keep: frozenset[int] = frozenset()) -> ArrowArray:
    """The ordinary column of type `kind` that `array` stands for; what views show is copied. Views of the types `keep` stay."""
    given = array.type
    if given.id in keep:
        return array
    if given.id in _VIEWS:
        if kind.id in (pa.string().id, pa.binary().id) and _weight(array) >= _WIDEST:  # the cast would not notice
            raise DataError(f"{len(array)} values of one chunk are 2 GB and more", hint="lower chunk_size")
        return array.cast(kind)
    if given.id == _LIST_VIEW:
        spans = groups.list_spans(array)
        return _gathered([spans[2]], np.zeros(len(array), np.int32), spans[0], spans[1], kind)
    if given.id == _LIST and groups.shows(given):
        ends, mask = to_arrow(np.array(to_numpy(array.offsets))), array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(ends, plain(array.values, kind.value_type), type=kind, mask=mask)
    if given.id == _STRUCT and given != kind:
        made = _struct(
            [plain(child, field.type, keep) for child, field in zip(array.flatten(), kind, strict=True)], kind, array
        )
        return plain(array, kind) if keep and any(f.type.id in _TEXT for f in made.type) else made  # all of it, or nothing
    return array


def plain_group(
    group: pa.RecordBatch, schema: pa.Schema, keep: frozenset[int] = frozenset(), shown: frozenset[str] = frozenset()
) -> pa.RecordBatch:
    """The group with the ordinary columns of `schema`; views of the types `keep` stay, and in columns `shown` those of text and bytes."""
    arrays = [
        plain(array, field.type, keep | BYTES if field.name in shown else keep)
        for array, field in zip(group.columns, schema, strict=True)
    ]
    if keep or shown:
        return pa.RecordBatch.from_arrays(arrays, names=schema.names)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def alike(parts: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    """The groups with ordinary columns where one of them has them."""
    if all(part.schema.equals(parts[0].schema) for part in parts):
        return parts
    kinds: dict[str, Any] = {}
    for part in parts:
        kinds |= {field.name: field.type for field in part.schema if not groups.shows(field.type)}
    return [
        pa.RecordBatch.from_arrays(
            [plain(array, kinds.get(name, array.type)) for name, array in zip(part.schema.names, part.columns, strict=True)],
            names=part.schema.names,
        )
        for part in parts
    ]


def take_rows(group: pa.RecordBatch, index: IntArray) -> pa.RecordBatch:
    """The rows at `index`, in that order; of views only the views are copied."""
    if not any(groups.shows(kind) for kind in group.schema.types):
        return groups.take(group, index)
    return pa.RecordBatch.from_arrays([take(column, index) for column in group.columns], names=group.schema.names)


def buffers(array: ArrowArray) -> list[memoryview | None]:
    """The values of a column of text or bytes, or of views of these, each as read-only bytes where it lies; None for null."""
    if array.type.id not in (*_TEXT, *_VIEWS):
        raise DataError(f"expected a column of text or bytes, got {array.type}")
    if not len(array):
        return []
    shown = groups.view_values(array) if array.type.id in _VIEWS else _own_bytes(array)
    if not array.null_count:
        return list(shown)
    return [value if valid else None for value, valid in zip(shown, to_numpy(array.is_valid()).tolist(), strict=True)]


def _own_bytes(array: ArrowArray) -> Iterator[memoryview]:
    ends, data = groups.byte_span(array)
    places = (ends - ends[0]).tolist()
    return (data[begin:end] for begin, end in itertools.pairwise(places))


def concat(arrays: Sequence[ArrowArray], kind: Any) -> ArrowArray:
    """Columns of type `kind`, or views of it, one after the other; what views show isn't copied where that can be helped."""
    first = arrays[0].type
    if len(arrays) == 1:
        return arrays[0]
    if any(a.type.id != first.id for a in arrays):
        return pa.concat_arrays([plain(a, kind) for a in arrays])
    if first.id == _LIST_VIEW:
        spans = [groups.list_spans(a) for a in arrays]
        if not _is_one_place([s[2] for s in spans]):
            return pa.concat_arrays([plain(a, kind) for a in arrays])
        values = max((a.values for a in arrays), key=len)
        return _list_view(np.concatenate([s[0] for s in spans]), np.concatenate([s[1] for s in spans]), values)
    if first.id == _STRUCT and any(a.type != kind for a in arrays):
        if any(a.null_count for a in arrays):
            return pa.concat_arrays([plain(a, kind) for a in arrays])
        children = zip(kind, *(a.flatten() for a in arrays), strict=True)
        return _struct([concat(child, field.type) for field, *child in children], kind)
    return pa.concat_arrays(arrays)


def take(array: ArrowArray, index: IntArray) -> ArrowArray:
    """The values at `index`, in that order; of views only the views are copied."""
    kind = array.type
    if kind.id in _VIEWS:
        valid, elements, *data = array.buffers()
        if array.null_count:
            bits: Any = np.packbits(to_numpy(array.is_valid())[index], bitorder="little")
            valid = pa.py_buffer(bits)
        chosen: Any = np.frombuffer(elements, _ELEMENT, len(array), array.offset * _ELEMENT.itemsize)[index]
        return pa.Array.from_buffers(kind, len(index), [valid if array.null_count else None, pa.py_buffer(chosen), *data])
    if kind.id == _LIST_VIEW:
        begin, length, _ = groups.list_spans(array)
        return _list_view(begin[index], length[index], array.values)
    if _is_open(array):
        return _struct([take(child, index) for child in array.flatten()], kind)
    if _is_number(array):
        return to_arrow(to_numpy(array)[index])
    return groups.take_array(array, to_arrow(index))


def take_from(parts: Sequence[pa.RecordBatch], which: IntArray, index: IntArray, schema: pa.Schema) -> pa.RecordBatch:
    """Row i is row `index[i]` of `parts[which[i]]`; one copy for numbers, text, bytes, lists of 4-byte numbers and structs of these, and
    of views only the views.

    Args:
        schema: of all parts, but that columns may be views.
    """
    if len(parts) == 1:
        return pa.RecordBatch.from_arrays([take(c, index) for c in parts[0].columns], names=schema.names)
    flat = np.cumsum([0, *(len(p) for p in parts[:-1])])[which] + index
    arrays = [_taken([p.column(i) for p in parts], schema.field(i).type, which, flat) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


def _taken(columns: Sequence[ArrowArray], kind: Any, which: IntArray, flat: IntArray) -> ArrowArray:
    """`flat`: the rows in all columns one after the other."""
    if kind.id in _TEXT:
        made = take(concat([viewed(c) for c in columns], kind), flat)
        return made if any(c.type.id in _VIEWS for c in columns) else plain(made, kind)
    if kind.id == _STRUCT and all(_is_open(c) for c in columns):
        children = zip(kind, *(c.flatten() for c in columns), strict=True)
        return _struct([_taken(child, field.type, which, flat) for field, *child in children], kind)
    if kind.id == _LIST and (made := _taken_lists(columns, kind, which, flat)) is not None:
        return made
    if all(_is_number(c) for c in columns):
        return to_arrow(np.concatenate([to_numpy(c) for c in columns])[flat])
    return groups.take_array(pa.concat_arrays([plain(c, kind) for c in columns]), to_arrow(flat))


def _taken_lists(columns: Sequence[ArrowArray], kind: Any, which: IntArray, flat: IntArray) -> ArrowArray | None:
    """Lists of numbers; None: of another width, or with nulls, or too long."""
    if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        return None
    if any(c.type.id == _LIST and (c.null_count or c.values.null_count) for c in columns):
        return None
    spans = [groups.list_spans(c) for c in columns]
    begin, length = (np.concatenate([s[n] for s in spans])[flat] for n in (0, 1))
    values = [s[2] for s in spans]
    if all(c.type.id == _LIST_VIEW for c in columns) and _is_one_place(values):
        return _list_view(begin, length, max((c.values for c in columns), key=len))
    if values[0].dtype.itemsize not in (1, 4) or any(v.nbytes >= _WIDEST for v in values):
        return None
    return _gathered(values, which, begin, length, kind)


def _gathered(values: Sequence[IntArray], which: IntArray, begin: IntArray, length: IntArray, kind: Any) -> ArrowArray:
    ends = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=ends[1:])
    narrow = values[0].dtype.itemsize == 1
    numbers = (
        gather_bytes([v.view(np.uint8) for v in values], which, begin, length).view(values[0].dtype)
        if narrow
        else gather_ranges(values, which, begin, length)
    )
    made = groups.make_list(ends, numbers)
    return made if made.type == kind else made.cast(kind)


def own_bytes(group: pa.RecordBatch) -> int:
    """Bytes of the group's rows without what views show."""
    return sum(_own(column) for column in group.columns)


def shown_bytes(group: pa.RecordBatch) -> int:
    """Bytes that the group's views of text and bytes show."""
    return sum(_weight(column) for column in group.columns if column.type.id in _VIEWS)


def _own(array: ArrowArray) -> int:
    if array.type.id in _VIEWS:
        return len(array) * _ELEMENT.itemsize
    if array.type.id == _LIST_VIEW:
        return 8 * len(array)
    if _is_open(array):
        return sum(_own(child) for child in array.flatten())
    return int(array.nbytes)


def hash_parts(digest: Any, columns: Sequence[ArrowArray], kind: Any) -> None:
    """Feed the digest what `hash_array` would, of an ordinary column of type `kind`, of which there are the parts."""
    size = sum(len(c) for c in columns)
    if len(columns) == 1 and not _is_number(columns[0]):
        hash_array(digest, columns[0])
    elif not size or any(c.null_count for c in columns):
        hash_array(digest, pa.concat_arrays(columns))
    elif kind.id in _TEXT:
        digest.update(f"{kind}{size}".encode())
        spans = [groups.byte_span(c) for c in columns if len(c)]
        digest.update(np.concatenate([np.diff(ends) for ends, _ in spans]).astype(np.int64, copy=False))
        for _, data in spans:
            digest.update(data)
    elif kind.id in (_LIST, _LARGE_LIST):
        digest.update(f"{kind}{size}".encode())
        digest.update(np.concatenate([np.diff(to_numpy(c.offsets)) for c in columns]).astype(np.int64, copy=False))
        hash_parts(digest, [c.flatten() for c in columns], kind.value_type)
    elif kind.id == _STRUCT:
        digest.update(f"{kind}{size}".encode())
        for field, *child in zip(kind, *(c.flatten() for c in columns), strict=True):
            hash_parts(digest, child, field.type)
    elif all(_is_number(c) for c in columns):
        digest.update(f"{kind}{size}".encode())
        for c in columns:
            digest.update(to_numpy(c))
    else:
        hash_array(digest, pa.concat_arrays(columns))


def _struct(children: Sequence[ArrowArray], kind: Any, like: ArrowArray = None) -> ArrowArray:
    """`like`: where it has nulls, so has this."""
    fields: list[Any] = [f.with_type(c.type) for f, c in zip(kind, children, strict=True)]
    mask = like.is_null() if like is not None and like.null_count else None
    return pa.StructArray.from_arrays(list(children), fields=fields, mask=mask)


def _list_view(begin: IntArray, length: IntArray, values: ArrowArray) -> ArrowArray:
    make: Any = pa.ListViewArray.from_arrays
    return make(to_arrow(begin), to_arrow(length), values)


def _is_one_place(values: Sequence[IntArray]) -> bool:
    """Whether all are parts of one memory, from its beginning."""
    return len({v.__array_interface__["data"][0] for v in values}) == 1


def _is_open(array: ArrowArray) -> bool:
    """A struct that is no more than its children."""
    return array.type.id == _STRUCT and array.type.num_fields > 0 and not array.null_count


def _is_number(array: ArrowArray) -> bool:
    return not array.null_count and (pa.types.is_integer(array.type) or pa.types.is_floating(array.type))


def _weight(array: ArrowArray) -> int:
    """Bytes that a view column shows."""
    return int(groups.view_lengths(array).sum())

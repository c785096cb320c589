"""Record groups: what every group carries, and the Arrow work that several layers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.arrays import inferred, to_arrow, to_numpy
from zephon.errors import DataError

COMPONENT = "_component"
PASS = "_pass"
SHARD = "_shard"
ROW = "_row"
PROVENANCE: tuple[str, ...] = (COMPONENT, PASS, SHARD, ROW)
"""Columns that every group carries from the source on: which dataset (its index in the mixture, int32), which traversal
of it (`pass_index`, int64), which shard (int32) and which row of that shard (int64) a record came from."""

PROVENANCE_FIELDS: tuple[pa.Field[Any], ...] = (
    pa.field(COMPONENT, pa.int32()),
    pa.field(PASS, pa.int64()),
    pa.field(SHARD, pa.int32()),
    pa.field(ROW, pa.int64()),
)

TOKENS = "input_ids"
"""The column of token ids, `list<int32>`: what `tokenize` makes, what packers pack, what the accounting counts."""
LOSS_MASK = "loss_mask"
"""Optional, beside TOKENS: `list<uint8>` of the same lengths; 0 = no loss on this token."""

LENGTHS = "document_lengths"
"""In packed sequences: `list<int32>`, the tokens of each document piece in order; they sum to length - padding."""
PADDING = "padding_length"
"""In packed sequences: int32, the number of trailing pad tokens."""
DOC_COMPONENT = "_document_component"
DOC_SHARD = "_document_shard"
DOC_ROW = "_document_row"
DOC_START = "_document_start"
"""In packed sequences, parallel to LENGTHS: the provenance of each piece, and at which token of its document it starts."""

PIECES = "_pieces"
"""In the decision rows of a packer: `binary`, each value the bytes of this sequence's `PIECE` records. One opaque column is reordered,
hashed and sent at a fraction of what a list column per field costs."""
PIECE = np.dtype(
    [
        ("source", "<i4"),
        ("row", "<i4"),
        ("length", "<i4"),
        ("component", "<i4"),
        ("shard", "<i4"),
        ("_", "<i4"),
        ("origin", "<i8"),
        ("start", "<i8"),
    ]
)
"""A document piece in a sequence: its group and row there, its tokens, where the document is from, and at which token of it it starts."""

SOURCE = "_source"
"""In the rows of a `Decision` without PIECES: `list<int32>`, the numbers of the groups that this row's payload comes from."""

IN_PLACE = 12
"""So many bytes lie in the element of a view itself."""

IntArray = npt.NDArray[Any]
ArrowArray = Any
"""A `pyarrow.Array`. The stubs know neither its subclasses' attributes nor what `take` accepts, so it is untyped in this module only."""


def is_internal(name: str) -> bool:
    """Whether a column is Zephon's own (provenance, references) and not the user's. WebDataset's `__key__` is the user's."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def user_columns(schema: pa.Schema) -> list[str]:
    """The names of the columns that are the user's."""
    return [name for name in schema.names if name[:1] != "_" or not is_internal(name)]  # few have an underscore


def column(group: pa.RecordBatch, name: str) -> ArrowArray:
    """The column `name`; a missing one is a `DataError` that lists what there is."""
    index = group.schema.get_field_index(name)
    if index < 0:
        check_names(group.schema)
        raise DataError(f"column {name!r} is missing; the group has {', '.join(user_columns(group.schema)) or 'none'}")
    return group.column(index)


def check_names(schema: pa.Schema, asked: Container[str] | None = None) -> None:
    """Raise `DataError` where two columns (of those that are asked for) have one name: nobody could say which is meant."""
    if len(set(schema.names)) < len(schema.names):
        twice = next((n for n, count in Counter(schema.names).items() if count > 1 and (asked is None or n in asked)), None)
        if twice is not None:
            raise DataError(f"there are several columns of the name {twice!r}", hint="give each a name of its own")


def ints(group: pa.RecordBatch, name: str) -> IntArray:
    """An integer column without nulls as a numpy view (no copy)."""
    values: IntArray = to_numpy(column(group, name))
    return values


def provenance(group: pa.RecordBatch, name: str, *, unknown: int) -> IntArray:
    """A provenance column as numpy, `unknown` in each row where the group doesn't have it."""
    there = group.schema.get_field_index(name) >= 0
    return ints(group, name) if there else np.full(group.num_rows, unknown, dtype=np.int64)


def list_parts(array: ArrowArray) -> tuple[IntArray, IntArray]:
    """A list column of numbers as `(offsets int[N+1], values)`; `values[offsets[i]:offsets[i+1]]` is row i.

    No copy where there are no nulls. Null lists count as empty; null elements are a `DataError`.
    """
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise DataError(f"expected a list column, got {array.type}")
    values = array.values
    offsets = to_numpy(array.offsets)
    # only the elements of this slice count; a list that was sliced still carries the others
    if values.null_count and len(offsets) and values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).null_count:
        raise DataError("a list column holds null elements")
    if array.null_count:
        # a null list may cover values in the buffer, so its length must be taken from the validity, not the offsets
        array = _without_nulls(array)
        offsets, values = to_numpy(array.offsets), array.values
    return offsets, to_numpy(values)


def list_spans(array: ArrowArray) -> tuple[IntArray, IntArray, IntArray]:
    """A list or list-view column of numbers as `(begin int[N], length int[N], values)`: row i is `values[begin[i]:begin[i] + length[i]]`.

    No copy of values; null lists count as empty, null elements are a `DataError`.
    """
    if pa.types.is_list_view(array.type):
        # made by `zephon.views`: int32 bounds, no nulls, no children's offset
        _, begin, length, _, values = array.buffers()
        here = slice(array.offset, array.offset + len(array))
        kind = np.int32 if array.type.value_type == pa.int32() else np.uint8
        return np.frombuffer(begin, np.int32)[here], np.frombuffer(length, np.int32)[here], np.frombuffer(values, kind)
    offsets, values = list_parts(array)
    return offsets[:-1], np.diff(offsets), values


def list_lengths(array: ArrowArray) -> IntArray:
    """The number of elements of each row of a list or list-view column; null lists count as empty."""
    if pa.types.is_list_view(array.type):
        return list_spans(array)[1]
    return np.diff(list_parts(array)[0])


def nbytes(group: pa.RecordBatch) -> int:
    """Bytes of the group's rows; of views only what they show."""
    columns: list[ArrowArray] = group.columns
    if not any(shows(column.type) for column in columns):
        return int(group.nbytes)
    return sum(_shown(column) for column in columns)


_LIST, _STRUCT = pa.list_(pa.int32()).id, pa.struct([]).id
_SHOWING = {pa.string_view().id, pa.binary_view().id, pa.list_view(pa.int32()).id, _STRUCT}
WIDTHS = {pa.int32().id: 4, pa.int64().id: 8}
"""Bytes of a value, of the types that most columns without nulls have: provenance and token ids. They are asked for by number."""


def shows(kind: Any) -> bool:
    """Whether columns of this type are, or hold, views."""
    number = kind.id
    if number == _LIST:
        return shows(kind.value_type)
    return number in _SHOWING and (number != _STRUCT or any(shows(field.type) for field in kind))


def _shown(array: ArrowArray) -> int:
    kind = array.type
    if kind.id in WIDTHS and not array.null_count:
        return WIDTHS[kind.id] * len(array)
    if pa.types.is_list_view(kind):
        return int(list_lengths(array).sum() * (kind.value_type.bit_width // 8)) + 8 * len(array)
    if not shows(kind):
        return int(array.nbytes)
    if kind.id == _LIST:
        return _shown(array.flatten()) + 4 * len(array)
    if kind.id == _STRUCT:
        return int(sum(_shown(child) for child in array.flatten()))
    return int(view_lengths(array).sum()) + 16 * len(array)


def view_lengths(array: ArrowArray) -> IntArray:
    """The lengths of a column of text or byte views, int32[N]; what stands at nulls means nothing."""
    # of no rows the buffer may be of any size
    return np.frombuffer(array.buffers()[1] or b"", np.int32, 4 * len(array), 16 * array.offset if len(array) else 0)[::4]


def view_values(array: ArrowArray) -> Iterator[memoryview]:
    """The values of a column of text or byte views, where they lie; what stands at nulls means nothing."""
    _, elements, *others = array.buffers()
    inside = memoryview(elements)
    shown = [memoryview(data) for data in others]
    table = np.frombuffer(elements, np.int32).reshape(-1, 4)[array.offset : array.offset + len(array)]
    for row, (length, _, number, begin) in enumerate(table.tolist(), array.offset):
        if length <= IN_PLACE:
            yield inside[row * 16 + 4 :][:length]
        else:
            yield shown[number][begin : begin + length]


def _without_nulls(array: ArrowArray) -> ArrowArray:
    lengths = np.where(to_numpy(array.is_valid()), np.diff(to_numpy(array.offsets)), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.LargeListArray.from_arrays(_plain_array(offsets), array.flatten())


def make_list(offsets: npt.ArrayLike, values: npt.ArrayLike | ArrowArray) -> ArrowArray:
    """A `list<T>` array (or `large_list<T>` where the values pass 2**31) over these buffers, without copying values."""
    ends: ArrowArray = np.asarray(offsets)
    items: ArrowArray = values if isinstance(values, pa.Array) else to_arrow(np.asarray(values))
    if len(ends) and int(ends[-1]) > 2**31 - 1:
        return pa.LargeListArray.from_arrays(_plain_array(ends.astype(np.int64, copy=False)), items)
    return pa.ListArray.from_arrays(_plain_array(ends.astype(np.int32, copy=False)), items)


def _plain_array(values: IntArray) -> ArrowArray:
    return to_arrow(values)


def make_pieces(offsets: IntArray, pieces: IntArray) -> ArrowArray:
    """The PIECES column: row i has `pieces[offsets[i]:offsets[i+1]]` (a PIECE array)."""
    ends: Any = np.ascontiguousarray(offsets * PIECE.itemsize, dtype=np.int32)
    data: Any = np.ascontiguousarray(pieces)
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def list_pieces(rows: pa.RecordBatch) -> tuple[IntArray, IntArray]:
    """The PIECES column as `(offsets int64[N+1] from 0, PIECE[P])`; no copy."""
    array = column(rows, PIECES)
    ends: Any
    _, ends, data = array.buffers()
    ends = np.frombuffer(ends, dtype=np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first = int(ends[0]) // PIECE.itemsize
    offsets = ends // PIECE.itemsize - first
    flat = (
        np.frombuffer(data, dtype=PIECE, count=int(offsets[-1]), offset=int(ends[0]))
        if data is not None and offsets[-1]
        else np.zeros(0, PIECE)
    )
    return offsets, flat


def source_numbers(rows: pa.RecordBatch) -> IntArray:
    """The groups that decision rows draw on, by number, one per reference: from PIECES, else from SOURCE."""
    if rows.schema.get_field_index(PIECES) >= 0:
        return np.ascontiguousarray(list_pieces(rows)[1]["source"])
    offsets, values = list_parts(column(rows, SOURCE))
    return values[int(offsets[0]) : int(offsets[-1])]


def set_column(group: pa.RecordBatch, name: str, values: ArrowArray) -> pa.RecordBatch:
    """The group with the column `name` added or replaced in its place."""
    index = group.schema.get_field_index(name)
    if index < 0:
        return group.append_column(name, values)
    return group.set_column(index, name, values)


def select(group: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    """The group with only these columns, in this order."""
    wanted = list(names)
    try:
        return group.select(wanted)
    except KeyError:
        for name in wanted:
            column(group, name)  # says which one is missing
        raise


def take(group: pa.RecordBatch, indices: npt.ArrayLike) -> pa.RecordBatch:
    """The rows at `indices`, in that order (copies)."""
    index: ArrowArray = to_arrow(np.asarray(indices, dtype=np.int64))
    if not any(_is_flat_list(kind) or _has_view(kind) for kind in group.schema.types):
        return group.take(index)
    return pa.RecordBatch.from_arrays([take_array(c, index) for c in group.columns], schema=group.schema)


def _is_flat_list(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    value = kind.value_type
    return bool(pa.types.is_integer(value) or pa.types.is_floating(value))


def take_array(array: ArrowArray, index: ArrowArray) -> ArrowArray:
    """`array.take(index)`; a list of numbers is taken as binary, row by row instead of element by element (4 times quicker)."""
    kind = array.type
    if not _is_flat_list(kind):
        return array.cast(_without_views(kind)).take(index).cast(kind) if _has_view(kind) else array.take(index)
    if array.null_count or array.values.null_count:
        return array.take(index)
    width = kind.value_type.bit_width // 8
    offsets = to_numpy(array.offsets).astype(np.int64, copy=False)
    values = array.values
    data = values.buffers()[1]
    if not len(values) or not len(array):
        # the buffer of no values may be none, or one without an address (from another process)
        return array.take(index)
    ends = (offsets + values.offset) * width
    rows = pa.Array.from_buffers(pa.large_binary(), len(array), [None, pa.py_buffer(ends), data]).take(index)
    taken: Any
    _, taken, payload = rows.buffers()
    starts = np.frombuffer(taken, dtype=np.int64)[rows.offset : rows.offset + len(rows) + 1] // width
    length = 0 if payload is None else payload.size // width
    numbers = pa.Array.from_buffers(kind.value_type, length, [None, payload if payload is not None else pa.py_buffer(b"")])
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(to_arrow(starts), numbers, type=kind)
    return pa.ListArray.from_arrays(to_arrow(starts.astype(np.int32)), numbers, type=kind)


def is_view(kind: pa.DataType) -> bool:
    """Whether it is one of Arrow's view types of text and bytes."""
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def _has_view(kind: pa.DataType) -> bool:
    return is_view(kind) or any(_has_view(kind.field(i).type) for i in range(kind.num_fields))


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type with large text and bytes in place of views, which Arrow (26) can't take."""
    t = pa.types
    if is_view(kind):
        return pa.large_string() if t.is_string_view(kind) else pa.large_binary()
    if t.is_list(kind):
        return pa.list_(_without_views(kind.value_type))
    if t.is_large_list(kind):
        return pa.large_list(_without_views(kind.value_type))
    if t.is_fixed_size_list(kind):
        return pa.list_(_without_views(kind.value_type), kind.list_size)  # type: ignore[no-any-return]
    if t.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([f.with_type(_without_views(f.type)) for f in kind])
    return kind


def concat(groups: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One group out of several, columns united by name: a missing column is null, types are widened where no value is lost.

    Raises:
        DataError: two groups have a column of the same name with types that don't go together.
    """
    if len(groups) == 1:
        return groups[0]
    if all(group.schema.equals(groups[0].schema) for group in groups):
        return pa.concat_batches(groups)  # type: ignore[attr-defined, no-any-return]
    try:
        table = pa.concat_tables([pa.Table.from_batches([g]) for g in groups], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _apart(error) from error
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty_group(table.schema)


def copied(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows of some groups of one schema, in memory of their own, which holds nothing else.

    One call for all columns is four times as quick as taking rows.
    """
    return pa.concat_batches(parts)  # type: ignore[attr-defined, no-any-return]


def unify(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema of groups of both, as `concat` makes it. Raises `DataError` where they don't go together."""
    if one.equals(other):
        return one
    try:
        return pa.unify_schemas([one, other], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise _apart(error) from error


def _apart(error: Exception) -> DataError:
    return DataError(
        f"values of types that don't go together: {error}",
        hint="a function gives one type here and another there; declare what it gives, as in map(fn, output={'x': 'int64'})",
    )


def empty_group(schema: pa.Schema) -> pa.RecordBatch:
    """A group of this schema with no rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def iter_rows(group: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The user's columns as one dict per record; the only per-record Python, for convenience functions."""
    yield from select(group, user_columns(group.schema)).to_pylist()


def from_rows(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """A group out of dicts: the union of their keys, in order of first appearance; types as pyarrow infers them."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    arrays = [inferred([row.get(name) for row in rows]) for name in names]
    if not arrays:
        structs: ArrowArray = pa.array([{} for _ in rows], type=pa.struct([]))
        return pa.RecordBatch.from_struct_array(structs)
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def carry_provenance(origin: pa.RecordBatch, made: pa.RecordBatch, rows: npt.ArrayLike | None = None) -> pa.RecordBatch:
    """`made` with `origin`'s provenance columns; `rows[i]` is the row of `origin` that row i of `made` came from."""
    index: ArrowArray = None if rows is None else to_arrow(np.asarray(rows, dtype=np.int64))
    for name in PROVENANCE:
        if origin.schema.get_field_index(name) >= 0 and made.schema.get_field_index(name) < 0:
            values = column(origin, name)
            made = made.append_column(name, values if index is None else values.take(index))
    return made


def byte_span(array: ArrowArray) -> tuple[IntArray, memoryview]:
    """A column of text or bytes without nulls, of at least one row, as `(offsets int[N+1], the bytes from the first to the last)`; no
    copy."""
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offset_buffer: Any
    _, offset_buffer, data = array.buffers()
    kind = np.dtype(np.int64 if wide else np.int32)
    ends = np.frombuffer(offset_buffer, kind, len(array) + 1, array.offset * kind.itemsize)
    return ends, memoryview(data)[int(ends[0]) : int(ends[-1])] if data is not None else memoryview(b"")

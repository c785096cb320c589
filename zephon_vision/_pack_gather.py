"""The heavy half of `pack_multimodal`: tokens, images, plans and spans of the decided sequences, put together over whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.errors import DataError
from zephon.operators.pack_gather import GatherSequences
from zephon_vision import columns

Ints = npt.NDArray[Any]
Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""

IMAGE_FIELDS: tuple[Any, ...] = (
    pa.field(columns.IMAGES, columns.IMAGES_TYPE),
    pa.field(columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE),
    pa.field(columns.IMAGE_SPANS, columns.IMAGE_SPANS_TYPE),
    pa.field(columns.IMAGE_DOCUMENT, pa.list_(pa.int32())),
    pa.field(columns.IMAGE_BLOCKS, pa.int32()),
)
"""The columns of a packed row that are about its images."""
ALIGNMENT_FIELD: Any = pa.field(columns.DOCUMENT_ALIGNMENT, pa.list_(pa.int32()))


class GatherMultimodal:
    """`(decision rows, sources) -> group`: each row exactly `length` tokens, and the images of its documents in order.

    Spans count tokens and images of the row, no longer of the document.
    """

    def __init__(self, *, length: int, pad: int, columns: Sequence[str], aligned: bool = False) -> None:
        self._tokens = GatherSequences(length=length, pad=pad, columns=columns)
        self._aligned = aligned

    def __call__(self, rows: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
        """Gather.

        Raises:
            DataError: a row with spans of another form than `columns.SPAN`, or more than 2 GiB of images in one call.
        """
        group = self._tokens(rows, sources)
        pieces = _Pieces(rows, sources)
        number, images = pieces.lists(columns.IMAGES, columns.IMAGES_TYPE)
        planned, plans = pieces.lists(columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE)
        if (planned != number).any():
            raise DataError(f"{columns.IMAGE_PLANS!r} is not parallel to {columns.IMAGES!r}")
        spanned, spans = pieces.lists(columns.IMAGE_SPANS, columns.IMAGE_SPANS_TYPE)
        ends = pieces.row_ends(number)
        document = np.repeat(np.arange(len(number)) - pieces.offsets[:-1].repeat(np.diff(pieces.offsets)), number)
        made = (
            groups.make_list(ends, images),
            groups.make_list(ends, plans),
            groups.make_list(
                pieces.row_ends(spanned), _shifted(spans, spanned, pieces.before(pieces.length), pieces.before(number))
            ),
            groups.make_list(ends, document.astype(np.int32)),
            groups.column(rows, columns.IMAGE_BLOCKS),
        )
        for kind, array in zip(IMAGE_FIELDS, made, strict=True):
            group = group.append_column(kind, array)
        if self._aligned:
            lists = groups.make_list(pieces.offsets, pieces.numbers(columns.DOCUMENT_ALIGNMENT))
            group = group.append_column(ALIGNMENT_FIELD, lists)
        return group


class _Pieces:
    """The documents of some decision rows, in order, and how to find their lists in the sources."""

    def __init__(self, rows: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch]) -> None:
        self.offsets, pieces = groups.list_pieces(rows)
        self.length = pieces["length"].astype(np.int64)
        # sources in the order of their first use: where each row has one of its own, their columns are then what is wanted, as they are
        numbers, first_use, which = np.unique(pieces["source"], return_index=True, return_inverse=True)
        order = np.argsort(first_use)
        self._sources = [sources[number] for number in numbers[order].tolist()]
        first = np.cumsum([0, *(s.num_rows for s in self._sources)])
        self._place = first[np.argsort(order)[which]] + pieces["row"]
        self._in_order = bool(np.array_equal(self._place, np.arange(first[-1])))

    def lists(self, name: str, kind: Any) -> tuple[Ints, Array]:
        """`(int64[P] elements of each document, all elements in order)`; a column that isn't there counts as empty lists."""
        parts = [_as(s, name, kind) for s in self._sources]
        try:
            whole: Array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.array([], type=kind)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"the images of {len(self.offsets) - 1} sequences are more than 2 GiB in one group: {error}",
                hint="fewer sequences per batch, or a smaller shuffle buffer",
            ) from error
        if not self._in_order:
            index: Array = pa.array(self._place)
            whole = whole.take(index)
        lengths: Array = whole.value_lengths()
        lengths = lengths.fill_null(0) if lengths.null_count else lengths
        return lengths.to_numpy().astype(np.int64), whole.flatten()

    def numbers(self, name: str) -> Ints:
        """int32[P]: of each document the value of a column that all sources have."""
        parts = [np.zeros(0, np.int32), *(groups.ints(s, name) for s in self._sources)]
        values: Ints = np.concatenate(parts)[self._place]
        return values

    def row_ends(self, counts: Ints) -> Ints:
        """int64[R+1]: where each row's elements end, when each document has so many."""
        ends: Ints = _ends(counts)[self.offsets]
        return ends

    def before(self, counts: Ints) -> Ints:
        """int64[P]: the sum of `counts` over the documents before this one in its row."""
        begins = _ends(counts)
        before: Ints = begins[:-1] - np.repeat(begins[self.offsets[:-1]], np.diff(self.offsets))
        return before


def _ends(counts: Ints) -> Ints:
    ends = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _as(source: pa.RecordBatch, name: str, kind: Any) -> Array:
    index = source.schema.get_field_index(name)
    if index < 0:
        return pa.array([None] * source.num_rows, type=kind)
    array: Array = source.column(index)
    return array if array.type == kind else conform(array, kind)


def conform(array: Array, kind: Any) -> Array:
    """A nested column as `kind`, with struct fields found by name; Arrow's own cast minds their order.

    Raises:
        DataError: it can't be one.
    """
    try:
        if pa.types.is_null(array.type):
            return pa.array([None] * len(array), type=kind)
        if pa.types.is_list(kind):
            if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
                raise DataError(f"expected {kind}, got {array.type}")
            null: Array = array.is_null() if array.null_count else None
            lengths: Array = array.value_lengths()
            ends: Array = pa.array(_ends(lengths.fill_null(0).to_numpy()).astype(np.int32))
            make: Any = pa.ListArray.from_arrays
            return make(ends, conform(array.flatten(), kind.value_type), type=kind, mask=null)
        if pa.types.is_struct(kind):
            if not pa.types.is_struct(array.type):
                raise DataError(f"expected {kind}, got {array.type}")
            by_name = {field.name: array.field(field.name) for field in array.type}
            fields = [
                conform(by_name[f.name], f.type) if f.name in by_name else pa.array([None] * len(array), type=f.type)
                for f in kind
            ]
            struct: Any = pa.StructArray.from_arrays
            return struct(fields, fields=list(kind), mask=array.is_null() if array.null_count else None)
        return array if array.type == kind else array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise DataError(f"expected {kind}, got {array.type}: {error}") from error


def _shifted(spans: Array, counts: Ints, tokens: Ints, images: Ints) -> Array:
    """Spans of documents as spans of rows: `tokens` and `images` int64[P] are what comes before each document in its row."""
    if spans.null_count or any(spans.field(f.name).null_count for f in columns.SPAN):
        raise DataError(f"{columns.IMAGE_SPANS!r} holds nulls")
    shift = {"start": tokens, "stop": tokens, "image": images}
    moved: list[Array] = [
        pa.array((spans.field(f.name).to_numpy() + np.repeat(shift[f.name], counts)).astype(np.int32)) for f in columns.SPAN
    ]
    struct: Any = pa.StructArray.from_arrays
    return struct(moved, fields=list(columns.SPAN))

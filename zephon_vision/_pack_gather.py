"""The heavy half of `pack_multimodal`: tokens, images, plans and spans of the decided sequences, put together over whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import list_sizes, to_arrow, to_numpy
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

_WIDEST = 2**31
"""Fewer bytes are in a column of bytes."""
_NOTHING_FIELDS: list[Any] = [pa.field(groups.TOKENS, pa.list_(pa.int32())), pa.field(columns.DOCUMENT_ALIGNMENT, pa.int32())]
_NOTHING = pa.schema(_NOTHING_FIELDS)


class GatherMultimodal:
    """`(decision rows, sources) -> group`: each row exactly `length` tokens, and the images of its documents in order.

    Spans count tokens and images of the row, no longer of the document. With `shows` the images' bytes stay where they lie, as views.
    """

    def __init__(self, *, length: int, pad: int, columns: Sequence[str], aligned: bool = False, shows: bool = False) -> None:
        self._tokens = GatherSequences(length=length, pad=pad, columns=columns)
        self._aligned = aligned
        self._shows = shows

    def __call__(self, rows: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
        """Gather.

        Raises:
            DataError: a row with spans of another form than `columns.SPAN`, or more than 2 GiB of images in one call.
        """
        offsets, pieces = groups.list_pieces(rows)
        documents = _documents(pieces, sources)
        group = self._tokens.of_documents(rows, documents)
        number, images = _lists(documents, columns.IMAGES, columns.SHOWN_IMAGES_TYPE)
        if not self._shows:
            images = _plain(images)
        planned, plans = _lists(documents, columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE)
        if not np.array_equal(planned, number):
            raise DataError(f"{columns.IMAGE_PLANS!r} is not parallel to {columns.IMAGES!r}")
        spanned, spans = _lists(documents, columns.IMAGE_SPANS, columns.IMAGE_SPANS_TYPE)
        per_row = offsets[1:] - offsets[:-1]
        document = np.repeat(np.arange(len(number)) - offsets[:-1].repeat(per_row), number)
        ends = to_arrow(_ends(number)[offsets].astype(np.int32))
        moved = _shifted(spans, spanned, _before(pieces["length"], offsets), _before(number, offsets))
        make: Any = pa.ListArray.from_arrays
        made: list[Array] = [
            make(ends, images),
            make(ends, plans),
            groups.make_list(_ends(spanned)[offsets], moved),
            make(ends, to_arrow(document.astype(np.int32))),
            groups.column(rows, columns.IMAGE_BLOCKS),
        ]
        fields = list(IMAGE_FIELDS)
        if self._aligned:
            fields.append(ALIGNMENT_FIELD)
            made.append(groups.make_list(offsets, groups.column(documents, columns.DOCUMENT_ALIGNMENT)))
        fields[0] = pa.field(columns.IMAGES, made[0].type)
        return pa.RecordBatch.from_arrays([*group.columns, *made], schema=pa.schema([*group.schema, *fields]))


def _documents(pieces: Ints, sources: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
    """The documents of some decision rows, in order; the sources' own memory where one source has just these."""
    if not len(pieces):
        return groups.empty_group(_NOTHING)
    # sources in the order of their first use: where each row has some of its own, they are then what is wanted, as they are
    numbers = pieces["source"].tolist()
    first: dict[int, int] = {}
    rows = 0
    for number in dict.fromkeys(numbers):
        first[number] = rows
        rows += sources[number].num_rows
    place = [first[number] + row for number, row in zip(numbers, pieces["row"].tolist(), strict=True)]
    whole = groups.concat([sources[number] for number in first])
    return whole if place == list(range(rows)) else groups.take(whole, place)


def _plain(images: Array) -> Array:
    """The images with their bytes one after the other, as `columns.IMAGE_REF`."""
    size = int(groups.view_lengths(images.field("bytes")).sum())
    if size >= _WIDEST:  # the cast would not notice
        raise DataError(
            f"{len(images)} images of one group are {size:,} bytes, more than 2 GiB",
            hint="fewer sequences per batch, or a smaller shuffle buffer",
        )
    return conform(images, columns.IMAGE_REF)


def _lists(documents: pa.RecordBatch, name: str, kind: Any) -> tuple[Ints, Array]:
    """`(int64[P] elements of each document, all elements in order)`; a column that isn't there counts as empty lists."""
    index = documents.schema.get_field_index(name)
    if index < 0:
        return np.zeros(len(documents), dtype=np.int64), pa.nulls(0, kind.value_type)
    array: Array = documents.column(index)
    if array.type != kind:
        array = conform(array, kind)
    if array.null_count:
        return list_sizes(array), array.flatten()
    ends = to_numpy(array.offsets)
    first = int(ends[0])
    return (ends[1:] - ends[:-1]).astype(np.int64), array.values.slice(first, int(ends[-1]) - first)


def _before(counts: Ints, offsets: Ints) -> Ints:
    """int64[P]: the sum of `counts` over the documents before each one in its row."""
    begins = _ends(counts)
    before: Ints = begins[:-1] - np.repeat(begins[offsets[:-1]], offsets[1:] - offsets[:-1])
    return before


def _ends(counts: Ints) -> Ints:
    ends = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def conform(array: Array, kind: Any) -> Array:
    """A nested column as `kind`, with struct fields found by name; Arrow's own cast minds their order.

    Raises:
        DataError: it can't be one.
    """
    try:
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), kind)
        if pa.types.is_list(kind):
            if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
                raise DataError(f"expected {kind}, got {array.type}")
            null: Array = array.is_null() if array.null_count else None
            ends: Array = to_arrow(_ends(list_sizes(array)).astype(np.int32))
            make: Any = pa.ListArray.from_arrays
            return make(ends, conform(array.flatten(), kind.value_type), type=kind, mask=null)
        if pa.types.is_struct(kind):
            if not pa.types.is_struct(array.type):
                raise DataError(f"expected {kind}, got {array.type}")
            by_name = {field.name: array.field(field.name) for field in array.type}
            fields = [conform(by_name[f.name], f.type) if f.name in by_name else pa.nulls(len(array), f.type) for f in kind]
            struct: Any = pa.StructArray.from_arrays
            return struct(fields, fields=list(kind), mask=array.is_null() if array.null_count else None)
        return array if array.type == kind else array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise DataError(f"expected {kind}, got {array.type}: {error}") from error


def _shifted(spans: Array, counts: Ints, tokens: Ints, images: Ints) -> Array:
    """Spans of documents as spans of rows: `tokens` and `images` int64[P] are what comes before each document in its row."""
    parts: list[Array] = [spans.field(number) for number in range(len(columns.SPAN))]
    by_token, by_image = np.repeat(tokens, counts), np.repeat(images, counts)
    shifts = zip(parts, (by_token, by_token, by_image), strict=True)
    moved: list[Array] = [to_arrow((to_numpy(part) + shift).astype(np.int32)) for part, shift in shifts]
    struct: Any = pa.StructArray.from_arrays
    return struct(moved, fields=list(columns.SPAN))

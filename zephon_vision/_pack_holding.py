"""The serial half of `pack_multimodal`: sees lengths and costs, and holds the documents that wait in open sequences.

A document's image files are as large as thousands of its tokens, so each document's are in memory of their own (`_pack_files`), and are
copied never again. The rest is kept as it came, and a held group shrinks when half of its bytes are gone. A decided sequence refers to its
documents by slices of held groups, which cost nothing; where it waits in a shuffle, these become groups of their own
(`StatefulOperator.slices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import list_sizes, to_arrow, to_numpy
from zephon.errors import DataError, InternalError, RecipeError, Where, at
from zephon.keys import I64
from zephon.operators.pack import check_token_columns
from zephon.plugin import Decision, Drops, place_of
from zephon_vision import columns
from zephon_vision._decoders_source import check_image_lists
from zephon_vision._pack_align import align, aligned_lengths
from zephon_vision._pack_bins import Bins, Limits
from zephon_vision._pack_files import Files
from zephon_vision._pack_gather import conform

Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""

_FIELDS: list[Any] = [
    pa.field(groups.PIECES, pa.binary()),
    pa.field(groups.PADDING, pa.int32()),
    pa.field(columns.IMAGE_BLOCKS, pa.int32()),
]
_LIGHT = pa.schema(_FIELDS)
"""The columns of decision rows."""

_WORTH_SHRINKING = 1 << 18


class _Held:
    """A group of which some documents wait: document i of those that were packed is row `row[i]` of `group` now."""

    __slots__ = ("_file_sizes", "_files", "_rows", "_sizes", "alive", "group", "left", "row", "shown")

    def __init__(self, payload: pa.RecordBatch, rows: I64) -> None:
        there = payload.schema.get_field_index(columns.IMAGES) >= 0
        self._files = Files(groups.column(payload, columns.IMAGES)) if there else None
        self.group = payload.drop_columns([columns.IMAGES]) if there else payload
        self._rows = rows
        """Where each was at first."""
        self.row = rows.copy()
        self._sizes = _sizes(self.group)[rows]
        self._file_sizes = self._files.sizes[rows] if self._files is not None else np.zeros(len(rows), np.int64)
        self.alive = np.ones(len(rows), dtype=bool)
        self.left = int(self._sizes.sum())
        self.shown = int(self._file_sizes.sum())
        """Bytes of the files of those that wait."""

    @property
    def nbytes(self) -> int:
        return groups.nbytes(self.group) + self.shown

    def weights(self, places: I64) -> I64:
        """Bytes of the documents at some places, files included."""
        return self._sizes[places] + self._file_sizes[places]

    def run(self, places: I64) -> pa.RecordBatch:
        """The documents at some places, whose rows are neighbours."""
        part = self.group.slice(int(self.row[places[0]]), len(places))
        if self._files is None:
            return part
        return part.append_column(columns.IMAGES, self._files.of(self._rows[places].tolist()))

    def release(self, places: I64) -> bool:
        """Documents that were decided; whether none is left."""
        self.alive[places] = False
        self.left -= int(self._sizes[places].sum())
        self.shown -= int(self._file_sizes[places].sum())
        if not self.alive.any():
            return True
        if self._files is not None:
            self._files.drop(self._rows[places])
        if groups.nbytes(self.group) > max(2 * self.left, _WORTH_SHRINKING):
            kept = np.flatnonzero(self.alive)
            self.group = groups.copied(_runs(self.group, self.row[kept]))
            self.row[kept] = np.arange(len(kept))
        return False


_Note = tuple[int, int, int, int, int, int, int]
"""Of a document that waits: number of its held group, place there, tokens, blocks, component, shard, row in the shard."""


class MultimodalAccumulator:
    """See `Accumulator`. Decision rows refer to sources of their own, which hold exactly the sequence's documents, in order."""

    def __init__(
        self, limits: Limits | None, *, within: Limits, drop: bool, token_columns: Sequence[str], align_to: int, pad: int
    ) -> None:
        """`limits` None: one document per sequence. A document over `within` is dropped with `drop`, else an error."""
        self._align_to, self._pad = align_to, pad
        self._bins = Bins(limits) if limits is not None else None
        self._within = within
        self._drop = drop
        self._token_columns = token_columns
        self._held: dict[int, _Held] = {}
        self._notes: dict[int, _Note] = {}
        self._documents = 0
        self._made = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the documents that wait, and of the notes on them."""
        return sum(held.nbytes for held in self._held.values()) + 200 * len(self._notes)

    def add(self, group: pa.RecordBatch, number: int) -> Iterable[Decision]:
        """See `Accumulator`.

        Raises:
            DataError: columns that contradict each other; a document over a budget, unless those are dropped.
            RecipeError: a column of another type than it must have.
        """
        if not len(group):
            return []
        check_types(group.schema, self._token_columns)
        payload = self._payload(group)
        lengths, images, blocks = _measures(payload, group)
        if self._align_to > 1:
            payload = align(payload, lengths, self._align_to, pad=self._pad, token_columns=self._token_columns)
            lengths = aligned_lengths(lengths, self._align_to)
        used, drops = self._within_limits(group, lengths, images, blocks)
        if not len(used):
            return [Decision(groups.empty_group(_LIGHT), {}, drops)]
        lengths, images, blocks = lengths[used], images[used], blocks[used]
        self._held[number] = _Held(payload, used)
        places = np.arange(len(used))
        names = (groups.COMPONENT, groups.SHARD, groups.ROW)
        provenance = [groups.provenance(group, name, unknown=0)[used].tolist() for name in names]
        first, self._documents = self._documents, self._documents + len(used)
        every = range(first, self._documents)
        origin = zip([number] * len(used), places.tolist(), lengths.tolist(), blocks.tolist(), *provenance, strict=True)
        self._notes.update(zip(every, origin, strict=True))
        if self._bins is None:
            return [self._decide([[n] for n in every], drops)]
        made = self._bins.add(zip(lengths.tolist(), blocks.tolist(), images.tolist(), strict=True))
        return [self._decide(made, self._given_up(drops))]

    def flush(self) -> Iterable[Decision]:
        """See `Accumulator`: the sequences that are still open, in the order in which they were opened."""
        if self._bins is None:
            return []
        made = self._bins.flush()
        decision = self._decide(made, self._given_up(Drops()))
        if self._held or self._notes:
            raise InternalError(f"pack_multimodal kept {len(self._notes)} documents at the flush")
        return [decision]

    def _payload(self, group: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that the gather needs, the images' in the types of `columns`."""
        there = set(group.schema.names)
        payload = groups.select(group, [groups.TOKENS, *(n for n in self._token_columns if n in there)])
        for name, kind in (
            (columns.IMAGES, columns.IMAGES_TYPE),
            (columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE),
            (columns.IMAGE_SPANS, columns.IMAGE_SPANS_TYPE),
            (columns.IMAGE_BLOCKS, None),
        ):
            if name in there:
                array: Array = groups.column(group, name)
                known = kind is None or array.type in (kind, columns.SHOWN_IMAGES_TYPE)
                payload = payload.append_column(name, array if known else _conformed(group, name, kind))
        return payload

    def _within_limits(self, group: pa.RecordBatch, lengths: I64, images: I64, blocks: I64) -> tuple[I64, Drops]:
        """`(rows to pack, what is left out)`: no empty documents, none that is over a budget by itself."""
        limits = self._within
        rows: dict[str, I64] = {}
        keep = lengths > 0
        if not keep.all():
            rows["empty"] = np.flatnonzero(~keep)
        for what, amounts, most, hint in (
            ("tokens", lengths, limits.tokens, "tokenize_interleaved(max_length=…) cuts documents between images"),
            ("patches", blocks, limits.blocks, "raise max_patches, or lower max_pixels or max_images before packing"),
            ("images", images, limits.images, "raise max_images, or lower it in tokenize_interleaved"),
        ):
            over = keep & (amounts > most)
            if not over.any():
                continue
            worst = np.flatnonzero(over)
            if not self._drop:
                row = int(worst[0])
                raise DataError(
                    f"a document of {int(amounts[row])} {what} does not fit a sequence of at most {most}",
                    where=place_of(group, row),
                    hint=f'{hint}; or over_long="drop"',
                )
            rows[f"too many {what}"] = worst
            keep &= ~over
        return np.flatnonzero(keep), Drops(rows)

    def _given_up(self, drops: Drops) -> Drops:
        """Documents for which no sequence with an image was found, which may be of earlier groups."""
        assert self._bins is not None
        gone, self._bins.given_up = self._bins.given_up, []
        if not gone:
            return drops
        tokens: dict[int, int] = {}
        records: dict[int, int] = {}
        for _, _, length, _, component, _, _ in self._release(gone).tolist():
            tokens[component] = tokens.get(component, 0) + length
            records[component] = records.get(component, 0) + 1
        return Drops(drops.rows, {**drops.tokens, "no image": tokens}, {**drops.records, "no image": records})

    def _decide(self, made: Sequence[Sequence[int]], drops: Drops) -> Decision:
        counts = np.array([len(documents) for documents in made], dtype=np.int64)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        every = [n for documents in made for n in documents]
        notes = self._noted(every)
        slices, weights, source, row = self._slices(notes, ends)
        pieces = np.zeros(len(every), dtype=groups.PIECE)
        pieces["source"], pieces["row"] = self._made + source, row
        for name, values in zip(("length", "component", "shard", "origin"), notes.T[[2, 4, 5, 6]], strict=True):
            pieces[name] = values
        padding = (self._within.tokens - _sums(notes[:, 2], counts)).astype(np.int32)
        cost = _sums(notes[:, 3], counts).astype(np.int32)
        sources, held = dict(enumerate(slices, self._made)), dict(enumerate(weights, self._made))
        self._made += len(slices)
        # only now: a group shrinks once, not once per sequence
        self._release(every)
        arrays: list[Any] = [groups.make_pieces(ends, pieces), to_arrow(padding), to_arrow(cost)]
        return Decision(pa.RecordBatch.from_arrays(arrays, schema=_LIGHT), sources, drops, held)

    def _noted(self, documents: Sequence[int]) -> I64:
        """int64[N, 7]: the notes on these documents."""
        return np.array([self._notes[n] for n in documents], dtype=np.int64).reshape(len(documents), 7)

    def _slices(self, notes: I64, ends: I64) -> tuple[list[pa.RecordBatch], list[int], I64, I64]:
        """`(slices, what each weighs, int64[N] the slice of each document, int64[N] its row there)`: runs of neighbours in a held group
        and a sequence.

        Sequence i has the documents of notes `ends[i]` to `ends[i + 1]`.
        """
        number, row, weight = notes[:, 0], np.empty(len(notes), dtype=np.int64), np.empty(len(notes), dtype=np.int64)
        for n in np.unique(number).tolist():
            here = np.flatnonzero(number == n)
            held, places = self._held[n], notes[here, 1]
            row[here], weight[here] = held.row[places], held.weights(places)
        begins = np.ones(len(notes), dtype=bool)
        begins[1:] = (number[1:] != number[:-1]) | (row[1:] != row[:-1] + 1)
        begins[ends[:-1]] = True
        first, which = np.flatnonzero(begins), np.cumsum(begins) - 1
        sizes = np.diff(first, append=len(notes))
        runs = zip(number[first].tolist(), first.tolist(), sizes.tolist(), strict=True)
        made = [self._held[n].run(notes[at : at + size, 1]) for n, at, size in runs]
        weights = np.add.reduceat(weight, first).tolist() if len(first) else []
        return made, weights, which, np.arange(len(notes)) - first[which]

    def _release(self, documents: Sequence[int]) -> I64:
        """Let go of documents; the notes on them."""
        notes = self._noted(documents)
        for n in documents:
            del self._notes[n]
        for number in np.unique(notes[:, 0]).tolist():
            if self._held[number].release(notes[notes[:, 0] == number, 1]):
                del self._held[number]
        return notes


def check_types(schema: pa.Schema, token_columns: Sequence[str]) -> None:
    """Raise `RecipeError` where a column that is packed is of a type that can't be."""
    check_token_columns(schema, token_columns)
    for name, wanted in (
        (columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE),
        (columns.IMAGE_SPANS, columns.IMAGE_SPANS_TYPE),
        (columns.IMAGE_BLOCKS, pa.int32()),
    ):
        columns.check_type(schema, name, wanted, "tokenize_interleaved() makes it")
    if schema.get_field_index(columns.IMAGES) >= 0:
        kind: Any = schema.field(columns.IMAGES).type
        check_image_lists(kind, columns.IMAGES)
        if not pa.types.is_null(kind) and not (pa.types.is_struct(kind.value_type) or pa.types.is_null(kind.value_type)):
            raise RecipeError(
                f"column {columns.IMAGES!r} is {kind}, not {columns.IMAGES_TYPE}", hint="tokenize_interleaved() makes it so"
            )


def _conformed(group: pa.RecordBatch, name: str, kind: Any) -> Array:
    """A column as `kind`. Raises `DataError` naming the first row with a value that can't be so."""
    array: Array = groups.column(group, name)
    try:
        return conform(array, kind)
    except DataError:
        for row in range(len(array)):
            with at(**vars(place_of(group, row))):
                conform(array.slice(row, 1), kind)
        raise


def _runs(group: pa.RecordBatch, rows: I64) -> list[pa.RecordBatch]:
    """The rows in order, in as few slices as there are runs."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(rows))
    return [group.slice(first, length) for first, length in zip(rows[starts].tolist(), lengths.tolist(), strict=True)]


def _measures(payload: pa.RecordBatch, group: pa.RecordBatch) -> tuple[I64, I64, I64]:
    """`(tokens, images, blocks)` of each document, int64[N]; raises `DataError` where columns contradict each other."""
    tokens = groups.list_lengths(groups.column(payload, groups.TOKENS)).astype(np.int64)
    image_columns = {columns.IMAGES, columns.IMAGE_PLANS, columns.IMAGE_SPANS, columns.IMAGE_BLOCKS}
    for name in payload.schema.names[1:]:
        if name in image_columns:
            continue
        array = groups.column(payload, name)
        wrong = np.flatnonzero((groups.list_lengths(array) != tokens) & to_numpy(array.is_valid()))
        if len(wrong):
            row = int(wrong[0])
            found = int(groups.list_lengths(array)[row])
            raise DataError(f"column {name!r} has {found} values for {int(tokens[row])} tokens", where=place_of(group, row))
    images, plans = _counts(payload, columns.IMAGES), _counts(payload, columns.IMAGE_PLANS)
    wrong = np.flatnonzero(images != plans)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"a document has {int(images[row])} images and {int(plans[row])} plans", where=place_of(group, row))
    _check_spans(payload, group)
    return tokens, images, _blocks(payload, group)


def _counts(payload: pa.RecordBatch, name: str) -> I64:
    """int64[N]: elements of a list column; 0 where there is none."""
    if payload.schema.get_field_index(name) < 0:
        return np.zeros(len(payload), dtype=np.int64)
    return list_sizes(groups.column(payload, name))


def _check_spans(payload: pa.RecordBatch, group: pa.RecordBatch) -> None:
    """Raise `DataError` naming the first document with a span that doesn't say from where to where, or of which image."""
    if payload.schema.get_field_index(columns.IMAGE_SPANS) < 0:
        return
    spans = groups.column(payload, columns.IMAGE_SPANS)
    parts = spans.flatten().flatten()
    if any(part.null_count for part in parts):
        gone = np.any([to_numpy(part.is_null()) for part in parts], axis=0)
        raise DataError(f"{columns.IMAGE_SPANS!r} holds nulls", where=_place(group, spans, gone))


def _place(group: pa.RecordBatch, lists: Array, which: npt.NDArray[np.bool_]) -> Where:
    """Where the row is from that has the first of those elements of a list column."""
    return place_of(group, int(np.searchsorted(np.cumsum(list_sizes(lists)), int(np.argmax(which)), side="right")))


def _blocks(payload: pa.RecordBatch, group: pa.RecordBatch) -> I64:
    """int64[N]: blocks per document, as told, else from the plans."""
    index = payload.schema.get_field_index(columns.IMAGE_BLOCKS)
    if index >= 0:
        told: Array = payload.column(index)
        if not told.null_count:
            return to_numpy(told).astype(np.int64)
    if payload.schema.get_field_index(columns.IMAGE_PLANS) < 0:
        return np.zeros(len(payload), dtype=np.int64)
    plans = groups.column(payload, columns.IMAGE_PLANS)
    # the third number of a plan is its blocks (`Plan.pack`)
    numbers = plans.flatten().field("numbers")
    short = list_sizes(numbers) <= _BLOCKS  # a null has no numbers
    if short.any():
        raise DataError(f"{columns.IMAGE_PLANS!r} holds something that is no plan", where=_place(group, plans, short))
    offsets, values = groups.list_parts(numbers)
    return _sums(values[offsets[:-1] + _BLOCKS].astype(np.int64), _counts(payload, columns.IMAGE_PLANS))


_BLOCKS = 2


def _sizes(payload: pa.RecordBatch) -> I64:
    """int64[N]: about how many bytes each document takes, but for its files."""
    sizes: I64 = 8 * groups.list_lengths(groups.column(payload, groups.TOKENS)).astype(np.int64) + 64
    return sizes


def _sums(values: I64, counts: I64) -> I64:
    """int64[N]: the sums of the first `counts[0]` values, the next `counts[1]`, …"""
    before = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=before[1:])
    ends = np.cumsum(counts)
    sums: I64 = before[ends] - before[ends - counts]
    return sums

"""Opened chunks of LitData: read units from the index, rows from ranges of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.errors import Where
from zephon.plugin import DataError, Shard, Store, Units, at
from zephon_formats._arrow_read import Mapped
from zephon_formats._asked import check_rows
from zephon_formats._litdata_chunk import (
    ARROW_ROWS,
    I64,
    RECENT,
    ArrowRows,
    FileSource,
    Framed,
    Items,
    MappedSource,
    MemorySource,
    Plain,
    Source,
    is_zstd,
    read_layout,
    unpack_whole,
)
from zephon_formats._litdata_index import Column, Leaf, Stream, base_name, dtype_of
from zephon_formats._litdata_leaves import Array, Decoder, gather_flat, list_array, number_array, shows
from zephon_formats._litdata_values import conform, nulls

PIECE_BYTES = 1 << 30
"""Rows of more than this come in several batches."""
_MOST = 2**31 - 1
_RATIO = 3  # what zstd makes of text; only an estimate


class OpenChunk:
    """One chunk. Nothing is read before the first row is; then its table of offsets is kept."""

    def __init__(
        self, store: Store, shard: Shard, stream: Stream, *, unit_bytes: int, block_size: int | None, allow_pickle: bool
    ) -> None:
        self.schema: pa.Schema = stream.schema
        self._store, self._shard, self._stream = store, shard, stream
        self._block, self._allow_pickle = block_size, allow_pickle
        self.rows, self._nbytes = int(shard.extra["rows"]), int(shard.extra["bytes"])
        self._whole = (
            bool(stream.compression) and stream.level == "chunk" and f".{stream.compression}." in base_name(shard.path)
        )
        self._check_size()
        self._tokens = self._token_count() if block_size is not None else 0
        self._units = _cut(self._row_count(), self._decoded_bytes(), 0 if self._whole else unit_bytes, self._grain())
        self._map: Mapped | None = None
        self._layout: Plain | Framed | ArrowRows | None = None
        self._closed = False

    def _check_size(self) -> None:
        if not self._shard.size:
            raise DataError("the chunk is empty (0 bytes)", hint="was it written to its end?")
        if not self._whole and self._shard.size < self._nbytes:
            raise DataError(
                f"the chunk has {self._shard.size} bytes, its index says {self._nbytes}",
                hint="was it cut, or only half copied?",
            )

    def _token_count(self) -> int:
        tokens = self._shard.extra["tokens"]
        if tokens is not None:
            return int(tokens)
        # litdata does not say where a chunk begins with an empty document
        table = 4 + 4 * (self.rows + 1)
        width = np.dtype(dtype_of(self._stream.formats[0])).itemsize
        return max(0, (self._nbytes if self._whole else self._shard.size) - table) // width

    def _row_count(self) -> int:
        return self.rows if self._block is None else self._tokens // self._block

    def _decoded_bytes(self) -> int:
        stream = self._stream
        packed = stream.compression and not self._whole
        return max(1, self._nbytes, self._shard.size) * (_RATIO if packed or (stream.in_arrow and stream.packed_arrow) else 1)

    def _grain(self) -> int:
        """Rows that are packed together, so that units begin where they do."""
        if self._stream.in_arrow:
            return ARROW_ROWS
        return self._stream.frame_rows if self._stream.compression and self._stream.level == "batch" else 1

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the chunk's size shared out evenly, times 3 where it is packed inside."""
        rows = np.diff(self._units)
        total = max(1, int(self._units[-1]))
        return Units(rows, np.maximum(rows * self._decoded_bytes() // total, np.minimum(rows, 1)))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. Rows of more than 1 GB come in several batches."""
        with at(shard=self._shard.path):
            first, last = int(self._units[unit]), int(self._units[unit + 1])
            check_rows(unit, start, stop, last - first, closed=self._closed)
            wanted = self._wanted(columns)
            if start == stop:
                return [_batch(wanted, [pa.array([], c.kind) for c in wanted], 0)]
            return self._rows(wanted, first + start, first + stop)

    def _wanted(self, columns: Sequence[str] | None) -> list[Column]:
        by_name = {c.name: c for c in self._stream.columns}
        return [by_name[n] for n in dict.fromkeys(self.schema.names if columns is None else columns) if n in by_name]

    @property
    def mapped(self) -> tuple[int, int] | None:
        """See `OpenShard`: a local chunk in which nothing is packed is mapped for `views`."""
        if self._map is None and self._may_map and not isinstance(self._opened(keep=False)[1], Framed):
            path = self._store.local(self._shard.path)
            assert path is not None
            FileSource(self._store, self._shard).check()
            self._map = Mapped(path)
        return None if self._map is None else self._map.span

    @property
    def _may_map(self) -> bool:
        stream = self._stream
        values = self._block is None and not stream.temporal and stream.loader != "TokensLoader"
        packed = stream.compression or (stream.in_arrow and stream.packed_arrow)
        return values and not packed and self._store.local(self._shard.path) is not None

    def views(self, unit: int, columns: Sequence[str] | None) -> Sequence[pa.RecordBatch]:
        """See `OpenShard`: items hold their values one beside the other, so a column of them is a copy, or views."""
        first, last = int(self._units[unit]), int(self._units[unit + 1])
        if self.mapped is None or first == last:
            return self.read(unit, columns, 0, last - first)
        with at(shard=self._shard.path):
            if self._closed:
                raise DataError("the shard is closed")
            source = FileSource(self._store, self._shard)
            source.check()
            assert self._map is not None
            mapped, layout, wanted = MappedSource(self._map, source.size), self._layout, self._wanted(columns)
            if isinstance(layout, ArrowRows):
                return self._from_arrow(layout, mapped, wanted, first, last, views=True)
            assert layout is not None
            items = layout.items(mapped, first, last)
            if len(items.data) > _MOST:
                return self._rows(wanted, first, last)
            arrays = self._columns(wanted, items, views=True)
            return [pa.RecordBatch.from_arrays(arrays, names=[c.name for c in wanted])]

    def items(self, start: int, stop: int) -> Items | None:
        """The bytes of these rows' items; None for a chunk of Arrow batches, which has none."""
        source, layout = self._opened(keep=True)
        return None if isinstance(layout, ArrowRows) else layout.items(source, start, stop)

    def close(self) -> None:
        """See `OpenShard.close`; no file is held open between reads."""
        self._closed = True
        RECENT.drop(self)

    # ------------------------------------------------------------------------------------------------------- the chunk

    def _opened(self, *, keep: bool) -> tuple[Source, Plain | Framed | ArrowRows]:
        source: Source = FileSource(self._store, self._shard)
        if self._whole:
            source = RECENT.get(self, self._unpacked, keep=keep)
        if self._layout is None:
            self._layout = read_layout(source, self.rows, by_item=self._stream.level == "sample")
        return source, self._layout

    def _unpacked(self) -> MemorySource:
        packed = FileSource(self._store, self._shard)
        data = packed.read(0, packed.size)
        if not is_zstd(data):
            raise DataError(f"the chunk is not the {self._stream.compression} data that its index says it is")
        return MemorySource(unpack_whole(data))

    # ---------------------------------------------------------------------------------------------------------- rows

    def _rows(self, wanted: Sequence[Column], start: int, stop: int) -> list[pa.RecordBatch]:
        source, layout = self._opened(keep=stop - start < self._row_count())
        if isinstance(layout, ArrowRows):
            return self._from_arrow(layout, source, wanted, start, stop)
        if self._block is not None:
            return [_batch(wanted, [self._blocks(layout, source, start, stop) for _ in wanted], stop - start)]
        made = []
        pieces = _pieces(layout.sizes(start, stop), start)[::-1]
        while pieces:
            low, high = pieces.pop()
            items = layout.items(source, low, high)
            if len(items.data) <= _MOST:
                made.append(_batch(wanted, self._columns(wanted, items), high - low))
            elif high - low > 1:  # packed one by one, and larger than they looked
                pieces += [((low + high) // 2, high), (low, (low + high) // 2)]
            else:
                raise DataError(f"the row has {len(items.data)} bytes; 2 GiB is the most", where=Where(row=low))
        return made

    def _columns(self, wanted: Sequence[Column], items: Items, *, views: bool = False) -> list[Array]:
        if self._stream.loader == "TokensLoader":
            return [self._documents(items) for _ in wanted]
        if self._stream.temporal:
            return [_temporal(items, self._stream.temporal, c) for c in wanted]
        decoder = Decoder(items, len(self._stream.formats), allow_pickle=self._allow_pickle)
        arrays = []
        for c in wanted:
            decoder.views = views and isinstance(c.node, Leaf)
            made = nulls(decoder.rows, c.kind) if c.node is None else decoder.array(c.node)
            arrays.append(made if decoder.views and shows(made.type) else conform(made, c.kind, items.first))
        return arrays

    def _from_arrow(
        self, layout: ArrowRows, source: Source, wanted: Sequence[Column], start: int, stop: int, *, views: bool = False
    ) -> list[pa.RecordBatch]:
        made = []
        # to leave columns out would be a copy of the others
        names = [c.name for c in (self._stream.columns if views else wanted)]
        for batch, row in layout.batches(source, start, stop, names):
            low, high = max(start - row, 0), min(stop - row, len(batch))
            arrays = []
            for column in wanted:
                index = batch.schema.get_field_index(column.name)
                array = nulls(len(batch), column.kind) if index < 0 else conform(batch.column(index), column.kind, row)
                # what Arrow reads are views of one buffer, and a light column must not hold on to the heavy ones
                part = array.slice(low, high - low)
                arrays.append(part.take(_numbers(len(part))) if len(wanted) < len(layout.schema) and not views else part)
            made.append(_batch(wanted, arrays, high - low))
        if not views and len(made) > 1 and sum(b.nbytes for b in made) < PIECE_BYTES:
            return pa.Table.from_batches(made).combine_chunks().to_batches()
        return made

    # --------------------------------------------------------------------------------------------------------- tokens

    def _documents(self, items: Items) -> Array:
        dtype = dtype_of(self._stream.formats[0])
        width = np.dtype(dtype).itemsize
        size = np.diff(items.ends)
        wrong = size % width != 0
        if wrong.any():
            raise DataError(
                f"a document has not a whole number of {dtype} tokens", where=Where(row=items.first + int(np.argmax(wrong)))
            )
        values = number_array(gather_flat(items.data, items.ends[:-1], size), dtype)
        return self._token_lists(size // width, values, items.first)

    def _blocks(self, layout: Plain | Framed, source: Source, start: int, stop: int) -> Array:
        assert self._block is not None
        dtype = dtype_of(self._stream.formats[0])
        width = np.dtype(dtype).itemsize
        low, high = int(layout.offsets[0]), int(layout.offsets[-1])
        if not isinstance(layout, Plain) or high - low != self._tokens * width:
            raise DataError(f"the chunk has {(high - low) // width} tokens, its index says {self._tokens}")
        block = self._block * width
        data = np.frombuffer(source.read(low + start * block, low + stop * block), dtype=np.uint8).copy()
        return self._token_lists(np.full(stop - start, self._block, dtype=np.int64), number_array(data, dtype), start)

    def _token_lists(self, size: I64, values: Array, first: int) -> Array:
        kind = self.schema.field(0).type.value_type
        if values.type != kind:
            try:
                values = values.cast(kind)
            except pa.ArrowInvalid as error:
                raise DataError(f"a token of rows {first} to {first + len(size) - 1} does not fit int32: {error}") from error
        return list_array(size, values)


def look(chunk: OpenChunk, stream: Stream) -> dict[int, pa.DataType] | None:
    """The types of leaves that only data can tell, from a chunk's first rows; None: this chunk has no such leaves.

    An array without dimensions becomes a scalar, others stay (bytes, shape, dtype); a pickle, what Arrow makes of its values.
    """
    items = chunk.items(0, min(chunk.rows, ARROW_ROWS)) if chunk.rows else None
    if items is None:
        return None
    decoder = Decoder(items, len(stream.formats), allow_pickle=True)
    return {leaf.index: decoder.look(leaf) for leaf in stream.leaves() if leaf.unsure}


def _batch(columns: Sequence[Column], arrays: Sequence[Array], rows: int) -> pa.RecordBatch:
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))  # type: ignore[arg-type]
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema([pa.field(c.name, c.kind) for c in columns]))


def _numbers(rows: int) -> Array:
    return pa.array(np.arange(rows))


def _cut(rows: int, nbytes: int, unit_bytes: int, grain: int) -> I64:
    """Where units begin, in rows: of about `unit_bytes` (0: one unit), of a multiple of `grain` rows. int64[U + 1]."""
    if not rows:
        return np.zeros(1, dtype=np.int64)
    at_once = rows if not unit_bytes else max(1, rows * unit_bytes // nbytes // grain) * grain
    return np.append(np.arange(0, rows, min(at_once, rows)), rows).astype(np.int64)


def _pieces(sizes: I64, start: int) -> list[tuple[int, int]]:
    """Rows in pieces of at most PIECE_BYTES, or of one row."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    made, low = [], 0
    while low < len(sizes):
        high = max(low + 1, int(np.searchsorted(ends, ends[low] + PIECE_BYTES, side="right")) - 1)
        made.append((start + low, start + high))
        low = high
    return made


def _temporal(items: Items, schema: Any, column: Column) -> Array:
    """A field of records that are `uint32 frames` and, group by group, their frames as rows of a C struct."""
    begin, size = items.ends[:-1], np.diff(items.ends)
    groups = [
        np.dtype([(n, np.dtype(schema["fields"][n]["dtype"]), tuple(schema["fields"][n]["shape"])) for n in group], align=True)
        for group in schema["groups"]
    ]
    short = size < 4
    frames = np.zeros(len(size), dtype=np.int64)
    if not short.any():
        frames = np.lib.stride_tricks.sliding_window_view(items.data, 4)[begin].view("<u4").ravel().astype(np.int64)
    wrong = short | (size != 4 + frames * sum(g.itemsize for g in groups))
    if wrong.any():
        raise DataError(
            "the record's size does not fit its number of frames", where=Where(row=items.first + int(np.argmax(wrong)))
        )
    number = next(i for i, group in enumerate(schema["groups"]) if column.name in group)
    before = sum(g.itemsize for g in groups[:number])
    flat = gather_flat(items.data, begin + 4 + frames * before, frames * groups[number].itemsize)
    field = np.ascontiguousarray(np.frombuffer(flat, dtype=groups[number])[column.name])
    native = field.astype(field.dtype.newbyteorder("="), copy=False)
    values = number_array(native.reshape(-1).view(np.uint8), native.dtype.name)
    for length in reversed(schema["fields"][column.name]["shape"]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    return list_array(frames, values)

"""A chunk of LitData as bytes: where its items are, for each way in which the writer packs them.

* plain: `uint32 N`, `uint32 offsets[N + 1]` (from the file's start), items;
* sample: the same, each item a zstd frame of its own;
* batch: `LDFZ01`, N, offsets of the unpacked items, a table of frames, frames (`litdata/streaming/framed_zstd.py`);
* chunk: any of these as one zstd frame;
* arrow: N and offsets, and after them an Arrow IPC file, its length and `LDARW01` (`append_arrow_row_footer` in
  `litdata/streaming/item_loader.py`); its items may or may not be there as plain ones too, and aren't looked at.

All numbers are little endian. Which it is, the chunk itself says, except for `sample`, which only the index knows.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.errors import Where
from zephon.plugin import DataError, Shard, Store
from zephon_formats._arrow_read import Mapped

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

ARROW_ROWS = 256
"""Rows of a record batch in an Arrow chunk."""
_FRAMED, _ARROW, _IPC = b"LDFZ01\0\0", b"LDARW01\0", b"ARROW1"
_ZSTD, _ZSTD_HEAD = b"\x28\xb5\x2f\xfd", 18
_FRAME = np.dtype([("first", "<u4"), ("rows", "<u4"), ("begin", "<u8"), ("packed", "<u4"), ("size", "<u4")])
_BLOCK = np.dtype([("begin", "<i8"), ("meta", "<i4"), ("_", "<i4"), ("body", "<i8")])
_HEAD, _TAIL = 16 << 10, 64 << 10
_MOST = 1 << 32  # offsets are uint32
_KEEP_CHUNKS, _KEEP_BYTES = 2, 256 << 20


class Source(Protocol):
    """The bytes of a chunk after unpacking it as a whole, where that is needed."""

    size: int

    def read(self, start: int, stop: int) -> memoryview:
        """The bytes [start, stop). Raises `DataError` where it ends before that."""
        ...


class FileSource:
    """A file of a store, read by range. Raises `DataError` where its size isn't the listed one."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store, self._path, self.size = store, shard.path, shard.size
        self._local = store.local(shard.path)

    def check(self) -> None:
        """Raises `DataError` where a local file has another size than the listed one, or is gone."""
        if self._local is not None:
            try:
                found = os.stat(self._local).st_size
            except OSError as error:
                raise DataError(f"{self._path!r} can't be read: {error.strerror}") from error
            if found != self.size:
                raise DataError(f"the file has {found} bytes; it had {self.size} when it was listed",
                                hint="data must not change during a run")  # fmt: skip

    def read(self, start: int, stop: int) -> memoryview:
        self.check()
        data = self._store.read(self._path, start, stop)
        if len(data) != stop - start:
            raise DataError(f"the file ends at byte {start + len(data)}, before the rows that its index promises")
        return memoryview(data)


class MappedSource:
    """A file, mapped; nothing is copied."""

    def __init__(self, map: Mapped, size: int) -> None:
        self._map, self.size = map, size

    def read(self, start: int, stop: int) -> memoryview:
        return memoryview(self._map.get(start, stop))


class MemorySource:
    """An unpacked chunk."""

    def __init__(self, data: Any) -> None:
        self._view = memoryview(data)
        self.size = len(self._view)

    def read(self, start: int, stop: int) -> memoryview:
        if stop > self.size:
            raise DataError(f"the unpacked chunk ends at byte {self.size}, before the rows that its index promises")
        return self._view[start:stop]


class _Edges:
    """A source with its head and tail kept, so that finding out the layout takes two reads."""

    def __init__(self, source: Source, head: int) -> None:
        self._source = source
        self.size = source.size
        head = min(head, self.size)
        self._pieces = [(0, source.read(0, head))]
        self._tail = max(head, self.size - _TAIL)

    def read(self, start: int, stop: int) -> memoryview:
        if stop > self._pieces[0][1].nbytes and start >= self._tail and len(self._pieces) == 1:
            self._pieces.append((self._tail, self._source.read(self._tail, self.size)))
        for begin, piece in self._pieces:
            if begin <= start and stop <= begin + len(piece):
                return piece[start - begin : stop - begin]
        return self._source.read(start, stop)


class Recent:
    """The last few unpacked chunks of the process, for reads of parts of one."""

    def __init__(self) -> None:
        self._made: OrderedDict[object, MemorySource] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, key: object, make: Callable[[], MemorySource], *, keep: bool) -> MemorySource:
        """The one of this key, made where it isn't there, and kept if that is asked for; two threads may make it twice."""
        with self._guard:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
                return found
        made = make()
        with self._guard:
            if keep:
                self._made[key] = made
            while len(self._made) > 1 and (
                len(self._made) > _KEEP_CHUNKS or sum(s.size for s in self._made.values()) > _KEEP_BYTES
            ):
                self._made.popitem(last=False)
        return made

    def drop(self, key: object) -> None:
        """Forget it."""
        with self._guard:
            self._made.pop(key, None)


RECENT = Recent()


# --------------------------------------------------------------------------------------------------------------- zstd


def is_zstd(head: bytes | memoryview) -> bool:
    """Whether bytes begin with a zstd frame. As a number of items it would be 4.2 billion."""
    return bytes(head[:4]) == _ZSTD


def content_sizes(data: memoryview, begin: I64, rows: I64) -> I64:
    """The unpacked sizes that the zstd frames at these places state (RFC 8878, 3.1.1.1). Raises `DataError` where one doesn't."""
    padded = np.append(np.frombuffer(data, dtype=np.uint8), np.zeros(_ZSTD_HEAD, dtype=np.uint8))
    heads = np.lib.stride_tricks.sliding_window_view(padded, _ZSTD_HEAD)[begin]
    single, flag = heads[:, 4] >> 5 & 1, heads[:, 4] >> 6
    place = 6 - single + np.array([0, 1, 2, 4])[heads[:, 4] & 3]
    width = np.where(flag == 0, single, 1 << flag)
    sizes = np.where(width == 2, 256, 0).astype(np.int64)
    for i in range(8):
        sizes += np.where(i < width, heads[np.arange(len(heads)), place + i].astype(np.int64) << 8 * i, 0)
    bad = (heads[:, :4] != np.frombuffer(_ZSTD, dtype=np.uint8)).any(axis=1) | (width == 0) | (sizes < 0) | (sizes > _MOST)
    if bad.any():
        row = int(rows[np.argmax(bad)])
        raise DataError("the packed data is not a zstd frame that says how large its content is", where=Where(row=row))
    return sizes


def unpack_whole(data: memoryview) -> Any:
    """The content of one zstd frame. Raises `DataError` where it's damaged."""
    zero = np.zeros(1, dtype=np.int64)
    return _unpack(data, int(content_sizes(data, zero, zero)[0]))


def _unpack(frames: memoryview, size: int) -> Any:
    try:
        return pa.Codec("zstd").decompress(pa.py_buffer(frames), decompressed_size=size)
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise DataError(f"the zstd data is damaged: {error}") from error


def _unpack_many(data: memoryview, begin: I64, stop: I64, sizes: I64, rows: I64) -> U8:
    """Frames at [begin, stop) of `data`, unpacked one after the other. `rows` are for errors.

    One call takes all frames that follow each other; it is 15 times as fast as a call for each.
    """
    if (begin[1:] == stop[:-1]).all():
        try:
            return np.frombuffer(_unpack(data[int(begin[0]) : int(stop[-1])], int(sizes.sum())), dtype=np.uint8)
        except DataError:
            pass  # which of them is it?
    parts = []
    for a, b, size, row in zip(begin.tolist(), stop.tolist(), sizes.tolist(), rows.tolist(), strict=True):
        try:
            parts.append(np.frombuffer(_unpack(data[a:b], size), dtype=np.uint8))
        except DataError as error:
            error.where = error.where.within(Where(row=row))
            raise
    return np.concatenate(parts)


# ------------------------------------------------------------------------------------------------------------- layouts


@dataclass(frozen=True)
class Items:
    """Items of a chunk: row i is `data[ends[i]:ends[i + 1]]`; `first` is the number of row 0 in the chunk."""

    data: U8
    ends: I64
    first: int


class Layout(Protocol):
    """A chunk whose items can be read."""

    def sizes(self, start: int, stop: int) -> I64:
        """The bytes of each of these rows (packed, where they are packed one by one)."""
        ...

    def items(self, source: Source, start: int, stop: int) -> Items:
        """These rows."""
        ...


@dataclass(frozen=True)
class Plain:
    """Items one after the other, packed one by one where `packed`."""

    offsets: npt.NDArray[np.uint32]
    packed: bool

    def sizes(self, start: int, stop: int) -> I64:
        return np.diff(self.offsets[start : stop + 1].astype(np.int64))

    def items(self, source: Source, start: int, stop: int) -> Items:
        ends = self.offsets[start : stop + 1].astype(np.int64)
        data = source.read(int(ends[0]), int(ends[-1]))
        ends -= ends[0]
        # litdata forgets to pack where items are lists; a size of a value can't look like a frame
        if self.packed and is_zstd(data):
            rows = np.arange(start, stop)
            sizes = content_sizes(data, ends[:-1], rows)
            return Items(_unpack_many(data, ends[:-1], ends[1:], sizes, rows), np.append(0, np.cumsum(sizes)), start)
        return Items(np.frombuffer(data, dtype=np.uint8), ends, start)


@dataclass(frozen=True)
class Framed:
    """Items in zstd frames of several."""

    offsets: npt.NDArray[np.uint32]
    frames: npt.NDArray[Any]

    def sizes(self, start: int, stop: int) -> I64:
        return np.diff(self.offsets[start : stop + 1].astype(np.int64))

    def items(self, source: Source, start: int, stop: int) -> Items:
        first, last = np.searchsorted(self.frames["first"], [start, stop - 1], side="right") - 1
        frames = self.frames[first : last + 1]
        begin = frames["begin"].astype(np.int64)
        stops = begin + frames["packed"]
        low = int(begin[0])
        data = _unpack_many(
            source.read(low, int(stops[-1])), begin - low, stops - low, frames["size"].astype(np.int64), frames["first"]
        )
        ends = self.offsets[start : stop + 1].astype(np.int64)
        origin = int(ends[0]) - int(self.offsets[int(frames["first"][0])])
        ends -= ends[0]
        return Items(data[origin : origin + int(ends[-1])], ends, start)


@dataclass(frozen=True)
class ArrowRows:
    """An Arrow IPC file inside the chunk; `blocks` None: a stream (an early form), or batches that aren't of 256 rows."""

    begin: int
    stop: int
    rows: int
    schema: pa.Schema
    blocks: npt.NDArray[Any] | None

    def batches(self, source: Source, start: int, stop: int, names: Sequence[str]) -> list[tuple[pa.RecordBatch, int]]:
        """The batches that hold these rows, of those of the named columns that there are, each with the row that it begins at."""
        fields = [self.schema.get_field_index(n) for n in dict.fromkeys(names) if self.schema.get_field_index(n) >= 0]
        options = pa.ipc.IpcReadOptions(included_fields=fields or [0], use_threads=False)
        row = 0
        if self.blocks is None:
            data: Any = source.read(self.begin, self.stop)
        else:
            row = start // ARROW_ROWS * ARROW_ROWS
            wanted = self.blocks[start // ARROW_ROWS : (stop - 1) // ARROW_ROWS + 1]
            low, high = int(wanted["begin"][0]), int(wanted["begin"][-1] + wanted["meta"][-1] + wanted["body"][-1])
            data = source.read(self.begin + low, self.begin + high)
            if len(fields) < len(self.schema):
                data = self.schema.serialize().to_pybytes() + data
        made = []
        try:
            if self.blocks is not None and len(fields) == len(self.schema):
                found: Any = self._each_block(data, wanted)  # without a copy; it can't leave columns out
            else:
                is_file = self.blocks is None and bytes(data[: len(_IPC)]) == _IPC
                found = _each((pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.py_buffer(data), options=options))
            for batch in found:
                batch.validate(full=True)  # offsets that point nowhere would end the process
                if row < stop and row + len(batch) > start:
                    made.append((batch, row))
                row += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"the Arrow part of the chunk is damaged: {error}", where=Where(row=row)) from error
        if row < stop:
            raise DataError(f"the Arrow part of the chunk ends at row {row}; its index promises {self.rows} rows")
        return made

    def _each_block(self, data: memoryview, wanted: npt.NDArray[Any]) -> Iterator[pa.RecordBatch]:
        """The batches of these blocks, which `data` begins with the first of; they share its memory."""
        begins = wanted["begin"] - wanted["begin"][0]
        for begin, end in zip(begins.tolist(), (begins + wanted["meta"] + wanted["body"]).tolist(), strict=True):
            yield pa.ipc.read_record_batch(pa.py_buffer(data[begin:end]), self.schema)


def _each(reader: Any) -> Any:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        return (reader.get_batch(i) for i in range(reader.num_record_batches))
    return iter(reader)


def read_layout(source: Source, rows: int, *, by_item: bool) -> Plain | Framed | ArrowRows:
    """Find out how a chunk is laid out, from its head and, for an Arrow one, its tail.

    Args:
        source: the chunk, unpacked if it was packed as a whole.
        rows: what the index says.
        by_item: the index says that items are zstd frames.

    Raises:
        DataError: another number of items than in the index, or offsets that don't ascend or lead out of the file.
    """
    source = _Edges(source, 4 + 4 * (rows + 1) + _HEAD)
    head = source.read(0, min(source.size, 4 + 4 * (rows + 1)))
    if bytes(head[:8]) == _FRAMED:
        return _framed(source, rows)
    if len(head) < 4:
        raise DataError(
            f"the chunk has {source.size} bytes, too few for its index's {rows} rows", hint="was it written to its end?"
        )
    found = int.from_bytes(head[:4], "little")
    if found != rows:
        raise DataError(f"the chunk says that it has {found} rows, its index says {rows}")
    table = 4 + 4 * (rows + 1)
    if len(head) < table:
        raise DataError(f"the chunk ends at byte {len(head)}, inside its table of offsets")
    offsets = np.frombuffer(head, dtype="<u4", count=rows + 1, offset=4).copy()  # the table is kept, the chunk is not
    _check_offsets(offsets, table, source.size)
    if int(offsets[-1]) == source.size:
        return Plain(offsets, by_item)
    return _arrow(source, rows, int(offsets[-1]))


def _check_offsets(offsets: npt.NDArray[np.uint32], first: int, size: int) -> None:
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        raise DataError("the offsets in the chunk's table don't ascend", where=Where(row=int(falls[0])))
    if int(offsets[0]) != first:
        raise DataError(f"the chunk's first item is said to begin at byte {int(offsets[0])} instead of {first}")
    if int(offsets[-1]) > size:
        row = int(np.searchsorted(offsets[1:], size, side="right"))
        raise DataError(f"the chunk ends at byte {size}, before its last item does ({int(offsets[-1])})", where=Where(row=row))


def _framed(source: Source, rows: int) -> Framed:
    head = source.read(0, min(24, source.size))
    if len(head) < 24:
        raise DataError(f"the chunk ends at byte {source.size}, inside its head")
    version, found, count = (int.from_bytes(head[a:b], "little") for a, b in ((8, 10), (12, 16), (20, 24)))
    if version != 1:
        raise DataError(f"the chunk's frames are of version {version}, which is not known here")
    if found != rows:
        raise DataError(f"the chunk says that it has {found} rows, its index says {rows}")
    table = 24 + 4 * (rows + 1)
    end = table + _FRAME.itemsize * count
    if end > source.size:
        raise DataError(f"the chunk ends at byte {source.size}, inside its tables")
    tables = source.read(24, end)
    offsets = np.frombuffer(tables, dtype="<u4", count=rows + 1).copy()
    _check_offsets(offsets, 0, _MOST)
    frames = np.frombuffer(tables, dtype=_FRAME, offset=4 * (rows + 1)).copy()
    first, begin = frames["first"].astype(np.int64), frames["begin"].astype(np.int64)
    stop = first + frames["rows"]
    whole = bool(count) and first[0] == 0 and stop[-1] == rows and (first[1:] == stop[:-1]).all() and (frames["rows"] > 0).all()
    in_file = bool(count) and begin[0] >= end and ((begin + frames["packed"])[:-1] <= begin[1:]).all()
    if not whole or not in_file or begin[-1] + int(frames["packed"][-1]) > source.size:
        raise DataError(f"the chunk's table of frames does not fit its {rows} rows and {source.size} bytes")
    if (offsets[stop].astype(np.int64) - offsets[first] != frames["size"]).any():
        raise DataError("the chunk's frames and its offsets contradict each other")
    return Framed(offsets, frames)


def _arrow(source: Source, rows: int, end: int) -> ArrowRows:
    tail = source.read(max(end, source.size - 12), source.size)
    if bytes(tail[-8:]) != _ARROW or len(tail) < 12:
        raise DataError(f"the chunk has {source.size - end} bytes after its last item, which are nothing that LitData writes",
                        hint="was it cut, or written by a newer version?")  # fmt: skip
    stop = source.size - 12
    begin = stop - int.from_bytes(tail[-12:-8], "little")
    if begin < end:
        raise DataError("the Arrow part of the chunk is said to begin before its items end")
    try:
        if bytes(source.read(begin, begin + len(_IPC))) != _IPC:
            with pa.ipc.open_stream(pa.py_buffer(source.read(begin, stop))) as reader:
                return ArrowRows(begin, stop, rows, _checked(reader.schema), None)
        blocks = _blocks(source, begin, stop)
        first = int(blocks["begin"][0]) if len(blocks) else stop - begin
        schema = pa.ipc.read_schema(pa.py_buffer(source.read(begin + 8, begin + first)))
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        raise DataError(f"the Arrow part of the chunk is damaged: {error}") from error
    regular = len(blocks) == -(-rows // ARROW_ROWS)
    return ArrowRows(begin, stop, rows, _checked(schema), blocks if regular else None)


def _checked(schema: pa.Schema) -> pa.Schema:
    if len(set(schema.names)) < len(schema.names):
        raise DataError(f"the Arrow part of the chunk has a column twice: {schema.names}")
    return schema


def _blocks(source: Source, begin: int, stop: int) -> npt.NDArray[Any]:
    """Where the record batches are: the vector `recordBatches` of the flatbuffer `Footer` (Arrow's format/File.fbs).

    With it a unit is one range; pyarrow keeps it to itself.
    """
    length = int.from_bytes(source.read(stop - 10, stop - 6), "little")
    if bytes(source.read(stop - 6, stop)) != _IPC or length > stop - begin - 10:
        raise ValueError("its footer is missing")
    footer = source.read(stop - 10 - length, stop - 10)

    def number(place: int, width: int) -> int:
        if not 0 <= place <= len(footer) - width:
            raise ValueError("its footer leads out of itself")
        return int.from_bytes(footer[place : place + width], "little", signed=width == 4)

    table = number(0, 4)
    slots = table - number(table, 4)
    slot = number(slots + 10, 2) if number(slots, 2) > 10 else 0  # field 3, after the two sizes of the vtable
    if not slot:
        return np.zeros(0, _BLOCK)
    vector = table + slot + number(table + slot, 4)
    count = number(vector, 4)
    number(vector + 4 + _BLOCK.itemsize * count - 1, 1)
    blocks = np.frombuffer(footer, dtype=_BLOCK, count=count, offset=vector + 4).copy()
    ends = blocks["begin"] + blocks["meta"] + blocks["body"]
    if (blocks["begin"] < 8).any() or (blocks["meta"] < 0).any() or (blocks["body"] < 0).any() or (ends > stop - begin).any():
        raise ValueError("its footer leads out of it")
    if (ends[:-1] > blocks["begin"][1:]).any():
        raise ValueError("its batches overlap")
    return blocks

"""Record batches out of the bytes of an IPC stream or file: mapped where the file is local, fetched by range where it isn't.

Arrow decodes them from a small stream that is put together for each read: the schema, the dictionaries that count, the batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError
from zephon_formats._arrow_index import BODY, KIND, PLAIN, ROWS, START, STOP, ArrowIndex
from zephon_formats._arrow_messages import I64, Message, Read, Window, message_at
from zephon_formats._arrow_ranges import Range, by_rows, fill_rows, merge, nodes_of

_WORTH = 1 << 20  # a read of so many bytes is made in one go, whatever part of it is needed
_WORDS_KEPT = 64 << 20


class Mapped:
    """A local file, mapped. Buffers are parts of the map, without a copy."""

    def __init__(self, path: str) -> None:
        try:
            with pa.memory_map(path) as file:
                self._buffer = file.read_buffer()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path!r} can't be mapped: {error}") from error

    @property
    def span(self) -> tuple[int, int]:
        """The map's address and size."""
        return self._buffer.address, self._buffer.size

    def get(self, start: int, stop: int) -> pa.Buffer:
        return self._buffer.slice(start, stop - start)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), copied."""
        return self._buffer.slice(start, stop - start).to_pybytes()


class Fetched:
    """The bytes [start, stop) of a remote file, of which only what is filled is fetched, and only that takes memory."""

    def __init__(self, read: Read, start: int, stop: int) -> None:
        self._read, self._base = read, start
        # a large array of zeros has no pages before they are written to
        self._data = np.zeros(stop - start, dtype=np.uint8)
        data: Any = self._data
        self._buffer = pa.py_buffer(data)

    def fill(self, ranges: Sequence[Range]) -> None:
        merged = merge(ranges)
        if merged == [(self._base, self._base + len(self._data))]:
            self._buffer = pa.py_buffer(self._read(*merged[0]))  # nothing is left to fill, so it need not be copied
            return
        for start, stop in merged:
            self._data[start - self._base : stop - self._base] = np.frombuffer(self._read(start, stop), dtype=np.uint8)

    def get(self, start: int, stop: int) -> pa.Buffer:
        return self._buffer.slice(start - self._base, stop - start)


class _Pieces:
    """A file for Arrow, made of buffers: one message each. It gives parts of them, without a copy."""

    closed = False

    def __init__(self, pieces: Sequence[pa.Buffer]) -> None:
        self._pieces, self._number, self._at = pieces, 0, 0

    def read(self, size: int = -1) -> pa.Buffer:
        while self._number < len(self._pieces) and self._at == self._pieces[self._number].size:
            self._number, self._at = self._number + 1, 0
        if self._number == len(self._pieces):
            return pa.py_buffer(b"")
        piece = self._pieces[self._number]
        size = piece.size - self._at if size < 0 else min(size, piece.size - self._at)
        self._at += size
        return piece.slice(self._at - size, size)

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class Batches:
    """Decodes batches of one shard; may be used from several threads."""

    def __init__(self, index: ArrowIndex, schema: pa.Schema, read: Read, mapped: Mapped | None) -> None:
        self._index, self.schema, self._read, self._mapped = index, schema, read, mapped
        told = message_at(Window(lambda a, b: index.schema[a:b], len(index.schema)), 0)
        self._swapped = told is not None and told.header.number(0, "<h") != 0  # the bytes of a big-endian machine
        self._words: OrderedDict[int, pa.Buffer] = OrderedDict()
        self._guard = threading.Lock()

    @property
    def mapped(self) -> tuple[int, int] | None:
        """See `OpenShard`."""
        return None if self._mapped is None else self._mapped.span

    def read(self, batches: I64, columns: Sequence[str], start: int, stop: int) -> list[pa.RecordBatch]:
        """The rows [start, stop) of a run of batches (rows of the index's table), of these columns, in the file's types.

        Raises:
            DataError: Arrow refuses them, or they don't have the rows that their headers said.
        """
        fields = [self.schema.get_field_index(name) for name in columns]
        source: Mapped | Fetched = self._mapped or self._fetch(batches, fields, start, stop)
        first, last = int(batches[0, START]), int(batches[-1, START])
        words = self._index.dictionaries_for(first)
        found = self._index.dictionaries
        between = found[(found[:, START] > first) & (found[:, START] < last)] if not self._index.is_file else found[:0]
        later = np.concatenate([batches, between])
        later = later[np.argsort(later[:, START], kind="stable")] if len(between) else later
        pieces = [pa.py_buffer(self._index.schema), *(self._dictionary(row) for row in words)]
        pieces += [source.get(int(r[START]), int(r[STOP])) if r[KIND] <= 1 else self._dictionary(r) for r in later]
        every = len(set(fields)) == len(self.schema)
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=None if every else sorted(fields))
        made = []
        at = 0
        try:
            file: Any = _Pieces(pieces)
            reader = pa.ipc.open_stream(file, options=options)
            for rows in batches[:, ROWS].tolist():
                batch = reader.read_next_batch()
                if len(batch) != rows:
                    raise DataError(f"a record batch has {len(batch)} rows; its header said {rows}")
                low, high = max(start - at, 0), min(stop - at, rows)
                made.append(part_of(batch, low, high))
                at += rows
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise DataError(f"a record batch can't be read: {error}") from error
        return made

    def _dictionary(self, row: I64) -> pa.Buffer:
        start, stop = int(row[START]), int(row[STOP])
        if self._mapped is not None:
            return self._mapped.get(start, stop)
        with self._guard:
            found = self._words.get(start)
        if found is None:
            found = pa.py_buffer(self._read(start, stop))
            with self._guard:
                self._words[start] = found
                while len(self._words) > 1 and sum(b.size for b in self._words.values()) > _WORDS_KEPT:
                    self._words.popitem(last=False)
        return found

    def _fetch(self, batches: I64, fields: Sequence[int], start: int, stop: int) -> Fetched:
        """The bytes that these columns and rows need, in as few requests as makes sense."""
        source = Fetched(self._read, int(batches[:, START].min()), int(batches[:, STOP].max()))
        every = len(set(fields)) == len(self.schema)
        rows = int(batches[:, ROWS].sum())
        nbytes = int((batches[:, STOP] - batches[:, START]).sum())
        some_rows = (
            len(batches) == 1
            and batches[0, KIND] == PLAIN
            and not self._swapped
            and 2 * (stop - start) < rows
            and all(by_rows(self.schema.field(i).type) for i in fields)
        )
        if nbytes <= _WORTH or (every and not some_rows):
            source.fill([(int(b[START]), int(b[STOP])) for b in batches])
            return source
        source.fill([(int(b[START]), int(b[BODY])) for b in batches])
        ranges: list[Range] = []
        for row in batches:
            window = Window(lambda a, b: source.get(a, b).to_pybytes(), int(row[STOP]))
            message = _message(window, row)
            nodes = nodes_of(message, self.schema)
            if nodes is None:
                ranges.append((message.body, message.stop))
            elif some_rows:
                fill_rows([nodes[i] for i in fields], start, stop, source)
            else:
                ranges += [r for i in fields for r in nodes[i].everything()]
        source.fill(ranges)
        return source


def _message(window: Window, row: I64) -> Message:
    message = message_at(window, int(row[START]))
    if message is None or message.body != row[BODY] or message.stop != row[STOP]:
        raise DataError(f"the message at byte {row[START]} has changed since it was indexed")
    return message


def part_of(batch: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """The rows [start, stop), checked: no offset leads out of its buffer, and text is UTF-8.

    A part of lists is copied: the check would else look at the elements of all other rows too, which may not even be there.
    """
    if stop - start == len(batch):
        batch.validate(full=True)
        return batch
    part = batch.slice(start, stop - start)
    if any(_has_lists(f.type) for f in part.schema) and all(by_rows(f.type) for f in part.schema):
        for column in part.columns:
            _check_ends(column)
        part = pa.ipc.read_record_batch(part.serialize(), part.schema)
    part.validate(full=True)
    return part


def _has_lists(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_lists(kind.storage_type)
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) or types.is_fixed_size_list(kind):
        return True
    return any(_has_lists(kind.field(i).type) for i in range(kind.num_fields))


def _check_ends(array: Any) -> None:
    """Raise `ArrowInvalid` where the first or last offset of this part, or of a list in it, leads out of its buffer."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    array.validate()
    if not len(array):
        return
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            _check_ends(array.field(i))
    elif pa.types.is_fixed_size_list(kind):
        _check_ends(array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        parts = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        for part in parts:
            _check_ends(part.slice(first, last - first))

"""The messages of an Arrow IPC stream or file, from their headers alone: where each one is, what it is, how many rows it has.

The layout is that of https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc, with the
tables of `Message.fbs` and `File.fbs`. Arrow's own readers can't say how many rows a batch has without reading its body, so the few
fields that matter are taken from the flatbuffers here; the bodies are left to Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from zephon.plugin import DataError

I64 = npt.NDArray[np.int64]
Read = Callable[[int, int], bytes]
"""`(start, stop) -> bytes` of the file."""

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
FILE_MAGIC, FEATHER_1 = b"ARROW1", b"FEA1"
_CONTINUATION = b"\xff\xff\xff\xff"
_NEAR, _FAR, _SMALL = 64 << 10, 4 << 20, 256 << 10
_METADATA_MAX = 256 << 20  # a header that claims more is noise
_V4 = 3  # `MetadataVersion.V4`


class Flat:
    """A flatbuffer table: fields by number, every access checked. Raises `ValueError` where the bytes are no such table."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - self._int("<i", at)
        self._size = self._int("<H", self._vtable)

    @classmethod
    def root(cls, data: bytes) -> Flat:
        """The root table of a buffer."""
        return cls(data, cls._unpack(data, "<I", 0))

    @staticmethod
    def _unpack(data: bytes, code: str, at: int) -> int:
        if at < 0:
            raise ValueError("a flatbuffer refers to something before its beginning")
        try:
            found: int = struct.unpack_from(code, data, at)[0]
        except struct.error as error:
            raise ValueError(f"a flatbuffer refers to something beyond its end: {error}") from None
        return found

    def _int(self, code: str, at: int) -> int:
        return self._unpack(self._data, code, at)

    def _field(self, number: int) -> int:
        slot = 4 + 2 * number
        offset = self._int("<H", self._vtable + slot) if slot + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def number(self, number: int, code: str, default: int = 0) -> int:
        """A scalar field."""
        at = self._field(number)
        return self._int(code, at) if at else default

    def table(self, number: int) -> Flat | None:
        """A field that is a table, or None."""
        at = self._field(number)
        return Flat(self._data, at + self._int("<I", at)) if at else None

    def int64s(self, number: int, each: int) -> I64:
        """A field that is a vector of structs of `each` int64: int64[N, each]."""
        at = self._field(number)
        if not at:
            return np.zeros((0, each), dtype=np.int64)
        at += self._int("<I", at)
        count = self._int("<I", at)
        if at + 4 + 8 * each * count > len(self._data):
            raise ValueError("a vector of a flatbuffer ends beyond the buffer's end")
        return np.frombuffer(self._data, dtype="<i8", count=each * count, offset=at + 4).reshape(count, each).astype(np.int64)


@dataclass(frozen=True)
class Message:
    """One message: the bytes [start, body) are its prefix and header, [body, stop) its body."""

    start: int
    body: int
    stop: int
    kind: int
    header: Flat
    version: int

    @property
    def batch(self) -> Flat:
        """The `RecordBatch` table of a batch or a dictionary."""
        found = self.header.table(1) if self.kind == DICTIONARY else self.header
        if found is None:
            raise ValueError("a dictionary batch has no data")
        return found

    @property
    def rows(self) -> int:
        """The rows of a batch."""
        return self.batch.number(0, "<q")

    @property
    def packed(self) -> bool:
        """Whether the body's buffers are compressed."""
        return self.batch.table(3) is not None

    @property
    def buffers(self) -> I64:
        """The offset and length of each buffer in the body: int64[N, 2]."""
        return self.batch.int64s(2, 2)

    @property
    def variadic(self) -> list[int]:
        """For each view column: how many data buffers it has."""
        return [int(n) for n in self.batch.int64s(4, 1)[:, 0]]

    @property
    def old_unions(self) -> bool:
        """Whether unions have a validity bitmap (before version 5 of the metadata)."""
        return self.version <= _V4


class Window:
    """Reads headers ahead: wide where messages are small, so that few requests are made, narrow where bodies would come along."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self.size = read, size
        self._data, self._begin = b"", 0
        self.wide = False

    def get(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), fewer at the end of the file."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        if start < self._begin or stop > self._begin + len(self._data):
            end = min(self.size, max(stop, start + (_FAR if self.wide else _NEAR)))
            self._data, self._begin = self._read(start, end), start
            if len(self._data) < end - start:
                raise DataError(f"the file ends at byte {start + len(self._data)}; it had {self.size} bytes when it was listed")
        return self._data[start - self._begin : stop - self._begin]


def message_at(window: Window, start: int) -> Message | None:
    """The message that begins at `start`; None: the end-of-stream mark, or the end of the file.

    Raises:
        DataError: it is cut short, or no message.
    """
    prefix = window.get(start, start + 8)
    at, length = start + 4, prefix[:4]
    if length == _CONTINUATION:
        at, length = start + 8, prefix[4:8]
    if not prefix or length == b"\0\0\0\0":
        return None
    size = int.from_bytes(length, "little", signed=True)
    if len(length) < 4:
        raise _cut(start, window.size)
    if not 0 < size <= _METADATA_MAX:
        raise DataError(f"no Arrow message begins at byte {start}: its header would have {size} bytes")
    raw = window.get(at, at + size)
    if len(raw) < size:
        raise _cut(start, window.size)
    try:
        table = Flat.root(raw)
        header, body = table.table(2), table.number(3, "<q")
        kind, version = table.number(1, "<B"), table.number(0, "<h")
    except ValueError as error:
        raise DataError(f"the message at byte {start} is damaged: {error}") from None
    if header is None or body < 0:
        raise DataError(f"the message at byte {start} is damaged: it has no header or a negative length")
    if at + size + body > window.size:
        raise _cut(start, window.size)
    return Message(start, at + size, at + size + body, kind, header, version)


def _cut(start: int, size: int) -> DataError:
    return DataError(
        f"the file ends at byte {size}, inside the message that begins at byte {start}", hint="was it written to its end?"
    )


def iter_stream(window: Window, start: int) -> Iterator[Message]:
    """The messages of a stream, in order. `window` is told how large they are.

    Raises:
        DataError: one is damaged or cut short, or there are bytes after the end-of-stream mark.
    """
    at = start
    while at < window.size:
        message = message_at(window, at)
        if message is None:
            end = at + (8 if window.get(at, at + 4) == _CONTINUATION else 4)
            if window.get(end, end + 8).strip(b"\0"):
                raise DataError(
                    f"{window.size - end} bytes follow the end of the stream at byte {end}", hint="one stream a file is read"
                )
            return
        window.wide = message.stop - at < _SMALL
        yield message
        at = message.stop


def file_blocks(window: Window) -> tuple[list[int], list[int]]:
    """Where the dictionaries and the record batches of an IPC file begin, from its footer.

    Raises:
        DataError: it has no footer, since it was cut or never closed, or the footer is damaged.
    """
    size = window.size
    tail = window.get(max(0, size - 10), size)
    if size < 24 or tail[-6:] != FILE_MAGIC:
        raise DataError("the Arrow file has no footer; it was cut short or never closed", hint="was it written to its end?")
    length = int.from_bytes(tail[:4], "little", signed=True)
    if not 0 < length <= size - 18:
        raise DataError(f"the Arrow file's footer is damaged: it would have {length} of the file's {size} bytes")
    raw = window.get(size - 10 - length, size - 10)
    try:
        footer = Flat.root(raw)
        # a block is (offset, length of the header and 4 bytes of padding, length of the body)
        dictionaries, batches = footer.int64s(2, 3), footer.int64s(3, 3)
    except ValueError as error:
        raise DataError(f"the Arrow file's footer is damaged: {error}") from None
    starts = [int(n) for n in dictionaries[:, 0]], [int(n) for n in batches[:, 0]]
    outside = next((n for part in starts for n in part if not 8 <= n < size), None)
    if outside is not None:
        raise DataError(f"the Arrow file's footer is damaged: it places a block at byte {outside}")
    window.wide = all(b - a < _SMALL for a, b in pairwise(starts[1]))
    return starts

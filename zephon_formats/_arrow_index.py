"""Where the record batches of an Arrow IPC stream or file are, and how they are cut into read units."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, Shard, Store
from zephon_formats._arrow_messages import (
    BATCH,
    DICTIONARY,
    FEATHER_1,
    FILE_MAGIC,
    I64,
    SCHEMA,
    Message,
    Read,
    Window,
    file_blocks,
    iter_stream,
    message_at,
)
from zephon_formats._bytes import LocalFile, open_fd
from zephon_formats._sidecar import Stamp, read_sidecar, stamp_of, write_sidecar

_log = logging.getLogger("zephon.formats.arrow")

_MAGIC = b"zephon arrow index 1\n"
_KEPT = 2000  # messages of a local file: with fewer, walking them is as quick as reading a sidecar

PLAIN, PACKED, WORDS, MORE_WORDS = range(4)
"""Kinds of messages: a batch, a compressed one, a dictionary, and one that is appended to the dictionary before it."""
START, BODY, STOP, ROWS, KIND, ID = range(6)
"""Columns of `ArrowIndex.messages`; ROWS is 0 and ID is the dictionary's where it is one."""


@dataclass
class ArrowIndex:
    """What the headers of one shard say."""

    schema: bytes
    """The schema's message."""
    is_file: bool
    """The random-access format: all dictionaries count for all batches."""
    messages: I64
    """int64[M, 6], in the order in which they count."""

    @property
    def batches(self) -> I64:
        """The messages that are record batches with rows: int64[B, 6]."""
        return self.messages[(self.messages[:, KIND] < WORDS) & (self.messages[:, ROWS] > 0)]

    @property
    def dictionaries(self) -> I64:
        """The messages that are dictionaries: int64[D, 6]."""
        return self.messages[self.messages[:, KIND] >= WORDS]

    def dictionaries_for(self, first: int) -> I64:
        """The dictionaries that count for the batch at byte `first`: for each the last whole one before it, then what was appended."""
        found = self.dictionaries
        if self.is_file or not len(found):
            return found
        found = found[found[:, START] < first]
        whole = found[found[:, KIND] == WORDS]
        _, last = np.unique(whole[::-1, ID], return_index=True)
        kept = whole[::-1][np.sort(last)[::-1]]
        begin = dict(zip(kept[:, ID].tolist(), kept[:, START].tolist(), strict=True))
        more = found[found[:, KIND] == MORE_WORDS]
        after = [row[START] > begin.get(int(row[ID]), first) for row in more]
        return np.concatenate([kept, more[np.array(after, dtype=bool)]])


def load_index(store: Store, shard: Shard, read: Read, *, local: bool) -> ArrowIndex:
    """The index of a shard: from a sidecar that fits, or made now in one pass over the headers and kept where that saves something.

    Raises:
        DataError: not Arrow IPC, cut short or damaged.
    """
    head = read(0, min(8, shard.size))
    check_magic(head, shard.size)
    if local and shard.size < _KEPT * 256:
        return _build(read, shard)
    stamp = stamp_of(store, shard)
    places = list(store.sidecar(shard.path, ".ipc.zidx"))
    for place in places:
        fd = open_fd(place)
        found = None if fd is None else _load(fd, stamp)
        if found is not None:
            return found
    index = _build(read, shard)
    # an index of a file that changed meanwhile is for this run only
    if (not local or len(index.messages) > _KEPT) and stamp_of(store, shard) == stamp:
        header = {"schema": base64.b64encode(index.schema).decode(), "is_file": index.is_file}
        write_sidecar(places, _MAGIC, stamp, header, index.messages.ravel())
    return index


def _load(fd: int, stamp: Stamp) -> ArrowIndex | None:
    file = LocalFile(fd)
    try:
        found = read_sidecar(file, _MAGIC, stamp)
        if found is None:
            return None
        schema = base64.b64decode(found.header["schema"])
        return ArrowIndex(schema, bool(found.header["is_file"]), found.values.reshape(-1, 6))
    except (DataError, ValueError, KeyError, TypeError, OSError):
        return None  # cut short, damaged, or a file of somebody else's: it is made again
    finally:
        file.close()


def check_magic(head: bytes, size: int) -> None:
    """Whether a file may be Arrow IPC, by its first bytes. Raises `DataError` with what it is instead."""
    if not size:
        raise DataError("the file is empty (0 bytes), which is not Arrow IPC", hint="was it written to its end?")
    if head.startswith(FEATHER_1):
        raise DataError(
            "the file is Feather version 1, which is not Arrow IPC",
            hint="write it again: pyarrow.feather.write_feather(pyarrow.feather.read_table(old), new)",
        )
    if not head.startswith((FILE_MAGIC, b"\xff\xff\xff\xff")) and not (
        len(head) >= 4 and head[2:4] == b"\0\0" and any(head[:2])
    ):
        raise DataError(f"the file is not Arrow IPC; it begins with {head!r}", hint="give format=… if it is of another format")


def _build(read: Read, shard: Shard) -> ArrowIndex:
    window = Window(read, shard.size)
    is_file = window.get(0, 6) == FILE_MAGIC
    starts = file_blocks(window) if is_file else ([], [])
    first = message_at(window, 8 if is_file else 0)
    if first is None or first.kind != SCHEMA:
        raise DataError("the file is not Arrow IPC: it does not begin with a schema")
    schema = window.get(first.start, first.stop)
    rows: list[tuple[int, ...]] = []
    if is_file:
        for kind, part in ((DICTIONARY, starts[0]), (BATCH, starts[1])):
            for start in part:
                message = message_at(window, start)
                if message is None or message.kind != kind:
                    raise DataError(f"the Arrow file's footer is wrong about the message at byte {start}")
                rows.append(_row(message))
    else:
        stop = first.stop
        for message in iter_stream(window, first.stop):
            rows.append(_row(message))
            stop = message.stop
        if stop == shard.size:
            _log.warning("%s: the stream has no end mark; if its writer was stopped, rows may be missing", shard.path)
    return ArrowIndex(schema, is_file, np.array(rows, dtype=np.int64).reshape(-1, 6))


def _row(message: Message) -> tuple[int, ...]:
    place = (message.start, message.body, message.stop)
    try:
        if message.kind == BATCH:
            if message.rows < 0:
                raise ValueError("a batch has a negative number of rows")
            return (*place, message.rows, PACKED if message.packed else PLAIN, 0)
        if message.kind == DICTIONARY:
            return (*place, 0, MORE_WORDS if message.header.number(2, "<B") else WORDS, message.header.number(0, "<q"))
    except ValueError as error:
        raise DataError(f"the message at byte {message.start} is damaged: {error}") from None
    raise DataError(f"the message at byte {message.start} is neither a record batch nor a dictionary (kind {message.kind})")


def cut_units(batches: I64, unit_bytes: int) -> tuple[I64, I64]:
    """Batches into read units of about `unit_bytes`: small ones joined, large ones cut by rows unless they are compressed.

    Returns:
        Where units begin, in rows of the shard, and the row count: int64[U + 1]; and their sizes: int64[U]. A compressed batch counts
        twice its size.
    """
    if not len(batches):
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    packed = batches[:, KIND] == PACKED
    nbytes = np.maximum(1, (batches[:, STOP] - batches[:, START]) * np.where(packed, 2, 1))
    rows = np.concatenate([[0], np.cumsum(batches[:, ROWS])])
    ends = np.concatenate([[0], np.cumsum(nbytes)])
    large = np.flatnonzero((nbytes > 2 * unit_bytes) & ~packed)
    inside = [
        rows[i] + np.linspace(0, batches[i, ROWS], int(min(batches[i, ROWS], -(-nbytes[i] // unit_bytes))) + 1).astype(np.int64)
        for i in large.tolist()
    ]
    between = rows[:-1][np.flatnonzero(np.diff(ends[:-1] // unit_bytes)) + 1]
    units = np.unique(np.concatenate([[0], between, *inside, rows[-1:]])).astype(np.int64)
    sizes = np.maximum(1, np.diff(np.interp(units, rows, ends).astype(np.int64)))
    return units, sizes


def read_schema(message: bytes) -> pa.Schema:
    """The schema of a schema message. Raises `DataError` where Arrow refuses it."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"the schema can't be read: {error}") from error

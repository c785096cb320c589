"""The line index of a text file: where its rows begin and which columns they have, made in one pass and kept in a sidecar.

The sidecar (`zephon_formats._sidecar`) is `NAME.zidx`; its numbers are the offsets of the rows. What a row is, a `Splitter` says: a line
of JSON, a line or paragraph of text, a record of CSV; each kind has a sidecar of its own.

A packed file (gzip, zstd) can't be entered in the middle. The pass that indexes it writes the unpacked text to a file of its own,
in the cache directory (beside the data where that can't be written, in an unnamed temporary file where neither can), and rows are
read from there. Its name holds the stamp of the packed file, so a copy of an earlier version is never taken for the present one.
Readers of other processes wait for the one that unpacks; they need not, for the rename is atomic, but it saves the work.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, Shard, Store
from zephon_formats._bytes import I64, Codec, LineStarts, LocalFile, codec_of, iter_plain, open_fd
from zephon_formats._json import Columns
from zephon_formats._sidecar import Stamp, local_version, read_sidecar, stamp_of, write_sidecar
from zephon_formats._unpacked import CopyWriter, exclusive, unpacked_copy

__all__ = ["Index", "Offsets", "Read", "Splitter", "Stamp", "cut_units", "load_or_build", "local_version", "stamp_of"]

_MAGIC = b"zephon line index 1\n"
_IN_MEMORY = 1 << 17  # offsets; a longer table stays on disk, so that 64 open shards cost little
_BOM = b"\xef\xbb\xbf"

Read = Callable[[int, int], bytes]
"""`(start, stop) -> bytes` of the unpacked text."""
Sample = Callable[[Read, I64], Columns]
"""Columns of the text, from some of its rows, given the row offsets."""


class Splitter(Protocol):
    """Finds where rows begin, in blocks of any size."""

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the text."""
        ...

    def finish(self) -> I64:
        """The starts of the rows, in order, and the end of the text: int64[rows + 1]. Raises `DataError`."""
        ...


class Offsets(Protocol):
    """Row offsets of a shard: row i is in the bytes [offsets[i], offsets[i + 1])."""

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    def get(self, start: int, stop: int) -> I64:
        """The offsets of the rows [start, stop) and the end of the last: int64[stop - start + 1]."""
        ...


@dataclass
class OffsetsInMemory:
    """Offsets as an array."""

    array: I64

    @property
    def rows(self) -> int:
        return len(self.array) - 1

    def get(self, start: int, stop: int) -> I64:
        return self.array[start : stop + 1]


@dataclass
class OffsetsInFile:
    """Offsets in an open sidecar, read when needed."""

    file: LocalFile
    begin: int
    rows: int

    def get(self, start: int, stop: int) -> I64:
        data = self.file.read(self.begin + 8 * start, self.begin + 8 * (stop + 1))
        return np.frombuffer(data, dtype="<i8").astype(np.int64, copy=False)


@dataclass
class Index:
    """What the pass found. `unpacked` is the text of a packed file, None for a plain one."""

    stamp: Stamp
    offsets: Offsets
    units: I64
    """Offsets into the rows where units begin, and the row count: int64[U + 1]."""
    unit_bytes: I64
    columns: Columns
    sampled: int
    unpacked: LocalFile | None = None
    plain_size: int = 0


def load_or_build(
    store: Store,
    shard: Shard,
    *,
    unit_bytes: int,
    sampled: int,
    sample: Sample,
    splitter: Callable[[int], Splitter] = LineStarts,
    kind: str = "",
) -> Index:
    """The index of a shard: from a sidecar that fits, or made now and kept where that is possible.

    Args:
        store, shard: the file.
        unit_bytes: the size of a read unit.
        sampled: which sample `columns` come from; with another one they are found again.
        sample: finds the columns.
        splitter: makes the thing that finds the rows, given where the text begins (after a byte-order mark).
        kind: a name for what `splitter` finds, part of the sidecar's name.

    Raises:
        DataError: the file is missing, damaged, cut short, or not text in UTF-8.
    """
    stamp = stamp_of(store, shard)
    codec = codec_of(store.read(shard.path, 0, min(4, shard.size)), shard.path)
    places = list(store.sidecar(shard.path, f".{kind}.zidx" if kind else ".zidx"))
    copies = list(store.sidecar(shard.path, f".{stamp.name}.text.zidx"))[::-1]
    find = _Finder(places, copies, stamp, codec, unit_bytes, splitter)
    index = find.load()
    if index is None:
        with exclusive(copies if codec != "plain" else places):
            index = find.load() or _build(store, shard, find)
            if index.sampled != sampled:
                index.columns, index.sampled = (
                    sample(_reader(store, shard, index), index.offsets.get(0, index.offsets.rows)),
                    sampled,
                )
                if stamp_of(store, shard) == stamp:  # else it is being written to, and the index is for this run only
                    _save(places, index)
    elif index.sampled != sampled:  # made with another setting: the offsets hold, the columns don't
        index.columns, index.sampled = sample(_reader(store, shard, index), index.offsets.get(0, index.offsets.rows)), sampled
    return index


def _reader(store: Store, shard: Shard, index: Index) -> Read:
    return index.unpacked.read if index.unpacked is not None else lambda start, stop: store.read(shard.path, start, stop)


# ---------------------------------------------------------------------------------------------------------- the pass


def _build(store: Store, shard: Shard, find: _Finder) -> Index:
    copy = CopyWriter(find.copies, shard.path) if find.codec != "plain" else None
    try:
        size, starts = _scan(store, shard, find, copy)
        unpacked = copy.finish() if copy else None
    except BaseException:
        if copy:
            copy.discard()
        raise
    return _make_index(find.stamp, OffsetsInMemory(starts), starts, find.unit_bytes, Columns.none(), -1, unpacked, size)


def _scan(store: Store, shard: Shard, find: _Finder, copy: CopyWriter | None) -> tuple[int, I64]:
    codec = find.codec
    lines: Splitter | None = None
    size = 0
    with store.open(shard.path) as file:
        for block in iter_plain(file, shard.size, codec):
            if copy:
                copy.write(block)
            mark = 0
            if lines is None:
                codec_of(block[:4] if codec != "plain" else b"", "")  # packed UTF-16 is no better than plain
                mark = len(_BOM) if block.startswith(_BOM) else 0
                lines = find.splitter(mark)
            lines.feed(block[mark:])
            size += len(block)
    return size, lines.finish() if lines else np.zeros(1, dtype=np.int64)


def _make_index(
    stamp: Stamp,
    offsets: Offsets,
    starts: I64,
    unit_bytes: int,
    columns: Columns,
    sampled: int,
    unpacked: LocalFile | None,
    size: int,
) -> Index:
    units, nbytes = cut_units(starts, unit_bytes)
    return Index(stamp, offsets, units, nbytes, columns, sampled, unpacked, size)


def cut_units(starts: I64, unit_bytes: int) -> tuple[I64, I64]:
    """Rows into read units: a unit is the rows that begin in the same `unit_bytes` of the file. int64[U + 1] rows, int64[U] bytes."""
    rows = len(starts) - 1
    if not rows:
        return np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    borders = np.flatnonzero(np.diff(starts[:-1] // unit_bytes)) + 1
    units = np.concatenate([[0], borders, [rows]]).astype(np.int64)
    return units, np.diff(starts[units])


# --------------------------------------------------------------------------------------------------------- the sidecar


@dataclass(frozen=True)
class _Finder:
    places: Sequence[str]
    copies: Sequence[str]
    stamp: Stamp
    codec: Codec
    unit_bytes: int
    splitter: Callable[[int], Splitter]

    def load(self) -> Index | None:
        """The index from the first sidecar that fits, with the unpacked text where there must be one."""
        for place in self.places:
            fd = open_fd(place)
            if fd is None:
                continue
            try:
                index = self._parse(LocalFile(fd))
            except (DataError, ValueError, KeyError, TypeError, OSError, pa.ArrowException):
                continue  # cut short, damaged, or a file of somebody else's: it is made again
            if index is not None and (self.codec == "plain" or self._attach(index)):
                return index
        return None

    def _parse(self, file: LocalFile) -> Index | None:
        found = read_sidecar(file, _MAGIC, self.stamp)
        if found is None or len(found.values) != int(found.header["rows"]) + 1:
            return None
        header, starts, begin = found.header, found.values, found.begin
        rows = len(starts) - 1
        offsets: Offsets = OffsetsInMemory(starts) if rows < _IN_MEMORY else OffsetsInFile(file, begin, rows)
        if isinstance(offsets, OffsetsInMemory):
            file.close()
        columns = Columns(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(header["schema"]))), frozenset(header["json"]))
        return _make_index(self.stamp, offsets, starts, self.unit_bytes, columns, header["sampled"], None, header["plain_size"])

    def _attach(self, index: Index) -> bool:
        index.unpacked = unpacked_copy(self.copies, index.plain_size)
        return index.unpacked is not None


def _save(places: Sequence[str], index: Index) -> None:
    """Write the sidecar to the first place that takes it; where none does, the index lives in memory."""
    header = {
        "rows": index.offsets.rows,
        "schema": base64.b64encode(index.columns.schema.serialize().to_pybytes()).decode(),
        "json": sorted(index.columns.as_json),
        "sampled": index.sampled,
        "plain_size": index.plain_size,
    }
    write_sidecar(places, _MAGIC, index.stamp, header, index.offsets.get(0, index.offsets.rows))

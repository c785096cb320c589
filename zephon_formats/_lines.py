"""Shards of text that have a row index: rows by their bytes, for the readers of plain text and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeVar

import numpy as np

from zephon.plugin import DataError, Shard, Store, Units, errors
from zephon_formats._asked import check_rows
from zephon_formats._bytes import BLANKS, I64, blank_lines
from zephon_formats._index import Index, Read, local_version
from zephon_formats._rows import Rows

R = TypeVar("R", bound=Rows)

_SPREAD = 16
_SPREAD_BYTES = 128 << 10
_MAX_PIECE = 1 << 30
"""Arrow counts the bytes of a text column, and of a block of CSV, in int32; a longer range of rows comes in several groups."""


def read_rows(read: Read, starts: I64, row: int, kind: type[R] = Rows) -> R:  # type: ignore[assignment]
    """The rows that begin at `starts[:-1]`; the last ends at `starts[-1]`. Raises `DataError` where the file is shorter."""
    first = int(starts[0])
    data = read(first, int(starts[-1]))
    if len(data) != int(starts[-1]) - first:
        raise DataError(f"the file ends at byte {first + len(data)}, before the rows that its index promises")
    return kind(data, starts - first, row, first)


def sample_rows(read: Read, starts: I64, nbytes: int | None, kind: type[R] = Rows) -> Iterator[R]:  # type: ignore[assignment]
    """Rows that stand for all: whole ones within the first `nbytes`, and a few after each of 16 places in the rest. None: all."""
    rows = len(starts) - 1
    if not rows:
        return
    if nbytes is None:
        places = np.arange(int(starts[0]), int(starts[-1]), 16 << 20)
        borders = np.append(np.searchsorted(starts[:-1], places), rows)
        ranges = [(int(a), int(b)) for a, b in pairwise(borders) if a < b]
    else:
        head = max(1, int(np.searchsorted(starts, starts[0] + nbytes, side="right")) - 1)
        ranges = [(0, min(head, rows))]
        for place in np.linspace(head, rows, _SPREAD, endpoint=False).astype(np.int64).tolist():
            begin = max(place, ranges[-1][1])
            end = min(int(np.searchsorted(starts, starts[begin] + min(_SPREAD_BYTES, nbytes), side="right")) - 1, rows)
            if begin < end:
                ranges.append((begin, end))
    for begin, end in ranges:
        yield read_rows(read, starts[begin : end + 1], begin, kind)


class IndexedText:
    """One shard with its row index. Reads are ranges of the file (or of its unpacked copy); nothing but numbers is kept in memory."""

    def __init__(self, store: Store, shard: Shard, index: Index) -> None:
        self.index = index
        self._store, self._shard = store, shard
        self._local = store.local(shard.path) if index.unpacked is None else None
        self._closed = False

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size of the text."""
        return Units(np.diff(self.index.units), self.index.unit_bytes)

    def rows(self, unit: int, start: int, stop: int) -> list[Rows]:
        """The rows [start, stop) of a unit, in runs of less than 1 GiB.

        Raises:
            DataError: they are not in it; the shard is closed, was changed after it was indexed, or a row is longer than that.
        """
        first, offsets = self._starts(unit, start, stop)
        made: list[Rows] = []
        at = 0
        while at < stop - start:
            end = int(np.searchsorted(offsets, offsets[at] + _MAX_PIECE, side="right")) - 1
            if end <= at:
                raise DataError(
                    f"a row has {int(offsets[at + 1] - offsets[at])} bytes; more than {_MAX_PIECE} are not read",
                    where=errors.Where(row=first + at),
                )
            made.append(read_rows(self._read, offsets[at : end + 1], first + at))
            at = end
        return made

    def _starts(self, unit: int, start: int, stop: int) -> tuple[int, I64]:
        """`(the first row in the shard, where each begins and the last ends)` of the rows [start, stop) of a unit."""
        first, last = int(self.index.units[unit]), int(self.index.units[unit + 1])
        check_rows(unit, start, stop, last - first, closed=self._closed)
        return first + start, self.index.offsets.get(first + start, first + stop)

    def _read(self, start: int, stop: int) -> bytes:
        if self.index.unpacked is not None:
            return self.index.unpacked.read(start, stop)
        if self._local is not None and local_version(self._local) != self.index.stamp.version and not self._shard.etag:
            raise DataError("the file was changed after it was indexed", hint="start again; data must not change during a run")
        return self._store.read(self._shard.path, start, stop)

    def close(self) -> None:
        """See `OpenShard.close`."""
        self._closed = True
        if self.index.unpacked is not None:
            self.index.unpacked.close()


class EveryLine:
    """Finds the starts of all lines, blank ones too."""

    def __init__(self, base: int = 0) -> None:
        self._base = self._open = base
        self._parts: list[I64] = []

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the file."""
        begins = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10) + (self._base + 1)
        if len(begins):
            self._parts.append(np.concatenate([[self._open], begins[:-1]]).astype(np.int64))
            self._open = int(begins[-1])
        self._base += len(block)

    def finish(self) -> I64:
        """The starts, in order, and the end of the file: int64[lines + 1]."""
        last = [self._open] if self._open < self._base else []
        return np.concatenate([*self._parts, np.array([*last, self._base], dtype=np.int64)])


class Paragraphs:
    """Finds the starts of paragraphs: of lines that aren't blank, at the beginning or after one that is."""

    def __init__(self, base: int = 0) -> None:
        self._base = self._open = base
        self._open_blank = self._after_blank = True
        self._parts: list[I64] = []

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the file."""
        data = np.frombuffer(block, dtype=np.uint8)
        newlines = np.flatnonzero(data == 10)
        if not len(newlines):
            self._open_blank = self._open_blank and not block.strip(BLANKS)
            self._base += len(block)
            return
        first, last = int(newlines[0]), int(newlines[-1])
        starts = np.concatenate([[self._open], newlines[:-1] + 1 + self._base]).astype(np.int64)
        blank = np.empty(len(newlines), dtype=np.bool_)
        blank[0] = self._open_blank and not block[:first].strip(BLANKS)
        blank[1:] = blank_lines(data, newlines[:-1] + 1, newlines[1:])
        self._parts.append(starts[~blank & np.concatenate([[self._after_blank], blank[:-1]])])
        self._after_blank = bool(blank[-1])
        self._open = self._base + last + 1
        self._open_blank = not block[last + 1 :].strip(BLANKS)
        self._base += len(block)

    def finish(self) -> I64:
        """The starts, in order, and the end of the file: int64[paragraphs + 1]."""
        last = [self._open] if self._after_blank and not self._open_blank else []
        return np.concatenate([*self._parts, np.array([*last, self._base], dtype=np.int64)])

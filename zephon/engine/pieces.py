"""Runs of neighbouring rows of read units, of which bundles are made.

Of units that last, the places of text and bytes are worked out once for each unit: then a run of its rows costs a few slices in numpy,
and asks Arrow for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.groups import IN_PLACE, ArrowArray, IntArray
from zephon.views import BYTES, concat, hash_parts, plain, take, view_type, viewed, viewed_list

_ROW = 1 << 10
"""Places take 16 bytes for each value, so they are kept for units whose rows are this large on average."""


@dataclass(frozen=True)
class Places:
    """Where the values of a column of text or bytes without nulls are."""

    begin: IntArray
    """int[N]: value i is `length[i]` bytes of `data` from there on."""
    length: IntArray
    """int64[N]"""
    dense: bool
    """They follow one another."""
    data: memoryview
    elements: IntArray
    """int32[N, 4]: the values as elements of a view column, of the first of its buffers."""
    buffer: pa.Buffer | None
    """None: all values lie in their elements."""

    @classmethod
    def of(cls, array: ArrowArray) -> Places | None:
        """None: it is no such column."""
        if not len(array) or array.null_count:
            return None
        shown = viewed(array)
        if shown.type.id not in BYTES or len(shown.buffers()) > 3:
            return None
        _, elements, *buffers = shown.buffers()
        table = np.frombuffer(elements, np.int32).reshape(-1, 4)[shown.offset : shown.offset + len(shown)]
        buffer = buffers[0] if buffers else None
        if shown is not array:
            ends, data = groups.byte_span(array)
            ends = ends - ends[0]
            return cls(ends[:-1], np.diff(ends).astype(np.int64), True, data, table, buffer)
        if (table[:, 0] <= IN_PLACE).any():
            return None
        data = memoryview(b"" if buffer is None else buffer)
        return cls(table[:, 3], table[:, 0].astype(np.int64), False, data, table, buffer)


class Block:
    """Rows of a unit that were read as one group."""

    def __init__(self, group: pa.RecordBatch, *, keep: bool = False) -> None:
        """`keep`: its memory may be kept for as long as any of its rows is, so views of it may stand for them."""
        self.group = group
        self.nbytes = group.nbytes
        self.places: list[Places | None] = [None] * group.num_columns
        if keep and self.large:
            self.places = [Places.of(column) for column in group.columns]

    @property
    def large(self) -> bool:
        """Whether its rows are, so that places are known where it may be kept."""
        return self.nbytes >= _ROW * len(self)

    def __len__(self) -> int:
        return self.group.num_rows


@dataclass(frozen=True)
class Piece:
    """The rows [low, high) of a block."""

    block: Block
    low: int
    high: int

    def __len__(self) -> int:
        return self.high - self.low

    def column(self, number: int) -> ArrowArray:
        """The rows' values."""
        return self.block.group.column(number).slice(self.low, self.high - self.low)

    @property
    def group(self) -> pa.RecordBatch:
        """The rows."""
        return self.block.group.slice(self.low, self.high - self.low)


def at_most(pieces: Sequence[Piece], limit: int) -> bool:
    """Whether the pieces' rows weigh no more than that."""
    # a group's weight is asked of Arrow buffer by buffer; that of whole blocks, which was asked once, nearly always suffices
    return sum(p.block.nbytes for p in pieces) <= limit or sum(p.group.nbytes for p in pieces) <= limit


def whole(group: pa.RecordBatch, *, keep: bool = False) -> Piece:
    """All rows of a group; see `Block`."""
    return Piece(Block(group, keep=keep), 0, len(group))


def apart(piece: Piece) -> Piece:
    """Large rows in memory of their own, which may be kept when the rest of the block goes."""
    return whole(groups.copied([piece.group]), keep=True) if piece.block.large else piece


def cut(unit: Sequence[Block], start: int, stop: int) -> Iterator[Piece]:
    """The rows [start, stop) of a unit."""
    at = 0
    for block in unit:
        low, high = max(start - at, 0), min(stop - at, len(block))
        if low < high:
            yield Piece(block, low, high)
        at += len(block)


def joined(
    pieces: Sequence[Piece], number: int, kind: Any, digest: Any, *, lasts: bool, copied: bool, lists: bool
) -> ArrowArray:
    """One column of the pieces, and its hash fed to the digest (None: nobody asks for it). Where the places of all values are known, views
    of them; else:

    Args:
        kind: the column's ordinary type.
        lasts: as views, since all pieces' memory lasts.
        copied: in memory of its own, also where one piece is all.
        lists: lists as list views of that memory.
    """
    if runs := _runs(pieces, number):
        if digest is not None:
            _hash_runs(digest, runs, kind)
        return _view_of(runs, kind)
    parts = [piece.column(number) for piece in pieces]
    if digest is not None:
        hash_parts(digest, [plain(c, kind) for c in parts], kind)
    made = concat([viewed(c) for c in parts] if lasts else parts, kind)
    if copied and not lasts:
        made = take(made, np.arange(len(made)))
    return viewed_list(made) if lists else made


_Run = tuple[Places, int, int]


def _runs(pieces: Sequence[Piece], number: int) -> list[_Run]:
    """The places of a column's values in all pieces; none where they aren't known for all."""
    runs = [(places, p.low, p.high) for p in pieces if number < len(p.block.places) and (places := p.block.places[number])]
    return runs if len(runs) == len(pieces) else []


def _hash_runs(digest: Any, runs: Sequence[_Run], kind: Any) -> None:
    """As `hash_array` does it with an ordinary column of all values."""
    lengths = np.concatenate([places.length[low:high] for places, low, high in runs])
    digest.update(f"{kind}{len(lengths)}".encode())
    digest.update(lengths)
    for places, low, high in runs:
        if places.dense:
            digest.update(places.data[int(places.begin[low]) : int(places.begin[high - 1] + places.length[high - 1])])
            continue
        for begin, length in zip(places.begin[low:high].tolist(), places.length[low:high].tolist(), strict=True):
            digest.update(places.data[begin : begin + length])


def _view_of(runs: Sequence[_Run], kind: Any) -> ArrowArray:
    table = np.concatenate([places.elements[low:high] for places, low, high in runs])
    buffers: list[pa.Buffer] = []
    numbers: dict[int, int] = {}
    at = 0
    for places, low, high in runs:
        size = high - low
        if places.buffer is not None:
            number = numbers.setdefault(id(places), len(buffers))
            if number == len(buffers):
                buffers.append(places.buffer)
            if number:
                mine = table[at : at + size]
                mine[mine[:, 0] > IN_PLACE, 2] = number
        at += size
    data: Any = table
    return pa.Array.from_buffers(view_type(kind), len(table), [None, pa.py_buffer(data), *buffers], 0)

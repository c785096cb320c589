"""The rows of one bundle of a lane: in memory of their own, or, where their units last (mapped files), views of these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.errors import ZephonError
from zephon.keys import I64
from zephon.views import own_bytes, plain_group, shown_bytes, take_from, viewed_columns

_FEW_FILES = 4
"""So many are looked at without asking which of them are meant."""


@dataclass
class Bundle:
    """The rows of one bundle, in flat order, in one or (where they are huge) several groups."""

    pieces: list[pa.RecordBatch]
    """With provenance; columns may be views."""
    starts: I64
    bad: dict[int, ZephonError] = field(default_factory=dict)
    """Offsets of rows that could not be read; their place in `pieces` holds nulls."""
    excluded: npt.NDArray[np.bool_] | None = None

    content: int = 0
    """A hash of all rows, where the fetcher was asked for keys."""
    verify: Callable[[Iterable[int]], None] | None = None
    """Of views of mapped files: raises `DataError` where the files of these shards are not any more what they were."""
    shard: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each row, where there is something to verify."""
    owns: bool = False
    """The text and bytes that its views show are in memory for its sake."""

    _showing: list[pa.RecordBatch] | None = None

    def showing(self, names: frozenset[str]) -> list[pa.RecordBatch]:
        """The pieces, with these columns, always the same ones, as views."""
        if names and self._showing is None:
            self._showing = [viewed_columns(piece, names) for piece in self.pieces]
        return self._showing or self.pieces

    @cached_property
    def shards(self) -> list[int]:
        """Those of rows that could be read, each once."""
        return list(set(np.delete(self.shard, list(self.bad)).tolist()))

    @property
    def nbytes(self) -> int:
        """Bytes of memory of its own."""
        shown = sum(shown_bytes(p) for p in self.pieces) if self.owns else 0
        return shown + sum(own_bytes(p) for p in self.pieces)

    def places(self, offsets: I64) -> tuple[I64, I64]:
        """`(piece, row in it)` of these offsets."""
        if len(self.pieces) == 1:
            return np.zeros(len(offsets), np.int64), offsets
        piece = np.searchsorted(self.starts, offsets, side="right") - 1
        return piece, offsets - self.starts[piece]


@dataclass
class Pick:
    """Rows of one bundle that a chunk draws, and their places in the chunk."""

    bundle: Bundle
    offset: I64
    place: I64


def in_order(picks: Sequence[Pick]) -> tuple[I64, I64]:
    """By place in the chunk: which pick each row is of, and its offset in that one's bundle."""
    number = np.repeat(np.arange(len(picks)), [len(p.place) for p in picks])
    offset = picks[0].offset if len(picks) == 1 else np.concatenate([p.offset for p in picks])
    if all(one.place[-1] < other.place[0] for one, other in itertools.pairwise(picks)):
        return number, offset
    order = np.argsort(np.concatenate([p.place for p in picks]), kind="stable")
    return number[order], offset[order]


def check_maps(picks: Sequence[Pick]) -> None:
    """Raises `DataError` where a mapped file that picked rows lie in was written to."""
    wanted: dict[Callable[[Iterable[int]], None], set[int]] = {}
    for pick in picks:
        bundle = pick.bundle
        if bundle.verify is not None:
            few = len(bundle.shards) <= _FEW_FILES
            wanted.setdefault(bundle.verify, set()).update(
                bundle.shards if few else np.unique(bundle.shard[pick.offset]).tolist()
            )
    for verify, shards in wanted.items():
        verify(shards)


def collected(
    bundles: Sequence[Bundle], number: I64, offset: I64, schema: pa.Schema, keep: frozenset[int], shown: frozenset[str]
) -> pa.RecordBatch:
    """Row i is row `offset[i]` of `bundles[number[i]]`; each is copied once.

    Args:
        schema: of the group, with ordinary columns.
        keep: types of views that may stay views of the bundles' memory.
        shown: columns that come as views of it.
    """
    pieces: list[pa.RecordBatch] = []
    which, row = np.zeros(len(number), np.int64), offset
    if len(bundles) == 1:
        pieces, (which, row) = bundles[0].showing(shown), bundles[0].places(offset)
    else:
        row = offset.copy()
        for i, bundle in enumerate(bundles):
            here = np.flatnonzero(number == i)
            piece, row[here] = bundle.places(offset[here])
            which[here] = piece + len(pieces)
            pieces += bundle.showing(shown)
    if len(pieces) > 1:
        used, which = np.unique(which, return_inverse=True)
        pieces = [pieces[u] for u in used]
    return plain_group(take_from(pieces, which, row, schema), schema, keep, shown)

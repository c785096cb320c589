"""The rows of one bundle of a lane: in memory of their own, or, where their files are mapped, left where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.errors import ZephonError
from zephon.gathers import take_from
from zephon.keys import I64

_FEW_FILES = 4
"""So many are looked at without asking which of them are meant."""


@dataclass
class Bundle:
    """The rows of one bundle, in flat order, in one or (where they are huge) several groups."""

    pieces: list[pa.RecordBatch]
    """With provenance; provenance alone where the rest is `spread`."""
    starts: I64
    bad: dict[int, ZephonError] = field(default_factory=dict)
    """Offsets of rows that could not be read; their place in `pieces` holds nulls."""
    excluded: npt.NDArray[np.bool_] | None = None

    content: int = 0
    """A hash of all rows, where the fetcher was asked for keys."""
    spread: Spread | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory, not of maps of files."""
        return sum(p.nbytes for p in self.pieces)

    def places(self, offsets: I64) -> tuple[I64, I64]:
        """`(piece, row in it)` of these offsets."""
        if len(self.pieces) == 1:
            return np.zeros(len(offsets), np.int64), offsets
        piece = np.searchsorted(self.starts, offsets, side="right") - 1
        return piece, offsets - self.starts[piece]


@dataclass(frozen=True)
class Spread:
    """Where the columns of a bundle's rows are: row `row[i]` of `parts[which[i]]`, in groups over mapped files."""

    parts: list[pa.RecordBatch]
    which: I64
    row: I64
    shard: I64
    """Of each part."""
    verify: Callable[[Iterable[int]], None]
    """Raises `DataError` where the files of these shards are not any more what they were."""

    @cached_property
    def shards(self) -> list[int]:
        """Each once."""
        found: list[int] = np.unique(self.shard).tolist()
        return found


@dataclass
class Pick:
    """Rows of one bundle that a chunk draws, and their places in the chunk."""

    bundle: Bundle
    offset: I64
    place: I64


def in_order(picks: Sequence[Pick]) -> tuple[I64, I64]:
    """By place in the chunk: which pick each row is of, and its offset in that one's bundle."""
    order = np.argsort(np.concatenate([p.place for p in picks]), kind="stable")
    number = np.repeat(np.arange(len(picks)), [len(p.place) for p in picks])[order]
    return number, np.concatenate([p.offset for p in picks])[order]


def check_maps(picks: Sequence[Pick]) -> None:
    """Raises `DataError` where a mapped file that picked rows lie in was written to."""
    wanted: dict[Callable[[Iterable[int]], None], set[int]] = {}
    for pick in picks:
        spread = pick.bundle.spread
        if spread is not None:
            few = len(spread.shards) <= _FEW_FILES
            wanted.setdefault(spread.verify, set()).update(
                spread.shards if few else np.unique(spread.shard[spread.which[pick.offset]]).tolist()
            )
    for verify, shards in wanted.items():
        verify(shards)


def collected(bundles: Sequence[Bundle], number: I64, offset: I64, *, views: bool) -> pa.RecordBatch:
    """Row i is row `offset[i]` of `bundles[number[i]]`; each is copied once.

    Args:
        views: lists may be list views of the bundle's memory, where all are of one group. Never of a map, which may change.
    """
    if not any(b.spread for b in bundles):
        return _taken([(b.pieces, *b.places(offset[number == i])) for i, b in enumerate(bundles)], number, views=views)
    known = [
        ([groups.select(p, groups.PROVENANCE) for p in b.pieces], *b.places(offset[number == i])) for i, b in enumerate(bundles)
    ]
    data = _taken([_data(b, offset[number == i]) for i, b in enumerate(bundles)], number, views=False)
    provenance = _taken(known, number, views=False)
    return pa.RecordBatch.from_arrays(
        [*data.columns, *provenance.columns], schema=pa.schema([*data.schema, *provenance.schema])
    )


_Found = tuple[list[pa.RecordBatch], I64, I64]
"""Groups; and for each of a bundle's picked rows, the group and the row there."""


def _data(bundle: Bundle, offset: I64) -> _Found:
    if bundle.spread is not None:
        return bundle.spread.parts, bundle.spread.which[offset], bundle.spread.row[offset]
    columns = [n for n in bundle.pieces[0].schema.names if n not in groups.PROVENANCE]
    return ([groups.select(p, columns) for p in bundle.pieces], *bundle.places(offset))


def _taken(found: Sequence[_Found], number: npt.NDArray[Any], *, views: bool) -> pa.RecordBatch:
    """Rows of several bundles: the next of bundle `number[i]` comes at place i."""
    pieces: list[pa.RecordBatch] = []
    which, row = np.empty(len(number), np.int64), np.empty(len(number), np.int64)
    for i, (groups_of_it, group, row_there) in enumerate(found):
        here = np.flatnonzero(number == i)
        which[here], row[here] = group + len(pieces), row_there
        pieces += groups_of_it
    used, which = np.unique(which, return_inverse=True)
    pieces = [pieces[u] for u in used]
    return groups.view_rows(pieces[0], row) if len(pieces) == 1 and views else take_from(pieces, which, row)

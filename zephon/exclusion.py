"""Which rows of which shards are left out: a quarantine file names shards by the paths that they had when it was written."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon.keys import I64

log = logging.getLogger("zephon.dataset")


def excluded_rows(name: str, exclude: Mapping[str, Sequence[int]], paths: Sequence[str]) -> dict[int, I64]:
    """Shard number → rows to leave out. Where the data has moved, a path is the one with the longest end in common.

    Args:
        name: of the data set, for the log.
        exclude: path (or file name) → rows.
        paths: of the shards, in their order.
    """
    numbers = {path: number for number, path in enumerate(paths)}
    by_name: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        by_name.setdefault(_parts(path)[-1], []).append(number)
    found: dict[int, set[int]] = {}
    for path, rows in exclude.items():
        shard = numbers.get(path)
        if shard is None:
            shard = _nearest(path, by_name.get(_parts(path)[-1], ()), paths)
        if shard is None:
            log.warning(
                "data set %r has no shard that could be %r: %d rows that are to be left out are not", name, path, len(rows)
            )
        else:
            found.setdefault(shard, set()).update(map(int, rows))
    return {shard: np.array(sorted(rows), dtype=np.int64) for shard, rows in found.items()}


def _nearest(path: str, candidates: Sequence[int], paths: Sequence[str]) -> int | None:
    """The only candidate whose path ends like `path` for the most parts; None: none, or several do."""
    ends = [(_common_end(_parts(path), _parts(paths[number])), number) for number in candidates]
    most = max((length for length, _ in ends), default=0)
    best = [number for length, number in ends if length == most]
    return best[0] if len(best) == 1 else None


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").rstrip("/").split("/")


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    return length


def is_excluded(excluded: Mapping[int, npt.NDArray[np.int64]], shard: npt.NDArray[Any], row: I64) -> npt.NDArray[np.bool_]:
    """bool[N]: whether the rows, by shard and row in it, are among the excluded ones."""
    out: npt.NDArray[np.bool_] = np.zeros(len(row), dtype=bool)
    for number, rows in excluded.items():
        out |= (shard == number) & np.isin(row, rows)
    return out

"""The head of an MDS shard: number of samples, offsets, and the columns as JSON, checked against what the index says.

uint32 samples | uint32 offsets[samples + 1], from the beginning of the file | JSON | samples
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.plugin import DataError

_JSON_BYTES = 16 << 10  # read along with the offsets; more than enough for most shards, so that one request gets all


class ShardHead:
    """The offsets of a shard's samples; uint32 where they fit, so that a head takes 4 bytes a row."""

    def __init__(self, offsets: npt.NDArray[Any]) -> None:
        self._offsets = offsets

    def offsets(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where the samples [start, stop) begin, and the end of the last: int64[stop - start + 1]."""
        return self._offsets[start : stop + 1].astype(np.int64)


def read_head(read: Callable[[int, int], pa.Buffer], rows: int, nbytes: int, columns: Sequence[Sequence[Any]]) -> ShardHead:
    """The head of a shard of `nbytes` bytes, `rows` samples and `[[name, encoding, size], …]`.

    The offsets of a shard over 4 GiB have wrapped. Since no sample is that large (a value's size is a uint32 too), the differences
    are still true, and with them the offsets; that they end at the end of the file is checked.

    Raises:
        DataError: it is not the head of an MDS shard, or of another one than the index says.
    """
    table = 4 + 4 * (rows + 1)
    data = read(0, min(nbytes, table + _JSON_BYTES))
    if data.size < table:
        raise DataError(f"the file is not an MDS shard of {rows} samples: it has only {data.size} bytes")
    numbers = np.frombuffer(data.slice(0, table).to_pybytes(), dtype="<u4")
    if numbers[0] != rows:
        raise DataError(
            f"the shard has {int(numbers[0])} samples where its index promises {rows}",
            hint="the file was replaced, is damaged, or is not MDS",
        )
    stored = numbers[1:]
    begin = int(stored[0])
    offsets = np.concatenate([[begin], begin + np.cumsum(np.diff(stored), dtype=np.int64)])
    if offsets[-1] != nbytes or not table < begin <= nbytes:
        raise DataError(
            f"the offsets of the shard go from {begin} to {int(offsets[-1])}, and it has {nbytes} bytes: it is damaged"
        )
    if begin > data.size:
        data = read(0, begin)
    _check_columns(data.slice(table, begin - table).to_pybytes(), columns)
    return ShardHead(stored.copy() if nbytes < 2**32 else offsets)


def _check_columns(text: bytes, columns: Sequence[Sequence[Any]]) -> None:
    try:
        found = json.loads(text)
        mine = [list(c) for c in zip(*(found[f"column_{part}"] for part in ("names", "encodings", "sizes")), strict=True)]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the head of the shard is damaged: {error}") from error
    if mine != [list(c) for c in columns]:
        raise DataError(f"the shard has the columns {mine} where its index has {list(columns)}", hint="the file was replaced")

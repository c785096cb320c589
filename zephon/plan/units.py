"""The table of read units that planning works on: a few integers per unit, nothing that can be opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class UnitTable:
    """Read units in file order: int64[U] rows and bytes, the shard of each (int32) and its first row in that shard.

    Units without rows are left out, so every unit has at least one. 28 bytes per unit: 10^6 shards fit in 28 MB.
    """

    rows: I64
    nbytes: I64
    shard: I32
    first_row: I64
    number: I32
    """The unit's number inside its shard, as the reader counts."""

    @property
    def total_rows(self) -> int:
        """Rows of the data set."""
        return int(self.rows.sum())

    @property
    def total_bytes(self) -> int:
        """Decoded bytes of the data set, as the reader estimates them."""
        return int(self.nbytes.sum())

    def __len__(self) -> int:
        return len(self.rows)


def unit_table(per_shard: Sequence[tuple[I64, I64]]) -> UnitTable:
    """The table for shards given as `(rows, nbytes)` arrays in file order."""
    counts = [len(rows) for rows, _ in per_shard]
    rows = np.concatenate([np.asarray(r, dtype=np.int64) for r, _ in per_shard] or [np.zeros(0, np.int64)])
    nbytes = np.concatenate([np.asarray(b, dtype=np.int64) for _, b in per_shard] or [np.zeros(0, np.int64)])
    shard = np.repeat(np.arange(len(per_shard), dtype=np.int32), counts)
    starts = np.cumsum(rows) - rows
    shard_rows = np.array([int(np.sum(r)) for r, _ in per_shard], dtype=np.int64)
    first = starts - np.repeat(np.cumsum(shard_rows) - shard_rows, counts)
    number = np.concatenate([np.arange(n, dtype=np.int32) for n in counts] or [np.zeros(0, np.int32)])
    keep = rows > 0
    return UnitTable(rows[keep], nbytes[keep], shard[keep], first[keep], number[keep])


def stripe_rows(table: UnitTable, *, lanes: int, share: float, total_bytes: int) -> int:
    """Rows per stripe: what one lane reads (and shuffles) before the next lane's stripe begins.

    All lanes together hold about `total_bytes` of open stripes, split by `share` (of the mixture); a stripe is 256 KiB to 64 MiB
    of data but never so long that the lanes' turns in a pass differ much (at least 8 turns per lane and pass, where there are rows enough).
    Where units are of one size, the stripe is a divisor or a multiple of it, so that stripes and units begin together.
    """
    rows, size = table.total_rows, max(1, table.total_bytes)
    row_bytes = max(1.0, size / rows)
    unit = int(np.median(table.rows))
    target = min(max(total_bytes * share / lanes, 256 << 10), 64 << 20)
    # a quarter of a unit at least: else one big row group is decoded by too many ranks
    target = max(target, min(unit * row_bytes / 4, 16 << 20))
    wanted = max(1, min(int(target / row_bytes), rows // (8 * lanes)))
    if wanted >= unit:
        return wanted // unit * unit
    return max(1, -(-unit // -(-unit // wanted)))

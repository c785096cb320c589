"""The table of read units."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon.plan.units import stripe_rows, unit_table

shards = st.lists(st.lists(st.integers(0, 50), max_size=5), min_size=0, max_size=6)


@given(shards)
def test_the_table_lists_every_row_of_every_shard_once(per_shard: list[list[int]]) -> None:
    table = unit_table([(np.array(rows, dtype=np.int64), np.array(rows, dtype=np.int64) * 8) for rows in per_shard])
    found = [
        (int(s), int(f) + i) for s, f, n in zip(table.shard, table.first_row, table.rows, strict=True) for i in range(int(n))
    ]
    assert found == [(s, i) for s, rows in enumerate(per_shard) for i in range(sum(rows))]
    assert table.total_rows == len(found)
    assert table.total_bytes == 8 * len(found)
    for s, number, rows in zip(table.shard, table.number, table.rows, strict=True):
        assert per_shard[s][number] == rows > 0  # units without rows are left out, numbers stay the reader's


@given(
    rows=st.lists(st.integers(1, 10**7), min_size=1, max_size=20),
    row_bytes=st.sampled_from([0, 1, 100, 10**5, 10**8]),
    lanes=st.sampled_from([1, 7, 64, 1024]),
    share=st.floats(0.01, 1.0),
)
def test_a_stripe_is_at_least_one_row_and_leaves_every_lane_several_turns(
    rows: list[int], row_bytes: int, lanes: int, share: float
) -> None:
    table = unit_table([(np.array(rows), np.array(rows) * row_bytes)])
    stripe = stripe_rows(table, lanes=lanes, share=share, total_bytes=256 << 20)
    assert stripe >= 1
    assert stripe == 1 or stripe * lanes * 8 <= table.total_rows

"""Views share memory with the blocks that they are of; they must not keep more of it than the byte budget has room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource


@pytest.mark.parametrize("runner", ["inline", "threads"])
@pytest.mark.filterwarnings("ignore")
def test_many_lanes_do_not_hold_their_blocks_beyond_the_budget(runner: str, tmp_path: Path) -> None:
    """Each lane holds the rest of a document of its block: with views, all 24 blocks would stay in memory."""
    rows, length, budget = 4_000, 1024, 8 << 20
    values = pa.array(np.arange(rows * length, dtype=np.int32))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, rows * length + 1, length, dtype=np.int32)), values)
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "tokens.parquet", row_group_size=500)
    del values, lists
    source = StaticMixtureWorkSource([Dataset.from_path("tokens", tmp_path)], seed=1, chunk_size=4, shuffle_block_size=64)
    pipeline = Pipeline(source).pack_flat(max_length=1536, pad_token_id=0).batch(1)
    pipeline.options(lanes=24, runner=runner, workers=2, max_bytes=budget, prefetch_batches=4)
    before, most = pa.total_allocated_bytes(), 0
    for number, _ in enumerate(pipeline):
        most = max(most, pa.total_allocated_bytes() - before)
        if number > 30:
            break
    assert most < 3 * budget

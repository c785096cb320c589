"""What the yardsticks read: text that every Python installation holds, and lists of tokens from a fixed seed. Nothing is committed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa


def documents_of_tokens(count: int) -> pa.Table:
    """`input_ids`: list<int32>, `count` documents of 20 to 8,000 tokens, log-normal with a mean of about 550."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6, 0.8, count), 20, 8000).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = random.integers(0, 50_000, offsets[-1], dtype=np.int32)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)).cast(pa.list_(pa.int32()))
    return pa.table({"input_ids": lists})

"""What all lanes hold stays within the byte budget while the training step is slow, and the budget changes no byte of the stream."""

from __future__ import annotations

import time

import pyarrow as pa

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

RECORD = 1 << 18
DATA = Dataset.from_records(
    "d", pa.table({"id": pa.array(range(128)), "x": pa.array([bytes([i]) * RECORD for i in range(128)], pa.binary())})
)


MUCH = 24 << 20


def run(max_bytes: int, *, patience_s: float) -> tuple[list[str], int]:
    """The hashes of batches, and the most bytes held at a time. A step of all lanes is 16 MiB; each lane would like to be two ahead."""
    pipeline = Pipeline(StaticMixtureWorkSource(DATA, chunk_size=4, seed=1)).map_batches(lambda group: group).batch(8)
    pipeline.options(lanes=8, workers=2, max_bytes=max_bytes, max_steps=4, prefetch_batches=2, flush_every_chunks=4)
    hashes = []
    for batch in pipeline:
        hashes.append(batch.sha256())
        until = time.monotonic() + patience_s
        while len(hashes) == 1 and time.monotonic() < until and pipeline.stats()["peak_lane_bytes"] < MUCH:
            time.sleep(0.02)  # the training step: time enough to fill whatever may be filled
    return hashes, pipeline.stats()["peak_lane_bytes"]


def test_lanes_hold_no_more_than_the_budget_while_nobody_takes_batches() -> None:
    small, large = run(8 << 20, patience_s=0.5), run(512 << 20, patience_s=20)
    assert small[0] == large[0]
    assert large[1] >= MUCH, "without a bound they hold as much as this"
    assert small[1] <= 8 << 20

"""Overhead: small records from memory and from Parquet in batches of 64, against bare pyarrow in the same order or in file order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import small_records, small_records_file
from benchmarks.harness import Result, Setting, alternate, costs, script
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.options import RunnerName

_BATCH = 64
_AT_ONCE = 32_768
"""Records per `Table.take`."""


def measure(setting: Setting) -> list[Result]:
    """Microseconds per record over one whole pass, start-up included."""
    count = 50_000 if setting.quick else 1_000_000
    records = small_records(count).combine_chunks()
    path = small_records_file(setting.folder, count)
    order = _order(records)
    memory = StaticMixtureWorkSource([Dataset.from_records("memory", records)], seed=1, stop_after_passes=1)

    def take() -> float:
        made = (records.take(order[i : i + _AT_ONCE]) for i in range(0, count, _AT_ONCE))
        return float(sum(len(batch) for part in made for batch in part.to_batches(max_chunksize=_BATCH)))

    def scan() -> float:
        return float(sum(len(batch) for batch in pq.ParquetFile(path).iter_batches(batch_size=_BATCH)))

    def ours(source: StaticMixtureWorkSource, runner: RunnerName) -> float:
        pipeline = Pipeline(source).batch(_BATCH).options(runner=runner, workers=2)
        return float(sum(len(batch.group) for batch in pipeline))

    made = alternate(
        take,
        lambda: ours(memory, "inline"),
        lambda: ours(memory, "threads"),
        scan,
        lambda: ours(_file(path), "inline"),
        lambda: ours(_file(path), "threads"),
        repeats=setting.repeats,
    )
    labels = [
        ("memory", 0, "`Table.take`, in random order as ours"),
        ("Parquet", 3, "`ParquetFile.iter_batches`, in file order"),
    ]
    return [
        costs(
            f"fetch + batch({_BATCH}) from {where}, {runner}",
            made[at],
            made[at + n],
            unit="µs/record",
            scale=1e6,
            note=f"bare: {note}",
        )
        for where, at, note in labels
        for n, runner in ((1, "inline"), (2, "threads"))
    ]


def _order(records: pa.Table) -> Any:
    """The order in which ours gives them: any shuffled order that visits blocks one after the other costs the same."""
    blocks = np.array_split(np.arange(len(records)), max(1, len(records) // _AT_ONCE))
    random = np.random.default_rng(1)
    return pa.array(np.concatenate([random.permutation(blocks[b]) for b in random.permutation(len(blocks))]))


def _file(path: Path) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([Dataset.from_path("file", path)], seed=1, stop_after_passes=1)


if __name__ == "__main__":
    script(measure)

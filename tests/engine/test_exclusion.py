"""Rows to leave out are found by path, also where the data has moved; never in another file of the same name (59)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine.exclusion import excluded_rows

PATHS = ["/data/x/0.parquet", "/data/y/0.parquet", "/data/y/1.parquet"]


@pytest.mark.parametrize(
    ("named", "shard"),
    [
        ("/data/x/0.parquet", 0),
        ("/data/y/0.parquet", 1),
        ("/old/y/0.parquet", 1),
        ("s3://bucket/x/0.parquet", 0),
        ("1.parquet", 2),
        ("0.parquet", None),
        ("/old/z/0.parquet", None),
        ("2.parquet", None),
    ],
)
def test_a_path_means_the_one_shard_that_ends_like_it(named: str, shard: int | None, caplog: pytest.LogCaptureFixture) -> None:
    found = excluded_rows("d", {named: [3, 1, 3]}, PATHS)
    assert {number: rows.tolist() for number, rows in found.items()} == ({} if shard is None else {shard: [1, 3]})
    assert (f"no shard that could be '{named}'" in caplog.text) == (shard is None)


def test_two_names_of_one_shard_leave_out_the_rows_of_both() -> None:
    assert excluded_rows("d", {"/data/y/1.parquet": [5], "1.parquet": [2]}, PATHS)[2].tolist() == [2, 5]


def test_a_quarantine_file_fits_data_that_moved(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / "new" / folder).mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(5))}), tmp_path / "new" / folder / "0.parquet")
    file = tmp_path / "bad.jsonl"
    file.write_text(
        json.dumps({"dataset": "d", "shard": "/gone/y/0.parquet", "row": 2, "operator": "map", "error": "?"}) + "\n"
    )
    source = StaticMixtureWorkSource(Dataset.from_path("d", tmp_path / "new"), stop_after_passes=1)
    batches = list(Pipeline(source).batch(1).options(runner="inline", exclude=str(file)))
    assert sorted((row["_shard"], row["id"]) for b in batches for row in b.group.to_pylist()) == [
        (s, i) for s in (0, 1) for i in range(5) if (s, i) != (1, 2)
    ]

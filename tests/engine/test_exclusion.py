"""Rows to leave out are found by path, also where the data has moved; never in another file of the same name (59)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Batch, Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import CheckpointError
from zephon.exclusion import excluded_rows

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


def line(shard: object, row: int) -> str:
    return json.dumps({"dataset": "d", "shard": str(shard), "row": row, "operator": "map", "error": "?"}) + "\n"


def test_a_run_with_rows_left_out_resumes_after_data_and_quarantine_file_have_moved(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / "old" / folder).mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(9))}), tmp_path / "old" / folder / "0.parquet")

    def fresh(data: Path, exclude: Path) -> Pipeline:
        source = StaticMixtureWorkSource(Dataset.from_path("d", data), stop_after_passes=1, seed=1)
        return Pipeline(source).batch(1).options(runner="inline", lanes=2, exclude=str(exclude))

    def ids(batches: Iterable[Batch]) -> list[tuple[int, int]]:
        return [(row["_shard"], row["id"]) for batch in batches for row in batch.group.to_pylist()]

    left_out = [(tmp_path / "old" / "y" / "0.parquet", 2), (tmp_path / "old" / "x" / "0.parquet", 5)]
    before = tmp_path / "before.jsonl"
    before.write_text("".join(line(*place) for place in left_out))
    want = ids(fresh(tmp_path / "old", before))
    assert sorted(want) == [(s, i) for s in (0, 1) for i in range(9) if (s, i) not in {(1, 2), (0, 5)}]

    pipeline = fresh(tmp_path / "old", before)
    batches = iter(pipeline)
    first = ids([next(batches) for _ in range(4)])
    state = json.loads(json.dumps(pipeline.checkpoint()))
    batches.close()  # type: ignore[attr-defined]
    (tmp_path / "old").rename(tmp_path / "new")
    after = tmp_path / "after.jsonl"  # sorted, named anew, one row twice, one of a file that isn't there
    moved = sorted((tmp_path / "new" / path.parent.name / path.name, row) for path, row in left_out)
    after.write_text("".join(line(*place) for place in [*moved, moved[0], (tmp_path / "gone.parquet", 1)]))
    for exclude in (before, after):
        resumed = fresh(tmp_path / "new", exclude)
        resumed.restore(state)
        assert first + ids(resumed) == want
        assert resumed.accounting()["rows"]["in_flight"] == 0
    after.write_text(line(*moved[0]))
    with pytest.raises(CheckpointError, match="'d' excluded"):
        fresh(tmp_path / "new", after).restore(state)

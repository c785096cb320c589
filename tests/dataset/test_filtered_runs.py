"""A run over a part of a data set is the run over a data set that holds just these rows, on any number of ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.memory import MemoryShards

Row = dict[str, Any]
SHARDS = {f"s{k}": [{"id": 100 * k + i, "v": (i * 7 + k) % 10} for i in range(17 + k)] for k in range(4)}


def pipeline(dataset: Dataset, *, seed: int = 3, passes: int | None = 2, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource(dataset, seed=seed, chunk_size=4, shuffle_block_size=5, stop_after_passes=passes)
    return Pipeline(source).shuffle(buffer_size=4).batch(2, 8).options(lanes=4, **{"runner": "inline", **options})


def steps_of(make: Any, world: int) -> list[list[Row]]:
    """The rows of each step, all ranks together, with their provenance."""
    steps: dict[int, list[Row]] = {}
    for rank in range(world):
        for batch in pipeline(make(), max_steps=12, passes=None, dp_rank=rank, dp_size=world):
            steps.setdefault(batch.step, []).extend(batch.group.to_pylist())
    return [steps[s] for s in sorted(steps)]


def user(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def part() -> Dataset:
    return Dataset.from_dict("d", SHARDS, rows=slice(3, -2), filter=pc.field("v") < 6)


def the_same_rows() -> Dataset:
    every = [(name, row) for name, rows in SHARDS.items() for row in rows][3:-2]
    return Dataset.from_dict("d", {n: [r for name, r in every if name == n and r["v"] < 6] for n in SHARDS})


def test_a_part_gives_the_stream_of_a_data_set_that_holds_just_its_rows() -> None:
    assert [user(s) for s in steps_of(part, 1)] == [user(s) for s in steps_of(the_same_rows, 1)]


@pytest.mark.parametrize("world", [2, 4])
def test_the_global_batches_of_a_part_are_the_same_on_any_number_of_ranks(world: int) -> None:
    assert steps_of(part, world) == steps_of(part, 1)


def test_provenance_is_the_row_in_the_stored_shard() -> None:
    names = list(SHARDS)
    for rows in steps_of(part, 1):
        for row in rows:
            assert SHARDS[names[row["_shard"]]][row["_row"]] == {"id": row["id"], "v": row["v"]}


@settings(max_examples=examples(15))
@given(
    values=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4),
    start=st.integers(-4, 4),
    step=st.integers(1, 3),
    limit=st.integers(0, 3),
    passes=st.integers(1, 2),
)
def test_every_row_of_a_part_comes_once_in_a_pass(
    values: list[list[int]], start: int, step: int, limit: int, passes: int
) -> None:
    number = iter(range(1000))
    shards = {str(i): [{"id": next(number), "v": v} for v in shard] for i, shard in enumerate(values)}
    left = [row["id"] for row in [r for rows in shards.values() for r in rows][start::step] if row["v"] >= limit]
    dataset = Dataset.from_dict("d", shards, rows=slice(start, None, step), filter=pc.field("v") >= limit)
    if not left:
        assert len(dataset) == 0
        return
    run = pipeline(dataset, passes=passes)
    found = Counter(i for batch in run for i in batch.group.column("id").to_pylist())
    assert found == dict.fromkeys(left, passes)
    counts = run.accounting()["rows"]
    assert (counts["in"], counts["dropped"]) == (passes * len(left), {})


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    for k in range(3):
        table = pa.table({"id": pa.array(range(k * 100, k * 100 + 100)), "text": [f"text {i % 9}" for i in range(100)]})
        pq.write_table(table, tmp_path / f"{k}.parquet", row_group_size=40)
    return tmp_path


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_every_runner_gives_the_same_rows_of_a_part_in_files(parquet: Path, tmp_path: Path, runner: str) -> None:
    def rows(**options: Any) -> list[Row]:
        dataset = Dataset.from_path(
            "d", f"{parquet}/*.parquet", fraction=(0.1, 0.9), filter=pc.field("text") != "text 3", cache_dir=str(tmp_path / "c")
        )
        return [row for batch in pipeline(dataset, passes=1, **options) for row in batch.group.to_pylist()]

    want = rows()
    assert rows(runner=runner, workers=2) == want
    assert sorted(row["id"] for row in want) == [i for i in range(30, 270) if i % 100 % 9 != 3]
    assert all(row["id"] == 100 * row["_shard"] + row["_row"] for row in want)


def test_a_part_goes_on_where_it_was(parquet: Path) -> None:
    def made() -> Pipeline:
        return pipeline(Dataset.from_dict("d", SHARDS, rows=slice(1, None, 3)), passes=None, max_steps=20)

    whole = [batch.group.to_pylist() for batch in made()]
    first = made()
    batches = iter(first)
    taken = [next(batches).group.to_pylist() for _ in range(16)]
    state = first.checkpoint()
    batches.close()  # type: ignore[attr-defined]
    rest = made()
    rest.restore(state)
    assert taken + [batch.group.to_pylist() for batch in rest] == whole


class Torn(MemoryShards):
    """Rows 4 and 5 of the second shard can't be read."""

    def open(self, shard: Any) -> Any:
        inner = super().open(shard)
        read = inner.read

        def torn(unit: int, columns: Any, start: int, stop: int) -> Any:
            if shard.path == "s1" and start < 6 and stop > 4:
                raise OSError("checksum")
            return read(unit, columns, start, stop)

        inner.read = torn
        return inner


def test_unreadable_rows_are_named_by_their_place_in_the_shard_and_rows_outside_of_the_part_do_no_harm() -> None:
    tables = {name: pa.Table.from_pylist(rows) for name, rows in SHARDS.items()}
    run = pipeline(Dataset("d", Torn(tables), rows=slice(0, None, 2)), passes=1, on_error="skip")
    found = sorted(i for batch in run for i in batch.group.column("id").to_pylist())
    every = [row["id"] for rows in SHARDS.values() for row in rows]
    # row 5 of s1 is stored row 22 of all, row 4 is number 21: only even ones are in the part
    assert found == [i for i in every[::2] if i != 105]

    with pytest.raises(Exception, match="checksum") as caught:
        list(pipeline(Dataset("d", Torn(tables), rows=slice(0, None, 2)), passes=1))
    where = caught.value.where  # type: ignore[attr-defined]
    assert (where.shard, where.row) == ("s1", 5)


def test_rows_are_left_out_by_their_place_in_the_shard() -> None:
    dataset = Dataset.from_dict("d", SHARDS, rows=slice(0, None, 2)).excluding({"s0": [4, 5], "s1": [3]})
    found = sorted(i for batch in pipeline(dataset, passes=1) for i in batch.group.column("id").to_pylist())
    every = [row["id"] for rows in SHARDS.values() for row in rows]
    assert found == [i for i in every[::2] if i not in (4, 5, 103)]


def test_tokens_per_record_are_measured_on_the_part_alone() -> None:
    rows = [{"input_ids": [1] * (50 if i % 2 else 2)} for i in range(40)]
    dataset = Dataset.from_records("d", rows, rows=slice(0, None, 2))
    source = StaticMixtureWorkSource(dataset, token_estimation=TokenEstimation(calibration_samples=20), seed=1, chunk_size=4)
    next(iter(Pipeline(source).pack_flat(max_length=4, pad_token_id=0).batch(1).options(runner="inline", lanes=2)))
    assert source.tokens_per_record == {"d": 2.0}

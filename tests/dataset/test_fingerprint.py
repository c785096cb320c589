"""A fingerprint is cheap and small, sees every change of the data, and says which shard or column it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import Dataset, Pipeline
from zephon.contents import describe_files, file_differences
from zephon.errors import CheckpointError
from zephon.plugin import Shard
from zephon.recipe import difference, fingerprint


def table(rows: int, *, first: int = 0, **columns: Any) -> pa.Table:
    return pa.table({"i": pa.array(range(first, first + rows), pa.int64()), "t": pa.array(["x"] * rows), **columns})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(4):
        pq.write_table(table(20), folder / f"part-{i}.parquet")
    return folder


def print_of(folder: Path, **options: Any) -> dict[str, Any]:
    return Dataset.from_path("wiki", folder, **options).fingerprint()


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    assert fingerprint(before) != fingerprint(after)
    return difference({"datasets": [before]}, {"datasets": [after]})


def test_a_copy_elsewhere_has_the_same_fingerprint(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy" / "deeper")
    assert print_of(data) == print_of(tmp_path / "copy" / "deeper") == print_of(tmp_path / "copy")


def test_shards_that_came_went_and_changed_are_named(data: Path) -> None:
    before = print_of(data)
    (data / "part-1.parquet").unlink()
    pq.write_table(table(20), data / "part-9.parquet")
    pq.write_table(table(23), data / "part-2.parquet")
    pq.write_table(table(20, first=10**9), data / "part-3.parquet", compression="none")
    assert changes(before, print_of(data)) == [
        "dataset 0 'wiki' shard 'part-1.parquet' is gone",
        "dataset 0 'wiki' shard 'part-2.parquet': another size or version and number of rows",
        "dataset 0 'wiki' shard 'part-3.parquet': another size or version",
        "dataset 0 'wiki' shard 'part-9.parquet' is new",
        "dataset 0 'wiki' rows 80 → 83",
    ]


def test_columns_that_came_went_and_changed_are_named(data: Path) -> None:
    before = print_of(data)
    for path in sorted(data.iterdir()):
        pq.write_table(pa.table({"i": pa.array(range(20), pa.int32()), "new": ["y"] * 20}), path)
    made = changes(before, print_of(data))
    assert "dataset 0 'wiki' column 'i' was int64, is int32" in made
    assert "dataset 0 'wiki' column 't' is gone (was string)" in made
    assert "dataset 0 'wiki' column 'new' is new (string)" in made


def test_other_row_groups_alone_are_a_change(data: Path) -> None:
    """The plan depends on them."""
    before = print_of(data)
    size = (data / "part-0.parquet").stat().st_size
    pq.write_table(table(20), data / "part-0.parquet", row_group_size=7)
    after = print_of(data)
    if (data / "part-0.parquet").stat().st_size == size:
        assert changes(before, after)[0].startswith("dataset 0 'wiki' content")
    assert changes(before, after)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"rows": slice(0, 40)}),
        ({"rows": slice(0, 40)}, {"rows": slice(1, 41)}),
        ({}, {"fraction": 0.5}),
        ({"fraction": 0.5}, {"fraction": (0.5, 1.0)}),
        ({}, {"filter": pc.field("i") > 3}),
        ({"filter": pc.field("i") > 3}, {"filter": pc.field("i") > 4}),
        ({}, {"columns": ["i"]}),
        ({"columns": ["t"]}, {"columns": ["i"]}),
    ],
)
def test_the_chosen_part_is_in_the_fingerprint(data: Path, tmp_path: Path, one: Any, other: Any) -> None:
    assert print_of(data, cache_dir=str(tmp_path), **one) == print_of(data, cache_dir=str(tmp_path), **one)
    made = changes(print_of(data, cache_dir=str(tmp_path), **one), print_of(data, cache_dir=str(tmp_path), **other))
    assert made


def test_the_same_rows_left_by_other_values_are_noticed() -> None:
    """The count of kept rows is the same; which they are is not, and neither size nor count of any shard differ."""
    prints = [
        Dataset.from_records("d", [{"i": v} for v in values], filter=pc.field("i") > 0).fingerprint()["part"]
        for values in ([1, 0], [0, 1])
    ]
    assert prints[0]["rows_left"] == prints[1]["rows_left"] == 1
    assert prints[0] != prints[1]


@pytest.mark.parametrize("count", [1, 64, 65, 1000, 20_000])
@pytest.mark.parametrize(
    "name", ["{:05d}.parquet", "a-very-long-folder-name-that-says-a-lot/of-things/train-{:05d}-of-99999.parquet"]
)
def test_it_is_small_however_many_shards_there_are(count: int, name: str) -> None:
    shards = [Shard(f"/data/{name.format(i)}", 1000 + i) for i in range(count)]
    made = describe_files(shards, np.full(count, 7, dtype=np.int64))
    assert len(json.dumps(made)) < 5000
    assert len(made["at"]) == min(count, 64)


def test_it_is_small_with_many_columns_and_long_types() -> None:
    wide = pa.table({f"column {i}": [i] for i in range(5000)})
    deep = pa.table({"s": pa.array([{f"field {i}": i for i in range(500)}])})
    for made in (wide, deep):
        assert len(json.dumps(Dataset.from_records("d", made).fingerprint())) < 1500


names = st.lists(st.text("abc/", min_size=1, max_size=4).map("/d/{}x".format), min_size=1, max_size=90, unique=True).map(sorted)


@given(names=names, data=st.data())
def test_one_change_among_any_shards_is_said_in_words_that_name_a_shard_at_or_before_it(
    names: list[str], data: st.DataObject
) -> None:
    def described(sizes: dict[str, int]) -> dict[str, Any]:
        return describe_files([Shard(n, s) for n, s in sizes.items()], np.arange(len(sizes)))

    victim = data.draw(st.sampled_from(names))
    sizes = dict.fromkeys(names, 5)
    assert file_differences(described(sizes), described(sizes), "") == []
    after = described(sizes | {victim: 6})
    (said,) = file_differences(described(sizes), after, "")
    named = [n for n in after["at"] if repr(n) in said]
    assert len(named) == 1
    if len(names) <= 64:
        assert victim.endswith(named[0].partition("#")[0])


def test_one_new_shard_among_thousands_is_one_line() -> None:
    paths = [f"/data/{i:05d}.parquet" for i in range(3000)]
    before = describe_files([Shard(p, 5) for p in paths], np.full(3000, 2))
    paths.insert(1500, "/data/01499a.parquet")
    after = describe_files([Shard(p, 5) for p in paths], np.full(3001, 2))
    said = file_differences(before, after, "d")
    assert len(said) <= 3  # three only if the new name has one of the 64 lowest hashes
    assert "were there" in said[0]


def test_a_restore_on_changed_data_says_what_changed(data: Path) -> None:
    def pipeline() -> Pipeline:
        return Pipeline(Dataset.from_path("wiki", data)).batch(1).options(runner="inline")

    state = json.loads(json.dumps(pipeline().checkpoint()))
    pipeline().restore(state)
    pq.write_table(table(21), data / "part-2.parquet")
    with pytest.raises(CheckpointError, match=r"shard 'part-2.parquet': another size or version and number of rows"):
        pipeline().restore(state)


def test_a_fingerprint_reads_no_data(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.from_path("wiki", data)
    monkeypatch.setattr(dataset, "_read", None)
    dataset.fingerprint()

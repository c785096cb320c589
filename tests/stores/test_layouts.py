"""A data set is found by its directory, its index, or its shards, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
from stores.conftest import Place, make_place
from stores.formats import FORMATS, Rows

from zephon import Dataset


@pytest.fixture(params=["local", "memory"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, request, tmp_path)


def rows_of(dataset: Dataset) -> Rows:
    return [row for unit in range(len(dataset.units.rows)) for batch in dataset.read(unit, None) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("name", "path", "part"),
    [
        ("litdata", "/index.json", slice(None)),
        ("mds", "/s1/index.json", slice(4, 8)),
        ("mds", "/s1/shard.00000.mds", slice(4, 8)),
        ("mds", "/s*/*.mds", slice(None)),
        ("mds", "/s{0,1}", slice(0, 8)),
        ("megatron", "/part-1.idx", slice(4, 8)),
        ("lance", "/d.lance", slice(None)),
        ("parquet", "/part-{1..2}.parquet", slice(4, 12)),
        ("webdataset", "/*.tar", slice(None)),
    ],
)
def test_an_index_a_shard_or_a_pattern_is_enough(name: str, path: str, part: slice, here: Place, tmp_path: Path) -> None:
    rows = FORMATS[name].write_rows(tmp_path / "new", 12, 3)
    here.put(tmp_path / "new")
    assert rows_of(here.dataset(path=path)) == rows[part]


@pytest.mark.parametrize("name", FORMATS)
def test_notes_marks_and_hidden_files_beside_the_data_are_no_data(name: str, here: Place, tmp_path: Path) -> None:
    rows = FORMATS[name].write_rows(tmp_path / "new", 12, 3)
    here.put(tmp_path / "new")
    for note in (
        "README.md",
        "LICENSE",
        "_SUCCESS",
        ".part-0.crc",
        ".cache/x.parquet",
        "_temporary/y.parquet",
        "sha256sums.txt",
    ):
        here.write(f"/{note}", b"x")
    assert rows_of(here.dataset()) == rows

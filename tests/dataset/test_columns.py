"""A data set of some of its columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards in which `n` is three kinds of thing, `m` widens, and `late` is missing at first."""
    for number, values in enumerate(([1, 2], ["one", "two"], [[1], [2]])):
        table = {
            "text": [f"{number}a", f"{number}b"],
            "n": values,
            "m": pa.array([number, 7], pa.int32() if number else pa.int64()),
        }
        if number:
            table["late"] = ["x", "y"]
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet")
    return tmp_path


def rows(data: Dataset) -> list[dict[str, object]]:
    source = StaticMixtureWorkSource(data, seed=1, stop_after_passes=1)
    found = [r for batch in Pipeline(source).batch(2).options(runner="inline") for r in batch.group.to_pylist()]
    return sorted(({k: v for k, v in r.items() if not k.startswith("_")} for r in found), key=str)


def test_what_nobody_asks_for_may_have_types_that_dont_go_together(folder: Path) -> None:
    found = rows(Dataset.from_path("data", folder, columns=["text", "m", "late"]))
    assert [(r["text"], r["m"], r["late"]) for r in found] == [
        (f"{number}{letter}", m, None if not number else late)
        for number in range(3)
        for letter, m, late in (("a", number, "x"), ("b", 7, "y"))
    ]
    assert all("n" not in r for r in found)


@pytest.mark.parametrize("columns", [None, ["n"], ["text", "n"]])
def test_what_is_asked_for_may_not(folder: Path, columns: list[str] | None) -> None:
    with pytest.raises(
        DataError, match=r"(?s)0\.parquet' and '.*1\.parquet' have types that don't go together.*columns="
    ) as caught:
        rows(Dataset.from_path("data", folder, columns=columns))
    assert caught.value.where.dataset == "data"

"""Two columns of one name: nobody could say which is meant, so data set, file and name are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, InMemoryShard, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError

TWICE = pa.table([pa.array(["a", "b"]), pa.array(["c", "d"]), pa.array([1, 2])], names=["text", "text", "id"])


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, TWICE.schema) as writer:
        writer.write_table(TWICE)


FILES: dict[str, Callable[[Path], Any]] = {
    "a.parquet": lambda path: pq.write_table(TWICE, path),
    "a.arrow": write_arrow,
    "a.csv": lambda path: path.write_text("text,text,id\na,c,1\nb,d,2\n"),
}


def refused(data: Dataset) -> DataError:
    with pytest.raises(DataError, match="several columns of the name 'text'") as caught:
        list(Pipeline(StaticMixtureWorkSource(data, stop_after_passes=1)).batch(1).options(runner="inline"))
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_two_columns_of_one_name_is_named(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    error = refused(Dataset.from_path("d", tmp_path / name))
    assert (error.where.dataset, error.where.shard) == ("d", str(tmp_path / name))


@pytest.mark.parametrize("shard", [TWICE, TWICE.to_batches()[0], InMemoryShard(TWICE)], ids=["table", "batch", "shard"])
def test_a_table_in_memory_is_named_by_its_shard(shard: Any) -> None:
    fine = pa.table({"text": ["a"], "id": [1]})
    error = refused(Dataset.from_dict("d", {"fine": fine, "twice": shard}))
    assert (error.where.dataset, error.where.shard) == ("d", "twice")


def test_those_that_nobody_asks_for_do_not_matter() -> None:
    data = Dataset.from_records("d", TWICE, columns=["id"])
    batches = list(Pipeline(StaticMixtureWorkSource(data, stop_after_passes=1)).batch(2).options(runner="inline"))
    assert sorted(batches[0].to_pydict()["id"]) == [1, 2]


def test_a_function_that_makes_a_name_twice_is_named_with_its_operator() -> None:
    source = StaticMixtureWorkSource(Dataset.from_records("d", TWICE.select([2])), stop_after_passes=1)
    pipeline = Pipeline(source).map_batches(lambda g: pa.record_batch([g.column(0), g.column(0)], names=["x", "x"]))
    with pytest.raises(DataError, match="several columns of the name 'x'") as caught:
        list(pipeline.batch(2).options(runner="inline"))
    assert (caught.value.where.dataset, caught.value.where.operator) == ("d", "map_batches")

"""List views and run ends, which Arrow can write but not cast, are ordinary columns wherever they come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.encodings import decoded, is_encoded

NUMBERS = [[1], None, [2, 3], [], [7, 8, 9]]
PAIRS = [[{"a": "x"}], None, [], [{"a": None}, None], [{"a": "y"}]]
WORDS = ["a", "a", None, "b", "b"]
ENCODED: dict[str, Any] = {
    "views": pa.array(NUMBERS, pa.list_view(pa.int32())),
    "views of wide numbers": pa.array(NUMBERS, pa.list_view(pa.int64())),
    "wide views": pa.array(NUMBERS, pa.large_list_view(pa.uint16())),
    "views of structs": pa.array(PAIRS, pa.list_view(pa.struct({"a": pa.string()}))),
    "views in lists": pa.array([[n] for n in NUMBERS], pa.list_(pa.list_view(pa.int64()))),
    "views in structs": pa.array([None, *({"n": n} for n in NUMBERS[1:])], pa.struct({"n": pa.list_view(pa.int64())})),
    "runs": pc.run_end_encode(pa.array(WORDS)),
    "dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1, 1]), pa.array([[1], [2, 3]])),
}
LENGTH = len(NUMBERS)


def rows_of(data: Dataset, change: Any = None) -> list[Any]:
    pipeline = Pipeline(StaticMixtureWorkSource(data, stop_after_passes=1, chunk_size=2))
    pipeline = pipeline if change is None else pipeline.map_batches(change)
    found = [batch.to_pydict() for batch in pipeline.batch(1).options(runner="inline")]
    order = dict(zip((n for part in found for n in part["n"]), (x for part in found for x in part["x"]), strict=True))
    return [order[n] for n in sorted(order)]


def table(values: Any) -> pa.Table:
    return pa.table({"n": range(LENGTH), "x": values})


@pytest.mark.parametrize("name", ENCODED)
def test_what_is_decoded_holds_the_same_values_in_types_that_arrow_can_cast(name: str) -> None:
    """Also of a slice, of rows in another order, and of no rows."""
    whole = ENCODED[name]
    backwards = pa.concat_arrays([whole.slice(row, 1) for row in range(LENGTH - 1, -1, -1)])
    for given in (whole, whole.slice(1), whole.slice(2, 2), whole.slice(LENGTH), backwards):
        made = decoded(given)
        made.validate(full=True)
        assert not is_encoded(made.type)
        assert made.to_pylist() == given.to_pylist()


@pytest.mark.parametrize("name", ENCODED)
def test_a_table_in_memory_may_hold_them(name: str) -> None:
    assert rows_of(Dataset.from_records("few", table(ENCODED[name]))) == ENCODED[name].to_pylist()


@pytest.mark.parametrize("name", ENCODED)
def test_a_user_s_function_may_make_them(name: str) -> None:
    def change(group: pa.RecordBatch) -> pa.RecordBatch:
        parts = [ENCODED[name].slice(n, 1) for n in group.column("n").to_pylist()]
        return group.set_column(group.schema.get_field_index("x"), "x", pa.concat_arrays(parts))

    assert rows_of(Dataset.from_records("few", table([0] * LENGTH)), change) == ENCODED[name].to_pylist()


@pytest.mark.parametrize("name", ["views", "views of wide numbers", "views of structs", "views in lists", "views in structs"])
def test_a_parquet_file_may_hold_list_views(tmp_path: Path, name: str) -> None:
    pq.write_table(table(ENCODED[name]), tmp_path / "a.parquet", row_group_size=3)
    assert rows_of(Dataset.from_path("few", tmp_path / "a.parquet")) == ENCODED[name].to_pylist()


def test_tokens_in_list_views_pack_as_tokens_in_lists() -> None:
    def packed(kind: Any) -> list[Any]:
        tokens = pa.table({"input_ids": pa.array([[n] * (n % 7) for n in range(40)], kind)})
        source = StaticMixtureWorkSource(Dataset.from_records("few", tokens), stop_after_passes=1, chunk_size=8)
        batches = Pipeline(source).pack_flat(max_length=32, pad_token_id=0).batch(1).options(runner="inline")
        return [batch.to_pydict()["input_ids"] for batch in batches]

    ordinary = packed(pa.list_(pa.int32()))
    for kind in (pa.list_view(pa.int32()), pa.list_view(pa.int64()), pa.large_list_view(pa.uint16())):
        assert packed(kind) == ordinary

"""`columns`, `rows`, `fraction` and `filter` choose what plain Python would, and each row keeps its place in its shard."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import Dataset
from zephon.errors import DataError, RecipeError
from zephon.selection import Kept, load_kept, save_kept

Row = dict[str, Any]

bounds = st.one_of(st.none(), st.integers(-60, 60))
slices = st.builds(slice, bounds, bounds, st.one_of(st.none(), st.integers(1, 9)))
fractions = st.one_of(
    st.floats(0, 1), st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted).map(tuple), st.sampled_from([0, 1, 0.5, 0.1])
)
shard_rows = st.lists(st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=12), min_size=1, max_size=6)


def shards_of(values: list[list[int | None]]) -> dict[str, list[Row]]:
    number = iter(range(10_000))
    return {f"s{i}": [{"n": next(number), "v": v, "t": f"text {v}"} for v in shard] for i, shard in enumerate(values) if shard}


def rows_of(dataset: Dataset) -> list[tuple[str, int, Row]]:
    """Shard, row in the shard and values of every row, by units."""
    found = []
    for unit in range(len(dataset.units)):
        size = int(dataset.units.rows[unit])
        places = dataset.row_of(unit, np.arange(size))
        assert places[0] == dataset.units.first_row[unit]
        shard = dataset.shards[int(dataset.units.shard[unit])].path
        rows = [row for group in dataset.read(unit, None) for row in group.to_pylist()]
        assert len(rows) == size
        found += [(shard, int(place), row) for place, row in zip(places, rows, strict=True)]
    return found


def oracle(shards: dict[str, list[Row]], rows: slice | None = None) -> list[tuple[str, int, Row]]:
    every = [(name, i, row) for name, shard in shards.items() for i, row in enumerate(shard)]
    return every if rows is None else every[rows]


@given(values=shard_rows, rows=slices)
def test_rows_are_those_of_a_python_slice_with_their_places(values: list[list[int | None]], rows: slice) -> None:
    shards = shards_of(values)
    assert rows_of(Dataset.from_dict("d", shards, rows=rows)) == oracle(shards, rows)


@given(values=shard_rows, fraction=fractions)
def test_a_fraction_is_one_range_of_that_share(values: list[list[int | None]], fraction: Any) -> None:
    shards = shards_of(values)
    low, high = fraction if isinstance(fraction, tuple) else (0, fraction)
    found = rows_of(Dataset.from_dict("d", shards, fraction=fraction))
    every = oracle(shards)
    begin = every.index(found[0]) if found else 0
    assert found == every[begin : begin + len(found)]
    assert abs(len(found) - (high - low) * len(every)) <= 1


@given(values=shard_rows, cuts=st.lists(st.floats(0, 1), max_size=4))
def test_neighbouring_fractions_share_no_row_and_leave_none_out(values: list[list[int | None]], cuts: list[float]) -> None:
    shards = shards_of(values)
    borders = [0.0, *sorted(cuts), 1.0]
    parts = [rows_of(Dataset.from_dict("d", shards, fraction=(a, b))) for a, b in pairwise(borders)]
    assert [row for part in parts for row in part] == oracle(shards)


@given(values=shard_rows, rows=st.one_of(st.none(), slices), limit=st.integers(-6, 6), kind=st.integers(0, 3))
def test_a_filter_keeps_the_rows_of_the_range_for_which_it_is_true(
    values: list[list[int | None]], rows: slice | None, limit: int, kind: int
) -> None:
    shards = shards_of(values)
    expression, test = [
        (pc.field("v") > limit, lambda row: row["v"] is not None and row["v"] > limit),
        (~(pc.field("v") > limit), lambda row: row["v"] is not None and not row["v"] > limit),
        (pc.field("v").is_null() | (pc.field("n") % 3 == 0) if hasattr(pc.Expression, "__mod__") else pc.field("v").is_null(),
         lambda row: row["v"] is None),
        (pc.field("t") == f"text {limit}", lambda row: row["t"] == f"text {limit}"),
    ][kind]  # fmt: skip
    dataset = Dataset.from_dict("d", shards, rows=rows, filter=expression)
    assert rows_of(dataset) == [found for found in oracle(shards, rows) if test(found[2])]


@given(values=shard_rows, rows=slices, limit=st.integers(-6, 6), data=st.data())
def test_any_range_of_a_unit_is_that_part_of_the_whole_unit(
    values: list[list[int | None]], rows: slice, limit: int, data: st.DataObject
) -> None:
    dataset = Dataset.from_dict("d", shards_of(values), rows=rows, filter=pc.field("v") > limit)
    if not len(dataset.units):
        return
    unit = data.draw(st.integers(0, len(dataset.units) - 1))
    whole = [row for group in dataset.read(unit, None) for row in group.to_pylist()]
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert [row for group in dataset.read(unit, ["n", "v", "t"], start, stop) for row in group.to_pylist()] == whole[start:stop]


@given(bits=st.lists(st.booleans(), max_size=300), picks=st.lists(st.integers(0, 10**6), max_size=20))
def test_a_set_of_positions_selects_and_ranks_like_a_list(bits: list[bool], picks: list[int]) -> None:
    kept = Kept(np.packbits(np.array(bits, dtype=bool), bitorder="little"), len(bits))
    positions = [i for i, bit in enumerate(bits) if bit]
    assert kept.count == len(positions)
    assert kept.select(np.arange(len(positions))).tolist() == positions
    assert kept.rank(np.arange(len(bits) + 1)).tolist() == [sum(bits[:i]) for i in range(len(bits) + 1)]
    if positions:
        chosen = np.array([p % len(positions) for p in picks], dtype=np.int64)
        assert kept.select(chosen).tolist() == [positions[k] for k in chosen]
        first, last = sorted([*picks, 0, 0][i] % (len(positions) + 1) for i in (0, 1))
        assert kept.between(first, last).tolist() == positions[first:last]
    assert np.unpackbits(kept.packed, bitorder="little")[: len(bits)].astype(bool).tolist() == bits


def test_a_large_sparse_set_is_exact_beyond_one_slab() -> None:
    mask = (np.arange(1_000_003) * 2654435761 % 97) < 5
    kept = Kept(np.packbits(mask, bitorder="little"), len(mask))
    positions = np.flatnonzero(mask)
    assert np.array_equal(kept.select(np.arange(kept.count)), positions)
    assert np.array_equal(kept.select(np.arange(kept.count)[::-1]), positions[::-1])
    assert np.array_equal(kept.between(1000, 40_000), positions[1000:40_000])


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Three files of 100 rows, row groups of 30; the second lacks a column, and has another in a narrower type."""
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(3):
        columns = {"i": pa.array(range(i * 100, i * 100 + 100), pa.int32() if i == 1 else pa.int64())}
        if i != 1:
            columns["s"] = pa.array([f"s{k % 5}" for k in range(100)])
        pq.write_table(pa.table(columns), folder / f"{i}.parquet", row_group_size=30)
    return folder


def test_a_filter_sees_the_types_and_columns_of_the_whole_data_set(parquet: Path, tmp_path: Path) -> None:
    dataset = Dataset.from_path("d", parquet, filter=(pc.field("i") > 2**31) | pc.field("s").is_null(), cache_dir=str(tmp_path))
    assert [row["i"] for _, _, row in rows_of(dataset)] == list(range(100, 200))
    assert [place for _, place, _ in rows_of(dataset)] == list(range(100))


def test_a_filter_may_look_at_columns_that_are_not_read(parquet: Path, tmp_path: Path) -> None:
    dataset = Dataset.from_path("d", parquet, columns=["i"], filter=pc.field("s") == "s0", cache_dir=str(tmp_path))
    assert dataset.schema.names == ["i"]
    assert len(dataset) == 40


def test_what_a_filter_left_is_found_again_without_reading_the_data(parquet: Path, tmp_path: Path) -> None:
    def made() -> Dataset:
        return Dataset.from_path(
            "d", parquet, filter=pc.field("i") % 7 == 0 if False else pc.field("i") > 150, cache_dir=str(tmp_path)
        )

    first = rows_of(made())
    (kept,) = tmp_path.glob("*.zidx")
    again = made()
    again._read = None  # type: ignore[method-assign, assignment]
    assert len(again) == len(first) == 149

    kept.write_bytes(kept.read_bytes()[:-1] + b"\0")
    assert rows_of(made()) == first
    os.utime(parquet / "0.parquet", (1, 1))
    assert rows_of(made()) == first
    assert len(list(tmp_path.glob("*.zidx"))) == 2


def test_long_lists_in_filters_are_not_taken_for_each_other(parquet: Path, tmp_path: Path) -> None:
    """Arrow's text of an expression leaves out the middle of a list."""
    one, other = ([*range(20), middle, *range(30, 50)] for middle in (21, 22))
    expressions = [pc.field("i").isin(pa.array(values)) for values in (one, other)]
    datasets = [Dataset.from_path("d", parquet, filter=e, cache_dir=str(tmp_path)) for e in expressions]
    assert [sorted(row["i"] for _, _, row in rows_of(d)) for d in datasets] == [one, other]
    assert datasets[0].fingerprint()["part"] != datasets[1].fingerprint()["part"]


def test_a_kept_set_that_is_damaged_or_of_another_size_is_not_used(tmp_path: Path) -> None:
    path = str(tmp_path / "x" / "kept.zidx")
    kept = Kept(np.packbits(np.arange(20) % 3 == 0, bitorder="little"), 20)
    assert load_kept(path, 20) is None
    save_kept(path, kept)
    found = load_kept(path, 20)
    assert found is not None
    assert found.digest == kept.digest
    assert load_kept(path, 21) is None
    for size in range(len(Path(path).read_bytes())):
        cut = tmp_path / "cut"
        cut.write_bytes(Path(path).read_bytes()[:size])
        assert load_kept(str(cut), 20) is None
    assert [p.name for p in (tmp_path / "x").iterdir()] == ["kept.zidx"]


def test_nested_fields_and_constants_can_be_filtered_by() -> None:
    rows = [{"a": i, "meta": {"lang": "de" if i % 2 else "en"}} for i in range(10)]
    assert len(Dataset.from_records("d", rows, filter=pc.field("meta", "lang") == "de")) == 5
    assert len(Dataset.from_records("d", rows, filter=pc.scalar(True))) == 10
    assert len(Dataset.from_records("d", rows, filter=pc.scalar(False))) == 0


def test_nothing_left_is_an_empty_data_set() -> None:
    dataset = Dataset.from_records("d", [{"a": 1}], rows=slice(5, None))
    assert len(dataset) == 0
    assert len(dataset.units) == 0
    assert len(Dataset.from_records("d", [], filter=pc.scalar(True))) == 0


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"rows": slice(0, 5, -1)}, "step must be 1 or more"),
        ({"rows": slice(0, 5, 0)}, "step must be 1 or more"),
        ({"rows": 5}, "must be a slice"),
        ({"rows": slice("a", None)}, "must be integers"),
        ({"fraction": 1.5}, r"not in \[0, 1\]"),
        ({"fraction": (0.5, 0.1)}, "runs backwards"),
        ({"fraction": float("nan")}, r"not in \[0, 1\]"),
        ({"fraction": "half"}, "must be a number"),
        ({"fraction": 0.5, "rows": slice(3)}, "give one of them"),
        ({"filter": "a > 3"}, "must be a pyarrow.compute.Expression"),
        ({"filter": lambda row: True}, "must be a pyarrow.compute.Expression"),
        ({"filter": pc.field(0) > 3}, "name the columns"),
        ({"columns": "a"}, "must be a list"),
    ],
)
def test_a_part_that_can_not_be_meant_is_refused_at_once(part: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Dataset.from_records("d", [{"a": 1}], **part)


@pytest.mark.parametrize("expression", [pc.field("b") > 1, pc.field("a") + 1, pc.field("a") > "x", pc.field("a", "x") > 1])
def test_a_filter_that_does_not_fit_names_the_columns_that_there_are(expression: Any) -> None:
    with pytest.raises(RecipeError, match=r"filter .* can't be used") as caught:
        len(Dataset.from_records("d", [{"a": 1}], filter=expression))
    assert "a (int64)" in str(caught.value)
    assert "data set" in str(caught.value) or "dataset 'd'" in str(caught.value)


def test_a_filter_that_fails_on_a_value_names_the_shard() -> None:
    expression = pc.divide(pc.field("a"), pc.field("b")) > 1
    with pytest.raises(DataError, match=r"filter .* fails.*divide by zero") as caught:
        len(Dataset.from_dict("d", {"good": [{"a": 1, "b": 1}], "bad": [{"a": 1, "b": 0}]}, filter=expression))
    assert caught.value.where.shard == "bad"


def test_a_part_survives_pickling_and_leaving_rows_out() -> None:
    made = Dataset.from_records("d", [{"a": i} for i in range(9)], rows=slice(1, None, 2), filter=pc.field("a") > 2)
    want = rows_of(made)
    assert rows_of(pickle.loads(pickle.dumps(made))) == want
    fresh = Dataset.from_records("d", [{"a": i} for i in range(9)], rows=slice(1, None, 2), filter=pc.field("a") > 2)
    assert rows_of(pickle.loads(pickle.dumps(fresh))) == want
    assert rows_of(made.excluding({"memory": [3]})) == want


def test_units_of_a_part_have_their_share_of_the_bytes() -> None:
    whole = Dataset.from_records("d", [{"a": i} for i in range(1000)])
    half = Dataset.from_records("d", [{"a": i} for i in range(1000)], fraction=0.5)
    assert half.units.total_bytes == whole.units.total_bytes // 2

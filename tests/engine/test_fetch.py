"""Fetching gives the planned records, in the planned order, whatever is kept and however the units are cut."""

from __future__ import annotations

import gc
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Recipe, recipes
from thoroughness import examples

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine import pieces
from zephon.engine.fetch import Fetcher
from zephon.views import buffers


def planned(pipeline: Any, lane: int, number: int) -> list[tuple[int, int, int, int]]:
    """`(component, pass, shard, row)` of each record of a chunk, one by one from the plan."""
    plan = pipeline.source.plan(pipeline._options.lane_count)
    chunk = plan.chunk(lane, number)
    found = []
    for component, index in zip(chunk.component.tolist(), chunk.index.tolist(), strict=True):
        rows = plan.rows[component]
        bundle, offset = rows.draw(lane, np.array([index]))
        flat = rows.bundle_flat(lane, int(bundle[0]))[int(offset[0])]
        turn, unit, row = (int(x[0]) for x in rows.resolve(np.array([flat])))
        found.append((component, turn, int(rows.table.shard[unit]), int(rows.table.first_row[unit]) + row))
    return found


@settings(max_examples=examples(40))
@given(recipe=recipes(steps=(), passes=None), keep=st.sampled_from([0, 200, 1 << 30]), turn=st.integers(0, 2))
def test_a_chunk_holds_the_planned_records_in_their_order(recipe: Recipe, keep: int, turn: int) -> None:
    pipeline = recipe.pipeline()
    plan = pipeline.source.plan(recipe.lanes)
    datasets: Any = pipeline.source.datasets
    fetcher = Fetcher(plan, datasets, columns=None, keep_bytes=keep, policy="raise")
    per_shard = {
        d.name: [len(shard_rows) for shard_rows in shards_of(recipe, lengths)]
        for d, (_, lengths) in zip(datasets, recipe.data, strict=True)
    }
    for lane in range(recipe.lanes):
        for number in range(turn * 3, turn * 3 + 3):
            group, losses, _ = fetcher.fetch(plan.chunk(lane, number))
            found = list(zip(*(group.column(n).to_pylist() for n in ("_component", "_pass", "_shard", "_row")), strict=True))
            assert found == planned(pipeline, lane, number)
            assert not losses.rows
            for component, (_, _, shard, row), number_ in zip(
                group.column("_component").to_pylist(), found, group.column("id").to_pylist(), strict=True
            ):
                before = sum(per_shard[datasets[component].name][:shard])
                assert number_ == before + row, "the provenance is that of another record"


@pytest.mark.parametrize(("keep", "reads", "most"), [(64 << 20, 16, 16), (16 << 20, 32, 5)])
def test_a_unit_goes_with_its_last_row_unless_all_units_fit(tmp_path: Path, keep: int, reads: int, most: int) -> None:
    """16 row groups of 1.3 MB, two passes; two lanes share each of them, 32 rows each, and a chunk draws on four."""
    table = pa.table({"text": [f"{n:04d}" * 5_000 for n in range(1024)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=64, compression="none", use_dictionary=False)
    data = Dataset.from_path("texts", tmp_path)
    plan = StaticMixtureWorkSource([data], seed=1, chunk_size=128, shuffle_block_size=32, stop_after_passes=2).plan(2)
    fetcher = Fetcher(plan, [data], columns=None, keep_bytes=keep, policy="raise")
    held = []
    for number in range(8):
        for lane in (0, 1):
            group, _, _ = fetcher.fetch(plan.chunk(lane, number))
            assert len(group) == 128
            held.append(fetcher.units.nbytes)
    assert fetcher.units.made == reads
    assert max(held) <= most * 1_300_000
    assert (held[-1] == 0) == (most == 5)


def shards_of(recipe: Recipe, lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    if recipe.tokenised:
        return [lengths]
    size = -(-len(lengths) // recipe.shards)
    return [lengths[i : i + size] for i in range(0, len(lengths), size)]


@pytest.mark.parametrize("excluded", [(), (0,), (3, 4, 7), tuple(range(10))])
def test_excluded_rows_are_left_out_and_counted(excluded: tuple[int, ...]) -> None:
    data = Dataset.from_dict("d", {"s": [{"id": i} for i in range(10)], "t": [{"id": 10 + i} for i in range(5)]})
    source = StaticMixtureWorkSource([data.excluding({"s": excluded})], stop_after_passes=2, chunk_size=4)
    pipeline = Pipeline(source).batch(1).options(runner="inline", lanes=2)
    ids = sorted(row["id"] for b in pipeline for row in b.group.to_pylist())
    assert ids == sorted([i for i in range(15) if i not in excluded] * 2)
    assert pipeline.accounting()["rows"]["dropped"] == ({"source: excluded": 2 * len(excluded)} if excluded else {})


@settings(max_examples=examples(15))
@given(
    group=st.integers(3, 40),
    block=st.sampled_from([None, 7, 16, 50]),
    nulls=st.booleans(),
    operator=st.booleans(),
    lanes=st.integers(1, 3),
)
def test_text_that_stays_where_it_was_read_is_the_same_text(
    group: int, block: int | None, nulls: bool, operator: bool, lanes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Large rows of a row group are not joined with others before they are taken; batches and digests don't tell."""
    random = np.random.default_rng(group)
    texts = [None if nulls and i % 9 == 4 else chr(97 + i % 26) * int(random.integers(0, 60)) for i in range(90)]
    place = tmp_path_factory.mktemp("large")
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "id": range(90)}), place / "a.parquet", row_group_size=group)

    def run(row: int) -> tuple[list[Any], Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "_ROW", row)
            source = StaticMixtureWorkSource(Dataset.from_path("a", place), seed=2, chunk_size=11, shuffle_block_size=block)
            pipeline = Pipeline(source)
            if operator:
                pipeline = pipeline.map(lambda record: {"text": record["text"], "id": record["id"] + 1})
            pipeline = pipeline.batch(5).options(lanes=lanes, runner="inline")
            flow = iter(pipeline)
            batches = [next(flow).group.to_pylist() for _ in range(40)]
            return batches, pipeline.checkpoint()

    assert run(0) == run(1 << 40)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", [3, 64, None])
def test_large_rows_that_stay_where_they_were_read_keep_no_more_in_memory(block: int | None, tmp_path: Path) -> None:
    size, rows = 100_000, 200
    pq.write_table(pa.table({"text": ["x" * size] * rows}), tmp_path / "a.parquet", row_group_size=40, use_dictionary=False)

    def most(row: int) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "_ROW", row)
            source = StaticMixtureWorkSource(Dataset.from_path("a", tmp_path), seed=2, chunk_size=64, shuffle_block_size=block)
            flow: Any = iter(Pipeline(source).batch(1).options(lanes=1, runner="inline", max_bytes=1 << 20))
            gc.collect()
            before, held, found = pa.total_allocated_bytes(), deque[Any](maxlen=30), 0
            for _ in range(150):
                held.append(next(flow))
                found = max(found, pa.total_allocated_bytes() - before)
            flow.close()
            return found

    assert most(0) <= most(1 << 40) + size


@pytest.mark.parametrize("whole", [True, False])
def test_a_chunk_that_is_a_whole_bundle_shows_its_rows_where_they_are_and_a_part_of_one_has_copies(
    whole: bool, tmp_path: Path
) -> None:
    values = [bytes([n % 251]) * 10_000 for n in range(512)]
    pq.write_table(pa.table({"image": values}), tmp_path / "a.parquet", row_group_size=128, use_dictionary=False)
    source = StaticMixtureWorkSource(Dataset.from_path("a", tmp_path), seed=2, chunk_size=256 if whole else 64)
    plan = source.plan(1)
    fetcher = Fetcher(plan, source.datasets, columns=None, keep_bytes=1 << 30, policy="raise", shows=True)
    group, _, _ = fetcher.fetch(plan.chunk(0, 0))
    assert plan.rows[0] is not None
    assert (len(group) == plan.rows[0].bundle) == whole, "the chunk isn't what the test is about"
    assert [bytes(v or b"") for v in buffers(group.column("image"))] == [values[n] for n in group.column("_row").to_pylist()]
    assert pa.types.is_binary_view(group.column("image").type) == whole

"""Inputs that broke other loaders, by their numbers: resume, distributed, workers. (Those of the invariants' tests aren't repeated.)"""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from operators_for_tests import Fragile
from strategies import MIXED, Recipe, Topology, drive, quietly, rows_of

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, merge_states
from zephon.errors import CheckpointError, RecipeError
from zephon.operators.shuffle import Shuffle

ONE_LANE = Recipe(
    data=(("a", tuple(range(10))),), weights=(1,), lanes=1, per_step=1, chunk=4, window=2, passes=1, exhausted="redistribute"
)


def ids(batches: Any) -> list[int]:
    return [row["id"] for batch in batches for row in rows_of(batch)]


def test_1_the_next_row_after_a_restore_is_the_next_row(runner: str) -> None:
    old = ONE_LANE.pipeline(runner=runner)
    batches = iter(old)
    first = [ids([next(batches)])[0] for _ in range(5)]
    new = ONE_LANE.pipeline(runner=runner)
    quietly(new.load_state_dict, old.state_dict())  # while the old one is alive
    rest = ids(new)
    assert sorted(first + rest) == list(range(10))
    assert first + ids(batches) == first + rest


def test_1_a_restore_while_iterating_is_never_ignored(runner: str) -> None:
    pipeline = ONE_LANE.pipeline(runner=runner)
    batches = iter(pipeline)
    next(batches)
    state = pipeline.state_dict()
    for _ in range(3):
        next(batches)
    pipeline.load_state_dict(state)
    with pytest.raises(CheckpointError):
        next(batches)
    assert len(ids(pipeline)) == 9


def test_2_a_chain_of_resumes_moves_on_at_every_save_point() -> None:
    want = ids(ONE_LANE.pipeline(runner="inline"))
    state = None
    found: list[int] = []
    for _ in range(11):  # one row each, and once more at the end
        pipeline = ONE_LANE.pipeline(runner="threads")
        if state is not None:
            pipeline.restore(state)
        batches = iter(pipeline)
        batch = next(batches, None)
        found += [] if batch is None else ids([batch])
        state = pipeline.checkpoint()
        batches.close()  # type: ignore[attr-defined]
    assert found == want


def test_4_a_shuffle_buffer_larger_than_the_data_loses_and_doubles_nothing() -> None:
    recipe = replace(ONE_LANE, data=(("a", tuple(range(12))),), steps=(Shuffle(buffer_size=50),))
    for taken in range(13):
        first = drive(recipe, Topology(), steps=taken, max_steps=12)
        second = drive(recipe, Topology(), steps=12, state=first.state, max_steps=12)
        seen = Counter(row["id"] for part in (first, second) for rows in part.steps.values() for row in rows)
        assert seen == Counter(range(12))


def test_5_later_passes_are_whole_after_a_resume_inside_one() -> None:
    recipe = replace(ONE_LANE, data=(("a", tuple(range(100))),), lanes=1, per_step=4, passes=3)
    first = drive(recipe, Topology(runner="threads", workers=4), steps=20, max_steps=75)
    second = drive(recipe, Topology(runner="threads", workers=4), steps=75, state=first.state, max_steps=75)
    rows = [row for part in (first, second) for rows in part.steps.values() for row in rows]
    assert Counter((r["_pass"], r["id"]) for r in rows) == Counter((p, i) for p in range(3) for i in range(100))


def test_8_a_second_pass_over_two_files_begins(tmp_path: Path, runner: str) -> None:
    for number in range(2):
        pq.write_table(pa.table({"id": list(range(number * 5, number * 5 + 5))}), tmp_path / f"{number}.parquet")
    source = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path)], stop_after_passes=3, chunk_size=4)
    found = ids(Pipeline(source).batch(1).options(runner=runner, workers=2))
    assert [sorted(found[i : i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3


@pytest.mark.parametrize("taken", [0, 1])
def test_10_saving_straight_after_restoring_is_the_same_position(taken: int) -> None:
    first = drive(MIXED, Topology(world=2), steps=3, max_steps=9)
    state = first.state
    want = drive(MIXED, Topology(), steps=9, state=state, max_steps=9).steps
    for _ in range(2):
        pipeline = MIXED.pipeline(runner="threads", max_steps=9)
        quietly(pipeline.restore, state)
        batches = iter(pipeline)
        got = [next(batches) for _ in range(taken)]
        saved = pipeline.checkpoint()
        batches.close()  # type: ignore[attr-defined]
        rest = MIXED.pipeline(runner="inline", max_steps=9)
        quietly(rest.restore, saved)
        rows = [row for b in (*got, *rest) for row in rows_of(b)]
        assert rows == [row for s in sorted(want) for row in want[s]]


def test_13_position_does_not_depend_on_what_a_batch_became() -> None:
    for made in ("received", None, ["a", "b"]):
        pipeline = ONE_LANE.pipeline(runner="threads").map_batch(lambda batch, made=made: made)
        batches = iter(pipeline)
        assert [next(batches) for _ in range(4)] == [made] * 4
        state = pipeline.checkpoint()
        batches.close()  # type: ignore[attr-defined]
        assert state["lanes"]["0"][2] == 4


def test_14_windows_go_on_in_a_new_object() -> None:
    recipe = replace(ONE_LANE, data=(("a", tuple(range(40))),), steps=(Shuffle(),))
    want = ids(recipe.pipeline(runner="inline"))
    for taken in (3, 8, 11, 16):
        first = drive(recipe, Topology(), steps=taken, max_steps=40)
        second = drive(recipe, Topology(), steps=40, state=first.state, max_steps=40)
        assert [r["id"] for part in (first, second) for s in sorted(part.steps) for r in part.steps[s]] == want


def test_16_one_rank_skips_more_than_the_other_and_both_resume() -> None:
    recipe = replace(MIXED, steps=(Fragile(bad=(1, 4, 6)), *MIXED.steps[:1]), lanes=2)
    ranks = [recipe.pipeline(dp_rank=r, dp_size=2, runner="inline", on_error="skip", max_steps=8) for r in (0, 1)]
    want = [[rows_of(b) for b in p] for p in ranks]
    states = []
    for rank in (0, 1):
        pipeline = recipe.pipeline(dp_rank=rank, dp_size=2, runner="inline", on_error="skip", max_steps=8)
        batches = iter(pipeline)
        for _ in range(3):
            next(batches)
        states.append(pipeline.checkpoint())
        batches.close()  # type: ignore[attr-defined]
    for rank in (0, 1):
        pipeline = recipe.pipeline(dp_rank=rank, dp_size=2, runner="inline", on_error="skip", max_steps=8)
        pipeline.restore(merge_states(states))
        assert [rows_of(b) for b in pipeline] == want[rank][3:]
    with pytest.raises(CheckpointError, match="merge"):
        recipe.pipeline(dp_rank=1, dp_size=2, runner="inline", on_error="skip").restore(states[0])


def test_17_passes_after_a_resume_have_the_orders_they_would_have_had() -> None:
    recipe = replace(ONE_LANE, passes=4, block=10)
    want = ids(recipe.pipeline(runner="inline"))
    orders = [tuple(want[i : i + 10]) for i in range(0, 40, 10)]
    assert len(set(orders)) == 4
    first = drive(recipe, Topology(), steps=13, max_steps=40)
    second = drive(recipe, Topology(), steps=40, state=first.state, max_steps=40)
    assert [r["id"] for part in (first, second) for s in sorted(part.steps) for r in part.steps[s]] == want


@pytest.mark.parametrize("world", [1, 2])
def test_22_drop_last_leaves_no_short_batch(world: int) -> None:
    recipe = replace(ONE_LANE, data=(("a", (3,) * 203),), lanes=2, per_step=2, drop_last=True)
    steps = len({b.step for b in recipe.pipeline(runner="inline")})
    for rank in range(world):
        pipeline = recipe.pipeline(dp_rank=rank, dp_size=world, runner="threads", max_steps=steps)
        # rows have no empty ones to fill up with: a lane that is done gives batches of none, never of one
        assert {len(b) for b in pipeline} <= {0, 2}
    alone = replace(recipe, lanes=1)
    assert [len(b) for b in alone.pipeline(runner="threads")] == [2] * 101


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_23_the_layout_of_batches_does_not_depend_on_workers(workers: int, size: int) -> None:
    recipe = replace(ONE_LANE, data=(("a", (3,) * 100),), per_step=size)
    sizes = [len(b) for b in recipe.pipeline(runner="threads", workers=workers)]
    assert sizes == [size] * (100 // size) + [100 % size] * (100 % size > 0)


def test_25_nothing_here_initialises_torch_distributed() -> None:
    list(MIXED.pipeline(runner="threads", max_steps=1))
    assert not torch.distributed.is_initialized()


def test_26_ranks_that_would_all_read_everything_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = MIXED.pipeline(runner="inline", max_steps=1)  # built before the launch
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(RecipeError, match=r"(?s)4 ranks.*dp_rank"):
        next(iter(pipeline))
    pipeline.options(dp_rank=0, dp_size=1)
    assert next(iter(pipeline)).lane == 0


def test_43_lambdas_locals_and_methods_work_in_processes() -> None:
    class Local:
        def twice(self, record: dict[str, Any]) -> dict[str, Any]:
            return {**record, "id": record["id"] * 2}

    def local(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "id": record["id"] + shift}

    shift = 5
    pipeline = ONE_LANE.pipeline()
    pipeline = Pipeline(pipeline.source).map(lambda r: {"id": r["id"]}).map(local).map(Local().twice).batch(1)
    assert sorted(ids(pipeline.options(runner="processes", workers=2))) == [2 * (i + 5) for i in range(10)]


def test_43_what_can_not_be_sent_to_a_process_names_the_step() -> None:
    lock = threading.Lock()

    def guarded(record: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return record

    pipeline = Pipeline(ONE_LANE.pipeline().source).map(guarded).batch(1).options(runner="processes", workers=1)
    with pytest.raises(RuntimeError, match="'map' can't be sent to a worker process.*lock"):
        next(iter(pipeline))


def test_46_strings_of_different_lengths_come_whole_through_processes() -> None:
    texts = ["abc", "longer", "", "ü" * 70_000, "x" * 300_000]
    source = StaticMixtureWorkSource([Dataset.from_records("d", [{"text": t} for t in texts])], stop_after_passes=1)
    pipeline = Pipeline(source).map(lambda r: r).batch(2).options(runner="processes", workers=2)
    assert sorted(row["text"] for b in pipeline for row in b.group.to_pylist()) == sorted(texts)


def test_50_a_restore_and_an_iteration_read_each_thing_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(64))}), tmp_path / "d.parquet", row_group_size=8)
    source = StaticMixtureWorkSource(
        [Dataset.from_path("d", tmp_path)], stop_after_passes=1, chunk_size=8, shuffle_block_size=8
    )

    def fresh() -> Pipeline:
        return Pipeline(source).batch(4).options(lanes=2, runner="inline")

    pipeline = fresh()
    list(pipeline)
    assert pipeline.stats()["units_read"] + pipeline.stats()["bundles_read"] <= 16
    first = fresh()
    batches = iter(first)
    for _ in range(16):
        next(batches)
    state = first.checkpoint()
    second = fresh()
    second.restore(state)
    assert second.stats() == {}, "restoring reads nothing"
    list(second)
    assert second.stats()["bundles_read"] <= 8


def test_76_a_batch_larger_than_the_data_says_so() -> None:
    recipe = replace(ONE_LANE, data=(("a", (3,) * 100),), per_step=101, drop_last=True)
    with pytest.warns(UserWarning, match=r"100 records in all.*101 sequences"):
        assert list(recipe.pipeline(runner="inline")) == []
    assert [len(b) for b in replace(recipe, drop_last=False).pipeline(runner="inline")] == [100]


@pytest.mark.parametrize("sizes", [(3, 4, 5), (3, 0, 8), (1,)])
def test_85_fewer_shards_than_lanes_or_workers_divide_by_rows(sizes: tuple[int, ...]) -> None:
    shards = {f"s{i}": [{"id": 100 * i + r} for r in range(size)] for i, size in enumerate(sizes)}
    source = StaticMixtureWorkSource([Dataset.from_dict("d", shards)], stop_after_passes=1)
    pipeline = Pipeline(source).batch(1).options(lanes=8, runner="threads", workers=8)
    assert sorted(ids(pipeline)) == [100 * i + r for i, size in enumerate(sizes) for r in range(size)]


def test_110_large_numbers_stay_python_integers_in_a_state() -> None:
    for seed in (2**32 - 1, 2**63, -5, np.int64(7)):
        source = StaticMixtureWorkSource([Dataset.from_records("d", [{"id": 10**12 + i} for i in range(9)])], seed=seed)  # type: ignore[arg-type]
        pipeline = Pipeline(source).batch(1).options(runner="inline", max_steps=20)
        assert len(list(pipeline)) == 20
        assert json.loads(json.dumps(pipeline.checkpoint())) == pipeline.checkpoint()


def test_a_function_that_changes_its_record_changes_nothing_else(runner: str) -> None:
    def spoil(record: dict[str, Any]) -> None:
        record["id"] = -1
        record.clear()

    records = [{"id": i, "tags": ["x"]} for i in range(8)]
    source = StaticMixtureWorkSource([Dataset.from_records("d", records)], stop_after_passes=2)

    def tagged(record: dict[str, Any]) -> dict[str, Any]:
        record["tags"].append("seen")
        return record

    pipeline = Pipeline(source).map(tagged).batch(1).options(runner=runner, workers=2)
    assert {tuple(row["tags"]) for b in pipeline for row in rows_of(b)} == {("x", "seen")}
    assert records[0] == {"id": 0, "tags": ["x"]}
    dropped = Pipeline(source).map(spoil).batch(1).options(runner=runner, workers=2)
    assert ids(dropped) == []
    assert sum(dropped.accounting()["rows"]["dropped"].values()) == 16


def test_a_function_may_give_none_one_or_three(runner: str) -> None:
    source = StaticMixtureWorkSource([Dataset.from_records("d", [{"id": i} for i in range(12)])], stop_after_passes=1)
    pipeline = Pipeline(source).map(lambda r: [None, r, [r] * 3][r["id"] % 3]).batch(1).options(runner=runner, workers=2)
    assert Counter(ids(pipeline)) == {i: {1: 1, 2: 3}[i % 3] for i in range(12) if i % 3}
    rows = pipeline.accounting()["rows"]
    assert (rows["in"], rows["added"], rows["out"], rows["in_flight"]) == (12, 8, 16, 0)

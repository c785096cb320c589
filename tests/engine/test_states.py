"""A state belongs to the run that it is of, whatever becomes of the pipeline, its files and its source meanwhile."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operators_for_tests import Fragile
from strategies import MIXED, quietly, rows_of

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import RecipeError


def test_an_exclude_file_that_grows_does_not_change_the_states_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text("")
    recipe = replace(MIXED, steps=(Fragile(bad=(1, 4, 6)),), passes=1, exhausted="redistribute")

    def fresh() -> Pipeline:
        return recipe.pipeline(runner="inline", on_error="quarantine", quarantine=str(file), exclude=str(file))

    pipeline = fresh()
    batches = iter(pipeline)
    state: Any = None
    while not file.read_text():
        next(batches)
        state = pipeline.state_dict()
    later = pipeline.state_dict()
    assert later["fingerprint"] == state["fingerprint"], "the run reads what was excluded when it began"
    batches.close()  # type: ignore[attr-defined]
    assert fresh().recipe() != later["recipe"], "a new run leaves more out"


def test_options_that_are_set_during_a_run_are_for_the_next() -> None:
    pipeline = MIXED.pipeline(runner="inline", max_steps=4)
    batches = iter(pipeline)
    for _ in range(MIXED.lanes):
        next(batches)
    pipeline.options(flush_every_chunks=5)
    state = pipeline.state_dict()
    want = [rows_of(b) for b in batches]
    again = MIXED.pipeline(runner="inline", max_steps=4)
    again.load_state_dict(state)
    assert [rows_of(b) for b in again] == want


def test_measured_tokens_are_those_of_the_state_also_where_others_were_measured() -> None:
    counts = iter([10, 20] * 100)
    data = [Dataset.from_records(name, [{"text": "x" * 9, "id": i} for i in range(40)]) for name in "ab"]

    def fresh(measure: Any) -> Pipeline:
        estimation = TokenEstimation(primer="measure", measure=measure, calibration_samples=4)
        source = StaticMixtureWorkSource(data, {"a": 1, "b": 1}, token_estimation=estimation, chunk_size=4)
        return Pipeline(source).batch(4).options(runner="inline", max_steps=8)

    first = fresh(lambda record: next(counts))
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    want = [rows_of(b) for b in batches]
    second = fresh(lambda record: 7 if "a" in record else 100)
    next(iter(second))  # has measured for itself
    second.load_state_dict(state)
    assert [rows_of(b) for b in second] == want


def test_a_restored_state_is_not_lost_where_the_run_can_not_begin() -> None:
    pipeline = MIXED.pipeline(runner="inline", max_steps=4)
    batches = iter(pipeline)
    for _ in range(MIXED.lanes):
        next(batches)
    state = pipeline.state_dict()
    finite = replace(MIXED, passes=1)
    saved = finite.pipeline(runner="inline").state_dict() | {"lanes": state["lanes"]}
    broken = finite.pipeline(runner="inline", dp_rank=0, dp_size=2)
    broken.load_state_dict(saved)
    for _ in range(2):
        with pytest.raises(RecipeError, match="agree="):
            next(iter(broken))
        assert set(broken.state_dict()["lanes"]) == {"0", "1"}
        assert broken.state_dict()["lanes"]["0"] == state["lanes"]["0"]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_ranks_with_uneven_lanes_exchange_their_states_at_any_batch(cut: int, tmp_path: Path) -> None:
    recipe = replace(MIXED, lanes=3, per_step=1)
    states: list[Any] = [None, None]

    def run(rank: int) -> None:
        pipeline = recipe.pipeline(
            runner="inline", dp_rank=rank, dp_size=2, uneven_lanes="pad", aggregate_dir=str(tmp_path), aggregate_timeout_s=20.0
        )
        batches = iter(pipeline)
        for _ in range(cut):
            next(batches)
        states[rank] = pipeline.checkpoint()
        batches.close()  # type: ignore[attr-defined]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert states[0] == states[1]
    assert set(states[0]["lanes"]) == {"0", "1", "2"}
    quietly(recipe.pipeline(runner="inline").restore, states[0])

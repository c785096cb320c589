"""The fingerprint sees what determines the bytes; damaged states and stale files are not taken for good ones."""

from __future__ import annotations

import datetime
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc
import pytest
from operators_for_tests import Suffix
from strategies import MIXED

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import CheckpointError, RecipeError


class Holder:
    __slots__ = ("things",)

    def __init__(self, *things: Any) -> None:
        self.things = list(things)


def made(value: Any) -> Any:
    return lambda record: (value, record)[1]


def print_of(value: Any) -> str:
    pipeline = Pipeline(Dataset.from_records("a", [{"x": 1}])).map(made(value)).batch(1)
    return str(pipeline.checkpoint()["fingerprint"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (re.compile("a"), re.compile("b")),
        (np.arange(3), np.arange(1, 4)),
        (Path("a"), Path("b")),
        (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
        (Holder({"a": [1]}), Holder({"a": [2]})),
    ],
)
def test_objects_in_a_closure_are_part_of_the_fingerprint(one: Any, other: Any) -> None:
    assert print_of(one) == print_of(one)
    assert print_of(one) != print_of(other)


@pytest.mark.parametrize("tokens", [{"a": 1}, "x", {"a": "q", "b": 1}, {"a": math.inf, "b": 1}, {"a": 0, "b": 1}])
def test_damaged_tokens_per_record_are_refused_before_iteration(tokens: Any) -> None:
    pipeline = MIXED.pipeline(runner="inline")
    state = pipeline.checkpoint() | {"tokens_per_record": tokens}
    with pytest.raises(CheckpointError, match="tokens per record"):
        pipeline.restore(state)


def test_a_lane_beyond_all_bounds_is_refused() -> None:
    state = MIXED.pipeline(runner="inline").checkpoint()
    state["lanes"]["0"][0] = 10**12
    with pytest.raises(CheckpointError, match="lane 0 is damaged"):
        MIXED.pipeline(runner="inline").restore(state)


def test_aggregated_states_of_an_earlier_job_are_not_mixed_in(tmp_path: Path) -> None:
    def states(batches: int, order: tuple[int, ...]) -> list[Any]:
        ranks = {
            r: MIXED.pipeline(runner="inline", dp_rank=r, dp_size=2, aggregate_dir=str(tmp_path), aggregate_timeout_s=0.2)
            for r in (0, 1)
        }
        for pipeline in ranks.values():
            iterator = iter(pipeline)
            for _ in range(batches):
                next(iterator)
        found: list[Any] = []
        for rank in order:
            try:
                found.append(ranks[rank].checkpoint())
            except CheckpointError as error:
                found.append(str(error))
        return found

    states(2, (0, 1, 0))
    alone, *later = states(4, (0, 1, 0))
    assert "rank 1 of 2 did not write" in alone, "what it wrote at another position is not its state here"
    totals = {lane: values[2] for lane, values in later[0]["lanes"].items()}
    assert totals == dict.fromkeys("0123", 4)
    assert json.dumps(later[0]) == json.dumps(later[1])


def test_a_wrong_column_name_is_answered_with_the_nearest() -> None:
    source = StaticMixtureWorkSource([Dataset.from_records("a", [{"text": "x"}])], token_estimation=TokenEstimation(primer=3.0))
    with pytest.raises(RecipeError, match="unknown column 'txt'; did you mean 'text'"):
        next(iter(Pipeline(source).decode_text(field="txt").batch(1)))


def test_filter_takes_an_expression_by_position() -> None:
    source = StaticMixtureWorkSource(Dataset.from_records("a", [{"i": i} for i in range(10)]), stop_after_passes=1)
    batches = Pipeline(source).filter(pc.field("i") > 6).batch(5).options(runner="inline")
    assert sorted(i for b in batches for i in b.to_pydict()["i"]) == [7, 8, 9]


def test_an_operator_that_says_that_its_bytes_changed_refuses_older_states() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Upper(Suffix):
        name: ClassVar[str] = "upper"
        version: ClassVar[int] = 1

    def fresh() -> Pipeline:
        return Pipeline(MIXED.pipeline().source).then(Upper(text="x")).batch(1).options(runner="inline")

    state = fresh().checkpoint()
    fresh().restore(state)
    Upper.version = 2
    with pytest.raises(CheckpointError, match="'upper' version 1 → 2"):
        fresh().restore(state)


def test_quarantine_without_a_file_is_refused() -> None:
    with pytest.raises(RecipeError, match="needs a file"):
        MIXED.pipeline(on_error="quarantine").explain()


@pytest.mark.parametrize("odd", [[Dataset.from_records("a", [{"x": 1}])], "a.jsonl", None])
def test_what_is_neither_a_source_nor_a_data_set_is_refused(odd: Any) -> None:
    with pytest.raises(RecipeError, match="takes a source or a data set"):
        Pipeline(odd)


@pytest.mark.parametrize("name", ["watchdog_s", "aggregate_timeout_s"])
@pytest.mark.parametrize("odd", [0, -1, math.nan, "60", True, None])
def test_a_time_that_is_none_is_refused_before_it_is_needed(name: str, odd: Any) -> None:
    with pytest.raises(RecipeError, match=f"{name} is {odd!r}"):
        MIXED.pipeline(**{name: odd})


@pytest.mark.parametrize("odd", [-1, math.nan, "0.001", True])
def test_a_switch_interval_is_a_time_too(odd: Any) -> None:
    with pytest.raises(RecipeError, match=f"switch_interval_s is {odd!r}"):
        MIXED.pipeline(switch_interval_s=odd)

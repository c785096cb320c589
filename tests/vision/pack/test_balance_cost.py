"""`balance_cost`: every global batch has the same sequences, and dear ones meet dear ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import DropLong
from strategies import Rows, drive, quietly, reference, to_the_end, topologies
from thoroughness import examples
from vision.pack.decoding import DECODED
from vision.pack.test_elastic import RECIPES, VisionRecipe

from zephon import groups
from zephon.errors import DataError, RecipeError
from zephon.plugin import LaneWindow
from zephon.testing import check_operator
from zephon_vision import columns
from zephon_vision.balance_cost import BalanceCost

STEPS = 4


def cost_groups(costs: list[list[int]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"image_blocks": pa.array(c, pa.int32())}) for c in costs]


def with_balance(plain: VisionRecipe, **balancing: Any) -> VisionRecipe:
    """The recipe with `balance_cost` straight before its pixels are made."""
    return replace(plain, steps=(*plain.steps[:-1], BalanceCost(**balancing), plain.steps[-1]))


@st.composite
def recipes(draw: st.DrawFn) -> VisionRecipe:
    """Windows that hold whole steps only by chance."""
    return replace(
        RECIPES["both budgets"],
        lanes=draw(st.integers(1, 3)),
        per_step=draw(st.integers(1, 5)),
        chunk=draw(st.integers(3, 9)),
        window=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 99)),
    )


def lane_steps(made: VisionRecipe, steps: list[Rows]) -> list[list[list[str]]]:
    """[step][lane] → its sequences."""
    size = made.per_step
    return [[list(map(repr, rows[i : i + size])) for i in range(0, len(rows), size)] for rows in steps]


# -------------------------------------------------------------------------------------------------------- the order


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 30),
)
def test_rows_stay_in_their_span_whatever_groups_they_come_in(
    costs: list[list[int]], per_step: int, steps: int, first: int
) -> None:
    where = LaneWindow(seed=7, lane=3, window=2, first=first, per_step=per_step)
    (made,) = check_operator(BalanceCost(steps=steps), cost_groups(costs), lane_window=where)
    rows = made.column(groups.ROW).to_pylist()
    spans = [(first + place) // (per_step * steps) for place in range(len(rows))]
    assert [(first + row) // (per_step * steps) for row in rows] == spans
    (whole,) = check_operator(BalanceCost(steps=steps), cost_groups([[c for part in costs for c in part]]), lane_window=where)
    assert whole.column(groups.ROW).to_pylist() == rows


@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 5), st.permutations(range(18)), st.permutations(range(18)))
def test_the_places_of_the_dearest_are_the_same_on_all_lanes(
    per_step: int, steps: int, step: int, one: list[int], other: list[int]
) -> None:
    span = per_step * steps
    first = step * span
    placed = []
    for lane, costs in enumerate((one, [100 * c for c in other])):
        where = LaneWindow(seed=7, lane=lane, window=lane, first=first, per_step=per_step)
        (made,) = check_operator(BalanceCost(steps=steps), cost_groups([costs[:span]]), lane_window=where)
        placed.append(np.argsort(made.column("image_blocks").to_numpy()).tolist())
    assert placed[0] == placed[1]


def test_the_order_is_drawn_anew_for_each_step_and_seed() -> None:
    orders = set()
    for seed, first in [(1, 0), (1, 8), (2, 0)]:
        where = LaneWindow(seed=seed, lane=0, window=0, first=first, per_step=8)
        (made,) = check_operator(BalanceCost(), cost_groups([list(range(8))]), lane_window=where)
        orders.add(tuple(made.column("image_blocks").to_pylist()))
    assert len(orders) == 3


# ------------------------------------------------------------------------------------------------------- in a run


@settings(max_examples=examples(5))
@given(recipes(), st.integers(1, 3), st.data())
def test_each_global_batch_has_the_same_sequences_on_any_number_of_ranks_and_after_any_resume(
    plain: VisionRecipe, steps: int, data: st.DataObject
) -> None:
    want, _ = reference(plain, STEPS)
    balanced = with_balance(plain, steps=steps)
    found, _ = reference(balanced, STEPS)
    before, after = lane_steps(plain, want), lane_steps(balanced, found)
    for span in range(0, STEPS, steps):
        if span + steps > STEPS:
            break
        for lane in range(plain.lanes):
            mine = [sorted(row for s in range(span, span + steps) for row in made[s][lane]) for made in (before, after)]
            assert mine[0] == mine[1]
    cut = data.draw(st.integers(0, STEPS))
    first = drive(balanced, data.draw(topologies(balanced)), steps=cut, max_steps=STEPS)
    second = quietly(drive, balanced, data.draw(topologies(balanced)), steps=STEPS - cut, state=first.state, max_steps=STEPS)
    assert [{**first.steps, **second.steps}[s] for s in range(STEPS)] == found


def test_the_dearest_of_each_microbatch_are_less_dear_in_all() -> None:
    plain = replace(RECIPES["both budgets"], per_step=4, window=50)
    pace = []
    for made in (plain, with_balance(plain)):
        costs = np.array([[row[columns.IMAGE_BLOCKS] for row in step] for step in reference(made, 6)[0]])
        pace.append(int(costs.reshape(6, plain.lanes, 4).max(axis=1).sum()))
    assert pace[1] < pace[0]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_a_resume_in_the_middle_of_a_step_and_one_after_the_end_replay_it(cut: int) -> None:
    made = with_balance(replace(RECIPES["to an end"], per_step=3, window=2, lanes=2))
    whole = [b.group.to_pylist() for b in made.pipeline(microbatch=1)]
    first = made.pipeline(microbatch=1)
    batches = iter(first)
    delivered = [next(batches).group.to_pylist() for _ in range(len(whole) * cut // 8)]
    state = first.checkpoint()
    batches.close()  # type: ignore[attr-defined]
    second = made.pipeline(microbatch=1)
    quietly(second.restore, state)
    before = DECODED[0]
    rest = list(second)
    assert delivered + [b.group.to_pylist() for b in rest] == whole
    delivered_again = sum(len(row[columns.IMAGES]) for b in rest for row in b.group.slice(0, len(b) - b.empty).to_pylist())
    assert DECODED[0] - before == delivered_again


def test_a_lane_that_delivered_empty_sequences_after_its_end_still_replays() -> None:
    made = with_balance(replace(RECIPES["to an end"], per_step=2, lanes=4, window=3))
    first = made.pipeline(microbatch=1)
    count = sum(1 for _ in first)
    state = first.checkpoint()
    assert any(len(lane) > 5 for lane in state["lanes"].values()), "no lane was short: the case isn't there"
    second = made.pipeline(microbatch=1)
    second.restore(state)
    assert not list(second)
    assert second.checkpoint()["lanes"] == state["lanes"]
    assert count % 8 == 0
    assert len(to_the_end(made)) == count // 8


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("steps", [0, True, 1.5])
def test_spans_that_cannot_be_are_refused(steps: object) -> None:
    with pytest.raises(RecipeError, match="steps is"):
        BalanceCost(steps=steps)  # type: ignore[arg-type]


def test_what_would_change_its_steps_afterwards_is_refused_before_the_run() -> None:
    plain = RECIPES["both budgets"]
    pack, shuffle, pixels = plain.steps
    for steps, words in (
        ((pack, BalanceCost(), shuffle, pixels), "'shuffle' after it would change"),
        ((pack, BalanceCost(), DropLong(limit=10**6), pixels), "may drop or add rows"),
    ):
        with pytest.raises(RecipeError, match=words):
            next(iter(replace(plain, steps=steps).pipeline()))
    with pytest.raises(RecipeError, match="skips rows that fail"):
        next(iter(with_balance(plain).pipeline(on_error="skip")))


def test_a_cost_that_is_no_number_or_not_there_is_refused() -> None:
    with pytest.raises(RecipeError, match="a cost is one"):
        BalanceCost(column="text").output_schema(pa.schema([pa.field("text", pa.string())]))
    rows = pa.RecordBatch.from_pydict({"image_blocks": pa.array([1, None], pa.int32())})
    with pytest.raises(DataError, match="1 of 2 rows"):
        BalanceCost().selector(LaneWindow(seed=0, lane=0, window=0)).add(rows)

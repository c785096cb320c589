"""`balance_cost`: the same sequences in every run, the dearest first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Topology, drive, reference
from vision.pack.test_elastic import RECIPES

from zephon import groups
from zephon.errors import RecipeError
from zephon.testing import check_operator
from zephon_vision import columns
from zephon_vision.balance_cost import BalanceCost

STEPS = 3


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=4), st.integers(1, 6))
def test_each_run_is_sorted_by_cost_and_keeps_its_sequences(costs: list[list[int]], window: int) -> None:
    given = [pa.RecordBatch.from_pydict({"image_blocks": pa.array(c, pa.int32())}) for c in costs]
    (made,) = check_operator(BalanceCost(window=window), given)
    flat = [c for part in costs for c in part]
    rows = made.column(groups.ROW).to_pylist()
    for start in range(0, len(flat), window):
        run = range(start, min(start + window, len(flat)))
        assert rows[start : start + window] == sorted(run, key=lambda n: (-flat[n], n))


def test_a_step_has_the_same_sequences_with_dear_ones_meeting_dear_ones_on_any_number_of_ranks() -> None:
    plain = replace(RECIPES["both budgets"], per_step=4, window=50, lanes=2)
    balanced = replace(plain, steps=(*plain.steps[:2], BalanceCost(window=4), *plain.steps[2:]))
    want, _ = reference(plain, STEPS)
    found, _ = reference(balanced, STEPS)
    slowest: dict[str, int] = {}
    for name, steps in (("plain", want), ("balanced", found)):
        costs = np.array([[row[columns.IMAGE_BLOCKS] for row in step] for step in steps]).reshape(STEPS, 2, 4)
        slowest[name] = int(costs.max(axis=1).sum())
    for one, other in zip(want, found, strict=True):
        assert sorted(map(repr, one)) == sorted(map(repr, other))
    assert slowest["balanced"] <= slowest["plain"]
    ranks = drive(balanced, Topology(world=2, microbatch=2), steps=STEPS, max_steps=STEPS)
    assert [ranks.steps[s] for s in range(STEPS)] == found


@pytest.mark.parametrize("window", [0, True, 1.5])
def test_windows_that_cannot_be_are_refused(window: object) -> None:
    with pytest.raises(RecipeError):
        BalanceCost(window=window)  # type: ignore[arg-type]

"""Shares: seats by Webster's rule, and an order in which every prefix is within one record of its share."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import MixtureSpec, Phase
from zephon.errors import RecipeError
from zephon.plan.mixture import Schedule, _webster, apportion, arrange

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=12).filter(any)
seats = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


@given(weights)
def test_seats_follow_the_weights_and_only_weight_0_gets_none(given_weights: list[float]) -> None:
    found = apportion(given_weights)
    total, size = sum(given_weights), int(found.sum())
    for weight, seat in zip(given_weights, found.tolist(), strict=True):
        assert (seat == 0) == (weight == 0)
        # within one seat of the quota, or the one seat that even the smallest weight gets
        assert abs(seat - weight / total * size) <= max(1.0, 0.02 * seat) + 1e-9


@given(st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any))
def test_small_whole_ratios_are_met_exactly(ratio: list[int]) -> None:
    divisor = math.gcd(*ratio)
    assert apportion([float(r) for r in ratio]).tolist() == [r // divisor for r in ratio]


def test_decimal_weights_mean_the_decimal() -> None:
    assert apportion([0.7, 0.3]).tolist() == [7, 3]
    assert apportion([0.1] * 10).tolist() == [1] * 10
    assert apportion([1 / 3, 2 / 3]).tolist() == [1, 2]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=10), st.integers(20, 400))
def test_seats_are_those_of_the_highest_averages(raw: list[int], size: int) -> None:
    shares = np.array(raw) / sum(raw)
    found = _webster(shares, size)
    want = oracles.highest_averages([Fraction(r, sum(raw)) for r in raw], size)
    if len(set(raw)) == len(raw):  # between equal weights either may get the last seat
        for f, w in zip(found.tolist(), want, strict=True):
            assert f == w or (w == 0 and f == 1) or abs(f - w) == 1
    assert all(f >= 1 for f in found.tolist())


@given(seats)
def test_every_prefix_is_within_one_record_of_its_share(given_seats: list[int]) -> None:
    order = arrange(np.array(given_seats))
    assert np.bincount(order, minlength=len(given_seats)).tolist() == given_seats
    assert oracles.prefix_errors(order.tolist(), given_seats) < 1


@pytest.mark.parametrize("given_seats", [[100, *[1] * 100], [1, 1000], [4095, 1], [1] * 200, [3, 5, 7, 11, 13, 17]])
def test_lopsided_mixtures_keep_every_prefix_within_one_record(given_seats: list[int]) -> None:
    assert oracles.prefix_errors(arrange(np.array(given_seats)).tolist(), given_seats) < 1


@given(given_seats=seats, start=st.integers(0, 10**15), size=st.integers(1, 60))
def test_draws_are_closed_form_in_their_number(given_seats: list[int], start: int, size: int) -> None:
    schedule = Schedule(arrange(np.array(given_seats)), len(given_seats))
    component, before = schedule.draws(start, start + size)
    for i in range(size):
        turn, at = divmod(start + i, schedule.size)
        assert component[i] == schedule.table[at]
        assert before[i] == turn * given_seats[component[i]] + schedule.table[:at].tolist().count(component[i])
        assert schedule.nth(int(component[i]), int(before[i])) == start + i
        assert schedule.before(at).tolist() == [schedule.table[:at].tolist().count(c) for c in range(len(given_seats))]


@settings(max_examples=examples(10))
@given(given_seats=seats, gone=st.lists(st.booleans(), min_size=8, max_size=8))
def test_without_some_components_the_others_keep_their_order(given_seats: list[int], gone: list[bool]) -> None:
    schedule = Schedule(arrange(np.array(given_seats)), len(given_seats))
    left = schedule.without(np.array(gone[: len(given_seats)]))
    want = [c for c in schedule.table.tolist() if not gone[c]]
    assert (left.table.tolist() if left else []) == want


BAD_WEIGHTS = {
    "NaN": {"a": math.nan, "b": 1.0},
    "infinite": {"a": math.inf, "b": 1.0},
    "negative": {"a": -1.0, "b": 1.0},
    "all zero": {"a": 0.0, "b": 0.0},
    "a word": {"a": "half", "b": 1.0},
    "a bool": {"a": True, "b": 1.0},
    "none": {},
}


@pytest.mark.parametrize("bad", BAD_WEIGHTS.values(), ids=BAD_WEIGHTS.keys())
def test_bad_weights_are_refused_at_construction(bad: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        MixtureSpec(bad)
    with pytest.raises(ValueError, match=r"weight|mixture"):
        MixtureSpec(phases=[Phase(weights=bad)])


@pytest.mark.parametrize("records", [1.5, "3", 10**30])
def test_the_length_of_a_phase_is_a_whole_number_that_can_be_drawn(records: Any) -> None:
    with pytest.raises(RecipeError, match="records of a phase is"):
        MixtureSpec(phases=[Phase(weights={"a": 1.0}, records=records), Phase(weights={"a": 1.0})])


def test_phases_before_the_last_need_a_length() -> None:
    first, last = Phase(weights={"a": 1.0}), Phase(weights={"a": 2.0})
    with pytest.raises(RecipeError, match="records"):
        MixtureSpec(phases=[first, last])
    with pytest.raises(RecipeError, match="either"):
        MixtureSpec({"a": 1.0}, phases=[last])

"""Every row exactly once per pass, whatever the units, lanes, stripes and passes are."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.keys import key
from zephon.plan.passes import ComponentRows, _in_turn
from zephon.plan.units import UnitTable, unit_table


@dataclass(frozen=True)
class Case:
    units: tuple[int, ...]
    lanes: int
    stripe: int
    bundle_rows: int
    block_rows: int
    shuffle_units: bool
    shuffle_rows: bool
    reshuffle: bool
    seed: int

    @property
    def rows(self) -> int:
        return sum(self.units)

    def make(self) -> ComponentRows:
        return ComponentRows(
            table_of(self.units),
            seed_key=self.seed,
            lanes=self.lanes,
            stripe=self.stripe,
            shuffle_units=self.shuffle_units,
            shuffle_rows=self.shuffle_rows,
            reshuffle=self.reshuffle,
            bundle_rows=self.bundle_rows,
            block_rows=self.block_rows,
        )


def table_of(units: tuple[int, ...]) -> UnitTable:
    rows = np.array(units, dtype=np.int64)
    return unit_table([(rows, rows)])


cases = st.builds(
    Case,
    units=st.lists(st.integers(1, 9), min_size=1, max_size=8).map(tuple),
    lanes=st.integers(1, 9),
    stripe=st.integers(1, 12),
    bundle_rows=st.integers(1, 30),
    block_rows=st.integers(1, 90),
    shuffle_units=st.booleans(),
    shuffle_rows=st.booleans(),
    reshuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)


def lane_flat(made: ComponentRows, lane: int, index: np.ndarray) -> np.ndarray:
    """The flat rows behind some of a lane's row numbers, in drawn order."""
    bundle, offset = made.draw(lane, index)
    return np.array([made.bundle_flat(lane, int(b))[o] for b, o in zip(bundle, offset, strict=True)], dtype=np.int64).reshape(
        -1
    )


@given(case=cases, passes=st.integers(1, 5))
def test_each_row_is_drawn_exactly_once_per_pass_over_all_lanes(case: Case, passes: int) -> None:
    made = case.make()
    seen: Counter[tuple[int, int, int]] = Counter()
    for lane in range(case.lanes):
        flat = lane_flat(made, lane, np.arange(made.lane_rows(lane, passes)))
        places = zip(*(part.tolist() for part in made.resolve(flat)), strict=True)
        seen.update(places)
    everything = [(p, u, r) for p in range(passes) for u, n in enumerate(case.units) for r in range(n)]
    assert seen == Counter(everything)


@given(case=cases, passes=st.integers(1, 4))
def test_lanes_are_dealt_stripes_like_cards_and_permute_inside_them(case: Case, passes: int) -> None:
    made = case.make()
    hands = oracles.deal(passes * case.rows, case.lanes, case.stripe)
    for lane, hand in enumerate(hands):
        assert made.lane_rows(lane, passes) == len(hand)
        flat = lane_flat(made, lane, np.arange(len(hand))).tolist()
        for start in range(0, len(hand), case.stripe):
            here = flat[start : start + case.stripe]
            assert sorted(here) == hand[start : start + case.stripe]
            turns = [f // case.rows for f in here]
            assert turns == sorted(turns), "a row of a later pass came before one of an earlier pass"
            if not case.shuffle_rows:
                assert here == sorted(here)


@given(case=cases, bundle_rows=st.integers(1, 30), block_rows=st.integers(1, 90), size=st.integers(1, 200))
def test_how_much_is_read_and_planned_at_once_changes_no_order(
    case: Case, bundle_rows: int, block_rows: int, size: int
) -> None:
    made, other = case.make(), replace(case, bundle_rows=bundle_rows, block_rows=block_rows).make()
    for lane in range(case.lanes):
        assert lane_flat(made, lane, np.arange(size)).tolist() == lane_flat(other, lane, np.arange(size)).tolist()


@given(case=cases, bundles=st.lists(st.integers(0, 12), min_size=1, max_size=6), limit=st.none() | st.integers(0, 200))
def test_a_bundles_rows_are_those_of_its_flat_line_up_to_the_limit(case: Case, bundles: list[int], limit: int | None) -> None:
    made = case.make()
    for lane in range(case.lanes):
        for bundle in bundles:
            flat = made.bundle_flat(lane, bundle)
            wanted = made.resolve(flat if limit is None else flat[flat < limit])
            found = made.bundle_rows(lane, bundle, limit)
            assert [part.tolist() for part in found] == [part.tolist() for part in wanted]


@given(case=cases, passes=st.integers(1, 4))
def test_flat_rows_resolve_to_units_in_the_order_of_a_keyed_permutation(case: Case, passes: int) -> None:
    made = case.make()
    units_key = key(case.seed, "units") if case.shuffle_units else None
    line = oracles.flat_line(case.units, passes, units_key=units_key, reshuffle=case.reshuffle)
    found = made.resolve(np.arange(len(line)))
    assert list(zip(*(part.tolist() for part in found), strict=True)) == line


@given(case=cases, start=st.integers(0, 10**12), size=st.integers(1, 50))
def test_any_stretch_of_a_lane_is_the_same_however_it_is_asked_for(case: Case, start: int, size: int) -> None:
    together = lane_flat(case.make(), 0, np.arange(start, start + size))
    made = case.make()
    alone = [int(lane_flat(made, 0, np.array([start + i]))[0]) for i in reversed(range(size))]
    assert alone[::-1] == together.tolist()


@given(case=cases)
def test_without_reshuffling_every_pass_has_the_order_of_the_first(case: Case) -> None:
    stripe_per_pass = Case(**{**vars(case), "reshuffle": False, "lanes": 1, "stripe": sum(case.units)})
    made = stripe_per_pass.make()
    flat = lane_flat(made, 0, np.arange(3 * case.rows)) % case.rows
    first, second, third = (flat[i * case.rows : (i + 1) * case.rows].tolist() for i in range(3))
    assert first == second == third


def test_passes_seeds_and_data_sets_have_orders_of_their_own() -> None:
    case = Case((50, 50, 50, 50), 1, 40, 40, 40, True, True, True, 7)
    made = case.make()
    orders = {tuple((lane_flat(made, 0, np.arange(p * 200, p * 200 + 200)) % 200).tolist()) for p in range(5)}
    orders |= {tuple(lane_flat(Case(**{**vars(case), "seed": s}).make(), 0, np.arange(200)).tolist()) for s in (8, 9)}
    assert len(orders) == 7


@pytest.mark.parametrize("lanes", [1, 3, 1024])
def test_a_data_set_of_one_row_feeds_every_lane(lanes: int) -> None:
    made = ComponentRows(table_of((1,)), seed_key=1, lanes=lanes, stripe=1)
    for lane in {0, lanes // 2, lanes - 1}:
        turns, unit, row = made.resolve(lane_flat(made, lane, np.arange(5)))
        assert turns.tolist() == [lane + i * lanes for i in range(5)]
        assert set(unit.tolist()) == set(row.tolist()) == {0}


def test_a_billion_rows_in_a_million_units_are_planned_in_bounded_memory() -> None:
    rows = np.full(10**6, 1000, dtype=np.int64)
    table = unit_table([(rows, rows * 500)])
    made = ComponentRows(table, seed_key=3, lanes=1024, stripe=500)
    tracemalloc.start()
    seen = set()
    for turn in (0, 1, 7):
        for start in (0, 10**5, 976_000):
            index = turn * 976_500 + np.arange(start, start + 500)
            flat = np.sort(lane_flat(made, 1000, index))
            turns, unit, row = made.resolve(flat)
            seen |= set(zip(turns.tolist(), unit.tolist(), row.tolist(), strict=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(seen) == 9 * 500
    assert peak < 150 << 20


def test_what_a_lane_has_behind_it_is_forgotten() -> None:
    """One of 4,096 lanes, for a long time: the orders of two blocks are kept, not those of thousands."""
    rows = np.full(10**5, 1000, dtype=np.int64)
    made = ComponentRows(unit_table([(rows, rows * 500)]), seed_key=3, lanes=4096, stripe=500, bundle_rows=500, block_rows=500)
    made.draw(7, np.arange(5000))
    tracemalloc.start()
    for start in range(5000, 500_000, 5000):
        made.draw(7, np.arange(start, start + 5000))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 10 * 500 * 8


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 2**64 - 1)), min_size=2, max_size=60))
def test_rows_are_sorted_inside_their_part_whatever_ties_there_are(rows: list[tuple[bool, int, int]]) -> None:
    """The quick sort by one number gives what a sort by two gives, also where noises are equal or differ in their last bits only."""
    noise = np.array([low if low != 3 else high for _, low, high in rows], dtype=np.uint64)
    borders = np.array([border for border, _, _ in rows[1:]], dtype=bool)
    borders[0] = True
    part = np.concatenate([[0], np.cumsum(borders)])

    got = _in_turn(np.stack([noise, noise[::-1]]), np.stack([part, part]))
    assert got.tolist() == [np.lexsort((noise, part)).tolist(), np.lexsort((noise[::-1], part)).tolist()]

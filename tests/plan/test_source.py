"""Chunks of lanes: which records, in which order, until when."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import Dataset, MixtureSpec, Phase, StaticMixtureWorkSource
from zephon.errors import RecipeError
from zephon.plan.source import CHUNK_BYTES, Plan
from zephon.plan.units import UnitTable, unit_table


@dataclass(frozen=True)
class Planned:
    """A data set as planning sees it."""

    name: str
    units: UnitTable


def planned(name: str, *rows: int, row_bytes: int = 100) -> Planned:
    counts = np.array(rows, dtype=np.int64)
    return Planned(name, unit_table([(counts, counts * row_bytes)]))


def lane_records(plan: Plan, lane: int, most: int = 10**6) -> list[tuple[str, int, int]]:
    """`(data set, pass, row)` of a lane's first records, in planned order."""
    found: list[tuple[str, int, int]] = []
    number = 0
    chunks = plan.lane_chunks(lane)
    while len(found) < most and (chunks is None or number < chunks):
        chunk = plan.chunk(lane, number)
        number += 1
        for component, index in zip(chunk.component.tolist(), chunk.index.tolist(), strict=True):
            rows = plan.rows[component]
            assert rows is not None
            bundle, offset = rows.draw(lane, np.array([index]))
            flat = rows.bundle_flat(lane, int(bundle[0]))[int(offset[0])]
            turn, unit, row = (int(x[0]) for x in rows.resolve(np.array([flat])))
            found.append((plan.names[component], turn, int(rows.table.first_row[unit]) + row))
    return found[:most]


@st.composite
def sources(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    sizes = {n: draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)) for n in names}
    weights = {n: float(draw(st.integers(1, 9))) for n in names}
    settings = {
        "seed": draw(st.one_of(st.integers(-3, 3), st.integers(-(2**200), 2**200))),
        "chunk_size": draw(st.integers(1, 9)),
        "shuffle_block_size": draw(st.integers(1, 6)),
        "shuffle_shards": draw(st.booleans()),
        "shuffle_within_shard": draw(st.booleans()),
    }
    return {"datasets": [planned(n, *sizes[n]) for n in names], "mixture": weights} | settings | fixed


def all_records(given_source: dict[str, Any], lanes: int) -> Counter[tuple[str, int, int]]:
    plan = StaticMixtureWorkSource(**given_source).plan(lanes)
    return Counter(r for lane in range(lanes) for r in lane_records(plan, lane))


@given(source=sources(), lanes=st.integers(1, 6), passes=st.integers(1, 3))
def test_redistribute_gives_every_row_of_every_data_set_exactly_once_per_pass(
    source: dict[str, Any], lanes: int, passes: int
) -> None:
    seen = all_records(source | {"stop_after_passes": passes, "exhausted": "redistribute"}, lanes)
    assert seen == Counter((d.name, p, r) for d in source["datasets"] for p in range(passes) for r in range(d.units.total_rows))


@given(source=sources(), lanes=st.integers(1, 6), repeats=st.integers(0, 2))
def test_max_repeats_alone_gives_every_row_exactly_one_plus_that_many_times(
    source: dict[str, Any], lanes: int, repeats: int
) -> None:
    seen = all_records(source | {"max_repeats": repeats}, lanes)
    assert seen == Counter(
        (d.name, p, r) for d in source["datasets"] for p in range(1 + repeats) for r in range(d.units.total_rows)
    )


@given(source=sources(), lanes=st.integers(1, 6), passes=st.integers(1, 2))
def test_by_default_every_data_set_makes_its_passes_and_quick_ones_repeat(
    source: dict[str, Any], lanes: int, passes: int
) -> None:
    seen = all_records(source | {"stop_after_passes": passes}, lanes)
    assert set(seen.values()) == {1}, "a row was drawn twice in one pass"
    for d in source["datasets"]:
        assert {(d.name, p, r) for p in range(passes) for r in range(d.units.total_rows)} <= set(seen)


@given(source=sources(), lanes=st.integers(1, 6), passes=st.integers(1, 2))
def test_stop_ends_every_lane_at_the_first_data_set_that_is_used_up(source: dict[str, Any], lanes: int, passes: int) -> None:
    made = StaticMixtureWorkSource(**source, stop_after_passes=passes, exhausted="stop")
    plan = made.plan(lanes)
    seen: Counter[tuple[str, int, int]] = Counter()
    for lane in range(lanes):
        records = lane_records(plan, lane)
        seen.update(records)
        had = Counter(name for name, _, _ in records)
        limits = {d.name: plan.rows[i].lane_rows(lane, passes) for i, d in enumerate(source["datasets"])}  # type: ignore[union-attr]
        assert any(had[n] == limit for n, limit in limits.items())
        assert all(had[n] <= limit for n, limit in limits.items())
    assert set(seen.values()) <= {1}


@given(source=sources(), lanes=st.integers(1, 5), passes=st.integers(1, 2), data=st.data())
def test_the_rule_for_the_end_may_differ_per_data_set(
    source: dict[str, Any], lanes: int, passes: int, data: st.DataObject
) -> None:
    rules = {d.name: data.draw(st.sampled_from(["stop", "redistribute", "repeat", None])) for d in source["datasets"]}
    made = StaticMixtureWorkSource(**source, stop_after_passes=passes, exhausted=rules)
    plan = made.plan(lanes)
    endless = all(rule == "repeat" for rule in rules.values()) or (
        "repeat" in rules.values() and not set(rules.values()) & {"stop", None}
    )
    assert plan.finite is not endless
    seen = Counter(r for lane in range(lanes) for r in lane_records(plan, lane, 300))
    assert set(seen.values()) <= {1}
    for d in source["datasets"]:
        if rules[d.name] in ("stop", "redistribute"):
            assert all(p < passes for n, p, _ in seen if n == d.name)
        if rules[d.name] is None and "stop" not in rules.values():
            assert {(d.name, p, r) for p in range(passes) for r in range(d.units.total_rows)} <= set(seen)


@given(source=sources(), lanes=st.integers(1, 8), numbers=st.lists(st.integers(0, 10**9), min_size=1, max_size=5))
def test_a_chunk_computed_directly_is_the_chunk_computed_in_sequence(
    source: dict[str, Any], lanes: int, numbers: list[int]
) -> None:
    made = StaticMixtureWorkSource(**source)
    sequence, direct = made.plan(lanes), made.plan(lanes)
    for lane in range(lanes):
        wanted = [sequence.chunk(lane, k) for k in range(12)]
        for k in (11, 3, 0, 7):
            found = direct.chunk(lane, k)
            assert found.component.tolist() == wanted[k].component.tolist()
            assert found.index.tolist() == wanted[k].index.tolist()
        for number in numbers:  # and far out, a chunk goes on where the one before it ends
            before, here = direct.chunk(lane, number), direct.chunk(lane, number + 1)
            for component in set(before.component.tolist()) & set(here.component.tolist()):
                last = before.index[before.component == component][-1]
                assert here.index[here.component == component][0] == last + 1


@given(source=sources(), lanes=st.integers(1, 6))
def test_a_lane_draws_the_rows_of_each_data_set_in_order_without_a_gap(source: dict[str, Any], lanes: int) -> None:
    plan = StaticMixtureWorkSource(**source).plan(lanes)
    for lane in range(lanes):
        chunks = [plan.chunk(lane, k) for k in range(10)]
        component, index = (np.concatenate([getattr(c, n) for c in chunks]) for n in ("component", "index"))
        for c in np.unique(component):
            assert index[component == c].tolist() == list(range(int((component == c).sum())))


@given(
    weights=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    lanes=st.integers(1, 8),
    size=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_every_prefix_of_a_lane_is_within_two_records_of_its_share(
    weights: list[int], lanes: int, size: int, seed: int
) -> None:
    # within one from the start of a period; a lane starts in the middle of one, so both ends may be off by less than one
    names = [f"d{i}" for i in range(len(weights))]
    mixture = {n: float(w) for n, w in zip(names, weights, strict=True)}
    plan = StaticMixtureWorkSource([planned(n, 10**6) for n in names], mixture, seed=seed, chunk_size=size).plan(lanes)
    for lane in range(lanes):
        drawn = plan.chunk(lane, 0).component
        for c, weight in enumerate(weights):
            due = np.arange(1, size + 1) * weight / sum(weights)
            assert np.abs(np.cumsum(drawn == c) - due).max() < 2


def test_one_step_over_all_lanes_has_the_mixture_too() -> None:
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    plan = StaticMixtureWorkSource([planned(n, 10**6) for n in weights], weights, seed=5, chunk_size=1).plan(100)
    drawn = np.array([plan.chunk(lane, 0).component[0] for lane in range(100)])
    assert np.abs(np.bincount(drawn, minlength=3) - [70, 20, 10]).max() <= 3


def test_phases_change_the_shares_at_their_place_and_positions_go_on() -> None:
    mixture = MixtureSpec(phases=[Phase(weights={"a": 1, "b": 0}, records=40), Phase(weights={"a": 1, "b": 3})])
    plan = StaticMixtureWorkSource([planned("a", 100), planned("b", 100)], mixture, chunk_size=10).plan(2)
    for lane in range(2):
        records = lane_records(plan, lane, 60)
        assert {n for n, _, _ in records[:20]} == {"a"}
        assert abs(sum(n == "a" for n, _, _ in records[20:]) - 10) <= 2
        assert len({r for r in records if r[0] == "a"}) == sum(n == "a" for n, _, _ in records)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_the_run_is_over_after_a_last_phase_of_so_many_records(lanes: int) -> None:
    """Phases are of as many draws in each lane: lengths are rounded up."""
    mixture = MixtureSpec(phases=[Phase(weights={"a": 1, "b": 0}, records=11), Phase(weights={"a": 0, "b": 1}, records=7)])
    plan = StaticMixtureWorkSource([planned("a", 100), planned("b", 100)], mixture, chunk_size=4).plan(lanes)
    first, second = -(-11 // lanes), -(-7 // lanes)
    for lane in range(lanes):
        assert [n for n, _, _ in lane_records(plan, lane)] == ["a"] * first + ["b"] * second


def test_weight_0_is_never_drawn_and_its_data_set_may_be_empty() -> None:
    source = StaticMixtureWorkSource(
        [planned("a", 5), Planned("none", unit_table([]))], {"a": 1, "none": 0}, stop_after_passes=2
    )
    plan = source.plan(3)
    assert {n for lane in range(3) for n, _, _ in lane_records(plan, lane)} == {"a"}


@pytest.mark.parametrize("order", [("none", "two", "one"), ("two", "none", "one"), ("two", "one", "none")])
def test_an_empty_data_set_with_a_weight_is_an_error_at_construction(order: tuple[str, ...]) -> None:
    rows = {"none": Planned("none", unit_table([])), "two": planned("two", 2), "one": planned("one", 1)}
    with pytest.raises(RecipeError, match="'none' has no rows"):
        StaticMixtureWorkSource([rows[n] for n in order], dict.fromkeys(order, 1.0))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown name": ({"mixture": {"a": 1, "wikki": 1}}, "did you mean 'wiki'"),
    "data set without a weight": ({"mixture": {"a": 1}}, "'wiki' has no weight"),
    "NaN": ({"mixture": {"a": math.nan, "wiki": 1}}, "≥ 0"),
    "all zero": ({"mixture": {"a": 0, "wiki": 0}}, "all weights"),
    "negative": ({"mixture": {"a": -1, "wiki": 1}}, "≥ 0"),
    "no mixture": ({"mixture": None}, "need a mixture"),
    "unknown rule": ({"exhausted": "halt"}, "exhausted policy 'halt'"),
    "rule for nobody": ({"exhausted": {"wikki": "stop"}}, "did you mean 'wiki'"),
    "chunk_size 0": ({"chunk_size": 0}, "chunk_size"),
    "stop_after_passes 0": ({"stop_after_passes": 0}, "stop_after_passes"),
    "max_repeats -1": ({"max_repeats": -1}, "max_repeats"),
    "both spellings": ({"exhausted": "stop", "exhausted_policy": "stop"}, "one setting"),
    "one name twice": ({"datasets": [planned("a", 1), planned("a", 2)]}, "two data sets are named 'a'"),
    "no data set": ({"datasets": []}, "at least one"),
    "a path": ({"datasets": ["a.jsonl"]}, "takes data sets, got 'a.jsonl'"),
    "seed that is no number": ({"seed": "abc"}, "seed"),
    "seed 1.5": ({"seed": 1.5}, "seed"),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED.keys())
def test_what_can_not_work_is_refused_at_construction(change: tuple[dict[str, Any], str]) -> None:
    right = {"datasets": [planned("a", 3), planned("wiki", 3)], "mixture": {"a": 1, "wiki": 1}}
    with pytest.raises(RecipeError, match=change[1]):
        StaticMixtureWorkSource(**(right | change[0]))


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**32 - 1, 2**63, 2**64, -(2**63), 10**40])
def test_seeds_of_any_size_and_sign_give_orders_of_their_own(seed: int) -> None:
    def order(s: int) -> list[tuple[str, int, int]]:
        return lane_records(StaticMixtureWorkSource([planned("a", 10, 10, 10)], seed=s, chunk_size=30).plan(1), 0, 30)

    assert order(seed) == order(seed)
    assert order(seed) != order(seed + 1)


def test_numpy_integers_mean_the_same_as_python_integers() -> None:
    plain = StaticMixtureWorkSource([planned("a", 9)], seed=7, chunk_size=2, max_repeats=3)
    numpy = StaticMixtureWorkSource([planned("a", 9)], seed=np.int64(7), chunk_size=np.int32(2), max_repeats=np.int8(3))  # type: ignore[arg-type]
    assert plain.recipe() == numpy.recipe()
    assert all(type(v) in (int, float, str, bool, list, dict, type(None)) for v in numpy.recipe().values())
    assert lane_records(plain.plan(2), 1, 20) == lane_records(numpy.plan(2), 1, 20)


def test_the_same_data_under_two_names_is_two_independent_cursors() -> None:
    records = [{"x": i} for i in range(40)]
    source = StaticMixtureWorkSource(
        [Dataset.from_records("one", records), Dataset.from_records("two", records)],
        {"one": 1, "two": 1},
        stop_after_passes=1,
        chunk_size=80,
    )
    drawn = lane_records(source.plan(1), 0)
    one, two = ([r for n, _, r in drawn if n == name] for name in ("one", "two"))
    assert sorted(one) == sorted(two) == list(range(40))
    assert one != two


def test_a_data_set_of_one_row_repeats_for_every_lane() -> None:
    plan = StaticMixtureWorkSource([planned("one", 1), planned("many", 50)], {"one": 1, "many": 1}, chunk_size=10).plan(7)
    seen = Counter(r for lane in range(7) for r in lane_records(plan, lane, 20))
    assert set(seen.values()) == {1}
    assert sum(n == "one" for n, _, _ in seen) == 70


def test_a_single_row_for_many_lanes_is_drawn_once_in_a_finite_run() -> None:
    plan = StaticMixtureWorkSource([planned("one", 1)], stop_after_passes=1).plan(8)
    assert [r for lane in range(8) for r in lane_records(plan, lane)] == [("one", 0, 0)]


def test_a_billion_rows_in_a_million_units_are_planned_in_bounded_memory() -> None:
    rows = np.full(10**6, 1000, dtype=np.int64)
    tracemalloc.start()
    big = Planned("big", unit_table([(rows, rows * 2000)]))
    plan = StaticMixtureWorkSource([big, planned("small", 10)], {"big": 0.9, "small": 0.1}).plan(1024)
    for lane, number in ((0, 0), (1023, 10**6), (512, 10**9)):
        chunk = plan.chunk(lane, number)
        assert len(chunk) == plan.chunk_size
        made = plan.rows[0]
        assert made is not None
        bundle, offset = made.draw(lane, chunk.index[chunk.component == 0][:50])
        made.resolve(np.sort([made.bundle_flat(lane, int(b))[o] for b, o in zip(bundle, offset, strict=True)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250 << 20


def test_twenty_thousand_data_sets_in_one_mixture() -> None:
    table = planned("x", 3, 2).units
    names = [f"set-{i}" for i in range(20_000)]
    mixture = {n: 1.0 + (i * 7919 % 1013) / 1009 for i, n in enumerate(names)}
    source = StaticMixtureWorkSource([Planned(n, table) for n in names], mixture, chunk_size=1000, shuffle_block_size=1)
    plan = source.plan(4)
    chunk = plan.chunk(3, 12345)
    assert len(chunk) == 1000
    assert len(np.unique(chunk.component)) > 900


@settings(max_examples=examples(15))
@given(
    ratio=st.floats(0.01, 100),
    lanes=st.integers(1, 4),
)
def test_token_weights_divide_by_tokens_per_record(ratio: float, lanes: int) -> None:
    from zephon import TokenEstimation

    source = StaticMixtureWorkSource(
        [planned("short", 1000), planned("long", 1000)],
        {"short": 0.5, "long": 0.5},
        token_estimation=TokenEstimation(primer={"short": 10.0, "long": 10.0 * ratio}),
        chunk_size=5000,
    )
    drawn = source.plan(lanes).chunk(0, 0).component
    tokens = np.bincount(drawn, minlength=2) * [1.0, ratio]
    assert abs(tokens[0] / tokens.sum() - 0.5) < 0.05


def early(records: int, rows: int, **settings: Any) -> StaticMixtureWorkSource:
    """`warm` is only drawn in the first phase, half of it."""
    mixture = MixtureSpec(
        phases=[Phase(weights={"warm": 1, "main": 1}, records=records), Phase(weights={"warm": 0, "main": 1})]
    )
    return StaticMixtureWorkSource([planned("warm", rows), planned("main", 50)], mixture, chunk_size=5, **settings)


def test_passes_that_a_short_early_phase_does_not_allow_are_refused_at_construction() -> None:
    with pytest.raises(RecipeError, match=r"'warm' is to make 1 passes, 51 records.*only 50.*never end"):
        early(100, 51, stop_after_passes=1)
    early(100, 51)  # endless by intention
    source = early(100, 51, stop_after_passes=1, exhausted={"warm": "repeat"})
    assert source.plan(4).finite


@pytest.mark.parametrize("lanes", [1, 3, 7])
def test_a_data_set_of_an_early_phase_that_makes_its_passes_lets_the_run_end(lanes: int) -> None:
    source = early(100, 40, stop_after_passes=1)
    plan = source.plan(lanes)
    assert plan.finite
    seen = Counter(r for lane in range(lanes) for r in lane_records(plan, lane) if r[1] == 0)
    assert seen == Counter({**{("warm", 0, r): 1 for r in range(40)}, **{("main", 0, r): 1 for r in range(50)}})


def test_measured_token_weights_are_looked_at_once_they_are_known() -> None:
    from zephon import TokenEstimation

    source = early(100, 50, stop_after_passes=1, token_estimation=TokenEstimation())
    source.prime({"warm": 30.0, "main": 10.0})
    with pytest.raises(RecipeError, match="'warm' is to make 1 passes, 50 records"):
        source.plan(2)


def test_lanes_of_which_only_some_end_are_refused() -> None:
    source = early(80, 41, exhausted={"warm": "stop", "main": "repeat"}, shuffle_block_size=1)
    plan = source.plan(40)  # a lane draws warm once in its phase; that is all that it has of it, but lane 0 has a row more
    assert [plan.lane_draws(lane) is None for lane in range(40)] == [True] + [False] * 39
    with pytest.raises(RecipeError, match="goes on for ever"):
        plan.finite  # noqa: B018


@settings(deadline=None)
@given(row_bytes=st.integers(500, 40_000), block=st.integers(1, 10_000), lanes=st.integers(1, 8))
def test_a_chunk_of_one_data_set_is_a_bundle_or_an_even_part_that_is_not_small(row_bytes: int, block: int, lanes: int) -> None:
    """A chunk costs as much as a megabyte of work however little it holds, so light records come in chunks of 2.5 MiB at least, unless all
    that is read for one is less."""
    data = planned("a", *[50_000] * 4, row_bytes=row_bytes)
    plan = StaticMixtureWorkSource([data], shuffle_block_size=block).plan(lanes)
    (made,) = plan.rows
    assert made is not None
    parts = made.bundle // plan.chunk_size
    assert made.bundle - parts * plan.chunk_size < parts
    if row_bytes * 128 <= CHUNK_BYTES and parts > 1:
        assert (plan.chunk_size + 1) * row_bytes > CHUNK_BYTES

"""Invariant 5: randomness is a function of keys, never of call order; global generators are neither read nor touched."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import MIXED, Recipe, reference

from zephon import keys
from zephon.operators.shuffle import Shuffle

parts = st.lists(st.one_of(st.integers(), st.text(max_size=5)), min_size=1, max_size=4)


def global_states() -> list[Any]:
    kind, words, *rest = np.random.get_state()  # the global generator is what this is about
    return [random.getstate(), kind, words.tolist(), rest, torch.get_rng_state().tolist()]  # type: ignore[attr-defined]


def test_global_generators_are_not_touched(runner: str) -> None:
    before = global_states()
    pipeline = MIXED.pipeline(runner=runner, workers=2, max_steps=4)
    for _ in pipeline:
        pipeline.checkpoint()
    assert global_states() == before


def test_global_generators_are_not_read(runner: str) -> None:
    streams = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        found = []
        for batch in MIXED.pipeline(runner=runner, workers=2, max_steps=4):
            found.append(batch.sha256())
            random.random()
            np.random.random(seed)
            torch.rand(seed)
        streams.append(found)
    assert streams[0] == streams[1]


@given(first=parts, second=parts)
def test_different_parts_give_different_keys_and_equal_ones_the_same(first: list[int | str], second: list[int | str]) -> None:
    assert (keys.key(*first) == keys.key(*second)) == (first == second)
    assert 0 <= keys.key(*first) < 2**64


def test_borders_types_signs_and_sizes_count_in_a_key() -> None:
    made = [
        keys.key(1, 23),
        keys.key(12, 3),
        keys.key(123),
        keys.key("123"),
        keys.key("1", 23),
        keys.key(-123),
        keys.key(123 + 2**64),
        keys.key("12", "3"),
        keys.key("\ud800"),
    ]
    assert len(set(made)) == len(made)


@given(key=st.integers(0, 2**64 - 1), size=st.integers(0, 200))
def test_a_permutation_is_one_and_depends_on_its_key_alone(key: int, size: int) -> None:
    made = keys.permutation(key, size)
    assert sorted(made.tolist()) == list(range(size))
    keys.permutation(key + 1 & 2**64 - 1, 17)
    assert keys.permutation(key, size).tolist() == made.tolist()


def test_permutations_and_draws_are_even() -> None:
    firsts = np.bincount([keys.permutation(keys.key("p", i), 10)[0] for i in range(5000)], minlength=10)
    draws = np.bincount(keys.uniform_below(keys.key("u"), np.arange(50_000), 10), minlength=10)
    for counts in (firsts, draws):
        expected = counts.sum() / 10
        assert ((counts - expected) ** 2 / expected).sum() < 28  # chi-square with 9 degrees of freedom: p = 0.001


@given(key=st.integers(0, 2**64 - 1), limit=st.integers(1, 2**31 - 1))
def test_draws_below_a_limit_are_a_function_of_key_and_index(key: int, limit: int) -> None:
    whole = keys.uniform_below(key, np.arange(50), limit)
    assert ((whole >= 0) & (whole < limit)).all()
    assert keys.uniform_below(key, np.arange(20, 30), limit).tolist() == whole[20:30].tolist()


def test_every_row_has_a_key_of_its_own_in_every_pass() -> None:
    rows, passes = np.repeat(np.arange(1000), 3), np.tile(np.arange(3), 1000)
    made = keys.row_generator_keys(7, "augment", [rows, passes])
    assert len(set(made.tolist())) == 3000
    assert keys.row_generator_keys(7, "augment", [rows[5:6], passes[5:6]])[0] == made[5]
    assert not set(made.tolist()) & set(keys.row_generator_keys(7, "crop", [rows, passes]).tolist())


def test_a_generator_for_user_code_follows_from_its_parts() -> None:
    first = keys.generator(5, "flip", 12).random(4).tolist()
    keys.generator(5, "flip", 13).random(100)
    assert keys.generator(5, "flip", 12).random(4).tolist() == first
    assert keys.generator(5, "flip", 13).random(4).tolist() != first


def ids_of(recipe: Recipe, component: int) -> list[tuple[int, int]]:
    return [(r["_pass"], r["id"]) for rows in reference(recipe, 8)[0] for r in rows if r["_component"] == component]


def test_the_order_inside_a_data_set_does_not_depend_on_the_others() -> None:
    plain = Recipe(data=(("a", tuple(range(30))), ("b", (3,) * 10)), weights=(1, 1), lanes=1, per_step=4, block=8)
    others = [
        replace(plain, weights=(1, 3)),
        replace(plain, data=(plain.data[0], ("c", (5,) * 25))),
    ]
    want = ids_of(plain, 0)
    for other in others:
        found = ids_of(other, 0)
        shared = min(len(found), len(want))
        assert found[:shared] == want[:shared]
    turned = replace(plain, data=plain.data[::-1])
    found = ids_of(turned, 1)
    assert found[: len(want)] == want[: len(found)]


CHANGES: dict[str, Callable[[Recipe], Recipe]] = {
    "the source's seed": lambda r: replace(r, seed=r.seed + 1),
    "the shuffle's seed": lambda r: replace(r, steps=(Shuffle(seed=99),)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_seed_gives_another_order_of_the_same_records(change: Callable[[Recipe], Recipe]) -> None:
    plain = Recipe(
        data=(("a", tuple(range(40))),), weights=(1,), lanes=2, per_step=2, block=10, window=4, passes=1, steps=(Shuffle(),)
    )
    orders = [[r["id"] for rows in reference(r, 20)[0] for r in rows] for r in (plain, change(plain))]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    assert orders[0] != orders[1]


def test_lanes_and_windows_shuffle_differently() -> None:
    recipe = Recipe(
        data=(("a", tuple(range(64))),), weights=(1,), lanes=2, per_step=1, chunk=4, window=2, steps=(Shuffle(seed=1),)
    )
    pipeline = recipe.pipeline(runner="inline", max_steps=25)
    pipeline.source.shuffle_shards = pipeline.source.shuffle_within_shard = False
    orders: dict[int, list[int]] = {0: [], 1: []}
    for batch in pipeline:
        orders[batch.lane].append(batch.group.column("id")[0].as_py())
    lanes = {
        lane: [tuple(np.argsort(ids[i : i + 8])) for i in range(8 if lane == 0 else 4, 24, 8)] for lane, ids in orders.items()
    }
    assert len({window for windows in lanes.values() for window in windows}) > 2

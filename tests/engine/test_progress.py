"""A run gets on until its end, in whatever order its tasks are finished and however little it may hold, and the stream is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from engine.any_order import AnyOrderRun
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import Count, FewRows, Fragile
from strategies import PAD, Recipe, Topology, packers, quietly, recipes, rows_of, step_lists, topologies
from thoroughness import examples

from zephon.errors import RunnerError, ZephonError
from zephon.operators.pack import PackFlat
from zephon.plugin import Operator

Told = tuple[int, int, int, int, Any]


def told(batch: Any) -> Told:
    return batch.step, batch.lane, batch.index, batch.empty, rows_of(batch)


def collected(batches: Iterator[Any], most: int, into: list[Told]) -> ZephonError | None:
    """Put up to `most` batches into a list; what stopped them."""
    try:
        for _ in range(most):
            batch = next(batches, None)
            if batch is None:
                break
            into.append(told(batch))
    except ZephonError as error:
        return error
    return None


def in_any_order(recipe: Recipe, topology: Topology, rank: int, seed: int, steps: int) -> tuple[list[Told], ZephonError | None]:
    """What one rank delivers in a run that is stopped, or loses its workers, three times. `steps`: how many the ranks agree on."""
    random = Random(seed)
    found: list[Told] = []
    state = None

    def agree(flag: bool) -> bool:
        # the logical AND over all ranks: with `drop_last` of "my lanes can fill this step", else of "my lanes have nothing left"
        step = found[-1][0] + 1 if found else 0
        if recipe.drop_last:
            assert flag or step >= steps, "this rank has too little for a step that there is"
            return step < steps
        assert flag or step < steps, "this rank has something left after the end"
        return step >= steps

    for part in range(4):
        options = topology.options(rank) | {"runner": "threads"}
        if topology.world > 1:
            options["agree"] = agree
        pipeline = recipe.pipeline(microbatch=topology.microbatch, **options)
        if state is not None:
            quietly(pipeline.restore, state)
        lives = random.choice([None, random.randint(0, 40)]) if part < 3 else None
        run = type("Run", (AnyOrderRun,), {"random": random, "lives": lives})
        with patch("zephon.pipeline.Run", run):
            batches = iter(pipeline)
            error = collected(batches, random.randint(0, 12) if part < 3 else 10**6, found)
        state = json.loads(json.dumps(pipeline.checkpoint()))
        batches.close()  # type: ignore[attr-defined]
        if error is not None and not isinstance(error, RunnerError):
            break
    return found, error


@st.composite
def finite_recipes(draw: st.DrawFn) -> Recipe:
    """More sequences than documents and more tasks than sequences, mostly: lanes hold much that waits, and end at different times."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    lengths = st.lists(st.integers(0, 60), min_size=1, max_size=40).map(tuple)
    data = tuple((name, draw(lengths)) for name in names)
    made = draw(
        recipes(tokenised=True, data=data, weights=(1,) * len(names), passes=draw(st.sampled_from([1, 1, 2])), steps=())
    )
    heavy = FewRows(rows=draw(st.integers(1, 3)))
    steps: list[Operator] = list(draw(step_lists(tokenised=True))) if draw(st.booleans()) else []
    if not any(isinstance(step, PackFlat) for step in steps) and draw(st.integers(0, 4)):
        steps.append(draw(packers(names)))
    steps += draw(st.sampled_from([[Count()], [heavy], [heavy], []]))
    if draw(st.booleans()):
        fragile = Fragile(bad=(draw(st.integers(0, 30)),))
        packed = any(isinstance(step, PackFlat) for step in steps)
        steps.insert(0 if packed else draw(st.sampled_from([0, len(steps)])), fragile)
    return replace(made, steps=tuple(steps))


def check(recipe: Recipe, topology: Topology, seed: int) -> None:
    """All ranks deliver what the recipe gives inline, up to its end or to the error that ends it."""
    want: list[Told] = []
    stopped = collected(iter(recipe.pipeline(runner="inline", microbatch=topology.microbatch)), 10**6, want)
    if stopped is not None:
        topology = replace(topology, world=1)  # with others a rank would go on until they meet the error
    steps = max((step for step, *_ in want), default=-1) + 1
    found = []
    for rank in range(topology.world):
        mine, error = in_any_order(recipe, topology, rank, seed + rank, steps)
        assert (error is None) == (stopped is None), error
        found += mine
    assert sorted((one for one in found if one[1] >= 0), key=lambda one: one[:3]) == want


@pytest.mark.filterwarnings("ignore:not one batch")
@settings(max_examples=examples(50))
@given(data=st.data(), recipe=finite_recipes())
def test_a_run_gets_on_to_its_end_whatever_finishes_first(data: st.DataObject, recipe: Recipe) -> None:
    topology = replace(data.draw(topologies(recipe)), max_bytes=data.draw(st.sampled_from([1, 1000, 4096, 8192, 1 << 30])))
    check(recipe, topology, data.draw(st.integers(0, 2**32)))


WAITING = (PackFlat(max_length=4, pad_token_id=PAD), FewRows(rows=1))
"""A document becomes several sequences, each a task of its own, which waits in its lane while that has enough for a step."""
EVEN = Recipe(
    data=(("a", (8,) * 48),), weights=(1,), tokenised=True, lanes=3, per_step=4, passes=1, window=1, chunk=1, block=None
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            replace(EVEN, per_step=1, drop_last=True, data=(("a", (60, 3, 44, 9, 31, 50) * 2),), steps=WAITING),
            id="tasks wait in a lane when another one ends the run",
        ),
        pytest.param(
            replace(EVEN, steps=(Fragile(bad=(12,)), *WAITING)),
            id="a lane fails within a step, and the next one has nothing yet",
        ),
    ],
)
def test_with_no_room_at_all_a_run_still_gets_on(recipe: Recipe, seed: int) -> None:
    check(recipe, Topology(max_bytes=1), seed)


def test_what_a_lane_gives_before_its_error_does_not_depend_on_what_was_quicker() -> None:
    recipe = replace(EVEN, lanes=2, steps=(Fragile(bad=(30,)), *WAITING))
    for seed in range(12):
        check(recipe, Topology(), seed)

"""Invariant 6: all ranks take the same number of steps, and at the end of a finite run every row has been delivered."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import Encode, Fragile
from strategies import MIXED, PAD, Recipe, Rows, Topology, quietly, recipes, rows_of, to_the_end, topologies
from thoroughness import examples

from zephon import merge_states
from zephon.errors import RecipeError
from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle


class Agreement:
    """An all-reduce over threads: every rank says whether it is done, and hears whether all are."""

    def __init__(self, world: int) -> None:
        self._said = [False] * world
        self._barrier = threading.Barrier(world, timeout=30)
        self.calls = [0] * world

    def of(self, rank: int) -> Any:
        def agree(done: bool) -> bool:
            self.calls[rank] += 1
            self._said[rank] = done
            self._barrier.wait()
            answer = all(self._said)
            self._barrier.wait()
            return answer

        return agree

    def abort(self) -> None:
        self._barrier.abort()


def run_ranks(
    recipe: Recipe,
    topology: Topology,
    *,
    state: Any = None,
    stop_after: int | None = None,
    accounts: list[dict[str, Any]] | None = None,
    **options: Any,
) -> tuple[list[list[tuple[int, int, int, Rows]]], dict[str, Any]]:
    """All ranks at once, in threads, until they agree on the end (or a number of steps): each one's batches; and their state."""
    agreement = Agreement(topology.world)
    found: list[list[tuple[int, int, int, Rows]]] = [[] for _ in range(topology.world)]
    states: list[Any] = [None] * topology.world
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            pipeline = recipe.pipeline(
                microbatch=topology.microbatch, agree=agreement.of(rank), **{**topology.options(rank), **options}
            )
            if state is not None:
                pipeline.restore(state)
            batches = iter(pipeline)
            for _ in range(10**9 if stop_after is None else stop_after * topology.batches_per_step(recipe)):
                batch = next(batches, None)
                if batch is None:
                    break
                found[rank].append((batch.step, batch.lane, batch.index, rows_of(batch)))
            states[rank] = pipeline.checkpoint()
            batches.close()  # type: ignore[attr-defined]
            if accounts is not None:
                accounts.append(pipeline.accounting())
        except BaseException as error:
            errors.append(error)
            agreement.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(topology.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert len(set(agreement.calls)) == 1, "a rank asked more often than another: they would wait for ever"
    return found, merge_states(states)


def global_rows(found: list[list[tuple[int, int, int, Rows]]]) -> list[Rows]:
    made: dict[int, Rows] = {}
    for rank in found:
        for step, _, _, rows in rank:
            made.setdefault(step, []).extend(rows)
    return [made[step] for step in sorted(made)]


@settings(max_examples=examples(18))
@given(data=st.data(), recipe=recipes(passes=1))
def test_ranks_that_agree_end_at_one_step_with_every_row_delivered(data: st.DataObject, recipe: Recipe) -> None:
    want = to_the_end(recipe)
    topology = data.draw(topologies(recipe))
    found, _ = run_ranks(recipe, topology)
    assert global_rows(found) == want
    shapes = {tuple((step, index) for step, _, index, _ in rank) for rank in found}
    assert len(shapes) == 1, "every rank delivers as many microbatches in every step"


@settings(max_examples=examples(20))
@given(data=st.data(), recipe=recipes(passes=1))
def test_ranks_that_resume_on_another_number_still_end_together(data: st.DataObject, recipe: Recipe) -> None:
    want = to_the_end(recipe)
    first, state = run_ranks(recipe, data.draw(topologies(recipe)), stop_after=data.draw(st.integers(0, len(want) + 1)))
    second, state = run_ranks(recipe, data.draw(topologies(recipe)), state=state)
    assert global_rows(first) + global_rows(second) == want
    third, _ = run_ranks(recipe, data.draw(topologies(recipe)), state=state)
    assert global_rows(third) == []


@settings(max_examples=examples(20))
@given(data=st.data(), recipe=recipes(passes=1, drop_last=True))
def test_drop_last_ends_all_ranks_before_the_first_step_that_a_lane_cant_fill(data: st.DataObject, recipe: Recipe) -> None:
    lanes: dict[int, Rows] = {}
    for batch in replace(recipe, drop_last=False).pipeline(runner="inline"):
        lanes.setdefault(batch.lane, []).extend(rows_of(batch))
    full = min(len(lanes.get(lane, [])) for lane in range(recipe.lanes)) // recipe.per_step
    topology = data.draw(topologies(recipe))
    accounts: list[dict[str, Any]] = []
    found, _ = run_ranks(recipe, topology, accounts=accounts)
    n = recipe.per_step
    assert global_rows(found) == [
        [row for lane in range(recipe.lanes) for row in lanes[lane][s * n : s * n + n]] for s in range(full)
    ]
    for rank in found:
        assert all(len(rows) == (topology.microbatch or n) for _, lane, _, rows in rank if lane >= 0)
    if not accounts[0]["rows"]["in"]:
        return
    whole = recipe.pipeline(runner="inline")
    list(whole)
    for kind in ("rows", "tokens"):  # every row is delivered or counted, the same on any number of ranks
        assert all(one[kind]["in_flight"] == 0 for one in accounts)
        for name in ("in", "out"):
            assert sum(one[kind][name] for one in accounts) == whole.accounting()[kind][name]
        dropped: Counter[str] = Counter()
        for one in accounts:
            dropped.update(one[kind]["dropped"])
        assert dropped == Counter(whole.accounting()[kind]["dropped"])


@settings(max_examples=examples(20))
@given(data=st.data(), recipe=recipes())
def test_max_steps_means_exactly_so_many_steps_also_after_a_resume(data: st.DataObject, recipe: Recipe) -> None:
    topology = data.draw(topologies(recipe))
    steps = data.draw(st.integers(1, 5))
    state = None
    for cut in (data.draw(st.integers(0, steps)), steps):
        states = []
        for rank in range(topology.world):
            pipeline = recipe.pipeline(microbatch=topology.microbatch, max_steps=steps, **topology.options(rank))
            if state is not None:
                quietly(pipeline.restore, state)
            count = (steps if state else cut) * topology.batches_per_step(recipe)
            batches = [b for _, b in zip(range(count), pipeline, strict=False)]
            states.append(pipeline.checkpoint())
            begin = 0 if state is None else states_step(state, recipe)
            assert Counter(b.step for b in batches) == {
                s: topology.batches_per_step(recipe) for s in range(begin, cut if state is None else steps)
            }
        state = merge_states(states)


def states_step(state: dict[str, Any], recipe: Recipe) -> int:
    return min(values[2] for values in state["lanes"].values()) // recipe.per_step


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_hundred_documents_on_four_ranks(workers: int, drop_last: bool) -> None:
    recipe = Recipe(
        data=(("docs", tuple(10 + i % 10 for i in range(100))),),
        weights=(1,),
        tokenised=True,
        steps=(PackFlat(max_length=10, pad_token_id=PAD),),
        lanes=4,
        per_step=2,
        passes=1,
        drop_last=drop_last,
    )
    found, _ = run_ranks(recipe, Topology(world=4, runner="threads", workers=workers))
    assert len({len(rank) for rank in found}) == 1
    if not drop_last:
        tokens = Counter(t for rank in found for *_, rows in rank for row in rows for t in row["input_ids"] if t != PAD)
        assert sum(tokens.values()) == sum(10 + i % 10 for i in range(100))
        assert set(tokens.values()) == {1}


def test_bad_rows_in_one_lane_do_not_change_the_number_of_steps_of_any_rank() -> None:
    recipe = Recipe(
        data=(("a", (9,) * 64),),
        weights=(1,),
        steps=(Encode(), PackFlat(max_length=16, pad_token_id=PAD), Shuffle()),
        lanes=8,
        per_step=1,
        passes=1,
    )
    lane_0 = {r["_document_row"][0] for b in recipe.pipeline(runner="inline") if b.lane == 0 for r in rows_of(b)}
    bad = replace(recipe, steps=(Fragile(bad=tuple(sorted(lane_0))[:5]), *recipe.steps))
    found, _ = run_ranks(bad, Topology(world=4), on_error="skip")
    assert len({len(rank) for rank in found}) == 1
    good, _ = run_ranks(recipe, Topology(world=4))
    for lane in range(1, 8):
        streams = [[row for rank in run for _, at, _, rows in rank for row in rows if at == lane] for run in (good, found)]
        assert streams[0] == streams[1]


def test_a_finite_run_on_several_ranks_needs_to_know_how_it_ends() -> None:
    finite = replace(MIXED, passes=1)
    with pytest.raises(RecipeError, match="max_steps=.*agree="):
        next(iter(finite.pipeline(dp_rank=0, dp_size=2, runner="inline")))
    endless = MIXED.pipeline(dp_rank=0, dp_size=2, runner="inline")
    batches = iter(endless)
    next(batches)
    batches.close()  # type: ignore[attr-defined]


def test_after_its_end_a_run_with_max_steps_goes_on_with_empty_sequences() -> None:
    recipe = replace(MIXED, passes=1)
    ended = len(to_the_end(recipe))
    pipeline = recipe.pipeline(runner="threads", max_steps=ended + 2)
    batches = list(pipeline)
    assert {b.step for b in batches} == set(range(ended + 2))
    for batch in batches[-2 * recipe.lanes :]:
        assert batch.empty == len(batch) == recipe.per_step
        assert batch.to_training(dtype=None)["num_label_tokens"] == 0

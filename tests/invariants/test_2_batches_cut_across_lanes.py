"""Invariant 2: a global batch is cut across lanes, so it is the same for every world size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MIXED, Recipe, Topology, drive, flatten, lane_streams, recipes, reference, rows_of, topologies
from thoroughness import examples

from zephon.batch import global_sha256
from zephon.errors import RecipeError

STEPS = 4


@settings(max_examples=examples(18))  # the same with resumes in between: `test_three_resumes_on_other_topologies_equal_none`
@given(data=st.data(), recipe=recipes())
def test_the_global_stream_is_identical_on_every_topology(data: st.DataObject, recipe: Recipe) -> None:
    want, _ = reference(recipe, STEPS)
    for _ in range(2):
        topology = data.draw(topologies(recipe))
        found = drive(recipe, topology, steps=STEPS, max_steps=STEPS)
        assert sorted(found.steps) == list(range(STEPS))
        assert [found.steps[s] for s in range(STEPS)] == want


@settings(max_examples=examples(18))
@given(recipe=recipes(drop_last=False))
def test_a_step_is_lane_after_lane_each_lanes_next_sequences(recipe: Recipe) -> None:
    lanes, _ = lane_streams(recipe, Topology(microbatch=1), STEPS)
    n = recipe.per_step
    want = [[row for lane in range(recipe.lanes) for row in lanes.get(lane, [])[s * n : (s + 1) * n]] for s in range(STEPS)]
    assert reference(recipe, STEPS)[0] == want


@settings(max_examples=examples(20))
@given(data=st.data(), recipe=recipes())
def test_a_microbatch_never_mixes_lanes_and_comes_in_order(data: st.DataObject, recipe: Recipe) -> None:
    topology = data.draw(topologies(recipe))
    size = topology.microbatch or recipe.per_step
    for rank in range(topology.world):
        pipeline = recipe.pipeline(microbatch=topology.microbatch, max_steps=STEPS, **topology.options(rank))
        batches = list(pipeline)
        owned = [
            lane
            for lane in range(recipe.lanes)
            if rank * recipe.lanes // topology.world <= lane < (rank + 1) * recipe.lanes // topology.world
        ]
        owned += [-1] * (-(-recipe.lanes // topology.world) - len(owned))
        want = [(s, lane, i) for s in range(STEPS) for lane in owned for i in range(recipe.per_step // size)]
        assert [(b.step, b.lane, b.index) for b in batches] == want
        for batch in batches:
            assert batch.lane_ids == [batch.lane] * len(batch)
            if recipe.packed:
                assert len(batch) == size or (batch.lane == -1 and not len(batch))


@settings(max_examples=examples(20))
@given(recipe=recipes(passes=None, exhausted=None))
def test_an_endless_run_fills_every_microbatch(recipe: Recipe) -> None:
    if recipe.passes is not None:
        return  # nothing survives its filters
    for batch in recipe.pipeline(runner="inline", microbatch=1, max_steps=STEPS):
        assert (len(batch), batch.empty) == (1, 0)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("microbatch", [1, 2])
def test_the_sha256_of_a_global_batch_is_the_same_for_every_world_size(world: int, microbatch: int) -> None:
    def hashes(topology: Topology) -> list[str]:
        ranks = [
            list(MIXED.pipeline(microbatch=topology.microbatch, max_steps=5, **topology.options(rank)))
            for rank in range(topology.world)
        ]
        return [global_sha256(b for batches in ranks for b in batches if b.step == s) for s in range(5)]

    found = hashes(Topology(world=world, microbatch=microbatch, runner="threads"))
    assert found == hashes(Topology())
    assert len(set(found)) == 5


@pytest.mark.parametrize("world", [1, 2, 3, 5, 6, 7, 8])
def test_any_number_of_ranks_up_to_the_lanes_gives_the_same_batches_with_padding(world: int) -> None:
    recipe = replace(MIXED, lanes=8)
    want, _ = reference(recipe, 5)
    found = drive(recipe, Topology(world=world, pad=True, microbatch=1), steps=5, max_steps=5)
    assert [found.steps[s] for s in range(5)] == want


def test_padding_trains_on_nothing_and_is_no_data() -> None:
    recipe = replace(MIXED, lanes=3)
    pipeline = recipe.pipeline(dp_rank=0, dp_size=2, uneven_lanes="pad", runner="inline", max_steps=3)
    batches = list(pipeline)
    assert [b.lane for b in batches] == [0, -1] * 3
    for batch in batches[1::2]:
        assert batch.empty == len(batch) == 2
        assert rows_of(batch) == []
        made = batch.to_training(dtype=None)
        assert made["num_label_tokens"] == 0
        assert not any(flatten(made["loss_mask"]))
        assert global_sha256([batch]) == global_sha256([])
    assert pipeline.accounting()["sequences"] == 6


def test_lanes_that_do_not_divide_are_refused_with_the_divisors() -> None:
    for size in (4, 5, 8):
        with pytest.raises(RecipeError, match=r"12 lanes work on 1, 2, 3, 4, 6, 12 ranks|don't divide") as caught:
            list(replace(MIXED, lanes=12).pipeline(dp_rank=0, dp_size=size if size != 4 else 7, max_steps=1))
        assert "pad" in str(caught.value)
    with pytest.raises(RecipeError, match="can't feed 5 ranks"):
        list(replace(MIXED, lanes=4).pipeline(dp_rank=0, dp_size=5, uneven_lanes="pad", max_steps=1))


@pytest.mark.parametrize("half", [{"dp_rank": 1}, {"dp_size": 2}])
def test_a_rank_without_a_number_or_without_a_count_is_refused(half: dict[str, int]) -> None:
    pipeline = replace(MIXED, lanes=4).pipeline(runner="inline", max_steps=1, **half)
    for use in (lambda: next(iter(pipeline)), pipeline.checkpoint):
        with pytest.raises(RecipeError, match="dp_rank is .* and dp_size is"):
            use()
    pipeline.options(dp_rank=1, dp_size=2)  # calls accumulate
    assert [batch.lane for batch in pipeline] == [2, 3]


def test_a_global_batch_that_does_not_divide_is_refused() -> None:
    pipeline = MIXED.pipeline()
    with pytest.raises(RecipeError, match="does not divide by 4 lanes"):
        pipeline.batch(1, 6).recipe()
    with pytest.raises(RecipeError, match="don't divide into microbatches of 2"):
        pipeline.batch(2, 12).recipe()
    for size in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="whole number"):
            pipeline.batch(size)  # type: ignore[arg-type]

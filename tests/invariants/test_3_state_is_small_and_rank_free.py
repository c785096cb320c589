"""Invariant 3: a checkpoint is small, plain and rank-free, and three restores in a row equal none."""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import Encode, Suffix
from strategies import (
    MIXED,
    PAD,
    Driven,
    Recipe,
    Topology,
    drive,
    quietly,
    recipes,
    reference,
    rows_of,
    token_table,
    topologies,
)
from thoroughness import examples

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation, merge_states
from zephon.dataset import MemoryShards
from zephon.engine.state import LaneState
from zephon.errors import CheckpointError, LaneCountError
from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle

STEPS = 6
PACKED = Recipe(
    data=(("a", (7, 3, 12, 5, 9, 1, 4, 8) * 4), ("b", (20, 2, 6) * 4)),
    weights=(2, 1),
    tokenised=True,
    steps=(PackFlat(max_length=10, pad_token_id=PAD), Shuffle(buffer_size=3)),
    lanes=4,
    per_step=2,
)


# ------------------------------------------------------------------------------------------------- resuming


@settings(max_examples=examples(36))
@given(data=st.data(), recipe=recipes())
def test_three_resumes_on_other_topologies_equal_none(data: st.DataObject, recipe: Recipe) -> None:
    want, _ = reference(recipe, STEPS)
    found: dict[int, Any] = {}
    state: dict[str, Any] | None = None
    left = STEPS
    for number in range(4):
        steps = left if number == 3 else data.draw(st.integers(0, left), label="steps before the cut")
        part: Driven = drive(recipe, data.draw(topologies(recipe)), steps=steps, state=state, max_steps=STEPS)
        assert not set(found) & set(part.steps), "a step came twice"
        found |= part.steps
        state, left = part.state, left - steps
    assert [found.get(s) for s in range(STEPS)] == want


@settings(max_examples=examples(36))
@given(data=st.data(), recipe=recipes())
def test_three_resumes_at_any_batch_of_the_same_topology_equal_none(data: st.DataObject, recipe: Recipe) -> None:
    topology = data.draw(topologies(recipe))
    rank = data.draw(st.integers(0, topology.world - 1))

    def fresh() -> Pipeline:
        return recipe.pipeline(microbatch=topology.microbatch, max_steps=STEPS, **topology.options(rank))

    def told(batch: Any) -> Any:
        return batch.step, batch.lane, batch.index, batch.empty, batch.group.to_pylist()

    want = [told(b) for b in fresh()]
    found: list[Any] = []
    state: dict[str, Any] | None = None
    for _ in range(3):
        pipeline = fresh()
        if state is not None:
            quietly(pipeline.restore, state)
            assert pipeline.checkpoint() == state, "straight after a restore"
        batches = iter(pipeline)
        for _ in range(data.draw(st.integers(0, len(want) + 1), label="batches before the cut")):
            batch = next(batches, None)
            found += [] if batch is None else [told(batch)]
        state = json.loads(json.dumps(pipeline.checkpoint()))
        batches.close()  # type: ignore[attr-defined]
    last = fresh()
    quietly(last.restore, state)
    found += [told(b) for b in last]
    assert found == want


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_resume_inside_a_step_leaves_out_what_drop_last_left_out(lanes: int) -> None:
    """`max_steps` goes beyond the data: a lane with too few sequences for a step gives empty ones, also after a resume between two."""
    pack = PackFlat(max_length=1, algorithm="wrap", pad_token_id=0)
    recipe = replace(PACKED, data=(("a", (1,) * 10),), weights=(1,), steps=(pack,), lanes=lanes, per_step=3)
    recipe = replace(recipe, chunk=1, window=1, passes=1, drop_last=True)

    def fresh() -> Pipeline:
        return recipe.pipeline(microbatch=1, max_steps=6, runner="inline")

    def told(batch: Any) -> Any:
        return batch.step, batch.lane, batch.index, batch.empty, batch.group.to_pylist()

    want = [told(b) for b in fresh()]
    assert {rows for _, _, _, rows, _ in want} == {0, 1}, "some sequences are real and some are empty"
    for cut in range(len(want) + 1):
        first = fresh()
        batches = iter(first)
        found = [told(next(batches)) for _ in range(cut)]
        last = fresh()
        quietly(last.restore, json.loads(json.dumps(first.checkpoint())))
        batches.close()  # type: ignore[attr-defined]
        assert found + [told(b) for b in last] == want, cut


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resume_inside_a_step_delivers_the_padding_that_was_still_due(rank: int) -> None:
    # 3 lanes on 2 ranks: rank 0 has lane 0 and a padding lane, whose microbatches come last in each step
    recipe = replace(MIXED, lanes=3, per_step=2)

    def fresh(at: int = rank, **options: Any) -> Pipeline:
        settings = {"uneven_lanes": "pad", "runner": "inline", "max_steps": 3, "dp_rank": at, "dp_size": 2} | options
        return recipe.pipeline(microbatch=1, **settings)

    def told(batch: Any) -> Any:
        return batch.step, batch.lane, batch.index, batch.empty, rows_of(batch)

    want = [told(b) for b in fresh()]
    assert len(want) == 12
    for cut in range(13):
        states = []
        for at in (0, 1):
            first = fresh(at)
            batches = iter(first)
            for _ in range(cut):
                next(batches)
            states.append(json.loads(json.dumps(first.state_dict())))
        own, merged = states[rank], merge_states(states)
        assert merge_states([merged, own]) == merged
        for state in (own, merged):
            second = fresh()
            quietly(second.load_state_dict, state)
            assert second.state_dict()["lanes"] == own["lanes"]
            if state is own:
                assert second.state_dict() == own
            assert [told(b) for b in second] == want[cut:]


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_resume_inside_the_last_step_still_ends_that_step(drop_last: bool) -> None:
    # lane 0 has a sequence more than the others: in the last step they have nothing, and still deliver their microbatches
    recipe = Recipe(
        data=(("a", (3,) * 13),), weights=(1,), lanes=3, per_step=2, chunk=2, block=2, passes=1, drop_last=drop_last
    )
    want = [(b.step, b.lane, b.index, rows_of(b)) for b in recipe.pipeline(runner="inline", microbatch=1)]
    assert drop_last or want[-1][3] == []
    for cut in range(len(want) + 1):
        first = recipe.pipeline(runner="threads", microbatch=1)
        batches = iter(first)
        for _ in range(cut):
            next(batches)
        second = recipe.pipeline(runner="inline", microbatch=1)
        quietly(second.restore, first.checkpoint())
        batches.close()  # type: ignore[attr-defined]
        assert [(b.step, b.lane, b.index, rows_of(b)) for b in second] == want[cut:]


def test_worker_processes_resume_too() -> None:
    want, _ = reference(MIXED, 6)
    first = drive(MIXED, Topology(runner="processes", world=2), steps=2, max_steps=6)
    second = drive(MIXED, Topology(runner="processes", microbatch=1), steps=1, state=first.state, max_steps=6)
    third = drive(MIXED, Topology(world=4), steps=3, state=second.state, max_steps=6)
    found = first.steps | second.steps | third.steps
    assert [found[s] for s in range(6)] == want


def test_the_offset_of_a_resume_is_used_up_by_the_first_pass() -> None:
    recipe = Recipe(data=(("a", tuple(range(100))),), weights=(1,), lanes=4, per_step=1, passes=3, exhausted="redistribute")
    first = drive(recipe, Topology(), steps=20, max_steps=80)
    second = drive(recipe, Topology(world=2), steps=100, state=first.state, max_steps=80)
    rows = [row for part in (first, second) for rows in part.steps.values() for row in rows]
    for turn in range(3):
        assert sorted(row["id"] for row in rows if row["_pass"] == turn) == list(range(100))


@pytest.mark.parametrize("taken", [7, 8, 14])
def test_a_state_at_or_near_the_border_of_a_pass_goes_on(taken: int) -> None:
    recipe = Recipe(data=(("a", (5,) * 7),), weights=(1,), lanes=1, per_step=1, chunk=2, window=3, block=7)
    want = [row for rows in reference(recipe, 28)[0] for row in rows]
    assert [sorted(r["id"] for r in want[i : i + 7]) for i in (0, 7, 14, 21)] == [list(range(7))] * 4
    first = drive(recipe, Topology(), steps=taken, max_steps=28)
    second = drive(recipe, Topology(), steps=28, state=first.state, max_steps=28)
    assert [row for part in (first, second) for s in sorted(part.steps) for row in part.steps[s]] == want


# ------------------------------------------------------------------------------------------- form and size


def test_state_is_valid_at_any_moment_and_loads_as_itself() -> None:
    pipeline = PACKED.pipeline(runner="threads", max_steps=5)
    moments = [pipeline.checkpoint()]
    batches = iter(pipeline)
    moments.append(pipeline.checkpoint())
    moments.extend(pipeline.checkpoint() for _ in batches)
    moments.append(pipeline.checkpoint())
    assert moments[0] == moments[1]
    assert moments[-1] == moments[-2]
    totals = [sum(values[2] for values in m["lanes"].values()) for m in moments[1:-1]]
    assert totals == [2 * i for i in range(len(totals))], "a state is that of the batches delivered, not of those prefetched"
    for moment in moments:
        other = PACKED.pipeline(runner="inline", max_steps=5)
        quietly(other.load_state_dict, moment)
        assert other.state_dict() == moment
        iter(other)
        assert other.state_dict() == moment


def test_state_survives_json_and_torch_load_of_weights_only() -> None:
    pipeline = PACKED.pipeline(runner="inline", max_steps=3)
    list(pipeline)
    state = pipeline.checkpoint()
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state

    def check(value: Any) -> None:
        assert type(value) in (dict, list, int, float, str, bytes, bool, type(None)), type(value)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    check(state)


def test_a_lane_takes_less_than_200_bytes_of_json() -> None:
    far = LaneState(window=10**9, delivered=10**7, total=10**15, digest=2**64 - 1, window_digest=2**64 - 1)
    assert len(json.dumps({"123456": far.pack()})) < 200
    few, many = (replace(PACKED, lanes=n).pipeline(runner="inline").checkpoint() for n in (1, 1025))
    assert (len(json.dumps(many)) - len(json.dumps(few))) / 1024 < 200


def test_states_of_different_ranks_merge_by_key_in_any_order() -> None:
    states = []
    for rank in range(4):
        pipeline = PACKED.pipeline(dp_rank=rank, dp_size=4, runner="inline", max_steps=3)
        list(pipeline)
        states.append(pipeline.checkpoint())
    whole = PACKED.pipeline(runner="inline", max_steps=3)
    list(whole)
    merged = merge_states(states)
    assert merged == merge_states(states[::-1]) == merge_states([merged, *states]) == whole.checkpoint()
    start = PACKED.pipeline(runner="inline").checkpoint()
    assert merge_states([start, merged]) == merge_states([merged, start]) == merged, "the one that is further on wins"


def test_a_rank_that_misses_lanes_says_which_and_how_to_help() -> None:
    alone = PACKED.pipeline(dp_rank=1, dp_size=4, runner="inline").checkpoint()
    with pytest.raises(CheckpointError, match=r"knows lanes \[1\], this rank owns lane 0.*\n.*merge_states"):
        PACKED.pipeline(runner="inline").restore(alone)
    PACKED.pipeline(dp_rank=1, dp_size=4, runner="inline").restore(alone)


def test_a_lane_that_the_recipe_does_not_have_is_damage() -> None:
    state = PACKED.pipeline(runner="inline").checkpoint()
    state["lanes"]["4"] = state["lanes"]["3"]
    with pytest.raises(CheckpointError, match="damaged: it has a lane 4, and its recipe has 4 lanes"):
        PACKED.pipeline(runner="inline").restore(state)


def test_microbatch_and_accumulation_may_change_at_a_resume() -> None:
    recipe = replace(PACKED, per_step=6)
    want, _ = reference(recipe, 6)
    found: dict[int, Any] = {}
    state = None
    for microbatch in (6, 1, 3, 2):
        part = drive(recipe, Topology(microbatch=microbatch, world=2), steps=2, state=state, max_steps=6)
        found |= part.steps
        state = part.state
    assert [found[s] for s in range(6)] == want


# ----------------------------------------------------------------------------------------------- refusals


def test_another_lane_count_is_refused_with_both_numbers() -> None:
    state = PACKED.pipeline(runner="inline").checkpoint()
    with pytest.raises(LaneCountError, match=r"saved with 4 lanes, this pipeline has 8.*\n.*lanes=4") as caught:
        replace(PACKED, lanes=8).pipeline(runner="inline").restore(state)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, ValueError)


OTHERS: dict[str, tuple[Recipe, str]] = {
    "seed": (replace(PACKED, seed=1), "source seed 0 → 1"),
    "weights": (replace(PACKED, weights=(1, 1)), "mixture 0 weights a 2.0 → 1.0"),
    "chunk_size": (replace(PACKED, chunk=4), "source chunk_size 3 → 4"),
    "window": (replace(PACKED, window=5), "flush_every_chunks 2 → 5"),
    "sequences per step": (replace(PACKED, per_step=4), "sequences_per_lane_and_step 2 → 4"),
    "drop_last": (replace(PACKED, drop_last=True), "drop_last false → true"),
    "passes": (replace(PACKED, passes=2), "stop_after_passes null → 2"),
    "an operator's setting": (
        replace(PACKED, steps=(PackFlat(max_length=11, pad_token_id=PAD), Shuffle(buffer_size=3))),
        "'pack_flat' max_length 10 → 11",
    ),
    "an operator less": (replace(PACKED, steps=PACKED.steps[:1]), "operator 1 is gone (was 'shuffle')"),
    "another operator": (replace(PACKED, steps=(*PACKED.steps, Shuffle())), "operator 2 is new: 'shuffle'"),
    "the data": (replace(PACKED, data=(PACKED.data[0], ("b", (20, 2, 6) * 5))), "dataset 1 'b' rows 12 → 15"),
    "a data set's name": (replace(PACKED, data=(PACKED.data[0], ("c", PACKED.data[1][1]))), '"b" → "c"'),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_another_recipe_is_refused_with_the_difference_in_words(other: tuple[Recipe, str]) -> None:
    state = json.loads(json.dumps(PACKED.pipeline(runner="inline").checkpoint()))
    with pytest.raises(CheckpointError) as caught:
        other[0].pipeline(runner="inline").restore(state)
    assert other[1] in str(caught.value)


def rubbish() -> dict[str, Any]:
    good = PACKED.pipeline(runner="inline").checkpoint()
    lanes = good["lanes"]
    return {
        "None": None,
        "a number": 5,
        "a word": "state",
        "a list": [],
        "empty": {},
        "half": {"lanes": {}},
        "of somebody else": {"epoch": 3, "lanes": {"0": 1}},
        "lanes is a list": {**good, "lanes": [1, 2]},
        "a lane is short": {**good, "lanes": {**lanes, "1": [1, 2]}},
        "a lane is a word": {**good, "lanes": {**lanes, "1": "abcde"}},
        "a lane is negative": {**good, "lanes": {**lanes, "1": [-1, 0, 0, "0", "0"]}},
        "more delivered than in all": {**good, "lanes": {**lanes, "1": [0, 5, 3, "0", "0"]}},
        "a digest that is none": {**good, "lanes": {**lanes, "1": [0, 0, 0, "xyz", "0"]}},
        "odd tasks without end": {**good, "lanes": {**lanes, "1": [0, 5, 5, "0", "0", 0, 7]}},
        "an odd task alone": {**good, "lanes": {**lanes, "1": [0, 5, 5, "0", "0", 0, [7]]}},
        "an odd task is a word": {**good, "lanes": {**lanes, "1": [0, 5, 5, "0", "0", 0, [["7", 1]]]}},
        "an odd task is negative": {**good, "lanes": {**lanes, "1": [0, 5, 5, "0", "0", 0, [[7, -1]]]}},
        "a lane is long": {**good, "lanes": {**lanes, "1": [0, 5, 5, "0", "0", 0, [], 1]}},
        "a lane without number": {**good, "lanes": {**lanes, "one": [0, 0, 0, "0", "0"]}},
        "recipe is a word": {**good, "recipe": "mine"},
        "another format": {**good, "format": 99},
        "another stream version": {**good, "stream_version": 0},
    }


@pytest.mark.parametrize("name", list(rubbish()))
def test_rubbish_is_refused_before_iteration(name: str) -> None:
    pipeline = PACKED.pipeline(runner="inline", max_steps=1)
    want = pipeline.checkpoint()
    with pytest.raises(ValueError, match=r"state|lane"):
        pipeline.restore(rubbish()[name])
    assert pipeline.checkpoint() == want, "a refused state leaves the pipeline as it was"
    assert len(list(pipeline)) == 4


def test_a_state_from_inside_a_step_warns_and_one_from_between_steps_does_not() -> None:
    pipeline = PACKED.pipeline(runner="inline", max_steps=3)
    batches = iter(pipeline)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            next(batches)
        PACKED.pipeline(runner="inline").restore(pipeline.checkpoint())
    next(batches)
    with pytest.warns(UserWarning, match="mid-window"):
        PACKED.pipeline(runner="inline").restore(pipeline.checkpoint())
    batches.close()  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------- the data have changed


class Claimed(MemoryShards):
    """Shards that say that they are the same whatever they hold, like a file rewritten with its old size and name."""

    def _content(self, table: pa.Table) -> str:
        return "as ever"


def claimed(recipe: Recipe, change: int) -> list[Dataset]:
    made = []
    for name, lengths in recipe.data:
        table = token_table(name, lengths)
        tokens = table.column("input_ids").combine_chunks()
        values = tokens.values.to_numpy(zero_copy_only=False) + change
        table = table.set_column(1, "input_ids", pa.ListArray.from_arrays(tokens.offsets, pa.array(values, pa.int32())))
        made.append(Dataset(name, Claimed({"only": table})))
    return made


STEP_LISTS: dict[str, tuple[Any, ...]] = {
    "nothing": (),
    "shuffle": (Shuffle(buffer_size=3),),
    "wrap": (PackFlat(max_length=10, pad_token_id=PAD),),
    "best_fit, shuffle": (PackFlat(max_length=10, pad_token_id=PAD, algorithm="best_fit", num_bins=3), Shuffle()),
}


@pytest.mark.parametrize("steps", STEP_LISTS.values(), ids=STEP_LISTS.keys())
@pytest.mark.parametrize("taken", [1, 2, 7])
def test_changed_data_of_the_same_size_is_noticed_by_the_digest(steps: tuple[Any, ...], taken: int) -> None:
    recipe = replace(PACKED, steps=steps, window=4, per_step=1)
    first = recipe.pipeline(datasets=claimed(recipe, 0), runner="inline")
    batches = iter(first)
    for _ in range(taken * recipe.lanes):
        next(batches)
    state = first.checkpoint()
    batches.close()  # type: ignore[attr-defined]
    assert any(values[1] for values in state["lanes"].values()), "the cut is inside a window"

    same = recipe.pipeline(datasets=claimed(recipe, 0), runner="inline", max_steps=20)
    same.restore(state)
    assert list(same)
    changed = recipe.pipeline(datasets=claimed(recipe, 1), runner="inline", max_steps=20)
    changed.restore(state)
    with pytest.raises(CheckpointError, match=r"does not replay as it was|the state says"):
        list(changed)


def test_fewer_sequences_in_a_window_than_were_delivered_are_noticed() -> None:
    recipe = replace(PACKED, steps=(), window=2, chunk=3, per_step=1, lanes=1)
    first = recipe.pipeline(runner="inline")
    batches = iter(first)
    for _ in range(5):
        next(batches)
    state = first.checkpoint()
    batches.close()  # type: ignore[attr-defined]
    state["lanes"]["0"][1] = state["lanes"]["0"][2] = 50
    pipeline = recipe.pipeline(runner="inline")
    pipeline.restore(state)
    with pytest.raises(CheckpointError, match="the state says 50"):
        next(iter(pipeline))


# ------------------------------------------------------------------------------------------ token estimation


def test_a_restored_run_does_not_sample_tokens_again() -> None:
    calls: list[int] = []

    def count(row: dict[str, Any]) -> int:
        calls.append(1)
        return len(row["text"])

    def fresh() -> Pipeline:
        made = [Dataset.from_records(n, [{"text": n * size} for _ in range(30)]) for n, size in (("a", 4), ("b", 12))]
        source = StaticMixtureWorkSource(
            made, {"a": 0.5, "b": 0.5}, token_estimation=TokenEstimation(measure=count), chunk_size=5
        )
        pipeline = Pipeline(source).then(Suffix(text="!")).then(Encode()).then(PackFlat(max_length=8, pad_token_id=PAD))
        return pipeline.batch(1).options(lanes=2, runner="inline", max_steps=10)

    pipeline = fresh()
    assert pipeline.ws.requires_token_priming
    assert not calls, "building samples nothing"
    batches = iter(pipeline)
    want = [rows_of(next(batches)) for _ in range(8)]
    assert not pipeline.ws.requires_token_priming
    sampled = len(calls)
    assert sampled == 60
    state = json.loads(json.dumps(pipeline.checkpoint()))
    want += [rows_of(b) for b in batches]
    resumed = fresh()
    resumed.restore(state)
    assert [rows_of(b) for b in resumed] == want[8:]
    assert len(calls) == sampled
    assert pipeline.ws.tokens_per_record == {"a": 4.0, "b": 12.0}

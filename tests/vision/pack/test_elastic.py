"""`pack_multimodal` in the engine: the same batches on every number of ranks, with every runner, after every resume."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Recipe, Topology, drive, quietly, reference, topologies
from thoroughness import examples
from vision.pack.decoding import DECODED, MakeUpPixels
from vision.pack.interleaved import PAD, documents, table

from zephon import Dataset, groups
from zephon.operators.shuffle import Shuffle
from zephon_vision import columns
from zephon_vision.pack_multimodal import PackMultimodal

STEPS = 4


@cache
def made_up(number: int, size: int) -> pa.Table:
    return table(documents(size, seed=number, first=1000 * number))


@cache
def expected(name: str) -> list[list[dict[str, Any]]]:
    return reference(RECIPES[name], STEPS)[0]


@dataclass(frozen=True)
class VisionRecipe(Recipe):
    """Data sets of made-up interleaved documents; `data` names them with their sizes."""

    def datasets(self) -> list[Dataset]:
        return [Dataset.from_records(name, made_up(number, sizes[0])) for number, (name, sizes) in enumerate(self.data)]

    @property
    def packed(self) -> bool:
        return True


def recipe(**packing: Any) -> VisionRecipe:
    return VisionRecipe(
        data=(("a", (60,)), ("b", (25,))),
        weights=(2, 1),
        steps=(
            PackMultimodal(**{"max_length": 220, "max_patches": 900, "open_bins": 3, "pad_token_id": PAD, **packing}),
            Shuffle(buffer_size=4),
            MakeUpPixels(),
        ),
        lanes=4,
        per_step=2,
        chunk=7,
        window=3,
        seed=5,
    )


RECIPES = {
    "both budgets": recipe(),
    "old bins are closed": recipe(max_age=6, max_images=4),
    "an image in each": recipe(ensure_image=True, max_waiting=0),
    "not packed": recipe(packing=None),
    "to an end": replace(recipe(), passes=1),
}


@settings(max_examples=examples(3))
@pytest.mark.parametrize("name", RECIPES)
@given(data=st.data())
def test_the_global_stream_is_identical_on_every_topology(name: str, data: st.DataObject) -> None:
    made = RECIPES[name]
    want = expected(name)
    assert any(row[columns.IMAGES] for rows in want for row in rows)
    topology = data.draw(topologies(made))
    found = drive(made, topology, steps=STEPS, max_steps=STEPS)
    assert [found.steps.get(s, []) for s in range(STEPS)] == want


@settings(max_examples=examples(3))
@pytest.mark.parametrize("name", ["both budgets", "an image in each"])
@given(data=st.data())
def test_a_resume_on_another_number_of_ranks_goes_on_exactly(name: str, data: st.DataObject) -> None:
    made = RECIPES[name]
    want = expected(name)
    cut = data.draw(st.integers(1, STEPS - 1))
    first = drive(made, data.draw(topologies(made)), steps=cut, max_steps=STEPS)
    second = quietly(drive, made, data.draw(topologies(made)), steps=STEPS - cut, state=first.state, max_steps=STEPS)
    assert [{**first.steps, **second.steps}[s] for s in range(STEPS)] == want


def test_a_restore_decodes_no_image_that_was_delivered_before() -> None:
    made = replace(RECIPES["both budgets"], passes=1, window=20)
    whole = drive(made, Topology(), steps=100)
    cut = len(whole.steps) // 2
    first = drive(made, Topology(), steps=cut)
    before = DECODED[0]
    second = drive(made, Topology(), steps=100, state=first.state)
    images = sum(len(row[columns.IMAGES]) for rows in second.steps.values() for row in rows)
    assert DECODED[0] - before == images > 0
    assert {**first.steps, **second.steps} == whole.steps


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_workers_give_what_one_thread_gives(runner: str) -> None:
    made = RECIPES["both budgets"]
    want = expected("both budgets")
    found = drive(made, Topology(runner=runner), steps=STEPS, max_steps=STEPS)
    assert [found.steps[s] for s in range(STEPS)] == want


@pytest.mark.parametrize("name", ["to an end", "an image in each"])
def test_every_row_and_token_is_accounted_for(name: str) -> None:
    pipeline = replace(RECIPES[name], passes=1).pipeline()
    seen = sum(len(row) for batch in pipeline for row in batch.group.column(groups.DOC_ROW).to_pylist())
    account = pipeline.accounting()
    for side in ("rows", "tokens"):
        assert account[side]["in_flight"] == 0
    assert account["rows"]["out"] == seen == account["rows"]["in"] - sum(account["rows"]["dropped"].values())
    assert ("pack_multimodal: no image" in account["rows"]["dropped"]) == (name == "an image in each")


def test_image_tokens_are_those_of_the_plans_in_every_batch() -> None:
    pipeline = replace(RECIPES["to an end"], lanes=2).pipeline()
    for batch in pipeline:
        fields = batch.to_training(dtype=None)
        plans = [p["numbers"] for row in batch.group.column(columns.IMAGE_PLANS).to_pylist() for p in row]
        grids = fields.get("image_grid_thw", [])
        assert [g[0] * g[1] * g[2] for g in grids] == [n[2] for n in plans]
        image_tokens = sum(t == 2 for row in fields["input_ids"] for t in row)
        assert image_tokens == sum(n[3] - 2 for n in plans) == sum(t for row in fields["mm_token_type_ids"] for t in row)
        assert image_tokens * 4 == len(fields.get("pixel_values", ()))

"""Pairs of image and text for contrastive training, through the engine: the same on every number of ranks, with every runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Recipe, Topology, drive, quietly, reference, topologies
from thoroughness import examples
from tokenizers import Tokenizer, models
from vision.pictures import exif, jpeg, scene

from zephon import Dataset
from zephon.operators.shuffle import Shuffle
from zephon.operators.tokenize import Tokenize
from zephon_vision import columns
from zephon_vision.augment import ColorJitter, Flip, Normalize, RandomResizedCrop
from zephon_vision.decode_images import DecodeImages
from zephon_vision.policies.clip import Siglip
from zephon_vision.probe_images import ProbeImages

STEPS = 4
WORDS = Tokenizer(models.WordLevel({"picture": 0, "<unk>": 1}, unk_token="<unk>"))


@cache
def pairs(size: int) -> pa.Table:
    files = [jpeg(scene(30 + n % 7 * 3, 30 + n % 5 * 4, seed=n), exif=exif(1 + n % 8)) for n in range(size)]
    files = [file if n % 11 else b"<html>" for n, file in enumerate(files)]
    images = pa.array([{"bytes": file, "path": None} for file in files], type=columns.IMAGE_REF)
    return pa.table({"image": images, "text": [f"picture {n}" for n in range(size)]})


@dataclass(frozen=True)
class PairRecipe(Recipe):
    """One data set of pairs."""

    def datasets(self) -> list[Dataset]:
        return [Dataset.from_records(name, pairs(sizes[0])) for name, sizes in self.data]


def recipe(*steps: Any) -> PairRecipe:
    return PairRecipe(data=(("a", (45,)),), weights=(1,), steps=steps, lanes=4, per_step=2, chunk=5, window=3, seed=3)


AUGMENTED = recipe(
    ProbeImages(column="image"),
    Shuffle(buffer_size=6),
    DecodeImages(column="image", policy="raw"),
    RandomResizedCrop(size=12, scale=(0.3, 1.0)),
    Flip(),
    ColorJitter(brightness=0.4, hue=0.1),
    Normalize(),
)


@st.composite
def places(draw: st.DrawFn) -> Topology:
    """Without processes, which import torch for a long time; they have a test of their own."""
    topology = draw(topologies(AUGMENTED))
    return replace(topology, runner="threads") if topology.runner == "processes" else topology


@settings(max_examples=examples(3))
@given(data=st.data())
def test_augmented_pairs_are_the_same_on_every_topology(data: st.DataObject) -> None:
    want = reference(AUGMENTED, STEPS)[0]
    found = drive(AUGMENTED, data.draw(places()), steps=STEPS, max_steps=STEPS)
    assert [found.steps.get(s, []) for s in range(STEPS)] == want


@settings(max_examples=examples(3))
@given(data=st.data())
def test_a_resume_goes_on_exactly(data: st.DataObject) -> None:
    want = reference(AUGMENTED, STEPS)[0]
    cut = data.draw(st.integers(1, STEPS - 1))
    first = drive(AUGMENTED, data.draw(places()), steps=cut, max_steps=STEPS)
    second = quietly(drive, AUGMENTED, data.draw(places()), steps=STEPS - cut, state=first.state, max_steps=STEPS)
    assert [{**first.steps, **second.steps}[s] for s in range(STEPS)] == want


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_workers_give_what_one_thread_gives(runner: str) -> None:
    want = reference(AUGMENTED, STEPS)[0]
    found = drive(AUGMENTED, Topology(runner=runner, workers=1 if runner == "processes" else 2), steps=STEPS, max_steps=STEPS)
    assert [found.steps[s] for s in range(STEPS)] == want


def test_a_trainer_gets_pairs_as_one_array_without_stacking_anything() -> None:
    text = Tokenize(tokenizer=WORDS, field="text", preserve_upstream_payload=True)
    made = recipe(text, DecodeImages(column="image", policy='siglip{"size": 16, "patch_size": 8}', max_bad_ratio=None))
    batch = next(iter(made.pipeline()))
    rows = batch.to_pydict()
    stacked = np.stack([np.frombuffer(row[0], np.uint8).reshape(3, 16, 16) for row in rows[columns.PIXELS]])
    np.testing.assert_array_equal(batch.to_training()["pixel_values"].numpy(), stacked)
    floats = batch.to_training(pixel_dtype="float32")["pixel_values"].numpy()
    np.testing.assert_array_equal(floats, Siglip(size=16, patch_size=8).to_float(stacked))
    pil = batch.to_training(pixel_dtype="float32", pixel_backend="pil")["pixel_values"].numpy()
    np.testing.assert_array_equal(pil, Siglip(size=16, patch_size=8).to_float(stacked, backend="pil"))


def test_another_pass_draws_other_parts() -> None:
    rows = [row for step in reference(replace(AUGMENTED, passes=2), 100)[0] for row in step]
    seen: dict[str, set[bytes]] = {}
    for row in rows:
        seen.setdefault(row["text"], set()).update(row[columns.PIXELS])
    assert len(seen) == 40
    assert all(len(pixels) == 2 for pixels in seen.values())


@pytest.mark.parametrize(
    ("first", "operator"),
    [
        (ProbeImages(column="image", on_bad_image="drop_sample"), "probe_images"),
        (ProbeImages(column="image"), "decode_images"),
    ],
)
def test_bad_pairs_are_accounted_for(first: ProbeImages, operator: str) -> None:
    made = replace(recipe(first, DecodeImages(column="image", policy="raw", max_bad_ratio=None)), passes=1)
    pipeline = made.pipeline()
    seen = sum(len(batch) - batch.empty for batch in pipeline)
    account = pipeline.accounting()
    assert account["rows"]["in_flight"] == 0
    assert account["rows"]["dropped"] == {f"{operator}: bad image: an HTML page, not an image": 5}
    assert seen == account["rows"]["out"] == 40

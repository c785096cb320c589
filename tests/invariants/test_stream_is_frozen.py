"""Frozen digests of small recipes: a change that alters any byte of a stream must raise the stream version and say so in the CHANGELOG."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from operators_for_tests import Encode
from strategies import MIXED, Recipe

from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle
from zephon.recipe import STREAM_VERSION

ROWS = Recipe(data=(("a", tuple(range(30))), ("b", (4,) * 11)), weights=(3, 1), lanes=3, per_step=2, seed=2**70, block=None)
TOKENS = Recipe(data=(("a", tuple(range(1, 50))),), weights=(1,), tokenised=True, lanes=2, per_step=1, window=3, chunk=5)

FROZEN = {
    "rows": (ROWS, "47ecd2cc5615fbbf"),
    "finite": (replace(ROWS, passes=1, exhausted="redistribute"), "923ad543e8af4080"),
    "shuffled": (replace(ROWS, steps=(Shuffle(buffer_size=5), Encode())), "70c4d59cd6d15df8"),
    "wrap": (replace(TOKENS, steps=(PackFlat(max_length=32, pad_token_id=0),)), "404efbfb9c440dc9"),
    "first_fit": (
        replace(TOKENS, steps=(PackFlat(max_length=64, algorithm="first_fit", num_bins=3, pad_token_id=0),)),
        "7a275a978cdfd602",
    ),
    "best_fit": (
        replace(TOKENS, steps=(PackFlat(max_length=64, algorithm="best_fit", num_bins=3, pad_token_id=0),)),
        "eaca0859eb50e96e",
    ),
    "packed and shuffled": (
        replace(TOKENS, steps=(PackFlat(max_length=32, algorithm="best_fit_wrap", pad_token_id=0), Shuffle(buffer_size=4))),
        "5f00d4de22b0ab66",
    ),
    "everything": (MIXED, "f54cdfa63c998372"),
}


def digest(recipe: Recipe) -> str:
    """Of 12 steps: every row in order, and the lanes' own digests."""
    pipeline = recipe.pipeline(runner="inline", max_steps=12)
    hasher = hashlib.sha256()
    for batch in pipeline:
        batch.update(hasher)
    # the first five numbers say what was delivered; a sixth, how many empty sequences came after a lane's end
    lanes = {lane: values[:5] for lane, values in pipeline.checkpoint()["lanes"].items()}
    hasher.update(repr(sorted(lanes.items())).encode())
    return hasher.hexdigest()[:16]


@pytest.mark.parametrize("name", FROZEN)
def test_the_stream_is_what_it_was(name: str) -> None:
    recipe, frozen = FROZEN[name]
    assert STREAM_VERSION == 1
    assert digest(recipe) == frozen

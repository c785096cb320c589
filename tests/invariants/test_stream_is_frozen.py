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
    "rows": (ROWS, "19bd6800bfb3072a"),
    "finite": (replace(ROWS, passes=1, exhausted="redistribute"), "21965b5fb401af5f"),
    "shuffled": (replace(ROWS, steps=(Shuffle(buffer_size=5), Encode())), "a5127250cc3f69d4"),
    "wrap": (replace(TOKENS, steps=(PackFlat(max_length=32, pad_token_id=0),)), "33f9c387b8e698ec"),
    "first_fit": (
        replace(TOKENS, steps=(PackFlat(max_length=64, algorithm="first_fit", num_bins=3, pad_token_id=0),)),
        "52e52c12b9259157",
    ),
    "best_fit": (
        replace(TOKENS, steps=(PackFlat(max_length=64, algorithm="best_fit", num_bins=3, pad_token_id=0),)),
        "76f482fd435e8692",
    ),
    "packed and shuffled": (
        replace(TOKENS, steps=(PackFlat(max_length=32, algorithm="best_fit_wrap", pad_token_id=0), Shuffle(buffer_size=4))),
        "d0429ae42bf19522",
    ),
    "everything": (MIXED, "d3a373c6d92f879a"),
}


def digest(recipe: Recipe) -> str:
    """Of 12 steps: every row in order, and the lanes' own digests."""
    pipeline = recipe.pipeline(runner="inline", max_steps=12)
    hasher = hashlib.sha256()
    for batch in pipeline:
        batch.update(hasher)
    hasher.update(repr(sorted(pipeline.checkpoint()["lanes"].items())).encode())
    return hasher.hexdigest()[:16]


@pytest.mark.parametrize("name", FROZEN)
def test_the_stream_is_what_it_was(name: str) -> None:
    recipe, frozen = FROZEN[name]
    assert STREAM_VERSION == 1
    assert digest(recipe) == frozen

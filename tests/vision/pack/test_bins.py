"""Which documents share a sequence: against a plain loop, and how full sequences get."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from vision.pack.best_fit_oracle import pack

from zephon_vision._pack_bins import NO_LIMIT, Bins, Limits

TOKENS, BLOCKS, IMAGES = 40, 30, 4

documents_drawn = st.lists(
    st.one_of(
        st.tuples(st.integers(1, TOKENS), st.just(0), st.just(0)),
        st.tuples(st.integers(1, TOKENS), st.integers(1, BLOCKS), st.integers(1, IMAGES)),
    ),
    max_size=80,
)
limits_drawn = st.builds(
    Limits,
    tokens=st.just(TOKENS),
    blocks=st.sampled_from([BLOCKS, NO_LIMIT]),
    images=st.sampled_from([IMAGES, NO_LIMIT]),
    bins=st.integers(1, 6),
    least_room=st.sampled_from([0, 1, 5, TOKENS]),
    max_age=st.one_of(st.none(), st.integers(1, 12)),
    ensure_image=st.booleans(),
    waiting=st.sampled_from([0, 2, NO_LIMIT]),
)


def run(
    documents: list[tuple[int, int, int]], limits: Limits, cuts: list[int] | None = None
) -> tuple[list[list[int]], list[int]]:
    bins = Bins(limits)
    ends = sorted({0, *(cuts or []), len(documents)})
    made = [sequence for a, b in pairwise(ends) for sequence in bins.add(documents[a:b])]
    made += bins.flush()
    return made, bins.given_up


@settings(max_examples=examples(300))
@given(documents_drawn, limits_drawn)
def test_decisions_are_those_of_a_plain_loop(documents: list[tuple[int, int, int]], limits: Limits) -> None:
    assert run(documents, limits) == pack(documents, limits)


@settings(max_examples=examples(100))
@given(documents_drawn, limits_drawn)
def test_every_document_comes_once_and_no_budget_is_exceeded(documents: list[tuple[int, int, int]], limits: Limits) -> None:
    made, given_up = run(documents, limits)
    assert sorted([n for sequence in made for n in sequence] + given_up) == list(range(len(documents)))
    for sequence in made:
        tokens, blocks, images = (sum(documents[n][k] for n in sequence) for k in range(3))
        assert tokens <= limits.tokens
        assert blocks <= limits.blocks
        assert images <= limits.images
        assert images or not limits.ensure_image
    if not limits.ensure_image:
        assert not given_up


@settings(max_examples=examples(100))
@given(documents_drawn, limits_drawn, st.lists(st.integers(0, 80), max_size=6))
def test_it_does_not_matter_how_documents_are_divided_over_calls(
    documents: list[tuple[int, int, int]], limits: Limits, cuts: list[int]
) -> None:
    assert run(documents, limits, [min(c, len(documents)) for c in cuts]) == run(documents, limits)


def mixture(count: int, seed: int) -> list[tuple[int, int, int]]:
    """13 % text, 72 % one image, 15 % two to twelve; up to 1,280 tokens and four times as many patches an image."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        kind = draw.random()
        images = 0 if kind < 0.13 else 1 if kind < 0.85 else draw.randint(2, 12)
        sizes = [min(1280, max(4, int(draw.lognormvariate(5.9, 0.7)))) for _ in range(images)]
        text = int(draw.lognormvariate(5.5, 0.9)) + 1
        tokens = text + sum(n + 2 for n in sizes)
        if tokens <= 8192:
            made.append((tokens, 4 * sum(sizes), images))
    return made


@pytest.mark.parametrize(("bins", "least"), [(8, 0.96), (32, 0.97), (128, 0.97)])
def test_sequences_are_full_with_both_budgets(bins: int, least: float) -> None:
    """As in a run: what is still open at the end is not counted."""
    documents = mixture(6000, seed=1)
    packer = Bins(Limits(tokens=8192, blocks=3 * 8192, bins=bins))
    made = packer.add(documents)
    filled = [sum(documents[n][0] for n in sequence) / 8192 for sequence in made]
    assert sum(filled) / len(filled) >= least
    free = Bins(replace(Limits(tokens=8192, bins=bins)))
    filled = [sum(documents[n][0] for n in sequence) / 8192 for sequence in free.add(documents)]
    assert sum(filled) / len(filled) >= 0.99


def test_a_sequence_never_waits_longer_than_max_age() -> None:
    documents = mixture(2000, seed=2)
    bins = Bins(Limits(tokens=8192, blocks=3 * 8192, max_age=50))
    for number, document in enumerate(documents):
        for sequence in bins.add([document]):
            assert number - sequence[0] <= 50

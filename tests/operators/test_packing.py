"""The packing algorithms against an oracle that follows the rules one document at a time (cases 113, 115, 116, 118)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from operators.packing_oracle import Oracle

from zephon.operators.packing import OPEN_SEQUENCES, Packed, Packer, make_packer

ALGORITHMS = ("wrap", "first_fit", "best_fit", "best_fit_wrap")
FITS = ("first_fit", "best_fit")

Sequences = list[list[tuple[int, int, int]]]


def sequences(packed: Packed) -> Sequences:
    """As lists of (document, start, length)."""
    pieces = list(zip(packed.document.tolist(), packed.start.tolist(), packed.length.tolist(), strict=True))
    return [pieces[a:b] for a, b in zip(packed.offsets[:-1], packed.offsets[1:], strict=True)]


def pack(packer: Packer, lengths: list[int], cuts: list[int] | None = None) -> tuple[Sequences, Sequences]:
    """(decided before the flush, at the flush); the documents are added in parts."""
    bounds = sorted({0, len(lengths), *(c % (len(lengths) + 1) for c in cuts or ())})
    decided: Sequences = []
    for a, b in pairwise(bounds):
        packed = packer.add(np.arange(a, b), np.array(lengths[a:b], dtype=np.int64))
        assert (np.diff(packed.completed) >= 0).all()
        decided += sequences(packed)
    return decided, sequences(packer.flush())


def document_lengths(capacity: int) -> st.SearchStrategy[list[int]]:
    """Around the borders where packers break: 1, L-1, L, L+1, 2L+1, huge."""
    awkward = st.sampled_from([1, max(capacity - 1, 1), capacity, capacity + 1, 2 * capacity + 1, 20 * capacity + 3])
    return st.lists(st.one_of(awkward, st.integers(1, capacity + 2)), max_size=150)


CASES = st.integers(1, 33).flatmap(lambda capacity: st.tuples(st.just(capacity), document_lengths(capacity)))
LIMITS = st.one_of(st.none(), st.integers(1, 5))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=CASES, bins=st.integers(1, 9), limit=LIMITS, cuts=st.lists(st.integers(0, 150), max_size=5))
@example(case=(60, [121]), bins=2, limit=None, cuts=[])  # case 115
@example(case=(60, [30] * 10 + [61]), bins=2, limit=None, cuts=[3])
@example(case=(7, [*range(10, 20)]), bins=2, limit=None, cuts=[])  # case 116
def test_a_packer_decides_what_the_rules_say(
    algorithm: str, case: tuple[int, list[int]], bins: int, limit: int | None, cuts: list[int]
) -> None:
    capacity, lengths = case
    open_ones = OPEN_SEQUENCES if algorithm == "best_fit_wrap" else bins
    oracle = Oracle(algorithm, capacity, bins=open_ones, max_documents=limit)
    for document, length in enumerate(lengths):
        oracle.add(document, length)
    assert pack(make_packer(algorithm, capacity, bins=bins, max_documents=limit), lengths, cuts) == (oracle.out, oracle.flush())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=CASES, bins=st.integers(1, 9), limit=LIMITS)
def test_every_token_is_in_one_sequence_and_none_is_too_long(
    algorithm: str, case: tuple[int, list[int]], bins: int, limit: int | None
) -> None:
    capacity, lengths = case
    decided, rest = pack(make_packer(algorithm, capacity, bins=bins, max_documents=limit), lengths)
    tokens = sorted(
        (document, start + i) for sequence in decided + rest for document, start, length in sequence for i in range(length)
    )
    assert tokens == [(document, i) for document, length in enumerate(lengths) for i in range(length)]
    assert all(0 < sum(length for *_, length in sequence) <= capacity for sequence in decided + rest)
    assert all(len(sequence) <= (limit or 10**9) for sequence in decided + rest)


@given(case=CASES)
def test_wrap_in_order_is_the_concatenation_of_the_documents(case: tuple[int, list[int]]) -> None:
    """Case 116: concatenation of the outputs == concatenation of the inputs, full up to the last sequence."""
    capacity, lengths = case
    decided, rest = pack(make_packer("wrap", capacity), lengths)
    stream = [
        (document, start + i) for sequence in decided + rest for document, start, length in sequence for i in range(length)
    ]
    assert stream == [(document, i) for document, length in enumerate(lengths) for i in range(length)]
    assert [sum(length for *_, length in s) for s in decided] == [capacity] * (sum(lengths) // capacity)


@given(case=CASES)
def test_best_fit_wrap_pads_one_sequence_at_most(case: tuple[int, list[int]]) -> None:
    capacity, lengths = case
    decided, rest = pack(make_packer("best_fit_wrap", capacity), lengths)
    assert len(decided + rest) == -(-sum(lengths) // capacity)


@pytest.mark.parametrize("algorithm", FITS)
@given(case=CASES, bins=st.integers(1, 9))
def test_a_fit_never_cuts_a_document_that_fits(algorithm: str, case: tuple[int, list[int]], bins: int) -> None:
    capacity, lengths = case
    decided, rest = pack(make_packer(algorithm, capacity, bins=bins), lengths)
    pieces = [document for sequence in decided + rest for document, *_ in sequence]
    assert all(pieces.count(document) == -(-length // capacity) for document, length in enumerate(lengths))


@pytest.mark.parametrize("length", [8191, 8192, 8193, 16385])
def test_fits_fill_nearly_all_at_lengths_around_powers_of_two(length: int) -> None:
    """Case 113: a packer that gives up at 8192n+1."""
    rng = np.random.Generator(np.random.Philox(key=[5, length]))
    lengths = np.clip(rng.lognormal(5.5, 1.2, 6_000).astype(np.int64), 1, None).tolist()
    for algorithm in FITS:
        decided, _ = pack(make_packer(algorithm, length, bins=64), lengths)
        filled = sum(n for sequence in decided for *_, n in sequence) / (len(decided) * length)
        assert filled > 0.99, (algorithm, filled)


def test_a_limit_of_documents_holds_for_documents_of_one_token() -> None:
    """Case 118."""
    for algorithm in ALGORITHMS:
        decided, rest = pack(make_packer(algorithm, 8192, bins=4, max_documents=100), [1] * 1000)
        assert [len(sequence) for sequence in decided + rest] == [100] * 10

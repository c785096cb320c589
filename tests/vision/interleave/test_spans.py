"""Which tokens a stretch of characters became."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from tokenizers import normalizers
from vision.interleave import chat_tokenizers as kinds

from zephon.operators.tokenizer_files import load_tokenizer
from zephon_vision._tokens_vocabulary import SpanEncoder

PIECES = ["a", " b", "\n", "\n\n", "🙂", "é", "e\u0301", "猫", " ", "  ", "word", "<think>", "x" * 20]


@settings(max_examples=examples(60), deadline=None)
@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), min_size=1, max_size=4),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=4, max_size=4),
    kind=st.sampled_from(["bytes", "nfc", "offsets"]),
)
def test_tokens_are_found_by_bytes_as_by_offsets(texts: list[list[str]], cuts: list[tuple[int, int]], kind: str) -> None:
    encoder = _encoder(kind)
    joined = ["".join(parts) for parts in texts]
    spans = [[(min(a, b, len(t)), min(max(a, b), len(t)))] if a != b else [] for t, (a, b) in zip(joined, cuts, strict=False)]
    spans = [[(a, b) for a, b in stretch if a < b] for stretch in spans]
    made = encoder.encode_spans(joined, spans)
    at = 0
    for text, stretch, length in zip(joined, spans, made.lengths.tolist(), strict=True):
        encoded = encoder._offsets.encode(text, add_special_tokens=False)
        assert made.ids[at : at + length].tolist() == encoded.ids
        want = [int(any(a < stop and b > start for start, stop in stretch)) for a, b in encoded.offsets]
        assert made.trained[at : at + length].tolist() == want
        at += length


@functools.cache
def _encoder(kind: str) -> Any:
    made = kinds.fast(("<|endoftext|>",))
    made.add_tokens(["<think>"])
    if kind == "nfc":
        made.normalizer = normalizers.NFC()
    encoder = SpanEncoder(load_tokenizer(made), "auto")
    assert encoder._bytes[0] is not None
    if kind == "offsets":
        vars(encoder)["_bytes"] = (None, False)
    return encoder

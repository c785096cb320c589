"""Which library encodes: the quickest one that is installed, supports the tokenizer, and gives the ids that `tokenizers` gives."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np
import tokenizers
import xxhash

from zephon.errors import RecipeError, unknown
from zephon.operators.token_backends.base import Backend, FlatEncoder, Ready, RefusedError
from zephon.operators.token_backends.checked import Checked
from zephon.operators.token_backends.fastokens import Fastokens
from zephon.operators.token_backends.gigatoken import Gigatoken
from zephon.operators.token_backends.hugging_face import NAME, HuggingFace
from zephon.operators.token_backends.sample import sample

SWITCH = "ZEPHON_TOKENIZER_BACKEND"
"""The environment variable that says which library: `auto` (the default), `tokenizers`, `fastokens` or `gigatoken`."""

BACKENDS: tuple[Backend, ...] = (Fastokens(), Gigatoken())
"""The better one first."""

_log = logging.getLogger("zephon.operators.tokenize")


def choose(
    ready: Ready, tokenizer: tokenizers.Tokenizer, *, backends: Sequence[Backend] = BACKENDS, wish: str | None = None
) -> FlatEncoder:
    """The encoder for a tokenizer: proven equal where it isn't `tokenizers` itself. The log says which one, and why.

    A proof takes some 30 ms, and is made once per process for each vocabulary.

    Args:
        ready: the tokenizer as text.
        tokenizer: the same as an object, with the same settings.
        backends: the libraries to try, in this order.
        wish: one of their names, `tokenizers` or `auto`; None: what the environment says.

    Raises:
        RecipeError: an unknown name.
    """
    wish = wish or os.environ.get(SWITCH) or "auto"
    names = ["auto", "tokenizers", *(backend.name for backend in backends)]
    if wish not in names:
        raise RecipeError(f"{SWITCH}: {unknown('tokenizer back-end', wish, names)}")
    if wish == "tokenizers":
        return HuggingFace(tokenizer)
    return _PROVEN.encoder(ready, tokenizer, [backend for backend in backends if wish in ("auto", backend.name)])


class _Proven:
    """What was proven in this process, so that operators with one tokenizer share the proof, and the encoder while one holds it."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._refused: set[tuple[str, ...]] = set()
        self._alive: WeakValueDictionary[tuple[str, ...], Checked] = WeakValueDictionary()
        self._winner: dict[tuple[str, ...], str] = {}

    def encoder(self, ready: Ready, tokenizer: tokenizers.Tokenizer, backends: Sequence[Backend]) -> FlatEncoder:
        content = xxhash.xxh3_128_hexdigest(ready.text.encode("utf-8", "surrogatepass"))
        key = (content, str(ready.allow_special), *(backend.name for backend in backends))
        with self._one_at_a_time:
            held = self._alive.get(key)
            if held is not None:
                return held
            reference = HuggingFace(tokenizer)
            if key in self._refused:
                return reference
            made = _first_equal(ready, reference, backends, self._winner.get(key))
            if made is None:
                self._refused.add(key)
                return reference
            self._winner[key], self._alive[key] = made
            return made[1]


_PROVEN = _Proven()


def _first_equal(
    ready: Ready, reference: HuggingFace, backends: Sequence[Backend], winner: str | None
) -> tuple[str, Checked] | None:
    """The first back-end that is proven equal, and its name; `winner` has been proven already."""
    reasons = []
    for backend in backends:
        if winner not in (None, backend.name):
            continue
        try:
            name = f"{backend.name} {backend.version()}"
            made = Checked(name, backend.load(ready), reference=reference, reference_name=NAME, unsure=backend.unsure)
            if winner is None:
                count = prove(made, reference, ready)
                _log.info("tokenising with %s: equal ids to %s on %d odd texts", name, NAME, count)
            return backend.name, made
        except BaseException as error:  # a panic of Rust is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            text = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"
            reasons.append(f"{backend.name}: {text.strip().splitlines()[0] if text.strip() else 'failed'}")
    _log.info("tokenising with %s; %s", NAME, "; ".join(reasons))
    return None


def prove(encoder: Checked, reference: FlatEncoder, ready: Ready) -> int:
    """Compare all ids of the sample, twice: with empty caches, and with what the first time left in them.

    Returns:
        How many texts were compared.

    Raises:
        RefusedError: a text has other ids.
    """
    texts = sample(token["content"] for token in ready.plain["added_tokens"])
    want, want_lengths = reference.encode(texts)
    for _ in range(2):
        got, lengths = encoder.attempt(texts)
        if np.array_equal(lengths, want_lengths) and np.array_equal(got, want):
            continue
        ends, want_ends = np.cumsum(lengths), np.cumsum(want_lengths)
        for row, text in enumerate(texts):
            mine = got[int(ends[row] - lengths[row]) : int(ends[row])]
            if not np.array_equal(mine, want[int(want_ends[row] - want_lengths[row]) : int(want_ends[row])]):
                raise RefusedError(f"other ids for {text[:40]!a}")
        raise RefusedError("other ids")
    return len(texts)

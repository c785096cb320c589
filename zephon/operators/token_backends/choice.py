"""Which library encodes: the quickest one that is installed, supports the tokenizer, and gives the ids that `tokenizers` gives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np
import tokenizers
import xxhash

from zephon.keys import I64
from zephon.operators.token_backends.ahead import Ahead
from zephon.operators.token_backends.base import (
    I32,
    Backend,
    EarlyBackend,
    FlatEncoder,
    Noted,
    Ready,
    RefusedError,
    unnoted,
)
from zephon.operators.token_backends.checked import Checked
from zephon.operators.token_backends.fastokens import Fastokens
from zephon.operators.token_backends.gigatoken import Gigatoken
from zephon.operators.token_backends.hugging_face import NAME, HuggingFace
from zephon.operators.token_backends.sample import sample

BACKENDS: tuple[EarlyBackend, ...] = (Fastokens(), Gigatoken())
"""The better one first."""

_B = TypeVar("_B", bound=Backend)

_log = logging.getLogger("zephon.operators.tokenize")


def choose(
    ready: Ready,
    tokenizer: Callable[[], tokenizers.Tokenizer],
    *,
    reference: Callable[[], tokenizers.Tokenizer] | None = None,
    noted: Noted = unnoted,
    backends: Sequence[Backend] = BACKENDS,
    wish: str = "auto",
    ahead: Ahead | None = None,
) -> FlatEncoder:
    """The encoder for a tokenizer: proven equal where it isn't `tokenizers` itself. The log says which one, and why.

    A proof takes some 20 ms, and is made once per process for each vocabulary.

    Args:
        ready: the tokenizer as text.
        tokenizer: makes an object of it that does nothing but encode.
        reference: gives an object with the same ids, to compare with; None: `tokenizer`.
        noted: a fact of this name about the tokenizer: what is known, or what the function gives.
        backends: the libraries to try, in this order.
        wish: one of their names; `auto`: any of them; `tokenizers`: none.
        ahead: may have loaded `ready`.
    """
    wanted = _wished(backends, wish)
    if not wanted:
        return HuggingFace(tokenizer())
    made = _PROVEN.encoder(ready, _Later(reference or tokenizer), wanted, noted, ahead)
    return made or HuggingFace(tokenizer())


def _wished(backends: Sequence[_B], wish: str) -> list[_B]:
    return [backend for backend in backends if wish in ("auto", backend.name)]


def begin(make: Callable[[], Ready], wish: str = "auto") -> Ahead | None:
    """Have the back-end that `choose` will try first load in the background; None: there is none.

    Args:
        make: makes the tokenizer ready.
        wish: as `choose` will be given it.
    """
    wanted = _wished(BACKENDS, wish)
    first = next((backend for backend in wanted if _installed(backend)), None)
    return None if first is None else Ahead(make, lambda ready: first if _PROVEN.may_load(ready, wanted, first) else None)


def _installed(backend: Backend) -> bool:
    try:
        backend.version()
    except RefusedError:
        return False
    return True


class _Proven:
    """What was proven in this process, so that operators with one tokenizer share the proof, and the encoder while one holds it."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._refused: set[tuple[str, ...]] = set()
        self._alive: WeakValueDictionary[tuple[str, ...], Checked] = WeakValueDictionary()
        self._winner: dict[tuple[str, ...], str] = {}

    def encoder(
        self,
        ready: Ready,
        reference: _Later,
        backends: Sequence[Backend],
        noted: Noted,
        ahead: Ahead | None,
    ) -> FlatEncoder | None:
        """One of the back-ends, compared with `reference`; None: none is equal."""
        key = _key(ready, backends)
        with self._one_at_a_time:
            held = self._alive.get(key)
            if held is not None or key in self._refused:
                return held
            made = _first_equal(ready, reference, backends, self._winner.get(key), noted, ahead)
            if made is None:
                self._refused.add(key)
                return None
            self._winner[key], self._alive[key] = made
            return made[1]

    def may_load(self, ready: Ready, backends: Sequence[Backend], backend: Backend) -> bool:
        """Whether `encoder` would have this one load; nobody waits for it to know."""
        key = _key(ready, backends)
        return key not in self._refused and key not in self._alive and self._winner.get(key, backend.name) == backend.name


def _key(ready: Ready, backends: Sequence[Backend]) -> tuple[str, ...]:
    return (ready.digest, str(ready.allow_special), *(backend.name for backend in backends))


_PROVEN = _Proven()


class _Later:
    """The reference, made when it is first asked: where its ids on the sample are noted, that may be much later."""

    def __init__(self, make: Callable[[], tokenizers.Tokenizer]) -> None:
        self._make: Callable[[], tokenizers.Tokenizer] | None = make
        self._guard = threading.Lock()
        self._made: HuggingFace | None = None

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        """`(ids of all texts in a row, int64[N] how many each text has)`."""
        with self._guard:
            if self._make is not None:
                self._made, self._make = HuggingFace(self._make()), None
        assert self._made is not None
        return self._made.encode(texts)


def _first_equal(
    ready: Ready, reference: _Later, backends: Sequence[Backend], winner: str | None, noted: Noted, ahead: Ahead | None
) -> tuple[str, Checked] | None:
    """The first back-end that is proven equal, and its name; `winner` has been proven already."""
    reasons = []
    for backend in backends:
        if winner not in (None, backend.name):
            continue
        try:
            name = f"{backend.name} {backend.version()}"
            loaded = backend.load(ready) if ahead is None else ahead.load(backend, ready)
            made = Checked(name, loaded, reference=reference, reference_name=NAME, unsure=backend.unsure(ready))
            if winner is None:
                count = prove(made, reference, ready, noted)
                _log.info("tokenising with %s: equal ids to %s on %d odd texts", name, NAME, count)
            return backend.name, made
        except BaseException as error:  # a panic of Rust is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            text = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"
            reasons.append(f"{backend.name}: {text.strip().splitlines()[0] if text.strip() else 'failed'}")
    _log.info("tokenising with %s; %s", NAME, "; ".join(reasons))
    return None


def prove(encoder: Checked, reference: FlatEncoder, ready: Ready, noted: Noted = unnoted) -> int:
    """Compare all ids of the sample, twice: with empty caches, and with what the first time left in them.

    Texts that the library leaves to the reference are compared where the reference has to be there anyway.

    Returns:
        How many texts were compared.

    Raises:
        RefusedError: a text has other ids.
    """
    texts = sample(ready.added)
    sure = [text for text in texts if not any(mark in text for mark in encoder.unsure)]
    name = f"ids of {xxhash.xxh3_64_hexdigest(repr((sure, ready.allow_special)))}"
    want = noted(name, lambda: _digest(*reference.encode(sure)))
    if all(_digest(*encoder.attempt(sure)) == want for _ in range(2)):
        return len(sure)
    _tell(sure, encoder, reference)
    raise RefusedError("other ids")


def _digest(ids: I32, lengths: I64) -> str:
    digest = xxhash.xxh3_128(ids.tobytes())
    digest.update(lengths.tobytes())
    return digest.hexdigest()


def _tell(texts: Sequence[str], encoder: Checked, reference: FlatEncoder) -> None:
    """Raises `RefusedError` with the first text that has other ids."""
    (got, lengths), (want, want_lengths) = encoder.attempt(texts), reference.encode(texts)
    ends, want_ends = np.cumsum(lengths), np.cumsum(want_lengths)
    for row, text in enumerate(texts):
        mine = got[int(ends[row] - lengths[row]) : int(ends[row])]
        if not np.array_equal(mine, want[int(want_ends[row] - want_lengths[row]) : int(want_ends[row])]):
            raise RefusedError(f"other ids for {text[:40]!a}")

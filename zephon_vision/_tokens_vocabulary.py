"""A tokenizer for documents with images: specials by id, text as text, and which tokens a stretch of characters became."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from zephon.errors import InternalError, RecipeError
from zephon.keys import I64
from zephon.operators.text_encoder import TextEncoder, hide_special, plain_settings
from zephon.operators.token_backends import Ahead, Library
from zephon.operators.tokenizer_files import LoadedTokenizer
from zephon_vision.policies.base import Policy, SpecialIds

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Spans = Sequence[tuple[int, int]]

_AT_ONCE = 1 << 18
"""Characters whose encodings, with their offsets, are kept at a time."""


@dataclass(frozen=True)
class Texts:
    """Encoded texts, one after the other."""

    ids: I32
    lengths: I64
    trained: U8
    """1 on each token that a trained stretch of its text touches."""


class Vocabulary:
    """A tokenizer made ready; any number of threads may use it."""

    def __init__(
        self, loaded: LoadedTokenizer, special_tokens: Sequence[str], backend: Library = "auto", ahead: Ahead | None = None
    ) -> None:
        loaded = _marked_special(loaded, special_tokens)
        self._loaded = loaded
        self.specials = special_strings(loaded)
        self.strips_left, self.strips_right = _stripping(loaded)
        self._encoder = SpanEncoder(loaded, backend, ahead)
        rest = _never_first(loaded)
        self._rest = self._encoder if rest is None else SpanEncoder(rest, backend)

    def encode(self, texts: Sequence[str], spans: Sequence[Spans], first: npt.NDArray[np.bool_]) -> Texts:
        """Encode the texts of a group; `spans` are the trained stretches of each, `first` says which begin a document."""
        if self._rest is self._encoder:
            return self._encoder.encode_spans(texts, spans)
        where = [np.flatnonzero(first), np.flatnonzero(~first)]
        made = [
            encoder.encode_spans([texts[i] for i in part.tolist()], [spans[i] for i in part.tolist()])
            for encoder, part in zip((self._encoder, self._rest), where, strict=True)
        ]
        return _interleaved(made, where)

    def ids_of(self, text: str) -> tuple[int, ...]:
        """The ids of a piece of text inside a document."""
        return tuple(self._rest.encode([text])[0].tolist())

    def special_ids(self, policy: Policy) -> SpecialIds:
        """What the policy's token runs are made of. Raises `RecipeError` where the tokenizer lacks a token that the policy needs."""
        ids = {token: number for token in policy.special_tokens if (number := token_id(self._loaded, token)) is not None}
        missing = [token for token in policy.special_tokens if token not in ids]
        if missing:
            raise RecipeError(
                f"this tokenizer has no {', '.join(map(repr, missing[:5]))}, which the image policy {policy.name!r} needs",
                hint="use the tokenizer of the model that the policy is for, or add the tokens to it",
            )
        return SpecialIds(ids, self.ids_of("\n"), {text: self.ids_of(text) for text in policy.texts})


class SpanEncoder:
    """Encodes texts, and tells which tokens come from which characters."""

    def __init__(self, loaded: LoadedTokenizer, backend: Library, ahead: Ahead | None = None) -> None:
        self.encode = TextEncoder(loaded, allow_special=False, backend=backend, ahead=ahead).encode
        self._loaded = loaded

    @cached_property
    def _offsets(self) -> Tokenizer | None:
        """Encodes alike, with offsets; None: this tokenizer has none. Few data sets ever need it, and it is as large as the first."""
        return None if self._loaded.fast is None else _with_offsets(self._loaded.fast)

    @cached_property
    def _bytes(self) -> tuple[I64 | None, bool]:
        return (None, False) if self._loaded.fast is None else byte_widths(self._loaded.fast)

    def encode_spans(self, texts: Sequence[str], spans: Sequence[Spans]) -> Texts:
        """Encode texts, all in one call; only where bytes don't tell where tokens are, some are encoded again with offsets."""
        ids, lengths = self.encode(texts)
        whole = np.array([len(s) == 1 and s[0] == (0, len(t)) for s, t in zip(spans, texts, strict=True)], dtype=bool)
        mixed = np.flatnonzero(np.array([bool(s) for s in spans], dtype=bool) & ~whole)
        trained = np.repeat(whole, lengths).astype(np.uint8)
        if not len(mixed):
            return Texts(ids, lengths, trained)
        left = self._by_bytes(texts, spans, mixed, ids, lengths, trained)
        if len(left):
            numbers = left.tolist()
            made = self._encode_mixed([texts[i] for i in numbers], [spans[i] for i in numbers])
            starts = np.cumsum(lengths) - lengths
            if not np.array_equal(made.lengths, lengths[left]):
                raise InternalError("the same texts were tokenised differently twice")
            inside = np.arange(len(made.ids)) - np.repeat(np.cumsum(made.lengths) - made.lengths, made.lengths)
            trained[np.repeat(starts[left], made.lengths) + inside] = made.trained
        return Texts(ids, lengths, trained)

    def _by_bytes(self, texts: Sequence[str], spans: Sequence[Spans], mixed: I64, ids: I32, lengths: I64, trained: U8) -> I64:
        """Mark what is trained by the number of bytes that each token stands for; the texts where that doesn't add up are given back."""
        of_token, nfc = self._bytes
        if of_token is None:
            return mixed
        widths = of_token[ids]
        ends = np.cumsum(widths)
        begins = ends - widths
        last = np.cumsum(lengths)
        sums = np.concatenate([[0], ends])
        bases = sums[last - lengths]
        sizes = (sums[last] - bases).tolist()
        left: list[int] = []
        borders: list[tuple[int, int]] = []
        for number, base in zip(mixed.tolist(), bases[mixed].tolist(), strict=True):
            text = texts[number]
            plain = text.isascii()
            if sizes[number] != (len(text) if plain else len(text.encode())) or not (
                plain or not nfc or unicodedata.is_normalized("NFC", text)
            ):
                left.append(number)
                continue
            for start, stop in spans[number]:
                before = start if plain else len(text[:start].encode())
                borders.append((base + before, base + before + (stop - start if plain else len(text[start:stop].encode()))))
        if borders:
            table = np.array(borders, dtype=np.int64)
            change = np.zeros(len(ids) + 1, dtype=np.int64)
            np.add.at(change, np.searchsorted(ends, table[:, 0], side="right"), 1)
            np.add.at(change, np.searchsorted(begins, table[:, 1], side="left"), -1)
            trained |= (np.cumsum(change[:-1]) > 0).astype(np.uint8)
        return np.array(left, dtype=np.int64)

    def _encode_mixed(self, texts: list[str], spans: list[Spans]) -> Texts:
        ids: list[I32] = []
        masks: list[U8] = []
        for start, stop in _portions(texts):
            part = texts[start:stop]
            if self._offsets is None:
                encoded: list[Any] = [self.encode([text])[0] for text in part]
                mapped = [_Prefixes(self, text, numbers) for text, numbers in zip(part, encoded, strict=True)]
                ids += encoded
            else:
                mapped = encoded = self._offsets.encode_batch(part, add_special_tokens=False)
                ids += [np.array(e.ids, dtype=np.int32) for e in encoded]
            masks += [
                _mask(m, len(numbers), text, stretch)
                for m, numbers, text, stretch in zip(mapped, ids[start:stop], part, spans[start:stop], strict=True)
            ]
        return Texts(np.concatenate(ids), np.array([len(i) for i in ids], dtype=np.int64), np.concatenate(masks))


def _with_offsets(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that encodes as `TextEncoder` does, for its offsets."""
    plain = plain_settings(tokenizer, post_processor=False)
    hide_special(plain)
    made = Tokenizer.from_str(json.dumps(plain))
    made.encode_special_tokens = True
    return made


def byte_widths(tokenizer: Tokenizer) -> tuple[I64 | None, bool]:
    """How many bytes of text each token of a byte-level tokenizer stands for, and whether it brings text into the form NFC before.

    None for other tokenizers: those that change text otherwise, or whose tokens aren't made of bytes.
    """
    plain = plain_settings(tokenizer, post_processor=False)
    normalizer = plain.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        return None, False
    steps = plain.get("pre_tokenizer") or {}
    parts = steps.get("pretokenizers", ()) if steps.get("type") == "Sequence" else [steps]
    levels = [part for part in parts if part.get("type") == "ByteLevel"]
    if plain["model"].get("type", "BPE") != "BPE" or not levels or any(part.get("add_prefix_space") for part in levels):
        return None, False
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    made = np.zeros(max(vocab.values(), default=-1) + 1, dtype=np.int64)
    for token, number in vocab.items():
        made[number] = len(token)  # a character of the byte alphabet each
    for number, token in tokenizer.get_added_tokens_decoder().items():
        made[number] = len(token.content.encode())
    return made, normalizer is not None


class _Prefixes:
    """`char_to_token` for tokenizers that tell no offsets: tokens that stay when the text ends earlier come from before the end."""

    def __init__(self, encoder: SpanEncoder, text: str, ids: I32) -> None:
        self._encoder, self._text, self._ids = encoder, text, ids

    def char_to_token(self, place: int) -> int | None:
        head = self._encoder.encode([self._text[:place]])[0]
        same = min(len(head), len(self._ids))
        differs = np.flatnonzero(head[:same] != self._ids[:same])
        found = int(differs[0]) if len(differs) else same
        return found if found < len(self._ids) else None

    def token_to_chars(self, token: int) -> tuple[int, int] | None:  # noqa: ARG002 - the same for all
        return None


def _mask(encoded: Any, count: int, text: str, spans: Spans) -> U8:
    """1 on the tokens that touch a stretch of characters. No token is looked at: only the borders are."""
    made = np.zeros(count, dtype=np.uint8)
    for start, stop in spans:
        begin = _token_at(encoded, start, stop)
        if begin is None:
            continue  # nothing of it became a token
        end = _token_at(encoded, stop, len(text))
        if end is None:
            end = count
        else:
            chars = encoded.token_to_chars(end)
            if chars is not None and chars[0] < stop:
                end += 1  # a token over the border
        made[begin:end] = 1
    return made


def _token_at(encoded: Any, start: int, stop: int) -> int | None:
    """The first token of the first character from `start` on that became one."""
    for place in range(start, stop):
        found: int | None = encoded.char_to_token(place)
        if found is not None:
            return found
    return None


def _portions(texts: list[str]) -> list[tuple[int, int]]:
    made, start, characters = [], 0, 0
    for number, text in enumerate(texts):
        characters += len(text)
        if characters >= _AT_ONCE:
            made.append((start, number + 1))
            start, characters = number + 1, 0
    return [*made, (start, len(texts))] if start < len(texts) else made


def _interleaved(made: Sequence[Texts], where: Sequence[I64]) -> Texts:
    """Texts that were encoded in two lots, back in order."""
    lengths = np.zeros(sum(len(w) for w in where), dtype=np.int64)
    for part, places in zip(made, where, strict=True):
        lengths[places] = part.lengths
    starts = np.cumsum(lengths) - lengths
    ids, trained = np.empty(int(lengths.sum()), dtype=np.int32), np.empty(int(lengths.sum()), dtype=np.uint8)
    for part, places in zip(made, where, strict=True):
        inside = np.arange(len(part.ids)) - np.repeat(np.cumsum(part.lengths) - part.lengths, part.lengths)
        target = np.repeat(starts[places], part.lengths) + inside
        ids[target], trained[target] = part.ids, part.trained
    return Texts(ids, lengths, trained)


def token_id(loaded: LoadedTokenizer, token: str) -> int | None:
    """The id of a token of the vocabulary, or None."""
    added = next((t.id for t in added_tokens(loaded) if t.content == token), None)
    if added is not None:
        return added
    if loaded.fast is not None:
        known: int | None = loaded.fast.token_to_id(token)
        return known
    found = loaded.slow.get_vocab().get(token)
    return None if found is None else int(found)


class Added(NamedTuple):
    """A token that was added to a vocabulary."""

    id: int
    content: str
    special: bool
    lstrip: bool
    rstrip: bool


def added_tokens(loaded: LoadedTokenizer) -> list[Added]:
    """All of them."""
    return [Added(*values) for values in loaded.noted("added tokens", lambda: _added_tokens(loaded))]


def _added_tokens(loaded: LoadedTokenizer) -> list[list[Any]]:
    decoder = loaded.fast.get_added_tokens_decoder() if loaded.fast is not None else loaded.slow.added_tokens_decoder
    return [[int(n), str(t.content), bool(t.special), bool(t.lstrip), bool(t.rstrip)] for n, t in decoder.items()]


def special_strings(loaded: LoadedTokenizer) -> dict[str, int]:
    """The tokens that are marked special, and their ids."""
    return {token.content: token.id for token in added_tokens(loaded) if token.special}


def named_strings(loaded: LoadedTokenizer) -> dict[str, str]:
    """`bos_token`, `eos_token`, .. as text, those that are known."""
    return dict(loaded.noted("named", lambda: _named_strings(loaded)))


def _named_strings(loaded: LoadedTokenizer) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, number in loaded.special.items():
        token = loaded.fast.id_to_token(number) if loaded.fast is not None else loaded.slow.convert_ids_to_tokens(number)
        if token is not None:
            made[name.removesuffix("_id")] = str(token)
    return made


def _marked_special(loaded: LoadedTokenizer, tokens: Sequence[str]) -> LoadedTokenizer:
    """With these added tokens marked special, so that no text can spell them (some tokenizers don't mark their image tokens)."""
    wanted = {t.content for t in added_tokens(loaded) if t.content in tokens and not t.special}
    if loaded.slow is not None or not wanted:
        return loaded
    plain = _plain(loaded)
    for token in plain["added_tokens"]:
        token["special"] = token["special"] or token["content"] in wanted
    return LoadedTokenizer(Tokenizer.from_str(json.dumps(plain)), None, loaded.special)


def _plain(loaded: LoadedTokenizer) -> dict[str, Any]:
    assert loaded.fast is not None
    plain: dict[str, Any] = json.loads(loaded.fast.to_str())
    return plain


def _stripping(loaded: LoadedTokenizer) -> tuple[frozenset[int], frozenset[int]]:
    """The special tokens that swallow whitespace to their left, and to their right."""
    special = [token for token in added_tokens(loaded) if token.special]
    return frozenset(t.id for t in special if t.lstrip), frozenset(t.id for t in special if t.rstrip)


def _never_first(loaded: LoadedTokenizer) -> LoadedTokenizer | None:
    """For tokenizers that put a space before the beginning of a document only: one that never does; else None."""
    if loaded.slow is not None or not loaded.noted("a space first", lambda: _set_never(_plain(loaded).get("pre_tokenizer"))):
        return None
    plain = _plain(loaded)
    _set_never(plain["pre_tokenizer"])
    return LoadedTokenizer(Tokenizer.from_str(json.dumps(plain)), None, loaded.special)


def _set_never(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    if part.get("type") == "Sequence":
        changed = [_set_never(inner) for inner in part.get("pretokenizers", ())]  # all of them
        return any(changed)
    if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
        part["prepend_scheme"] = "never"
        return True
    return False

"""Texts to token ids, many at a time: flat int32 out, special strings in the text left as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from zephon.errors import RecipeError
from zephon.keys import I64
from zephon.operators.tokenizer_files import LoadedTokenizer

I32 = npt.NDArray[np.int32]

CHARACTERS_AT_ONCE = 1 << 18
"""Ids pass through Python lists (about 36 bytes per token), so a group is encoded in parts of about so many characters."""

_PROBES = ("a", "0", ".", "the", "A", "人")


class TextEncoder:
    """A tokenizer made ready: no truncation, no padding, no dropout, no special tokens added. Any number of threads may use it."""

    def __init__(self, loaded: LoadedTokenizer, *, allow_special: bool) -> None:
        self._loaded = loaded
        self._allow_special = allow_special
        self._fast = None if loaded.fast is None else _plain_copy(loaded.fast, allow_special=allow_special)

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        """`(ids of all texts in a row, int64[N] how many each text has)`."""
        flats, lengths = [], []
        for part in _parts(texts):
            encoded, ids = self._encode_part(part)
            sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
            # ids one text after the other: 46 ms for 814,000 tokens (4% of the encoding), 64 ms with all lists kept in between
            flats.append(np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(sizes.sum())))
            lengths.append(sizes)
        if not flats:
            return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
        return np.concatenate(flats), np.concatenate(lengths)

    def _encode_part(self, texts: list[str]) -> tuple[Sequence[Any], Iterator[list[int]]]:
        """`(something as long as each text has tokens, the ids of each)`."""
        if self._fast is not None:
            encodings = self._fast.encode_batch_fast(texts, add_special_tokens=False)
            return encodings, map(attrgetter("ids"), encodings)
        made: list[list[int]] = self._loaded.slow(
            texts, add_special_tokens=False, split_special_tokens=not self._allow_special, verbose=False
        )["input_ids"]
        return made, iter(made)


def default_frame(loaded: LoadedTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer itself puts before and after a text.

    Raises:
        RecipeError: it does something else than that.
    """
    for probe in _PROBES:
        bare, framed = _probe(loaded, probe)
        size = len(bare)
        for begin in range(len(framed) - size + 1):
            if size and framed[begin : begin + size] == bare:
                return tuple(framed[:begin]), tuple(framed[begin + size :])
    raise RecipeError(
        "this tokenizer adds special tokens in a way that is not understood",
        hint="choose special_tokens='bos_eos', 'bos', 'eos' or 'none'",
    )


def _probe(loaded: LoadedTokenizer, text: str) -> tuple[list[int], list[int]]:
    """A text's ids without and with special tokens."""
    if loaded.fast is None:
        bare, framed = (list(loaded.slow(text, add_special_tokens=added)["input_ids"]) for added in (False, True))
        return bare, framed
    fast = loaded.fast
    if fast.truncation is not None or fast.padding is not None or getattr(fast.model, "dropout", None):
        fast = _copy(fast, post_processor=True)
    return fast.encode(text, add_special_tokens=False).ids, fast.encode(text, add_special_tokens=True).ids


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    characters = 0
    for text in texts:
        part.append(text)
        characters += len(text)
        if characters >= CHARACTERS_AT_ONCE:
            yield part
            part, characters = [], 0
    if part:
        yield part


def _copy(tokenizer: Tokenizer, *, post_processor: bool) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(_plain_settings(tokenizer, post_processor=post_processor)))


def _plain_settings(tokenizer: Tokenizer, *, post_processor: bool) -> dict[str, Any]:
    """The tokenizer as JSON, without what would cut, fill or randomise."""
    plain: dict[str, Any] = json.loads(tokenizer.to_str())
    plain.update(truncation=None, padding=None)
    if not post_processor:
        plain["post_processor"] = None
    if plain["model"].get("dropout") is not None:
        plain["model"]["dropout"] = None
    return plain


def _plain_copy(tokenizer: Tokenizer, *, allow_special: bool) -> Tokenizer:
    """A copy that only encodes. Dropout is off: it would make tokens a matter of chance."""
    if allow_special:
        return _copy(tokenizer, post_processor=False)
    plain = _plain_settings(tokenizer, post_processor=False)
    hidden = _hide_special(plain)
    made = Tokenizer.from_str(json.dumps(plain))
    made.encode_special_tokens = True  # special tokens are not looked for in the text
    for content, number in hidden.items():
        if made.token_to_id(content) != number:
            raise RecipeError(
                f"special strings in the text can't be kept as text with this tokenizer: token {number} moves",
                hint="allow_special=True lets them become special tokens",
            )
    return made


def _hide_special(plain: dict[str, Any]) -> dict[str, int]:
    """Rename special tokens in the model so that no text can spell them; new content → id.

    A Unigram model takes any piece of its vocabulary that it finds in the text, `</s>` too; so do WordPiece and WordLevel for
    whole words, and BPE with ignore_merges. Other BPE models only reach what merges make.
    """
    model = plain["model"]
    vocab = model["vocab"]
    kind = model.get("type") or ("Unigram" if isinstance(vocab, list) else "BPE")
    if kind == "BPE" and not model.get("ignore_merges"):
        return {}
    merged = {part for merge in model.get("merges", ()) for part in _merge_parts(merge)}
    hidden: dict[str, int] = {}
    for token in plain["added_tokens"]:
        old, number = token["content"], token["id"]
        if not token["special"] or old in merged:
            continue
        new = f"\ufdd0special {number}\ufdd0"  # with a code point that is never a character
        if isinstance(vocab, list):
            if number < len(vocab) and vocab[number][0] == old:
                vocab[number][0] = new
        elif vocab.get(old) == number:
            vocab[new] = vocab.pop(old)
            if model.get("unk_token") == old:
                model["unk_token"] = new
        token["content"] = new
        hidden[new] = number
    return hidden


def _merge_parts(merge: str | Sequence[str]) -> tuple[str, ...]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right

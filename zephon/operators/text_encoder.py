"""Texts to token ids, many at a time: flat int32 out, special strings in the text left as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from zephon.errors import RecipeError
from zephon.keys import I64
from zephon.notes import Notes
from zephon.operators.token_backends import BACKENDS, Ahead, Backend, FlatEncoder, Library, Ready, begin, choose
from zephon.operators.token_backends.base import I32, Noted, digest_of, flat, unnoted
from zephon.operators.token_backends.hugging_face import parts_of
from zephon.operators.tokenizer_files import LoadedTokenizer, file_of

_FACTS = 1
"""Raised where what is noted of a `tokenizer.json` (here and by `Ready.noted`) is found out in another way than before: by `hide_special`,
by the shapes that were compared."""
_PROBES = ("a", "0", ".", "the", "A", "人")


class TextEncoder:
    """A tokenizer made ready: no truncation, no padding, no dropout, no special tokens added. Any number of threads may use it.

    The ids are those of `tokenizers`, whichever library makes them; see `token_backends`.
    """

    def __init__(
        self,
        loaded: LoadedTokenizer,
        *,
        allow_special: bool,
        backend: Library = "auto",
        backends: Sequence[Backend] = BACKENDS,
        ahead: Ahead | None = None,
    ) -> None:
        self._encoder: FlatEncoder
        if loaded.slow is not None:
            self._encoder = _Slow(loaded.slow, allow_special=allow_special)
            return
        text = _text_of(loaded)
        ready = None if ahead is None else ahead.ready_of(text)
        if ready is None:
            ready = make_ready(text, allow_special=allow_special)

        same = ready.text is ready.origin  # nothing had to change
        # not of `ready`, whose parsed text takes 20 MB: the reference may be made much later
        copy = partial(_plain_copy, ready.text, ready.hidden, allow_special=allow_special)

        def reference() -> Tokenizer:
            return (loaded.lend(encode_special_tokens=not allow_special) if same else None) or copy()

        self._encoder = choose(
            ready,
            copy,
            reference=reference,
            noted=loaded.noted,
            backends=backends,
            wish=backend,
            ahead=ahead,
        )

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        """`(ids of all texts in a row, int64[N] how many each text has)`.

        Raises:
            PluginError: the library that encodes was found to differ from `tokenizers` on one of the texts. No policy for bad records
                covers that.
        """
        return self._encoder.encode(texts)


def _text_of(loaded: LoadedTokenizer) -> str:
    if loaded.text is not None:
        return loaded.text
    assert loaded.fast is not None
    return str(loaded.fast.to_str())


class _Slow:
    """A transformers tokenizer without a fast one inside."""

    def __init__(self, tokenizer: Any, *, allow_special: bool) -> None:
        self._tokenizer = tokenizer
        self._allow_special = allow_special

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        return flat([self._part(part) for part in parts_of(texts)])

    def _part(self, texts: list[str]) -> tuple[I32, I64]:
        lists: list[list[int]] = self._tokenizer(
            texts, add_special_tokens=False, split_special_tokens=not self._allow_special, verbose=False
        )["input_ids"]
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        return np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(lengths.sum())), lengths


def default_frame(loaded: LoadedTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer itself puts before and after a text.

    Raises:
        RecipeError: it does something else than that.
    """
    before, after = loaded.noted("frame", lambda: _default_frame(loaded))
    return tuple(before), tuple(after)


def _default_frame(loaded: LoadedTokenizer) -> tuple[list[int], list[int]]:
    for probe in _PROBES:
        bare, framed = _probe(loaded, probe)
        size = len(bare)
        for first in range(len(framed) - size + 1):
            if size and framed[first : first + size] == bare:
                return framed[:first], framed[first + size :]
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


def _copy(tokenizer: Tokenizer, *, post_processor: bool) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(plain_settings(tokenizer, post_processor=post_processor)))


def plain_settings(tokenizer: Tokenizer, *, post_processor: bool) -> dict[str, Any]:
    """The tokenizer as JSON, without what would cut, fill or randomise."""
    plain: dict[str, Any] = json.loads(tokenizer.to_str())
    _make_plain(plain)
    if not post_processor:
        plain["post_processor"] = None
    return plain


def _make_plain(plain: dict[str, Any]) -> bool:
    """Leave out what would cut, fill or randomise; whether there was anything. Dropout would make tokens a matter of chance."""
    changed = False
    for part, name in ((plain, "truncation"), (plain, "padding"), (plain["model"], "dropout")):
        if part.get(name) is not None:
            part[name], changed = None, True
    return changed


def make_ready(text: str, *, allow_special: bool, noted: Noted = unnoted) -> Ready:
    """A `tokenizer.json` made ready for encoding and nothing else; its text stays the same object where nothing has to change.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no tokenizer.
    """
    made: list[Ready] = []

    def stays() -> bool:
        plain: dict[str, Any] = json.loads(text)
        changed = _make_plain(plain)
        hidden = {} if allow_special else hide_special(plain)
        changed = changed or bool(hidden)
        made.append(Ready(json.dumps(plain) if changed else text, plain, allow_special, hidden, text, noted))
        return not changed

    if noted("stays as it is", stays) and not made:
        return Ready(text, None, allow_special, {}, text, noted)
    if not made:
        stays()
    return made[0]


def begin_file(spec: Any, *, allow_special: bool, backend: Library) -> Ahead | None:
    """Have a quicker library begin to load a tokenizer, where `spec` is the path of one on disk: see `token_backends.begin`."""
    file = file_of(spec) if isinstance(spec, str) else None

    def ready(path: Path) -> Ready:
        data = path.read_bytes()
        text = data.decode("utf-8")
        notes = Notes("ready", data, str(_FACTS), str(allow_special))
        made = make_ready(text, allow_special=allow_special, noted=notes.of)
        if made.text is text:
            vars(made)["digest"] = digest_of(data)
        return made

    return None if file is None else begin(partial(ready, file), backend)


def _plain_copy(text: str, hidden: Mapping[str, int], *, allow_special: bool) -> Tokenizer:
    """What is ready, as an object of its own that only encodes.

    Raises:
        RecipeError: a special token can't be hidden.
    """
    plain = json.loads(text)
    made = Tokenizer.from_str(text if plain.get("post_processor") is None else json.dumps({**plain, "post_processor": None}))
    made.encode_special_tokens = not allow_special  # special tokens are not looked for in the text
    for content, number in hidden.items():
        if made.token_to_id(content) != number:
            raise RecipeError(
                f"special strings in the text can't be kept as text with this tokenizer: token {number} moves",
                hint="allow_special=True lets them become special tokens",
            )
    return made


def hide_special(plain: dict[str, Any]) -> dict[str, int]:
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

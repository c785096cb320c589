"""`gigatoken` (MIT): byte-level BPE, flat arrays through the package `awkward`, caches without a bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from zephon.keys import I64
from zephon.operators.token_backends.base import I32, Ready, RefusedError
from zephon.operators.token_backends.shapes import check

CHARACTERS_KEPT = 1 << 27
"""Its caches grow by every new word (to 1 TB in its issue 36), so the tokenizer is made anew after so many characters.
Random words took 7 bytes per character."""


class Gigatoken:
    """The back-end."""

    name = "gigatoken"

    def version(self) -> str:
        """Of the installed library. Raises `RefusedError` where it is missing."""
        try:
            return metadata.version("gigatoken")
        except metadata.PackageNotFoundError as error:
            raise RefusedError("not installed") from error

    def unsure(self, ready: Ready) -> Sequence[str]:  # noqa: ARG002 - of no tokenizer
        """None."""
        return ()

    def load(self, ready: Ready) -> _Encoder:
        """The tokenizer. Raises `RefusedError` for settings that were not compared."""
        check(ready)
        if any(not t["special"] or t["single_word"] or t["lstrip"] or t["rstrip"] for t in ready.plain["added_tokens"]):
            raise RefusedError("it has added tokens that are not plain special tokens")
        # it looks for every added token in the text, and there is no switch; so it doesn't get to know them
        added = ready.plain["added_tokens"] if ready.allow_special else []
        return _Encoder(json.dumps({**ready.plain, "post_processor": None, "added_tokens": added}))

    def begin(self, ready: Ready) -> Callable[[], _Encoder]:
        """All of it is left for later."""
        return partial(self.load, ready)


class _Encoder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._seen = 0
        self._tokenizer = self._make()

    def _make(self) -> Any:
        from gigatoken import Tokenizer  # noqa: PLC0415 - optional

        return Tokenizer.from_json(self._text)

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        if not texts:
            return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
        tokenizer = self._tokenizer
        layout = tokenizer.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        ids = np.asarray(layout.content.data)[int(offsets[0]) : int(offsets[-1])]
        # two threads may count at once and miss some: it is a bound on memory, not a result
        self._seen += sum(map(len, texts))
        if self._seen > CHARACTERS_KEPT:
            self._seen = 0
            self._tokenizer = self._make()
        return ids.astype(np.int32), np.diff(offsets)

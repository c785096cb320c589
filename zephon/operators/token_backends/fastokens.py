"""`fastokens` (Apache 2.0, Crusoe): byte-level BPE, bounded caches, no Python object per token, no further packages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from zephon.keys import I64
from zephon.operators.token_backends.base import I32, Ready, RefusedError
from zephon.operators.token_backends.brief import brief
from zephon.operators.token_backends.shapes import check, ignores_case

_THREADS = "FASTOKENS_BPE_THREADS"


class Fastokens:
    """The back-end."""

    name = "fastokens"

    def version(self) -> str:
        """Of the installed library. Raises `RefusedError` where it is missing."""
        try:
            return metadata.version("fastokens")
        except metadata.PackageNotFoundError as error:
            raise RefusedError("not installed (pip install 'zephon[fast-tokenize]')") from error

    def unsure(self, ready: Ready) -> Sequence[str]:
        """`'ſ` is `'s` in patterns that ignore case, and U+180E was white space before Unicode 6.3."""
        both = ready.noted("ignores case", lambda: ignores_case(ready))
        return ("\u180e", "'\u017f") if both else ("\u180e",)

    def load(self, ready: Ready) -> _Encoder:
        """The tokenizer. Raises `RefusedError` for settings that were not compared."""
        return self.begin(ready)()

    def begin(self, ready: Ready) -> Callable[[], _Encoder]:
        """The library is imported, and the text made short. Raises `RefusedError` for settings that were not compared."""
        ready.noted("was compared", partial(_compared, ready))
        # Its own threads are for one text that somebody waits for. Here the runner's threads call, and each call stays in its thread:
        # otherwise cores × threads would run. The variable is read once, at the first call.
        os.environ.setdefault(_THREADS, "1")
        import fastokens  # noqa: PLC0415 - optional

        text, split_special = brief(ready), not ready.allow_special
        return lambda: _Encoder(fastokens.Tokenizer.from_json_str(text), split_special=split_special)


def _compared(ready: Ready) -> bool:
    check(ready)
    return True


class _Encoder:
    def __init__(self, tokenizer: Any, *, split_special: bool) -> None:
        self._tokenizer = tokenizer
        self._split_special = split_special

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts), False, self._split_special)
        return np.frombuffer(ids, dtype="<u4").view(np.int32), np.diff(np.frombuffer(offsets, dtype="<u8").view(np.int64))

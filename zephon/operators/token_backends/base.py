"""What a back-end is: a library that encodes many texts at once into flat arrays, for the tokenizers that it is known to support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from zephon.keys import I64

I32 = npt.NDArray[np.int32]

Library = Literal["auto", "tokenizers", "fastokens", "gigatoken"]
"""Who may encode: `auto` is the quickest that is installed and proven equal; of another one that fails, `tokenizers` takes over."""


@dataclass(frozen=True)
class Ready:
    """A tokenizer made ready, as the text of its `tokenizer.json`: nothing cuts, fills or draws at random.

    Its post-processor, which adds special tokens, may be there; nobody asks for it.
    """

    text: str
    plain: Mapping[str, Any]
    """The text parsed; not to be changed."""
    allow_special: bool
    """False: special tokens are not looked for in the text."""
    hidden: Mapping[str, int] = field(default_factory=dict)
    """Special tokens that got another name, so that no text can spell them: that name → id."""
    origin: str = ""
    """The text before anything was left out; the same object where nothing was."""


class RefusedError(Exception):
    """A back-end doesn't support this tokenizer, or isn't there; the message says why."""


class FlatEncoder(Protocol):
    """Encodes texts. Any number of threads may call it at once; it works in the caller's thread, without the interpreter's lock."""

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        """`(ids of all texts in a row, int64[N] how many each text has)`."""
        ...


class Backend(Protocol):
    """A library that may encode in place of `tokenizers`."""

    @property
    def name(self) -> str:
        """As in `Library`."""
        ...

    def unsure(self, ready: Ready) -> Sequence[str]:
        """Strings with which the library is known to give other ids in some places: texts with one of them go to `tokenizers`."""
        ...

    def version(self) -> str:
        """Of the installed library. Raises `RefusedError` where it is missing."""
        ...

    def load(self, ready: Ready) -> FlatEncoder:
        """The tokenizer, made by this library. Raises `RefusedError` for settings that it isn't known to support."""
        ...


def flat(parts: Sequence[tuple[I32, I64]]) -> tuple[I32, I64]:
    """What several calls gave, as if it were one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

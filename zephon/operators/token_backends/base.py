"""What a back-end is: a library that encodes many texts at once into flat arrays, for the tokenizers that it is known to support."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from zephon.keys import I64

I32 = npt.NDArray[np.int32]
Noted = Callable[[str, Callable[[], Any]], Any]
"""A fact of this name, as a plain value: what is known, or what the function gives."""


def unnoted(name: str, make: Callable[[], Any]) -> Any:  # noqa: ARG001 - a default
    """Found out each time."""
    return make()


Library = Literal["auto", "tokenizers", "fastokens", "gigatoken"]
"""Who may encode: `auto` is the quickest that is installed and proven equal; of another one that fails, `tokenizers` takes over."""


@dataclass(frozen=True)
class Ready:
    """A tokenizer made ready, as the text of its `tokenizer.json`: nothing cuts, fills or draws at random.

    Its post-processor, which adds special tokens, may be there; nobody asks for it.
    """

    text: str
    parsed: Mapping[str, Any] | None
    """The text parsed, where it was."""
    allow_special: bool
    """False: special tokens are not looked for in the text."""
    hidden: Mapping[str, int] = field(default_factory=dict)
    """Special tokens that got another name, so that no text can spell them: that name → id."""
    origin: str = ""
    """The text before anything was left out; the same object where nothing was."""
    noted: Noted = unnoted
    """What follows from the text. To parse it takes 0.05 to 0.3 s with the interpreter lock held, so who needs little of it asks here."""

    @cached_property
    def digest(self) -> str:
        """32 hex digits of the text's bytes. (To encode the megabytes of a vocabulary takes 5 ms with the lock held.)"""
        return digest_of(self.text.encode("utf-8", "surrogatepass"))

    @cached_property
    def plain(self) -> Mapping[str, Any]:
        """The text parsed; not to be changed."""
        return json.loads(self.text) if self.parsed is None else self.parsed

    @property
    def added(self) -> list[str]:
        """The contents of the tokens that are added to the vocabulary."""
        found: list[str] = self.noted("added", lambda: [token["content"] for token in self.plain["added_tokens"]])
        return found


def digest_of(data: bytes) -> str:
    """32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


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


class EarlyBackend(Backend, Protocol):
    """A back-end that may load in the background."""

    def begin(self, ready: Ready) -> Callable[[], FlatEncoder]:
        """`load` in two parts: what needs the interpreter lock is done now, and the function does the rest. Both raise as `load`."""
        ...


def flat(parts: Sequence[tuple[I32, I64]]) -> tuple[I32, I64]:
    """What several calls gave, as if it were one."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])

"""What renderers take and write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

TEXT, IMAGE, SPECIAL = 0, 1, 2
"""Kinds of pieces; the first two as in `zephon_vision.columns`."""

Part = tuple[int, Any, bool]
"""`(TEXT, text, trained)` or `(IMAGE, number, False)`."""


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    """system, user, assistant or tool."""
    parts: Sequence[Part]
    train: bool
    """Whether its end is trained: the token that ends the turn."""

    def text(self) -> str:
        """Its text, without images."""
        return "".join(value for kind, value, _ in self.parts if kind == TEXT)

    def has_images(self) -> bool:
        """Whether it has any."""
        return any(kind == IMAGE for kind, _, _ in self.parts)


@dataclass
class Script:
    """A rendered document: pieces in order. Neighbouring texts are one piece, as the tokenizer would see them."""

    kinds: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    """Text, the id of a special token, or the number of an image."""
    spans: list[list[tuple[int, int]]] = field(default_factory=list)
    """Of a text: the parts [start, stop) in characters that are trained. Of a special token: [(0, 1)] if it is."""
    turns: list[int] = field(default_factory=list)
    """How many pieces there are at the end of each trained turn."""
    lead: int = 0
    """How many special tokens at the beginning the tokenizer puts there by itself: for it, the text begins after them."""


class Writer:
    """Writes a script."""

    def __init__(
        self, specials: Mapping[str, int], *, bos: int | None = None, around: Callable[[int], tuple[str, str]] | None = None
    ) -> None:
        self.script = Script()
        self._specials = specials
        self._bos = bos
        self._around = around

    def text(self, text: str, train: bool = False) -> None:
        """Ordinary text: special tokens that it spells stay text."""
        script = self.script
        if not text:
            return
        if not script.kinds or script.kinds[-1] != TEXT:
            self._piece(TEXT, "", [])
        start = len(script.values[-1])
        script.values[-1] += text
        if train:
            spans = script.spans[-1]
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], start + len(text))
            else:
                spans.append((start, start + len(text)))

    def special(self, token: str, train: bool = False) -> None:
        """A token of the template's; plain text where the tokenizer has no such special token."""
        number = self._specials.get(token)
        if number is None:
            self.text(token, train)
        else:
            self.token(number, train)

    def token(self, number: int, train: bool = False) -> None:
        """A token by its id."""
        self._piece(SPECIAL, number, [(0, 1)] if train else [])

    def bos(self) -> None:
        """The token that begins a document, where the tokenizer has one."""
        if self._bos is not None:
            self.token(self._bos)

    def has(self, token: str) -> bool:
        """Whether the tokenizer has this special token."""
        return token in self._specials

    def image(self, number: int) -> None:
        """An image, with the text that its family puts around it."""
        before, after = self._around(number) if self._around is not None else ("", "")
        self.text(before)
        self._piece(IMAGE, number, [])
        self.text(after)

    def parts(self, parts: Sequence[Part]) -> None:
        """Texts and images in order."""
        for kind, value, train in parts:
            if kind == TEXT:
                self.text(value, train)
            else:
                self.image(value)

    def end_turn(self, train: bool) -> None:
        """A turn is complete; noted if it is trained."""
        if train:
            self.script.turns.append(len(self.script.kinds))

    def _piece(self, kind: int, value: Any, spans: list[tuple[int, int]]) -> None:
        self.script.kinds.append(kind)
        self.script.values.append(value)
        self.script.spans.append(spans)


class Renderer(Protocol):
    """Writes a chat."""

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Raises `DataError` for a chat that the family has no form for."""
        ...


def stripped(parts: Sequence[Part]) -> list[Part]:
    """The parts without whitespace at the beginning and at the end of the message."""
    made = list(parts)
    for place, strip in ((0, str.lstrip), (-1, str.rstrip)):
        while made and made[place][0] == TEXT:
            kind, value, train = made[place]
            value = strip(value)
            if value:
                made[place] = (kind, value, train)
                break
            made.pop(place)
    return made


def each_stripped(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts, each text between images without whitespace at its ends."""
    run: list[Part] = []
    for part in parts:
        if part[0] == TEXT:
            run.append(part)
            continue
        yield from stripped(run)
        run = []
        yield part
    yield from stripped(run)


def split_system(messages: Sequence[Message]) -> tuple[Sequence[Part] | None, Sequence[Message]]:
    """A leading system message's parts, and the rest."""
    if messages and messages[0].role == "system":
        return messages[0].parts, messages[1:]
    return None, messages

"""Documents written segment by segment, kept column by column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.arrays import from_values
from zephon.errors import DataError
from zephon_vision import columns
from zephon_vision._taking import references, taken, together
from zephon_vision.layouts._images import Flat, ImageRules, read_value

MAX_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Rules:
    """The settings that layouts look at."""

    train: str = "assistant"
    placeholder: str | None = "<image>"
    images: ImageRules = field(default_factory=ImageRules)


class Builder:
    """Takes segments in reading order; `finish` makes the SEGMENTS and IMAGES columns."""

    def __init__(self, rules: Rules, flat: Flat) -> None:
        self.rules = rules
        self._flat = flat
        self._ends: list[int] = [0]
        self._kinds: list[int] = []
        self._texts: list[str | None] = []
        self._roles: list[str | None] = []
        self._turns: list[int] = []
        self._train: list[bool] = []
        self._image: list[int | None] = []
        self._image_ends: list[int] = [0]
        self._images: list[int] = []  # a number in `flat`, or after it one of `inline`
        self._inline: list[tuple[bytes | None, str | None]] = []

    def text(self, text: str, *, role: str | None = None, turn: int = 0, train: bool | None = None) -> None:
        """A piece of text; an empty one is left out. `train` None: as the settings say."""
        if not text:
            return
        if train is None:
            train = self.rules.train == "all" or role in (None, "assistant")
        self._segment(columns.TEXT, whole_characters(text), role, turn, train, None)

    def image(self, number: int, *, role: str | None = None, turn: int = 0) -> None:
        """An image of the row's, by its number."""
        place = len(self._images) - self._image_ends[-1]
        self._images.append(number)
        self._segment(columns.IMAGE, None, role, turn, False, place)

    def mark_turn(self, role: str, turn: int, *, train: bool | None = None) -> None:
        """A message without content: an empty text, so that it isn't lost."""
        if train is None:
            train = self.rules.train == "all" or role == "assistant"
        self._segment(columns.TEXT, "", role, turn, train, None)

    def inline(self, value: Any) -> int:
        """The number of an image that stands in the row itself: a path, data URL, base64 text, bytes, or a dict with one of these."""
        return self.missing(*read_value(value, self.rules.images))

    def missing(self, data: bytes | None = None, path: str | None = None) -> int:
        """The number of an image with this content; without: one that is missing."""
        self._inline.append((data, path))
        return len(self._flat.data) + len(self._inline) - 1

    def end_row(self) -> None:
        """The document is complete."""
        self._ends.append(len(self._kinds))
        self._image_ends.append(len(self._images))

    def _segment(self, kind: int, text: str | None, role: str | None, turn: int, train: bool, image: int | None) -> None:
        self._kinds.append(kind)
        self._texts.append(text)
        self._roles.append(role)
        self._turns.append(turn)
        self._train.append(train)
        self._image.append(image)

    def finish(self) -> tuple[Any, Any]:
        """The columns `(SEGMENTS, IMAGES)`."""
        parts: list[Any] = [
            from_values(self._kinds, pa.int8()),
            from_values(self._texts, pa.string()),
            from_values(self._roles, pa.string()),
            from_values(self._turns, pa.int32()),
            from_values(self._train, pa.bool_()),
            from_values(self._image, pa.int32()),
        ]
        segments = pa.StructArray.from_arrays(parts, fields=list(columns.SEGMENT))
        return _lists(self._ends, segments), _lists(self._image_ends, self._gathered())

    def _gathered(self) -> Any:
        data, path = self._flat.data, self._flat.path
        if self._inline:
            mine, names = zip(*self._inline, strict=True)
            _check_size(data.nbytes + sum(len(b) for b in mine if b is not None))
            data = together([data, from_values(mine, pa.binary())])
            path = pa.concat_arrays([path, from_values(names, pa.string())])
        index = np.array(self._images, dtype=np.int64)
        data, path = taken(data, index), taken(path, index)
        return references(data, path)


def _lists(ends: list[int], values: Any) -> Any:
    return pa.ListArray.from_arrays(from_values(ends, pa.int32()), values)


def _check_size(nbytes: int) -> None:
    if nbytes > MAX_BYTES:
        raise DataError("the images of a group take over 2 GB", hint="read smaller groups (a smaller chunk size)")


def whole_characters(text: str) -> str:
    """The text with lone surrogates (JSON allows them, UTF-8 doesn't) replaced by U+FFFD; pairs of them become their character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text

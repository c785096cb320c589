"""Image and caption: the pairs of LAION, CC12M, COYO and the like; and plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from zephon_vision.layouts._build import Builder
from zephon_vision.layouts.base import Kind, Layout, Row, text_of

NAMES = ("caption", "text", "txt", "TEXT", "alt_text")


class Caption(Layout):
    """An image column and a text column (`caption`, `text`, `txt`; WebDataset's `jpg` or `png` beside `txt`): the images, then the text.
    A null text is an empty one; a null image is a missing one. Without an image column: the text alone."""

    name: ClassVar[str] = "caption"

    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """A text column of one of the usual names; bytes too, since WebDataset's are."""
        for name in NAMES:
            if kinds.get(name) in ("text", "binary"):
                return {"text": name}
        return None

    def write(self, row: Row, out: Builder) -> None:
        """The images, then the text; no roles."""
        if row.images is not None:
            for image in row.images or (out.missing(),):
                out.image(image)
        text = row.fields["text"]
        if text is not None:
            out.text(text_of(text, "the caption"))

"""FineVision and The Cauldron: images, and turns of user and assistant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zephon.errors import DataError
from zephon_vision.layouts._build import Builder
from zephon_vision.layouts.base import Kind, Layout, Row, text_of


class FineVision(Layout):
    """`images`, and `texts`: a list of `{user, assistant}`, whose fields are found by name (their order differs between configs).

    All images go before the first user's text, as nanoVLM has it. `<image>` in the texts is text."""

    name: ClassVar[str] = "finevision"

    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """A list of structs with user and assistant."""
        for name in ("texts", *kinds):
            if kinds.get(name) == "pairs":
                return {"texts": name}
        return None

    def write(self, row: Row, out: Builder) -> None:
        """Two turns per pair."""
        pairs = row.fields["texts"]
        if not isinstance(pairs, list):
            raise DataError("the texts of the row are null" if pairs is None else "the texts of the row are no list")
        turn = 0
        for number, pair in enumerate(pairs):
            if not isinstance(pair, Mapping):
                raise DataError(f"a text of the row is no pair of user and assistant: number {number}")
            if number == 0:
                for image in row.images or ():
                    out.image(image, role="user", turn=0)
            turn += _turn(pair.get("user"), "user", turn, out, bare=number == 0 and bool(row.images))
            turn += _turn(pair.get("assistant"), "assistant", turn, out)
        if not pairs and row.images:
            raise DataError("the row has images and no texts")


def _turn(value: Any, role: str, turn: int, out: Builder, *, bare: bool = False) -> int:
    """How many turns it wrote; `bare`: the turn is there already, its images are."""
    if value is None:
        return int(bare)
    text = text_of(value, f"what the {role} says")
    if text:
        out.text(text, role=role, turn=turn)
    elif not bare:
        out.mark_turn(role, turn)
    return 1

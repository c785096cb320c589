"""LLaVA's JSON: conversations of from and value, with `<image>` in the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from zephon_vision.layouts._build import Builder
from zephon_vision.layouts._chat import write_chat
from zephon_vision.layouts.base import Kind, Layout, Row


class Llava(Layout):
    """`conversations`: a list of `{from, value}`, also as JSON text, beside `image` (one, or a list). Each `<image>` in the texts stands
    for the next image; their numbers must be equal. Text is taken as it stands, the newline after `<image>` too."""

    name: ClassVar[str] = "llava"

    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """A list of structs with from and value, or JSON text under the name `conversations`."""
        for name in ("conversations", *kinds):
            if kinds.get(name) == "talk" or (name == "conversations" and kinds.get(name) == "text"):
                found = {"conversations": name}
                return found | ({"system": "system"} if kinds.get("system") == "text" else {})
        return None

    def write(self, row: Row, out: Builder) -> None:
        """One segment per text and image, one turn per message."""
        write_chat(row.fields["conversations"], row, out, system=row.fields.get("system"))

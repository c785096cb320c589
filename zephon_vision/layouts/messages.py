"""Chat messages with role and content, as Hugging Face, OpenAI, ms-swift and LLaMA-Factory keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from zephon_vision.layouts._build import Builder
from zephon_vision.layouts._chat import write_chat
from zephon_vision.layouts.base import Kind, Layout, Row

_NAMES = ("messages", "conversation", "conversations", "chat", "dialog", "dialogue")


class Messages(Layout):
    """`messages`: a list of `{role, content}`, also as JSON text. Content is a string or a list of parts of type text or image
    (image_url, input_image too); an image part has its own image (`image`, `url`, `path`, `base64`, `image_url: {url}`), or stands for
    the next one of the row's image column. Without image parts, `<image>` in texts stands for it, if there is such a column; a chat
    without one has its `<image>` as text. A message's `train` or `weight` overrides whether it is trained on."""

    name: ClassVar[str] = "messages"

    def claims(self, kinds: Mapping[str, Kind]) -> dict[str, str] | None:
        """A list of structs with role and content, or JSON text under the name `messages`."""
        for name in (*_NAMES, *kinds):
            if kinds.get(name) == "turns" or (name == "messages" and kinds.get(name) == "text"):
                found = {"messages": name}
                return found | ({"system": "system"} if kinds.get("system") == "text" else {})
        return None

    def write(self, row: Row, out: Builder) -> None:
        """One segment per text and image, one turn per message."""
        write_chat(row.fields["messages"], row, out, system=row.fields.get("system"), placeholders=row.images is not None)

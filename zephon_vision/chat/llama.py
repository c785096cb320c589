"""Llama 3 and Llama 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_vision.chat.base import TEXT, Message, Writer, stripped


@dataclass(frozen=True)
class Llama:
    """`<|begin_of_text|>`, then a header with the role, two newlines, the text and the end-of-turn token per message. Text without
    images is trimmed, as in the published templates. No date and no system prompt of the templates' own are added."""

    start: str = "<|start_header_id|>"
    stop: str = "<|end_header_id|>"
    end: str = "<|eot_id|>"
    system: str | None = None

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat."""
        out.bos()
        if self.system and not (messages and messages[0].role == "system"):
            messages = [Message("system", [(TEXT, self.system, False)], False), *messages]
        for message in messages:
            out.special(self.start)
            out.text("ipython" if message.role == "tool" else message.role)
            out.special(self.stop)
            out.text("\n\n")
            out.parts(message.parts if message.has_images() else stripped(message.parts))
            out.special(self.end, message.train)
            out.end_turn(message.train)


def llama4(system: str | None = None) -> Llama:
    """Llama 4's tokens."""
    return Llama("<|header_start|>", "<|header_end|>", "<|eot|>", system)

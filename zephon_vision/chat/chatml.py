"""ChatML: Qwen-VL, InternVL, SmolLM and many others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_vision.chat.base import TEXT, Message, Writer

QWEN2_VL_SYSTEM = "You are a helpful assistant."
"""What the published template of Qwen2-VL and Qwen2.5-VL puts before chats without a system message."""


@dataclass(frozen=True)
class ChatMl:
    """`<|im_start|>role\\ntext<|im_end|>\\n` per message; `system` goes before chats without a system message, if there is one."""

    system: str | None = None

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat."""
        if self.system and not (messages and messages[0].role == "system"):
            messages = [Message("system", [(TEXT, self.system, False)], False), *messages]
        for message in messages:
            out.special("<|im_start|>")
            out.text(message.role + "\n")
            out.parts(message.parts)
            out.special("<|im_end|>", message.train)
            out.end_turn(message.train)
            out.text("\n")

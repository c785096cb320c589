"""LLaVA's conversations in Vicuna's style, and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon.errors import DataError
from zephon_vision.chat.base import Message, Writer, split_system

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


@dataclass(frozen=True)
class Llava:
    """LLaVA-1.5's `v1`: the system prompt, then `USER: text ASSISTANT: text</s>`; the tokenizer's own EOS ends an answer."""

    end: str = "</s>"
    system: str | None = VICUNA_SYSTEM

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat."""
        system, messages = split_system(messages)
        if system is not None:
            out.parts(system)
            out.text(" ")
        elif self.system:
            out.text(self.system + " ")
        for message in messages:
            if message.role == "user":
                out.text("USER: ")
                out.parts(message.parts)
                out.text(" ")
            elif message.role == "assistant":
                out.text("ASSISTANT: ")
                out.parts(message.parts)
                out.special(self.end, message.train)
                out.end_turn(message.train)
            else:
                raise DataError(f"the llava template has no form for a {message.role} message")


@dataclass(frozen=True)
class Plain:
    """The messages' texts and images one after the other, with nothing around them, as in LLaVA's pre-training; `end` ends an answer."""

    end: str | None = None

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat."""
        for message in messages:
            out.parts(message.parts)
            if message.role == "assistant":
                if self.end is not None:
                    out.special(self.end, message.train)
                out.end_turn(message.train)

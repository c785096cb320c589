"""Mistral's Tekken tokenizers: Pixtral, Mistral Small 3.1 and later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon.errors import DataError
from zephon_vision.chat.base import TEXT, Message, Part, Writer, split_system


@dataclass(frozen=True)
class Mistral:
    """`<s>`, then `[INST]text[/INST]` for the user and `text</s>` for the assistant, without spaces. A system message stands in
    `[SYSTEM_PROMPT]` where the tokenizer has that token; else, as in the older templates, before the last user's text."""

    end: str = "</s>"
    system: str | None = None

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat."""
        out.bos()
        system: Sequence[Part] | None
        system, messages = split_system(messages)
        if system is None and self.system:
            system = [(TEXT, self.system, False)]
        if system is not None and out.has("[SYSTEM_PROMPT]"):
            out.special("[SYSTEM_PROMPT]")
            out.parts(system)
            out.special("[/SYSTEM_PROMPT]")
            system = None
        last = max((n for n, m in enumerate(messages) if m.role == "user"), default=-1)
        for number, message in enumerate(messages):
            if message.role == "user":
                out.special("[INST]")
                if number == last and system is not None:
                    out.parts(system)
                    out.text("\n\n")
                out.parts(message.parts)
                out.special("[/INST]")
            elif message.role == "assistant":
                out.parts(message.parts)
                out.special(self.end, message.train)
                out.end_turn(message.train)
            else:
                raise DataError(f"the mistral template has no form for a {message.role} message")

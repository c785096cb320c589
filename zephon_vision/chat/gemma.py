"""Gemma 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon.errors import DataError
from zephon_vision.chat.base import Message, Writer, each_stripped, split_system


@dataclass(frozen=True)
class Gemma:
    """`<bos>`, then `<start_of_turn>role\\ntext<end_of_turn>\\n` per message; the assistant is called model, texts are trimmed, and a
    system message goes before the first user's text."""

    system: str | None = None

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat."""
        out.bos()
        system, messages = split_system(messages)
        for number, message in enumerate(messages):
            if message.role not in ("user", "assistant"):
                raise DataError(f"the gemma template has no form for a {message.role} message")
            out.special("<start_of_turn>")
            out.text("model\n" if message.role == "assistant" else "user\n")
            if number == 0 and system is not None:
                out.parts(system)
                out.text("\n\n")
            elif number == 0 and self.system:
                out.text(self.system + "\n\n")
            out.parts(list(each_stripped(message.parts)))
            out.special("<end_of_turn>", message.train)
            out.end_turn(message.train)
            out.text("\n")

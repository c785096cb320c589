"""Chats: messages whose content is a string with placeholders, or a list of parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from zephon.errors import DataError
from zephon_vision.layouts._build import Builder
from zephon_vision.layouts.base import Row, text_of

ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")
_IMAGE_PARTS = ("image", "image_url", "input_image")
_IMAGE_FIELDS = ("image", "image_url", "url", "path", "base64", "bytes")


def write_chat(value: Any, row: Row, out: Builder, *, system: Any = None, placeholders: bool = True) -> None:
    """Write messages (a list of dicts, or such a list as JSON text).

    Where no part of any message is an image, the placeholder in texts stands for the row's images, in order, if `placeholders`; else
    texts are only text. Raises `DataError` where images and their places don't match one to one.
    """
    messages = _messages(value)
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    contents = [_parts(message) for message in messages]
    has_parts = any(kind == "image" for parts in contents for kind, _ in parts)
    images = _Images(row, out)
    mark = None if has_parts or not placeholders else out.rules.placeholder
    for turn, (message, parts) in enumerate(zip(messages, contents, strict=True)):
        role = _role(message)
        train = _train(message)
        written = False
        for kind, content in parts:
            if kind == "image":
                out.image(images.of_part(content), role=role, turn=turn)
                written = True
                continue
            pieces = content.split(mark) if mark else [content]
            for number, piece in enumerate(pieces):
                if number:
                    out.image(images.next(), role=role, turn=turn)
                    written = True
                if piece:
                    out.text(piece, role=role, turn=turn, train=train)
                    written = True
        if not written:
            out.mark_turn(role, turn, train=train)
    images.check(mark)


class _Images:
    """The images of a row's column, taken one by one."""

    def __init__(self, row: Row, out: Builder) -> None:
        self._all = row.images or ()
        self._out = out
        self._asked = 0
        self._used: set[int] = set()

    def next(self) -> int:
        self._asked += 1
        place = self._asked - 1
        self._used.add(place)
        return self._all[place] if place < len(self._all) else -1  # `check` says it

    def of_part(self, part: Mapping[str, Any]) -> int:
        given = next((part[name] for name in _IMAGE_FIELDS if part.get(name) is not None), None)
        if given is not None:
            return self._out.inline(given)
        index = part.get("index")
        if index is None:
            return self.next()
        if not isinstance(index, int) or not 0 <= index < len(self._all):
            raise DataError(f"an image part asks for an image that isn't there: {index!r} of {len(self._all)}")
        self._used.add(index)
        return self._all[index]

    def check(self, mark: str | None) -> None:
        """Raise `DataError` unless every image has a place and every place an image."""
        if self._asked > len(self._all) or len(self._used) < len(self._all):
            what = f"{mark!r} in its text" if mark else "image parts without an image of their own"
            raise DataError(f"images don't match their places: the row has {len(self._all)} images and {self._asked} {what}")


def _messages(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"the chat is no JSON: {error}") from error
    if value is None:
        raise DataError("the chat is null")
    if not isinstance(value, list) or not all(isinstance(m, Mapping) for m in value):
        raise DataError(f"the chat is a {type(value).__name__}, not a list of messages")
    return value


def _role(message: Mapping[str, Any]) -> str:
    given = message.get("role") if message.get("role") is not None else message.get("from")
    role = ROLES.get(given.lower()) if isinstance(given, str) else None
    if role is None:
        raise DataError(f"unknown role of a message: {given!r}", hint=f"known: {', '.join(ROLES)}")
    return role


def _train(message: Mapping[str, Any]) -> bool | None:
    """Whether the message says itself if it is trained on: `train`, or `weight` as in OpenAI's format."""
    for name in ("train", "weight"):
        given = message.get(name)
        if isinstance(given, bool | int | float):
            return bool(given)
    return None


def _parts(message: Mapping[str, Any]) -> Sequence[tuple[str, Any]]:
    """`("text", str)` and `("image", part)` in order."""
    if message.get("tool_calls"):
        raise DataError("a message has tool_calls, which are not supported", hint="render them to text before interleave")
    content = message.get("content") if message.get("content") is not None else message.get("value")
    if content is None:
        return []
    if isinstance(content, str | bytes):
        return [("text", text_of(content, "a message"))]
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        raise DataError(f"the content of a message is a {type(content).__name__}, neither text nor a list of parts")
    return [_part(part) for part in content if part is not None]


def _part(part: Any) -> tuple[str, Any]:
    if isinstance(part, str):
        return "text", part
    if not isinstance(part, Mapping):
        raise DataError(f"a part of a message is a {type(part).__name__}")
    kind = part.get("type")
    if kind is None:
        kind = "text" if isinstance(part.get("text"), str) else "image"
    if kind in _TEXT_PARTS:
        return "text", text_of(part.get("text"), "a text part")
    if kind in _IMAGE_PARTS:
        return "image", part
    raise DataError(f"unknown type of a message's part: {kind!r}", hint=f"known: {', '.join(_TEXT_PARTS + _IMAGE_PARTS)}")

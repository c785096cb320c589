"""What a column seems to be for, from its type and a few values: text, chat, tokens, images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from zephon.cli.image_header import read_header

Role = Literal["text", "chat", "tokens", "image", "images", ""]

_CHAT = {"messages", "conversations", "conversation", "chat", "dialog", "dialogue"}
_TEXT = ("text", "content", "raw_content", "body", "document", "article", "code", "story", "txt", "caption", "transcript")
_TOKENS = ("input_ids", "tokens", "token_ids")


@dataclass(frozen=True)
class Column:
    """A column, what it is used as, and a note in words."""

    name: str
    type: str
    role: Role
    note: str = ""


def recognise(schema: pa.Schema, rows: Sequence[dict[str, Any]]) -> list[Column]:
    """The columns in order; `rows` are a few of the data set's."""
    columns = [_column(field, [row.get(field.name) for row in rows]) for field in schema]
    if not any(c.role == "text" for c in columns):
        columns = _longest_text(columns, rows)
    return columns


def _column(field: pa.Field[Any], values: Sequence[Any]) -> Column:
    kind: Any = field.type
    name, text = field.name, str(kind)
    found = [v for v in values if v is not None]
    if is_image_struct(kind):
        return Column(name, text, "image", _kinds([v["bytes"] for v in found], found))
    if _is_list(kind) and is_image_struct(kind.value_type):
        flat = [image for v in found for image in v if image is not None]
        return Column(name, text, "images", _kinds([v["bytes"] for v in flat], flat))
    if _is_binary(kind) and found and all(read_header(v) for v in found if v):
        return Column(name, text, "image", _kinds(found, []))
    if _is_list(kind) and _is_binary(kind.value_type):
        flat = [v for item in found for v in item if v]
        if flat and all(read_header(v) for v in flat):
            return Column(name, text, "images", _kinds(flat, []))
    if _is_chat(name, kind):
        return Column(name, text, "chat", "turns of a conversation")
    if _is_list(kind) and pa.types.is_integer(kind.value_type) and name in _TOKENS:
        return Column(name, text, "tokens", "token ids")
    if _is_text(kind) and name.lower() in _TEXT:
        return Column(name, text, "text", "text")
    return Column(name, text, "")


def is_image_struct(kind: Any) -> bool:
    """Whether a type is that of Hugging Face's Image feature: `struct<bytes: binary, path: string>`."""
    if not pa.types.is_struct(kind) or kind.num_fields != 2:
        return False
    fields = {kind.field(i).name: kind.field(i).type for i in range(2)}
    return set(fields) == {"bytes", "path"} and _is_binary(fields["bytes"])


def _is_chat(name: str, kind: Any) -> bool:
    if not _is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {kind.value_type.field(i).name for i in range(kind.value_type.num_fields)}
    return {"role", "content"} <= fields or {"from", "value"} <= fields or (name.lower() in _CHAT and bool(fields))


def _longest_text(columns: list[Column], rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Where no column is called text, the one with the longest strings may be it."""

    def length(column: Column) -> float:
        values = [row[column.name] for row in rows if isinstance(row.get(column.name), str)]
        return sum(map(len, values)) / len(values) if values and not column.role else 0

    longest = max(columns, key=length, default=None)
    if longest is None or length(longest) < 20:
        return columns
    return [Column(c.name, c.type, "text", "the longest text") if c is longest else c for c in columns]


def _kinds(images: Sequence[bytes | None], structs: Sequence[Any]) -> str:
    """`image: JPEG`, and whether bytes are there at all."""
    kinds = sorted({header.kind for image in images if image and (header := read_header(image))})
    if not kinds and any(s["bytes"] is None and s["path"] for s in structs):
        return "image: path only, no bytes"
    return f"image: {', '.join(kinds) or 'unknown kind'}" if any(images) else "image"


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

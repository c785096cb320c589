"""Rows and groups for tests."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from PIL import Image

from zephon import groups
from zephon.testing import check_operator
from zephon_vision import columns
from zephon_vision.interleave import Interleave


@functools.cache
def png(height: int = 56, width: int = 84, shade: int = 0) -> bytes:
    """A small PNG file."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 90, 10)).save(out, "PNG")
    return out.getvalue()


def ref(height: int = 56, width: int = 84, shade: int = 0) -> dict[str, Any]:
    """As Hugging Face keeps images."""
    return {"bytes": png(height, width, shade), "path": None}


def group(rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None) -> pa.RecordBatch:
    """Rows as a group, with provenance."""
    made = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    for name, kind in zip(groups.PROVENANCE, ("int32", "int64", "int32", "int64"), strict=True):
        values = range(100, 100 + len(rows)) if name == groups.ROW else [0] * len(rows)
        made = made.append_column(name, pa.array(list(values), type=kind))
    return made


def interleaved(rows: Sequence[dict[str, Any]], schema: pa.Schema | None = None, **settings: Any) -> pa.RecordBatch:
    """The rows after `interleave`, which is checked on the way."""
    return check_operator(Interleave(**settings), [group(rows, schema)])[0]


Segment = tuple[str | None, int, bool, Any]
"""`(role, turn, trained, text or (bytes, path))`."""


def documents(made: pa.RecordBatch) -> list[list[Segment]]:
    """Canonical rows, short."""
    out = []
    for row in made.to_pylist():
        images = [(i["bytes"], i["path"]) for i in row[columns.IMAGES]]
        out.append(
            [
                (s["role"], s["turn"], s["train"], s["text"] if s["kind"] == columns.TEXT else images[s["image"]])
                for s in row[columns.SEGMENTS]
            ]
        )
    return out


def canonical(rows: Sequence[Sequence[Segment]]) -> pa.RecordBatch:
    """The opposite: canonical rows out of short ones."""
    made = []
    for row in rows:
        images: list[Any] = []
        segments = []
        for role, turn, train, value in row:
            if isinstance(value, str):
                segments.append(
                    {"kind": columns.TEXT, "text": value, "role": role, "turn": turn, "train": train, "image": None}
                )
                continue
            segments.append(
                {"kind": columns.IMAGE, "text": None, "role": role, "turn": turn, "train": False, "image": len(images)}
            )
            images.append({"bytes": value[0], "path": value[1]})
        made.append({columns.SEGMENTS: segments, columns.IMAGES: images})
    fields: list[Any] = [pa.field(columns.SEGMENTS, columns.SEGMENTS_TYPE), pa.field(columns.IMAGES, columns.IMAGES_TYPE)]
    return group(made, pa.schema(fields))


def chat(*turns: Any, train: bool = True) -> list[Segment]:
    """User and assistant in turn; a turn is a text, or a list of texts and images."""
    made: list[Segment] = []
    for turn, content in enumerate(turns):
        role = "assistant" if turn % 2 else "user"
        values = content if isinstance(content, list) else [content]
        made += [(role, turn, train and role == "assistant" and isinstance(value, str), value) for value in values]
    return made


def document(*values: Any) -> list[Segment]:
    """Texts and images without roles."""
    return [(None, 0, isinstance(value, str), value) for value in values]


def image(height: int = 56, width: int = 84, shade: int = 0) -> tuple[bytes, None]:
    """An image for `chat` and `document`."""
    return png(height, width, shade), None

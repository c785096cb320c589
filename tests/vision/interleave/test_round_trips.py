"""Documents written in any layout come back as the same segments."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from vision.interleave.samples import Segment, chat, document, documents, group, png

from zephon_vision.interleave import Interleave
from zephon_vision.layouts.base import kind_of

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1, max_size=12)
IMAGE = st.integers(1, 4).map(lambda n: (png(n, 3), None))
PLACEHOLDER = "<image>"


def _no_texts_side_by_side(values: list[Any]) -> bool:
    return not any(isinstance(a, str) and isinstance(b, str) for a, b in pairwise(values))


MIXED = st.lists(st.one_of(TEXT, IMAGE), min_size=1, max_size=5).filter(_no_texts_side_by_side)


@st.composite
def chats(draw: st.DrawFn) -> list[Segment]:
    turns: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        turns += [draw(MIXED), draw(TEXT)]
    return chat(*turns)


def _turns(row: list[Segment]) -> list[tuple[str, list[Any]]]:
    made: list[tuple[str, list[Any]]] = []
    for role, turn, _, value in row:
        if turn == len(made):
            made.append((str(role), []))
        made[turn][1].append(value)
    return made


def _images(row: list[Segment]) -> list[Any]:
    return [value for *_, value in row if not isinstance(value, str)]


def _flat(values: list[Any]) -> str:
    return "".join(value if isinstance(value, str) else PLACEHOLDER for value in values)


def _refs(row: list[Segment]) -> list[dict[str, Any]]:
    return [{"bytes": data, "path": path} for data, path in _images(row)]


def _url(value: Any) -> str:
    return "data:image/png;base64," + base64.encodebytes(value[0]).decode()


def as_swift(row: list[Segment]) -> dict[str, Any]:
    return {"messages": [{"role": r, "content": _flat(v)} for r, v in _turns(row)], "images": _refs(row)}


def as_openai(row: list[Segment]) -> dict[str, Any]:
    def part(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            return {"type": "text", "text": value, "image_url": None}
        return {"type": "image_url", "text": None, "image_url": {"url": _url(value)}}

    return {"messages": [{"role": r, "content": [part(v) for v in values]} for r, values in _turns(row)]}


def as_trl(row: list[Segment]) -> dict[str, Any]:
    def part(value: Any) -> dict[str, Any]:
        return {"type": "text", "text": value} if isinstance(value, str) else {"type": "image", "text": None}

    messages = [{"role": r, "content": [part(v) for v in values]} for r, values in _turns(row)]
    return {"messages": messages, "images": [data for data, _ in _images(row)]}


def as_llava(row: list[Segment]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt"}
    return {"conversations": [{"from": names[r], "value": _flat(v)} for r, v in _turns(row)], "image": _refs(row)}


def as_json(row: list[Segment]) -> dict[str, Any]:
    made = as_llava(row)
    made["image"] = [_url(value) for value in _images(row)]
    return {"json": json.dumps(made)}


CHATS: list[Callable[[list[Segment]], dict[str, Any]]] = [as_swift, as_openai, as_trl, as_llava, as_json]


def typed(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """The rows as a group, with the types that a data set has also where this one is empty."""
    made = group(rows)
    for name, kind in (("images", pa.binary()), ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))):
        index = made.schema.get_field_index(name)
        if index >= 0 and kind_of(made.schema.field(index).type) == "null":
            made = made.set_column(index, name, made.column(index).cast(pa.list_(kind)))
    return made


@pytest.mark.parametrize("write", CHATS)
@settings(max_examples=examples(40), deadline=None)
@given(rows=st.lists(chats(), min_size=1, max_size=3))
def test_chats_come_back_from_every_layout(write: Callable[[Any], dict[str, Any]], rows: list[list[Segment]]) -> None:
    assert documents(Interleave().bind()(typed([write(row) for row in rows]))) == rows


@settings(max_examples=examples(40), deadline=None)
@given(rows=st.lists(MIXED.map(lambda values: document(*values)), min_size=1, max_size=3))
def test_web_documents_come_back(rows: list[list[Segment]]) -> None:
    made = [
        {
            "images": [None if isinstance(v, str) else v[0] for *_, v in row],
            "texts": [v if isinstance(v, str) else None for *_, v in row],
        }
        for row in rows
    ]
    schema = pa.schema([("images", pa.list_(pa.binary())), ("texts", pa.list_(pa.string()))])
    assert documents(Interleave().bind()(group(made, schema))) == rows


@settings(max_examples=examples(40), deadline=None)
@given(images=st.lists(IMAGE, max_size=3), said=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3))
def test_pairs_come_back(images: list[Any], said: list[tuple[str, str]]) -> None:
    row = {"images": [data for data, _ in images], "texts": [{"assistant": a, "user": u} for u, a in said]}
    schema = pa.schema(
        [("images", pa.list_(pa.binary())), ("texts", pa.list_(pa.struct([("assistant", pa.string()), ("user", pa.string())])))]
    )
    first, *rest = [value for pair in said for value in pair]
    assert documents(Interleave().bind()(group([row], schema))) == [chat([*images, first], *rest)]


@settings(max_examples=examples(40), deadline=None)
@given(row=chats(), cut=st.integers(0, 3))
def test_a_row_does_not_depend_on_its_group(row: list[Segment], cut: int) -> None:
    other = as_swift(chat("Q", "A"))
    rows = [other, other, as_swift(row), other]
    made = Interleave().bind()(typed(rows).slice(min(cut, 2)))
    assert documents(made)[2 - min(cut, 2)] == row

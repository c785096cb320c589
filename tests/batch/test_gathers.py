"""Rows gathered from many groups, copied or as views, are what concatenating and taking gives, for every type and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import gathers, groups
from zephon.engine import pieces
from zephon.gathers import gather_bytes
from zephon.hashing import hash_group
from zephon.views import BYTES, buffers, concat, hash_parts, own_bytes, plain_group, take_from, viewable, viewed, viewed_columns

STRUCT = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string()), pa.field("size", pa.int32())])
KINDS: dict[str, Any] = {
    "text": (pa.string(), st.text(max_size=20)),
    "bytes": (pa.binary(), st.binary(max_size=40)),
    "large": (pa.large_binary(), st.binary(max_size=20)),
    "wide": (pa.large_string(), st.text(max_size=20)),
    "number": (pa.int64(), st.integers(-5, 5)),
    "flag": (pa.bool_(), st.booleans()),
    "tokens": (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=6)),
    "mask": (pa.list_(pa.uint8()), st.lists(st.integers(0, 1), max_size=6)),
    "ratios": (pa.list_(pa.float64()), st.lists(st.floats(0, 1), max_size=3)),
    "nested": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.text(max_size=3), max_size=2), max_size=2)),
    "image": (
        STRUCT,
        st.fixed_dictionaries(
            {"bytes": st.binary(max_size=30), "path": st.none() | st.text(max_size=3), "size": st.integers(0, 3)}
        ),
    ),
}


@st.composite
def parts(draw: st.DrawFn) -> list[pa.RecordBatch]:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    nulls = draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 5))
        arrays = []
        for name in names:
            kind, values = KINDS[name]
            cells = st.none() | values if nulls else values
            arrays.append(pa.array(draw(st.lists(cells, min_size=size, max_size=size)), kind))
        group = pa.RecordBatch.from_arrays(arrays, names=names)
        made.append(group.slice(draw(st.integers(0, size - 1))))
    return made


def as_views(group: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([viewed(c) for c in group.columns], names=group.schema.names)


@settings(max_examples=examples(150))
@given(parts(), st.data())
def test_it_is_the_same_as_concatenating_and_taking(given_parts: list[pa.RecordBatch], data: st.DataObject) -> None:
    every = [(k, i) for k, part in enumerate(given_parts) for i in range(len(part))]
    chosen = data.draw(st.lists(st.sampled_from(every), max_size=12))
    which, index = (np.array([c[n] for c in chosen], dtype=np.int64) for n in (0, 1))
    schema = given_parts[0].schema
    seen = [as_views(p) if data.draw(st.booleans()) else p for p in given_parts]
    made = plain_group(take_from(seen, which, index, schema), schema)
    made.validate(full=True)
    assert made.schema == schema
    rows = [part.to_pylist() for part in given_parts]
    assert made.to_pylist() == [rows[k][i] for k, i in chosen]


@settings(max_examples=examples(150))
@given(parts(), st.data())
def test_views_one_after_the_other(given_parts: list[pa.RecordBatch], data: st.DataObject) -> None:
    """Joined, sliced and weighed, they stand for the same rows, and hold none of them."""
    schema = given_parts[0].schema
    seen = [as_views(p) if data.draw(st.booleans()) else p for p in given_parts]
    columns = [concat([p.column(i) for p in seen], schema.field(i).type) for i in range(len(schema))]
    joined = pa.RecordBatch.from_arrays(columns, names=schema.names)
    first = data.draw(st.integers(0, len(joined)))
    rows = [row for part in given_parts for row in part.to_pylist()]
    assert plain_group(joined.slice(first), schema).to_pylist() == rows[first:]
    assert own_bytes(as_views(given_parts[0])) <= groups.nbytes(as_views(given_parts[0]))


def test_lists_of_one_memory_are_joined_without_a_copy() -> None:
    whole = pa.array([[1, 2], [3], [], [4, 5, 6]], pa.list_(pa.int32()))
    joined = concat([viewed(whole.slice(0, 1)), viewed(whole.slice(2))], whole.type)
    assert joined.values.buffers()[1].address == whole.values.buffers()[1].address
    assert joined.to_pylist() == [[1, 2], [], [4, 5, 6]]


def test_bytes_are_joined_and_chosen_without_a_copy() -> None:
    parts = [pa.array([bytes([n]) * 100, b"x"], pa.binary()) for n in range(3)]
    group = pa.RecordBatch.from_arrays([concat([viewed(p) for p in parts], pa.binary())], names=["a"])
    chosen = take_from([group], np.zeros(2, np.int64), np.array([4, 0]), pa.schema({"a": pa.binary()}))
    there = {b.address for p in parts for b in p.buffers() if b is not None}
    assert {b.address for b in chosen.column(0).buffers()[2:] if b is not None} <= there
    assert chosen.to_pylist() == [{"a": b"\2" * 100}, {"a": bytes(100)}]
    assert own_bytes(chosen) == 32 < groups.nbytes(chosen) == 232


Ranges = list[tuple[int, int, int]]


def ranges_in(parts: Sequence[Sequence[int]], most: int, data: st.DataObject) -> tuple[Ranges, list[Any]]:
    """Some `(part, begin, length)`, and the same as three arrays."""
    ranges = []
    for _ in range(data.draw(st.integers(0, most))):
        which = data.draw(st.integers(0, len(parts) - 1))
        begin = data.draw(st.integers(0, len(parts[which])))
        ranges.append((which, begin, data.draw(st.integers(0, len(parts[which]) - begin))))
    return ranges, [np.array([r[n] for r in ranges], dtype=np.int64) for n in range(3)]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_ranges_of_bytes(blobs: list[bytes], data: st.DataObject) -> None:
    ranges, (which, begin, length) = ranges_in(blobs, 8, data)
    made = gather_bytes([np.frombuffer(b, np.uint8) for b in blobs], which, begin, length)
    assert made.tobytes() == b"".join(blobs[w][b : b + n] for w, b, n in ranges)


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=40), min_size=1, max_size=4), st.sampled_from([gathers._MOST, 20]), st.data()
)
def test_ranges_of_numbers(lists: list[list[int]], most: int, data: st.DataObject) -> None:
    """Also of arrays that are too long for Arrow's views."""
    ranges, (which, begin, length) = ranges_in(lists, 12, data)
    with patch.object(gathers, "_MOST", most):
        made = gathers.gather_ranges([np.array(numbers, np.int32) for numbers in lists], which, begin, length)
    assert made.dtype == np.int32
    assert made.tolist() == [number for w, b, n in ranges for number in lists[w][b : b + n]]


def test_an_empty_part_and_no_rows() -> None:
    parts = [pa.RecordBatch.from_pydict({"a": pa.array(v, pa.binary())}) for v in ([], [b"x" * 20], [])]
    none, schema = np.zeros(0, np.int64), parts[0].schema
    assert take_from(parts, none, none, schema).num_rows == 0
    assert take_from(parts, np.array([1]), np.array([0]), schema).to_pylist() == [{"a": b"x" * 20}]
    assert hash_group(take_from(parts, np.array([1]), np.array([0]), schema)) == hash_group(parts[1])


@settings(max_examples=examples(150))
@given(parts())
def test_the_hash_of_parts_is_that_of_the_joined_group(given_parts: list[pa.RecordBatch]) -> None:
    digest = xxhash.xxh3_64()
    for number, field in enumerate(given_parts[0].schema):
        digest.update(field.name.encode())
        hash_parts(digest, [p.column(number) for p in given_parts], field.type)
    assert digest.intdigest() == hash_group(pa.concat_batches(given_parts))  # type: ignore[attr-defined]


@settings(max_examples=examples(150))
@given(parts(), st.data())
def test_runs_of_blocks_joined_as_views(given_parts: list[pa.RecordBatch], data: st.DataObject) -> None:
    """Their rows and their hash are those of the slices one after the other; of memory that lasts nothing is copied."""
    schema = given_parts[0].schema
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_ROW", data.draw(st.sampled_from([0, 1 << 30])))
        blocks = [pieces.Block(part, keep=True) for part in given_parts]
    runs, slices = [], []
    for number, low in data.draw(
        st.lists(st.tuples(st.integers(0, len(blocks) - 1), st.integers(0, 4)), min_size=1, max_size=5)
    ):
        low = min(low, len(blocks[number]) - 1)
        high = data.draw(st.integers(low + 1, len(blocks[number])))
        runs += pieces.cut([blocks[number]], low, high)
        slices.append(given_parts[number].slice(low, high - low))
    digest = xxhash.xxh3_64()
    arrays = []
    for number, field in enumerate(schema):
        digest.update(field.name.encode())
        arrays.append(pieces.joined(runs, number, field.type, digest, lasts=True, copied=False, lists=False))
    made = pa.RecordBatch.from_arrays(arrays, names=schema.names)
    made.validate(full=True)
    wanted = pa.concat_batches(slices)  # type: ignore[attr-defined]
    assert plain_group(made, schema).to_pylist() == wanted.to_pylist()
    assert digest.intdigest() == hash_group(wanted)
    for array, kind in zip(arrays, schema.types, strict=True):
        if array.type.id in BYTES:
            assert [v if v is None else bytes(v) for v in buffers(array)] == array.cast(pa.large_binary()).to_pylist(), kind


APART: dict[str, tuple[Any, Any, Any]] = {
    "the place of a null": (pa.string(), [None, "a"], ["a", None]),
    "null and empty": (pa.string(), [None], [""]),
    "null and empty list": (pa.list_(pa.int32()), [None, [1]], [[], [1]]),
    "null in a list": (pa.list_(pa.int32()), [[1, None]], [[None, 1]]),
    "null struct and struct of null": (pa.struct([("a", pa.int32())]), [None], [{"a": None}]),
    "where a text ends": (pa.string(), ["ab", "c"], ["a", "bc"]),
    "where a list ends": (pa.list_(pa.int32()), [[1, 2], [3]], [[1], [2, 3]]),
    "where an inner list ends": (pa.list_(pa.list_(pa.int32())), [[[1, 2], [3]]], [[[1], [2, 3]]]),
    "order": (pa.int64(), [1, 2], [2, 1]),
    "true and false": (pa.bool_(), [True, False], [False, True]),
    "keys of a map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)]], [[("b", 1)]]),
    "a place in a dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b"], ["b", "a"]),
}


@pytest.mark.parametrize(("kind", "one", "other"), APART.values(), ids=APART.keys())
def test_what_differs_has_another_hash(kind: Any, one: Any, other: Any) -> None:
    hashes = []
    for rows in (one, one, other):
        array = pa.array(rows, pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(rows, kind)
        hashes.append(hash_group(pa.RecordBatch.from_arrays([array], names=["x"])))
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


def test_names_types_and_lengths_count_in_a_hash() -> None:
    made = [
        pa.record_batch({"x": pa.array([1], pa.int32())}),
        pa.record_batch({"y": pa.array([1], pa.int32())}),
        pa.record_batch({"x": pa.array([1], pa.int64())}),
        pa.record_batch({"x": pa.array([1, 0], pa.int32())}),
        pa.record_batch({"x": pa.array([], pa.int32())}),
    ]
    assert len({hash_group(group) for group in made}) == len(made)


@settings(max_examples=examples(150))
@given(parts(), st.data())
def test_views_have_the_hash_of_what_they_show(given_parts: list[pa.RecordBatch], data: st.DataObject) -> None:
    """So a state that a run on threads left, which hashes views, is right for one on processes, which gets columns."""
    whole = pa.concat_batches(given_parts)  # type: ignore[attr-defined]
    names = frozenset(f.name for f in whole.schema if viewable(f.type))
    low = data.draw(st.integers(0, len(whole)))
    shown = viewed_columns(whole, names).slice(low)
    assert hash_group(shown) == hash_group(whole.slice(low))
    assert plain_group(shown, whole.schema).to_pylist() == whole.slice(low).to_pylist()


IMAGES: Any = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
SHOWN: Any = pa.list_(pa.struct([("bytes", pa.binary_view()), ("path", pa.string())]))
FILE = st.fixed_dictionaries({"bytes": st.none() | st.binary(max_size=20), "path": st.none() | st.text("ab", max_size=15)})


@settings(max_examples=examples(150))
@given(st.lists(st.none() | st.lists(st.none() | FILE, max_size=4), max_size=6), st.data())
def test_lists_of_views_have_the_hash_of_what_they_show(rows: list[Any], data: st.DataObject) -> None:
    low = data.draw(st.integers(0, len(rows)))
    whole, shown = (pa.RecordBatch.from_arrays([pa.array(rows, kind).slice(low)], names=["images"]) for kind in (IMAGES, SHOWN))
    assert hash_group(shown) == hash_group(whole)
    assert plain_group(shown, whole.schema).equals(whole)
    assert groups.shows(SHOWN)
    assert not groups.shows(IMAGES)

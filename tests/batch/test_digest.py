"""The canonical bytes of rows: a function of names, types and values, and of nothing else."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import groups
from zephon.digest import canonical_type, update_rows


class Recorder:
    """A hasher that keeps the bytes."""

    def __init__(self) -> None:
        self.data = b""

    def update(self, data: Any) -> None:
        self.data += bytes(data)


def fed(group: pa.RecordBatch) -> bytes:
    recorder = Recorder()
    update_rows(recorder, group, groups.user_columns(group.schema))
    return recorder.data


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-5, 5)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "half": (pa.float16(), st.sampled_from([0.5, -1.0])),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=3)),
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "three": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "day": (pa.date32(), st.dates(datetime.date(2000, 1, 1))),
    "money": (pa.decimal128(5, 2), st.sampled_from([decimal.Decimal("1.25"), decimal.Decimal("-3.00")])),
    "nothing": (pa.null(), st.none()),
}
KINDS |= {
    "ints": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-5, 5), max_size=3)),
    "words": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=2), max_size=3)),
    "pairs": (pa.list_(pa.int16(), 2), st.tuples(st.integers(0, 3), st.none() | st.integers(0, 3)).map(list)),
    "deep": (pa.list_(pa.list_(pa.bool_())), st.lists(st.none() | st.lists(st.booleans(), max_size=2), max_size=2)),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.lists(st.tuples(st.text(max_size=1), st.none() | st.integers(0, 3)), max_size=2),
    ),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 3), "b": st.none() | st.lists(st.text(max_size=1), max_size=2)}),
    ),
}


@st.composite
def columns(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    size = draw(st.integers(0, 5))
    arrays = []
    for name in names:
        kind, values = KINDS[name]
        arrays.append(pa.array([draw(st.none() | values) for _ in range(size)], type=kind))
    return pa.RecordBatch.from_arrays(arrays, names=names)


@settings(max_examples=examples(150), deadline=None)
@given(columns(), st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_bytes_are_those_of_the_rows_one_by_one_in_any_order_of_columns(
    group: pa.RecordBatch, at: int, random: Any
) -> None:
    names = list(group.schema.names)
    random.shuffle(names)
    shuffled = groups.select(group, names)
    rebuilt = [pa.RecordBatch.from_pylist([row], schema=group.schema) for row in group.to_pylist()]
    assert fed(shuffled) == fed(group)
    assert fed(group.slice(0, at)) + fed(group.slice(at)) == fed(group)
    assert b"".join(fed(row) for row in rebuilt) == fed(group)


@settings(max_examples=examples(150), deadline=None)
@given(columns(), columns())
def test_different_rows_give_different_bytes(one: pa.RecordBatch, two: pa.RecordBatch) -> None:
    def seen(group: pa.RecordBatch) -> list[dict[str, Any]]:
        return [{k: repr(v) for k, v in row.items() if v is not None} for row in group.to_pylist()]

    assert (fed(one) == fed(two)) == (seen(one) == seen(two))


LAYOUTS = [
    (pa.array(["a", "bcd", None, "a"]), lambda a: a.dictionary_encode()),
    (pa.array(["a", "bcd", None, "a"]), lambda a: a.cast(pa.large_string())),
    (pa.array(["a", "bcd", None, "a"]), lambda a: a.cast(pa.string_view())),
    (pa.array([b"a", b"bcd", None]), lambda a: a.cast(pa.binary_view())),
    (pa.array([[1, 2], [], None, [3]]), lambda a: a.cast(pa.large_list(pa.int64()))),
    (pa.array([[1, 2], [], None, [3]]), lambda a: a.cast(pa.list_(pa.field("element", pa.int64(), nullable=True)))),
    (pa.array([[1, 2], [], None, [3]]), lambda a: pa.array(a.to_pylist(), pa.list_view(pa.int64()))),
    (pa.array([["x"], ["y", None]]), lambda a: a.cast(pa.large_list(pa.large_string()))),
    (
        pa.array([1, 1, 2], pa.int32()),
        lambda a: pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([1, 2], pa.int32())),
    ),
]


@pytest.mark.parametrize(("array", "change"), LAYOUTS)
def test_the_layout_does_not_count(array: pa.Array, change: Any) -> None:
    other = change(array)
    assert other.type != array.type or other.type.field(0) is not None
    assert fed(pa.RecordBatch.from_arrays([other], names=["x"])) == fed(pa.RecordBatch.from_arrays([array], names=["x"]))


def test_what_lies_beneath_a_null_does_not_count() -> None:
    values = pa.array([1, 2, 3, 4], pa.int32())
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), values, mask=pa.array([True, False]))
    masked = pa.Array.from_buffers(pa.int32(), 3, [pa.py_buffer(b"\x05"), pa.array([1, 77, 3], pa.int32()).buffers()[1]])
    one = pa.RecordBatch.from_arrays([hidden, pa.StructArray.from_arrays([masked.slice(1)], names=["a"])], names=["x", "y"])
    two = pa.RecordBatch.from_pylist(one.to_pylist(), schema=one.schema)
    assert fed(one) == fed(two)


def test_a_null_is_the_same_as_a_column_that_is_not_there() -> None:
    assert fed(pa.RecordBatch.from_pydict({"a": [1], "b": pa.array([None], pa.string())})) == fed(
        pa.RecordBatch.from_pydict({"a": [1]})
    )


@pytest.mark.parametrize(
    ("one", "two"), [([[1], [2, 3]], [[1, 2], [3]]), (["a", "bc"], ["ab", "c"]), ([[], [1]], [[1], []]), ([None, 1], [1, None])]
)
def test_borders_inside_a_value_count(one: list[Any], two: list[Any]) -> None:
    assert fed(pa.RecordBatch.from_pydict({"x": [one]})) != fed(pa.RecordBatch.from_pydict({"x": [two]}))


def test_types_count_and_unions_and_extensions_work() -> None:
    assert fed(pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32())})) != fed(
        pa.RecordBatch.from_pydict({"a": pa.array([1], pa.uint32())})
    )
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    assert b"'b'" in fed(pa.RecordBatch.from_arrays([union], names=["u"]))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(pa.array([1, 2, 3, 4]).to_numpy().reshape(2, 2))
    whole, parts = pa.RecordBatch.from_arrays([tensor], names=["t"]), canonical_type(tensor.type)
    assert parts.startswith("arrow.fixed_shape_tensor<")
    assert fed(whole.slice(0, 1)) + fed(whole.slice(1)) == fed(whole)


def test_list_views_may_be_out_of_order_and_sliced() -> None:
    view = pa.ListViewArray.from_arrays(
        pa.array([3, 0, 1], pa.int32()), pa.array([1, 2, 2], pa.int32()), pa.array([1, 2, 3, 4])
    )
    one = pa.RecordBatch.from_arrays([view], names=["x"])
    two = pa.RecordBatch.from_pydict({"x": [[4], [1, 2], [2, 3]]})
    assert fed(one) == fed(two)
    assert fed(one.slice(1, 2)) == fed(two.slice(1, 2))

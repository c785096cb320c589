"""Numbers between numpy and Arrow: the same as pyarrow's own way, without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.arrays import filled, from_values, inferred, list_sizes, to_arrow, to_numpy

KINDS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?"]


@given(
    st.sampled_from(KINDS), st.lists(st.integers(0, 100), max_size=40), st.integers(1, 3), st.integers(0, 5), st.integers(0, 40)
)
def test_both_ways_give_what_pyarrow_gives(kind: str, numbers: list[int], step: int, offset: int, size: int) -> None:
    values = np.array(numbers, dtype=kind)[::step]
    made = to_arrow(values)
    assert made.equals(pa.array(values))
    made.validate(full=True)
    part: Any = made.slice(offset, size)
    back = to_numpy(part)
    assert back.dtype == values.dtype
    assert np.array_equal(back, values[offset : offset + size])


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 3]),
        pa.array([True, None]),
        pa.array(["a", "b"]),
        pa.array([], pa.int64()),
        pa.array([], pa.bool_()),
        pa.nulls(2),
        pa.chunked_array([[1, 2], [3]]),
        pa.array([0, 86400], pa.timestamp("s")),
    ],
)
def test_everything_else_is_as_pyarrow_has_it(array: Any) -> None:
    want = array.to_numpy(zero_copy_only=False)
    got = to_numpy(array)
    assert got.dtype == want.dtype
    assert np.array_equal(got, want, equal_nan=got.dtype.kind == "f")


@given(
    st.sampled_from(KINDS),
    st.lists(st.none() | st.integers(0, 1), max_size=40),
    st.integers(0, 5),
    st.integers(0, 40),
    st.integers(0, 1),
)
def test_nulls_come_and_go_as_with_pyarrow(kind: str, numbers: list[int | None], offset: int, size: int, value: int) -> None:
    arrow = pa.from_numpy_dtype(np.dtype(kind))
    given = [None if n is None else np.dtype(kind).type(n).item() for n in numbers]
    made = from_values(given, arrow)
    made.validate(full=True)
    assert made.equals(pa.array(given, arrow))
    missing = np.array([n is None for n in numbers], bool)
    assert to_arrow(np.array([n or 0 for n in numbers], kind), null=missing).equals(made)
    back = filled(made.slice(offset, size), value)
    want = [np.dtype(kind).type(value if n is None else n) for n in numbers[offset : offset + size]]
    assert (back.dtype, back.tolist()) == (np.dtype(kind), [w.item() for w in want])


@given(
    st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]), st.lists(st.none() | st.text(max_size=9))
)
def test_texts_and_bytes_are_as_pyarrow_has_them(kind: Any, texts: list[str | None]) -> None:
    given = texts if "string" in str(kind) else [None if t is None else t.encode() for t in texts]
    made = from_values(given, kind)
    made.validate(full=True)
    assert made.equals(pa.array(given, kind))


@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3)), st.integers(0, 5), st.integers(0, 40))
def test_null_lists_have_no_elements(rows: list[list[int] | None], offset: int, size: int) -> None:
    part = pa.array(rows, pa.list_(pa.int8())).slice(offset, size)
    assert list_sizes(part).tolist() == [len(row or ()) for row in rows[offset : offset + size]]


def test_a_text_that_is_no_unicode_is_an_error_as_with_pyarrow() -> None:
    with pytest.raises(UnicodeEncodeError):
        from_values(["\ud800"], pa.string())


_PLAIN = st.sampled_from([st.integers(), st.integers(-9, 9), st.booleans(), st.floats(), st.text(), st.binary(), st.none()])
_VALUES = _PLAIN.flatmap(
    lambda one: (
        st.lists(st.one_of(st.none(), one, st.lists(st.none() | one, max_size=3)))
        | st.lists(st.none() | one)
        | st.lists(st.none() | st.lists(st.none() | st.lists(one, max_size=2), max_size=3))
        | st.lists(one | st.sampled_from([1, 2.5, "a", b"b", True, {"a": 1}]))
    )
)


@given(_VALUES)
def test_the_type_of_python_values_is_found_as_pyarrow_finds_it(values: list[Any]) -> None:
    def outcome(make: Any) -> Any:
        try:
            made = make(values)
        except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError) as error:
            return type(error)
        made.validate(full=True)
        return made.type, repr(made.to_pylist())  # as text: NaN is not itself

    assert outcome(inferred) == outcome(pa.array)


def test_records_of_plain_values_need_no_pandas() -> None:
    code = """
import sys
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
rows = [{"number": n, "share": n / 2, "text": str(n), "bytes": b"x" * n, "flag": n > 3 or None, "ids": [n] * n} for n in range(9)]
source = StaticMixtureWorkSource([Dataset.from_records("rows", rows)], seed=1, stop_after_passes=1)
pipeline = Pipeline(source).map(lambda row: row | {"more": [row["text"]]}).batch(2).options(lanes=1)
print(sum(len(batch) - batch.empty for batch in pipeline), "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("9 False", 0), done.stderr


def test_a_run_over_all_its_data_needs_no_pandas(tmp_path: Path) -> None:
    """pandas takes a third of a second to import, with the interpreter lock held. Here lanes end before others, whose steps they fill."""
    lists = [list(range(size)) for size in (3, 70, 9, 40, 5)]
    masks = [[1] * len(row) if row[-1] % 2 else None for row in lists]
    table = pa.table({"input_ids": pa.array(lists, pa.list_(pa.int32())), "loss_mask": pa.array(masks, pa.list_(pa.uint8()))})
    pq.write_table(table, tmp_path / "lists.parquet", row_group_size=2)
    code = f"""
import sys
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
source = StaticMixtureWorkSource([Dataset.from_path("lists", {str(tmp_path)!r})], seed=1, stop_after_passes=1, chunk_size=2)
pipeline = Pipeline(source).pack_flat(max_length=16, pad_token_id=0).batch(1).options(lanes=4)
assert sum(batch.empty for batch in pipeline), "no lane ended before the other"
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr

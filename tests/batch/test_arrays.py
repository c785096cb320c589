"""Numbers between numpy and Arrow: the same as pyarrow's own way, without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.arrays import empty, to_arrow, to_numpy

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


def test_empty_can_be_written_to() -> None:
    made = empty(5, np.int32)
    made[:] = np.arange(5)
    assert to_arrow(made).to_pylist() == [0, 1, 2, 3, 4]
    assert len(empty(0, np.int64)) == 0


def test_a_run_does_not_import_pandas() -> None:
    program = """
import sys
from zephon import Dataset, Pipeline
import pyarrow as pa
ones = pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(bytes(12))])
ends = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer((0).to_bytes(4, "little") + (3).to_bytes(4, "little"))])
table = pa.table([pa.ListArray.from_arrays(ends, ones)], names=["input_ids"])
pipeline = Pipeline(Dataset.from_records("d", table)).pack_flat(max_length=4, pad_token_id=0).shuffle(buffer_size=2).batch(1)
next(iter(pipeline))
assert "pandas" not in sys.modules, "pandas"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

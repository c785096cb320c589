"""Numbers between numpy and Arrow: the same as pyarrow's own way, without pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.arrays import to_arrow, to_numpy

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

"""Files taken out of a column, copied or not, are what Arrow takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from zephon_vision._taking import taken, together

KINDS: list[Any] = [pa.binary(), pa.string(), pa.large_binary(), pa.binary_view(), pa.string_view()]


@given(st.data(), st.sampled_from(KINDS))
def test_taken_files_are_those_that_arrow_takes(data: st.DataObject, kind: Any) -> None:
    one: Any = st.text("ab", max_size=15) if kind in (pa.string(), pa.string_view()) else st.binary(max_size=15)
    values = data.draw(st.lists(st.none() | one, max_size=8))
    first = data.draw(st.integers(0, len(values)))
    array: Any = pa.array(values, kind).slice(first)
    if not len(array):
        return
    index = data.draw(st.lists(st.integers(-1, len(array) - 1), max_size=8))
    if data.draw(st.booleans()):  # as texts and images take turns
        index = [i for i in range(len(array)) if array[i].as_py()]
    made = taken(array, np.array(index, dtype=np.int64))
    made.validate(full=True)
    assert made.type == kind
    assert made.to_pylist() == [None if i < 0 else array[i].as_py() for i in index]


def test_files_between_texts_stay_where_they_are() -> None:
    array: Any = pa.array([None, b"one", None, None, b"two", b"three"], pa.binary())
    made = taken(array, np.array([1, 4, 5]))
    assert made.to_pylist() == [b"one", b"two", b"three"]
    assert made.buffers()[2].address == array.buffers()[2].address


@given(st.lists(st.tuples(st.booleans(), st.lists(st.none() | st.binary(max_size=15), max_size=4)), min_size=1, max_size=4))
def test_columns_of_bytes_and_of_views_go_together(parts: list[tuple[bool, list[bytes | None]]]) -> None:
    made = together([pa.array(values, pa.binary_view() if shown else pa.binary()) for shown, values in parts])
    assert made.to_pylist() == [value for _, values in parts for value in values]
    assert made.type == (pa.binary_view() if any(shown for shown, _ in parts) else pa.binary())

"""Any record groups, for tests of what runners carry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st


def columns() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    word = st.text(max_size=5)
    number = st.integers(-100, 100)
    kinds = [
        (pa.int32(), number),
        (pa.float64(), st.floats(allow_nan=False)),
        (pa.bool_(), st.booleans()),
        (pa.string(), word),
        (pa.large_binary(), st.binary(max_size=5)),
        (pa.string_view(), st.text(max_size=20)),
        (pa.null(), st.none()),
        (pa.list_(pa.int32()), st.lists(number, max_size=3)),
        (pa.list_(pa.uint8(), 2), st.lists(st.integers(0, 255), min_size=2, max_size=2)),
        (
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
            st.fixed_dictionaries({"a": number, "b": st.lists(word, max_size=2)}),
        ),
        (pa.dictionary(pa.int32(), pa.string()), word),
        (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(word, number), max_size=2)),
    ]
    return st.sampled_from(kinds)


@st.composite
def record_groups(draw: Any) -> pa.RecordBatch:
    """Any column kinds, nulls, no rows, no columns, slices, and now and then far more than goes over a socket at once."""
    rows = draw(st.integers(0, 6))
    arrays, names = [], []
    for index, (kind, values) in enumerate(draw(st.lists(columns(), max_size=4))):
        data = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        arrays.append(pa.array(data, pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(data, kind))
        names.append(f"c{index}")
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))
    group = pa.RecordBatch.from_arrays(arrays, names=names)
    if draw(st.booleans()):
        group = group.replace_schema_metadata({"made": "here"})
    if rows and draw(st.integers(0, 3)) == 0:
        group = pa.concat_batches([group] * (20_000 // rows))
    first = draw(st.integers(0, min(2, len(group))))
    return group.slice(first, draw(st.integers(0, len(group) - first)))

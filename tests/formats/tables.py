"""Tables and checks for the tests of formats whose own library reads them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from zephon.plugin import OpenShard

NESTED_ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=20),
        "b": st.none() | st.binary(max_size=20),
        "l": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries({"x": st.none() | st.floats(allow_nan=False), "y": st.none() | st.text(max_size=2)}),
            max_size=3,
        ),
    }
)
"""Rows with and without nulls, nested ones too; `NESTED` is their schema."""
NESTED = pa.schema(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("l", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.string())]))),
    ]
)


def wide(rows: int, nbytes: int) -> pa.Table:
    """Numbers, text, and so many random bytes a row."""
    noise = np.random.default_rng(1)
    return pa.table(
        {
            "n": np.arange(rows),
            "text": [f"record {i} " * 4 for i in range(rows)],
            "blob": [noise.bytes(nbytes) for _ in range(rows)],
        }
    )


def check_reads_from_threads(opened: OpenShard, table: pa.Table) -> None:
    """Eight threads that read parts of all units at once get the table's rows."""
    starts = np.cumsum(opened.units().rows) - opened.units().rows

    def same(unit: int) -> bool:
        rows = int(opened.units().rows[unit])
        made = pa.Table.from_batches(opened.read(unit, None, 1, rows))
        return bool(made == table.slice(int(starts[unit]) + 1, rows - 1))

    assert len(starts) > 5
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(same, list(range(len(starts))) * 3))

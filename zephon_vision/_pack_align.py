"""Documents made longer by pad tokens, so that each starts and ends at a multiple of some number of tokens in its sequence.

Context parallelism cuts every document into 2 * cp pieces of one size (each rank gets one from the front and one from the back, which
evens out causal attention), so documents of a pack must be multiples of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import to_arrow, to_numpy
from zephon.keys import I64
from zephon_vision import columns

Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""


def aligned_lengths(lengths: I64, step: int) -> I64:
    """int64[N]: the lengths, rounded up to multiples of `step`."""
    return -(-lengths // step) * step


def align(payload: pa.RecordBatch, lengths: I64, step: int, *, pad: int, token_columns: Sequence[str]) -> pa.RecordBatch:
    """The documents with pad tokens at their ends, which are 0 in the token columns; int32 `columns.DOCUMENT_ALIGNMENT` says how many.

    There is a loss mask afterwards, with 1 for the tokens of documents that had none: pad tokens are not trained on.
    """
    longer = aligned_lengths(lengths, step)
    made = groups.set_column(
        payload, groups.TOKENS, _extended(groups.column(payload, groups.TOKENS), lengths, longer, fill=pad)
    )
    for name in dict.fromkeys((*token_columns, groups.LOSS_MASK)):
        if payload.schema.get_field_index(name) >= 0:
            array: Array = groups.column(payload, name)
        elif name == groups.LOSS_MASK:
            array = pa.nulls(len(payload), pa.list_(pa.uint8()))
        else:
            continue
        made = groups.set_column(made, name, _extended(array, lengths, longer, missing=name == groups.LOSS_MASK))
    return made.append_column(columns.DOCUMENT_ALIGNMENT, to_arrow((longer - lengths).astype(np.int32)))


def _extended(array: Array, lengths: I64, longer: I64, *, fill: int = 0, missing: bool = False) -> Array:
    """Each list with `fill` after it. Null lists stay null, or, with `missing`, are ones."""
    offsets, values = groups.list_parts(array)
    values = values[int(offsets[0]) : int(offsets[-1])]
    null = to_numpy(array.is_null())
    if missing and null.any():
        whole = np.ones(int(lengths.sum()), dtype=values.dtype)
        whole[np.repeat(~null, lengths)] = values
        values, null = whole, np.zeros(len(array), dtype=bool)
    there = np.where(null, 0, lengths)
    ends = np.cumsum(np.where(null, 0, longer))
    begins = ends - np.where(null, 0, longer)
    out: npt.NDArray[Any] = np.full(int(ends[-1]) if len(ends) else 0, fill, dtype=values.dtype)
    out[np.arange(len(values)) + np.repeat(begins - (np.cumsum(there) - there), there)] = values
    if not null.any():
        return groups.make_list(np.concatenate([[0], ends]), out)
    make: Any = pa.ListArray.from_arrays
    return make(to_arrow(np.concatenate([[0], ends]).astype(np.int32)), to_arrow(out), mask=to_arrow(null))

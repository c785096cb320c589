"""Types that Arrow can write but not cast: run ends, list views and dictionaries of nested values become ordinary arrays here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Array = Any
"""A `pyarrow.Array`; the stubs don't know what its subclasses have."""


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with such columns decoded, the others as they are. Raises what Arrow raises where it can't be done."""
    for i, column in enumerate(batch.schema):
        if _is_hard(column.type):
            batch = batch.set_column(i, column.name, _decode(batch.column(i)))
    return batch


def _is_hard(kind: Any) -> bool:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_hard(kind.storage_type)
    if types.is_run_end_encoded(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return True
    if types.is_dictionary(kind):
        return bool(kind.value_type.num_fields) or _is_hard(kind.value_type)
    return any(_is_hard(kind.field(i).type) for i in range(kind.num_fields))


def _decode(array: Array) -> Array:
    if isinstance(array, pa.ExtensionArray):
        return _decode(array.storage)
    kind: Any = array.type
    types = pa.types
    if not _is_hard(kind):
        return array
    if types.is_run_end_encoded(kind):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return _decode(array.values).take(pa.array(runs))
    if types.is_dictionary(kind):
        return _decode(array.dictionary).take(array.indices)
    if types.is_struct(kind):
        children = [_decode(array.field(i)) for i in range(kind.num_fields)]
        names = [kind.field(i).name for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    if types.is_fixed_size_list(kind) or types.is_map(kind):
        raise pa.ArrowNotImplementedError(f"{kind} can't be decoded")
    wide = types.is_large_list(kind) or types.is_large_list_view(kind)
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    made: Any = pa.LargeListArray if wide else pa.ListArray
    offsets = pa.array(ends, pa.int64() if wide else pa.int32())
    return made.from_arrays(offsets, _decode(array.flatten()), mask=array.is_null())

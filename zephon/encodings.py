"""Types that Arrow can write but not cast: run ends, list views and dictionaries of nested values become ordinary arrays here.

Arrow (26) casts list views to lists with one offset too few, or with those of other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from zephon.arrays import list_sizes, to_arrow, to_numpy

Array = Any
"""A `pyarrow.Array`; the stubs don't know what its subclasses have."""

_VIEWED, _WIDE_VIEWED = pa.list_view(pa.null()).id, pa.large_list_view(pa.null()).id
_RUNS = pa.run_end_encoded(pa.int32(), pa.null()).id
_ENCODED = frozenset((_VIEWED, _WIDE_VIEWED, _RUNS))
_DICTIONARY = pa.dictionary(pa.int32(), pa.string()).id
_EXTENSION = pa.uuid().id


def is_encoded(kind: Any) -> bool:
    """Whether columns of this type are, or hold, what `decoded` decodes."""
    number = kind.id  # by number: `pyarrow.types` asks a function for each kind
    if number in _ENCODED:
        return True
    if number == _DICTIONARY:
        return bool(kind.value_type.num_fields) or is_encoded(kind.value_type)
    if number == _EXTENSION:
        return is_encoded(kind.storage_type)
    return any(is_encoded(kind.field(i).type) for i in range(kind.num_fields))


def decoded_group(group: pa.RecordBatch) -> pa.RecordBatch:
    """The group with such columns decoded; itself where there are none. Raises what Arrow raises where it can't be done."""
    found = [is_encoded(array.type) for array in group.columns]
    if not any(found):
        return group
    arrays = [decoded(array) if hard else array for array, hard in zip(group.columns, found, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=group.schema.names)


def decoded(array: Array) -> Array:
    """The values in lists and plain arrays.

    Raises:
        pyarrow.ArrowNotImplementedError: inside of maps and lists of a fixed size.
        pyarrow.ArrowInvalid: list views that show more elements than a list can hold.
    """
    if isinstance(array, pa.ExtensionArray):
        return decoded(array.storage)
    kind: Any = array.type
    types = pa.types
    if not is_encoded(kind):
        return array
    if kind.id == _RUNS:
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(to_numpy(array.run_ends), rows, side="right")
        return decoded(array.values).take(to_arrow(runs))
    if kind.id == _DICTIONARY:
        return decoded(array.dictionary).take(array.indices)
    missing: Array = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [decoded(array.field(i)) for i in range(kind.num_fields)]
        fields = [f.with_type(c.type) for f, c in zip(fields, children, strict=True)]
        struct: Any = pa.StructArray.from_arrays
        return struct(children, fields=fields, mask=missing)
    if types.is_fixed_size_list(kind) or types.is_map(kind):
        raise pa.ArrowNotImplementedError(f"{kind} can't be decoded")
    wide = types.is_large_list(kind) or kind.id == _WIDE_VIEWED
    ends = np.zeros(len(array) + 1, np.int64)
    np.cumsum(list_sizes(array), out=ends[1:])
    if not wide and ends[-1] > 2**31 - 1:
        raise pa.ArrowInvalid(f"{ends[-1]:,} elements in an array of {kind}")
    made: Any = pa.LargeListArray if wide else pa.ListArray
    return made.from_arrays(to_arrow(ends if wide else ends.astype(np.int32)), decoded(array.flatten()), mask=missing)

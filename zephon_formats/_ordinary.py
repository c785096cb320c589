"""The ordinary Arrow types: what readers give, whatever their format's library makes.

View, dictionary and run-end encoded types are decoded, extension types become their storage, and list items lose names and flags that
only describe the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from zephon.encodings import decoded

_MOST_BYTES = 2**31 - 1


def ordinary_type(kind: pa.DataType) -> pa.DataType:
    """The ordinary type that holds the values of `kind`, its children included."""
    if isinstance(kind, pa.BaseExtensionType):
        return ordinary_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return ordinary_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(ordinary_type(kind.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(ordinary_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(ordinary_type(kind.value_type), kind.list_size)  # type: ignore[no-any-return]
    if pa.types.is_map(kind):
        return pa.map_(ordinary_type(kind.key_type), ordinary_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, ordinary_type(f.type)) for f in kind])
    return kind


def ordinary_batches(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """The batch's columns of these names, in these types (`ordinary_type` of their own); in halves where decoding makes more text
    than one array takes. Columns that have their type already are not copied. Raises what Arrow raises where a cast can't be done.
    """
    if not len(schema):
        return [pa.RecordBatch.from_struct_array(pa.array([{}] * len(batch), type=pa.struct([])))]  # type: ignore[arg-type]
    try:
        arrays = [_cast(batch.column(batch.schema.get_field_index(f.name)), f.type) for f in schema]
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if len(batch) < 2:
            raise
        middle = len(batch) // 2
        return ordinary_batches(batch.slice(0, middle), schema) + ordinary_batches(batch.slice(middle), schema)
    return [pa.RecordBatch.from_arrays(arrays, schema=schema)]


def _cast(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    array = decoded(array)  # of extension types the storage
    if array.type == kind:
        return array
    if _view_bytes(array) > _MOST_BYTES:
        raise pa.ArrowCapacityError("text or bytes of more than 2 GiB don't go into one array")
    return array.cast(kind)


def _view_bytes(array: Any) -> int:
    """The bytes of the largest view array in `array`. Arrow (26) casts views of more than 2 GiB to offsets that have wrapped around."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _view_bytes(array.storage)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = array.buffers()[1]
        if views is None:
            return 0
        lengths = np.frombuffer(views, np.int32)[4 * array.offset : 4 * (array.offset + len(array)) : 4]
        if array.null_count:
            lengths = lengths[array.is_valid().to_numpy(zero_copy_only=False)]
        return int(lengths.sum(dtype=np.int64))
    if pa.types.is_struct(kind):
        return max((_view_bytes(child) for child in array.flatten()), default=0)
    if pa.types.is_map(kind):
        return max(_view_bytes(array.keys), _view_bytes(array.items))
    if pa.types.is_nested(kind) and kind.num_fields == 1:
        return _view_bytes(array.flatten())
    return 0

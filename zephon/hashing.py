"""Hashes of record groups: equal for equal rows, however their buffers are sliced or laid out, and whether columns are views."""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from zephon.arrays import list_sizes, to_arrow, to_numpy
from zephon.groups import WIDTHS, ArrowArray, byte_span, is_view, shows, view_lengths, view_values


def hash_group(group: pa.RecordBatch, *, seed: int = 0) -> int:
    """A 64-bit hash of the group's names, types and values: equal for equal rows however the buffers are sliced or laid out.

    xxh3 runs at memory speed, so this may be done to every group.
    """
    digest = xxhash.xxh3_64(seed=seed)
    for name, array in zip(group.schema.names, group.columns, strict=True):
        digest.update(name.encode())
        hash_array(digest, array)
    return digest.intdigest()


def hash_array(digest: Any, array: ArrowArray) -> None:
    """Feed the type, the number of values and the values."""
    kind = array.type
    if kind.id in WIDTHS and not array.null_count:  # quicker than all the questions below
        digest.update(f"{kind}{len(array)}".encode())
        _hash_fixed(digest, array)
        return
    digest.update(f"{ordinary(kind) if shows(kind) else kind}{len(array)}".encode())
    if is_view(kind):
        _hash_views(digest, array)
        return
    if array.null_count:
        digest.update(np.packbits(to_numpy(array.is_valid())).tobytes())
        array = _there(array)
    if isinstance(array, pa.ExtensionArray):
        hash_array(digest, array.storage)
    elif pa.types.is_dictionary(kind):
        hash_array(digest, array.dictionary_decode())
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        lengths = np.diff(to_numpy(array.offsets))
        digest.update(np.ascontiguousarray(lengths, dtype=np.int64))
        hash_array(digest, array.flatten() if not pa.types.is_map(kind) else _map_entries(array))
    elif pa.types.is_fixed_size_list(kind):
        hash_array(digest, array.flatten())
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            hash_array(digest, child)
    elif (
        pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    ):
        _hash_binary(digest, array)
    elif not pa.types.is_null(kind):
        _hash_fixed(digest, array)


def ordinary(kind: Any) -> Any:
    """The type with `string` and `binary` for views of these."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(ordinary(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(ordinary(kind.value_type)))
    return pa.string() if pa.types.is_string_view(kind) else pa.binary() if pa.types.is_binary_view(kind) else kind


def _there(array: ArrowArray) -> ArrowArray:
    """The values that are not null."""
    kind = array.type
    if not shows(kind):
        return array.drop_null()
    # Arrow (26) can't drop the nulls of views
    valid = to_numpy(array.is_valid())
    if pa.types.is_list(kind):
        ends = np.cumsum([0, *list_sizes(array)[valid].tolist()])
        return pa.ListArray.from_arrays(to_arrow(ends.astype(np.int32)), array.flatten())
    fields = [field.with_type(ordinary(field.type)) for field in kind]
    children: list[ArrowArray] = [
        child if child.type == field.type else child.cast(field.type)
        for child, field in zip(array.flatten(), fields, strict=True)
    ]
    make: Any = pa.StructArray.from_arrays
    return make(children, fields=fields, mask=array.is_null()).drop_null()


def _hash_views(digest: Any, array: ArrowArray) -> None:
    """As `string` and `binary`."""
    lengths, values = view_lengths(array), view_values(array)
    if array.null_count:
        valid = to_numpy(array.is_valid())
        digest.update(np.packbits(valid).tobytes())
        lengths, values = lengths[valid], compress(values, valid.tolist())
    digest.update(np.ascontiguousarray(lengths, dtype=np.int64))
    for value in values:
        digest.update(value)


def _map_entries(array: ArrowArray) -> ArrowArray:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"]).slice(first, last - first)


def _hash_binary(digest: Any, array: ArrowArray) -> None:
    if not len(array):
        return
    ends, data = byte_span(array)
    digest.update(np.ascontiguousarray(np.diff(ends), dtype=np.int64))
    digest.update(data)


def _hash_fixed(digest: Any, array: ArrowArray) -> None:
    if pa.types.is_boolean(array.type):
        digest.update(np.packbits(to_numpy(array)).tobytes())
        return
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    if data is not None and len(array):
        digest.update(memoryview(data)[array.offset * width : (array.offset + len(array)) * width])

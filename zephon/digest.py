"""Canonical bytes of records: equal rows give equal bytes, however the group is cut, sliced or laid out.

A record's bytes are, for each column that is not null there, in name order: the name, the canonical type and the value, each
with its length or of a fixed width, so that no two different records run together to the same bytes. A null is the same as a
column that isn't there. Large, view, dictionary and run-end layouts count as their plain type. Numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import to_arrow, to_numpy

Array = Any
"""A `pyarrow.Array` of any type; the stubs know only some of the methods of each kind."""

Feed = Callable[["Hasher", int, int], None]
"""Feeds the canonical bytes of the elements [start, stop) of one array."""


class Hasher(Protocol):
    """Anything of `hashlib` or `xxhash`."""

    def update(self, data: Any, /) -> Any:
        """Take the next bytes."""
        ...


def update_rows(hasher: Hasher, group: pa.RecordBatch, names: Sequence[str]) -> None:
    """Feed the columns `names` of all rows, row by row."""
    columns = []
    for name in sorted(names):
        array = groups.column(group, name)
        prefix = f"{len(name.encode())}:{name}={canonical_type(array.type)};".encode()
        array = plain(array)
        valid = to_numpy(array.is_valid()) if array.null_count else None
        columns.append((prefix, valid, feeder(array)))
    for row in range(group.num_rows):
        hasher.update(b"row;")
        for prefix, valid, feed in columns:
            if valid is None or valid[row]:
                hasher.update(prefix)
                feed(hasher, row, row + 1)


def canonical_type(kind: Any) -> str:
    """The name of a type without the names of list items and without the differences that are only layout."""
    if isinstance(kind, pa.BaseExtensionType):
        return f"{kind.extension_name}<{canonical_type(kind.storage_type)}>"
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if pa.types.is_map(kind):
        return f"map<{canonical_type(kind.key_type)},{canonical_type(kind.item_type)}>"
    if pa.types.is_fixed_size_list(kind):
        return f"list[{kind.list_size}]<{canonical_type(kind.value_type)}>"
    if _is_list(kind):
        return f"list<{canonical_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        inner = ",".join(f"{len(f.name.encode())}:{f.name}={canonical_type(f.type)}" for f in kind)
        return f"struct<{inner}>"
    if _is_text(kind):
        return "string"
    if _is_bytes(kind):
        return "binary"
    return str(kind)


def plain(array: Array) -> Array:
    """The array in a layout that `feeder` knows: extensions as storage, dictionaries and runs decoded, views as large types."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(_decode_runs(array))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary() if pa.types.is_binary_view(kind) else pa.large_string())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _in_order(array)
    return array


def feeder(array: Array) -> Feed:
    """The function that feeds elements of this array: a flag, the validity where an element is null, the valid values.

    What is fed depends on the elements asked for only, not on the rest of the array, and never on what lies beneath a null.
    """
    array = plain(array)
    if not array.null_count:
        feed = _values(array)

        def feed_all(hasher: Hasher, start: int, stop: int) -> None:
            hasher.update(b"\0")
            feed(hasher, start, stop)

        return feed_all
    valid = to_numpy(array.is_valid()).view(np.uint8)
    before = np.concatenate([[0], np.cumsum(valid, dtype=np.int64)])
    feed = _values(array.drop_null())

    def feed_valid(hasher: Hasher, start: int, stop: int) -> None:
        first, last = int(before[start]), int(before[stop])
        if last - first == stop - start:
            hasher.update(b"\0")
        else:
            hasher.update(b"\1")
            hasher.update(valid[start:stop])
        feed(hasher, first, last)

    return feed_valid


def _values(array: Array) -> Feed:
    """The feed of an array without nulls."""
    kind = array.type
    if _is_list(kind) or pa.types.is_map(kind):
        return _lists(array)
    if pa.types.is_fixed_size_list(kind):
        size, inner = kind.list_size, feeder(array.flatten())
        return lambda hasher, start, stop: inner(hasher, start * size, stop * size)
    if pa.types.is_struct(kind):
        return _structs([feeder(child) for child in array.flatten()])
    if _is_text(kind) or _is_bytes(kind):
        return _texts(array)
    if pa.types.is_null(kind):
        return lambda _hasher, _start, _stop: None
    if pa.types.is_boolean(kind):
        return _numbers(to_numpy(array).view(np.uint8))
    try:
        width = kind.bit_width // 8
    except ValueError:  # unions and whatever Arrow adds
        return _objects(array)
    data: Any = array.buffers()[1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return _fixed(raw[array.offset * width : (array.offset + len(array)) * width], width)


def _fixed(raw: npt.NDArray[np.uint8], width: int) -> Feed:
    return lambda hasher, start, stop: hasher.update(raw[start * width : stop * width])


def _numbers(numbers: npt.NDArray[Any]) -> Feed:
    return lambda hasher, start, stop: hasher.update(numbers[start:stop])


def _lists(array: Array) -> Feed:
    offsets = to_numpy(array.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(array.type):
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        inner = feeder(entries.slice(first, last - first))
    else:
        inner = feeder(array.values.slice(first, last - first))
    offsets -= first
    lengths = np.diff(offsets)

    def feed(hasher: Hasher, start: int, stop: int) -> None:
        hasher.update(lengths[start:stop])
        inner(hasher, int(offsets[start]), int(offsets[stop]))

    return feed


def _structs(children: Sequence[Feed]) -> Feed:
    def feed(hasher: Hasher, start: int, stop: int) -> None:
        for child in children:
            child(hasher, start, stop)

    return feed


def _texts(array: Array) -> Feed:
    if not len(array):
        return lambda _hasher, _start, _stop: None
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data = array.buffers()
    whole = np.frombuffer(offset_buffer, dtype=np.int64 if wide else np.int32)
    offsets = whole[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    raw = memoryview(data) if data is not None else memoryview(b"")

    def feed(hasher: Hasher, start: int, stop: int) -> None:
        hasher.update(lengths[start:stop])
        hasher.update(raw[int(offsets[start]) : int(offsets[stop])])

    return feed


def _objects(array: Array) -> Feed:
    def feed(hasher: Hasher, start: int, stop: int) -> None:
        for value in array.slice(start, stop - start).to_pylist():
            text = repr(value).encode("utf-8", "surrogatepass")
            hasher.update(f"{len(text)}:".encode() + text)

    return feed


def _in_order(array: Array) -> Array:
    """A list view as a large list. Not by a cast: Arrow 26 writes one offset too few (`validate(full=True)` says so)."""
    valid = to_numpy(array.is_valid())
    lengths = np.where(valid, to_numpy(array.sizes), 0)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    items: Any = to_arrow(offsets)
    return pa.LargeListArray.from_arrays(items, array.flatten(), mask=to_arrow(~valid) if array.null_count else None)


def _decode_runs(array: Array) -> Array:
    import pyarrow.compute as pc  # noqa: PLC0415 - 90 ms of import that only this rare layout needs

    decode: Any = vars(pc)["run_end_decode"]  # missing in the stubs
    return decode(array)


def _is_list(kind: Any) -> bool:
    t = pa.types
    return t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind)


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)

"""Text columns that hold what isn't UTF-8: some writers don't look, and what follows (Python, tokenisers) fails far from the file."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa

from zephon.plugin import DataError, at
from zephon_formats._told import Told


def sound_text(batch: pa.RecordBatch, first: int, told: Told | None) -> pa.RecordBatch:
    """The batch, its text checked to be UTF-8: bytes that aren't become U+FFFD, which is told; without `told` they are refused.

    Args:
        batch: rows of a shard, in ordinary types.
        first: the row in the shard of its first one.
        told: of the shard.

    Raises:
        DataError: with the row.
    """
    for number, field in enumerate(batch.schema):
        if _has_text(field.type):
            found = batch.column(number)
            sound = _sound(found, field.name, first, told)
            batch = batch if sound is found else batch.set_column(number, field, sound)
    return batch


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return True
    return any(_has_text(kind.field(i).type) for i in range(kind.num_fields))


def _sound(array: pa.Array[Any], name: str, first: int, told: Told | None) -> pa.Array[Any]:
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        return _mended(_part(array, 0, len(array)), name, first, told)


def _part(array: pa.Array[Any], start: int, stop: int) -> Any:
    """These rows as a copy: a slice of lists is checked with the elements of all other rows."""
    return array.take(pa.array(range(start, stop), pa.int64()))


def _mended(array: pa.Array[Any], name: str, first: int, told: Told | None) -> pa.Array[Any]:
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid as error:
        if told is None and len(array) == 1:
            with at(row=first):
                raise DataError(
                    f"column {name!r} has text that is not UTF-8: {error}", hint="bad_text='replace' puts U+FFFD there"
                ) from error
    if len(array) > 1:
        cuts: list[Any] = [0, len(array) // 2, len(array)]
        return pa.concat_arrays([_mended(_part(array, a, b), name, first + a, told) for a, b in pairwise(cuts)])
    assert told is not None
    told.replaced_text()
    kept: Any = array.cast(_as_bytes(array.type))
    made: pa.Array[Any] = pa.array(_decoded(kept.to_pylist(), array.type), array.type)
    return made


def _as_bytes(kind: Any) -> Any:
    """The type with bytes where it has text."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _as_bytes(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_as_bytes(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_as_bytes(kind.value_type))
    return pa.list_(_as_bytes(kind.value_type)) if pa.types.is_list(kind) else kind


def _decoded(value: Any, kind: Any) -> Any:
    """Values of `_as_bytes(kind)`, or a list of them, with text where `kind` has text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") if _has_text(kind) else value
    if isinstance(value, dict):
        return {f.name: _decoded(value[f.name], f.type) for f in kind}
    if isinstance(value, tuple):
        return _decoded(value[0], kind.key_type), _decoded(value[1], kind.item_type)
    if isinstance(value, list):
        inner = (
            kind.value_type
            if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
            else kind
        )
        return [_decoded(one, inner) for one in value]
    return value

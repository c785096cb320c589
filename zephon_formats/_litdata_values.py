"""Values that LitData stores in ways of its own: nested JSON, raw images, pickles; and what turns them into Arrow arrays."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.errors import Where
from zephon.plugin import DataError
from zephon_formats._images import MODES, image_file, pixel_bytes

Array = Any

# ---------------------------------------------------------------------------------------------------------- nested JSON

_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")


def nested(raw: bytes) -> Any:
    """A value of the serializer `json`: tagged binary (`_nested_dumps` in litdata), or JSON text as older versions wrote it.

    Raises:
        ValueError, struct.error, IndexError: damaged data.
    """
    if not raw or raw[0] > 0x20:
        return json.loads(raw)
    value, end = _nested_at(raw, 0)
    if end != len(raw):
        raise ValueError(f"the value ends at byte {end} of {len(raw)}")
    return value


def _nested_at(raw: bytes, at: int) -> tuple[Any, int]:
    tag = raw[at]
    if tag == 7:
        return _text_at(raw, at + 1)
    if tag in (8, 9):
        return (_I64 if tag == 8 else _F64).unpack_from(raw, at + 1)[0], at + 9
    if tag == 10:
        return raw[at + 1] != 0, at + 2
    if tag == 11:
        return None, at + 1
    (count,) = _U32.unpack_from(raw, at + 1)
    at += 5
    if tag in (2, 3):
        return np.frombuffer(
            raw, dtype="<i8" if tag == 2 else "<f8", count=count, offset=at
        ).tolist() if count else [], at + 8 * count
    if tag in (0, 4):
        part = raw[at : at + count]
        if len(part) != count:
            raise ValueError("the value is cut short")
        return json.loads(part) if tag == 0 else [b != 0 for b in part], at + count
    if count > len(raw):
        raise ValueError(f"the value claims {count} parts")
    if tag == 1:
        texts = []
        for _ in range(count):
            text, at = _text_at(raw, at)
            texts.append(text)
        return texts, at
    if tag == 5:
        mapping = {}
        for _ in range(count):
            key, at = _text_at(raw, at)
            mapping[key], at = _nested_at(raw, at)
        return mapping, at
    if tag == 6:
        return _records_at(raw, at, count)
    raise ValueError(f"the tag {tag} is not known")


def _text_at(raw: bytes, at: int) -> tuple[str, int]:
    (length,) = _U32.unpack_from(raw, at)
    end = at + 4 + length
    if end > len(raw):
        raise ValueError("the value is cut short")
    return raw[at + 4 : end].decode(), end


def _records_at(raw: bytes, at: int, count: int) -> tuple[list[dict[str, Any]], int]:
    (width,) = _U32.unpack_from(raw, at)
    at += 4
    if width > len(raw):
        raise ValueError(f"the value claims {width} keys")
    keys = []
    for _ in range(width):
        key, at = _text_at(raw, at)
        keys.append(key)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        row: dict[str, Any] = {}
        for key in keys:
            tag = raw[at]
            if tag == 0x11:
                row[key], at = _text_at(raw, at + 1)
            elif tag in (0x12, 0x13):
                row[key] = (_I64 if tag == 0x12 else _F64).unpack_from(raw, at + 1)[0]
                at += 9
            elif tag == 0x14:
                row[key] = raw[at + 1] != 0
                at += 2
            elif tag == 0x10:
                row[key] = None
                at += 1
            else:
                raise ValueError(f"the tag {tag} is not known in a record")
        rows.append(row)
    return rows, at


def unpickle(raw: bytes) -> Any:
    """A pickled object; this runs what the pickle says. Sets become sorted lists, since Arrow has none."""
    import pickle  # noqa: PLC0415 - only where the user allowed it

    value = pickle.loads(raw)
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else value


# --------------------------------------------------------------------------------------------------------------- arrays


def values_array(values: list[Any], kind: pa.DataType, first: int) -> Array:
    """Python values as an array of this type; a string type takes any value, as its JSON text.

    Raises:
        DataError: a value that doesn't fit, with its row.
    """
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fitted = [_fit(value, kind) for value in values]
    try:
        return pa.array(fitted, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for row, value in enumerate(fitted):
            try:
                pa.array([value], type=kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as wrong:
                raise DataError(
                    f"the value {repr(value)[:60]} does not fit the type {kind}: {wrong}", where=Where(row=first + row)
                ) from error
        raise DataError(f"values don't fit the type {kind}: {error}") from error


def _fit(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return [_fit(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {f.name: _fit(value.get(f.name), f.type) for f in kind}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [(str(k), _fit(v, kind.item_type)) for k, v in value.items()]
    return value


def nulls(rows: int, kind: pa.DataType) -> Array:
    """So many nulls of a type."""
    return pa.nulls(rows, kind)  # type: ignore[call-overload]


def conform(array: Array, kind: pa.DataType, first: int) -> Array:
    """An array as the type that all chunks of the set share: fields by name, what is missing null, a struct as a map."""
    have = array.type
    if have == kind:
        return array
    if pa.types.is_null(have):
        return nulls(len(array), kind)
    if pa.types.is_struct(have) and pa.types.is_struct(kind):
        parts = []
        for wanted in kind:
            index = have.get_field_index(wanted.name)
            parts.append(conform(array.field(index), wanted.type, first) if index >= 0 else nulls(len(array), wanted.type))
        if len(kind):
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(have) and pa.types.is_list(kind) and not array.offset:
        values = conform(array.values, kind.value_type, first)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null() if array.null_count else None)
    if pa.types.is_struct(have) and pa.types.is_map(kind):
        rows = [None if row is None else {k: v for k, v in row.items() if v is not None} for row in array.to_pylist()]
        return values_array([None if row is None else list(row.items()) for row in rows], kind, first)
    if pa.types.is_string(kind) or pa.types.is_nested(kind):
        return values_array(array.to_pylist(), kind, first)
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"a column is {have} here and {kind} in the index: {error}") from error


# --------------------------------------------------------------------------------------------------------------- images


def image_bytes(raw: memoryview) -> bytes:
    """A raw image of the serializer `pil` (width, height, length of the mode, mode, pixels) as a file that any decoder opens.

    Raises:
        DataError: the sizes contradict each other, or there is no container for the mode.
    """
    if len(raw) < 12:
        raise DataError("an image has no head")
    width, height, length = struct.unpack_from("<III", raw)
    mode = bytes(raw[12 : 12 + length]).decode("ascii", "replace") if length <= 8 else "?"
    if mode not in MODES:
        raise DataError(f"a raw image has the mode {mode!r}, which is not read here", hint=f"known: {', '.join(MODES)}")
    pixels = np.frombuffer(raw[12 + length :], dtype=np.uint8)
    if not len(pixels) or len(pixels) != pixel_bytes(width, height, mode):
        raise DataError(f"a raw image of {width} x {height} in mode {mode!r} has {len(pixels)} bytes")
    return image_file(width, height, mode, pixels)

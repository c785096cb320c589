"""The columns of an MDS shard: which Arrow type each encoding becomes, and where each row's values are.

A sample is the sizes of its columns of free size (uint32 each, in column order), followed by the values of all columns in that order.
The encodings are those of `streaming/base/format/mds/encodings.py` (https://github.com/mosaicml/streaming), all little endian.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.errors import DataError, RecipeError
from zephon_formats import _mds_decode as decode
from zephon_formats._mds_decode import Values, at_row, bytes_of, uint32s

I64 = npt.NDArray[np.int64]

_SCALARS: dict[str, pa.DataType] = {"int": pa.int64(), **decode.DTYPES}
_TEXT_NUMBERS: dict[str, pa.DataType] = {"str_int": pa.int64(), "str_float": pa.float64()}
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""As the Image feature of Hugging Face data sets; `path` is always null."""


@dataclass(frozen=True)
class Options:
    """What the reader's settings say about types; see `Mds`."""

    allow_pickle: bool
    json: str
    numbers: str
    arrays: str
    dtypes: Mapping[str, str]
    leave_out: Sequence[str]


@dataclass(frozen=True)
class Column:
    """One column of a shard. `type` is None where it must be inferred from values; `decode` is None for one that is left out."""

    name: str
    size: int | None
    """In bytes, where all values have the same."""
    type: pa.DataType | None
    decode: Callable[[Values, Any], Any] | None


def make_columns(layout: Sequence[Sequence[Any]], options: Options) -> list[Column]:
    """The columns of `[[name, encoding, size or None], …]`.

    Raises:
        DataError: an unknown encoding, a size that doesn't belong to it, or pickles that nobody allowed.
        RecipeError: `dtypes` names a column that has no free dtype.
    """
    return [_column(name, encoding, size, options) for name, encoding, size in layout]


def _column(name: str, encoding: str, size: int | None, options: Options) -> Column:
    if name in options.leave_out:
        return Column(name, size, None, None)
    kind, _, config = encoding.partition(":")
    dtype = options.dtypes.get(name)
    if dtype is not None and encoding not in ("bytes", "ndarray"):
        raise RecipeError(f"dtypes names the column {name!r}, whose encoding {encoding!r} has a type of its own")
    if kind == "ndarray":
        kind_type, function, fixed = _array(config, dtype, options.arrays == "flat", name)
    elif config:
        raise DataError(f"column {name!r} has the encoding {encoding!r}, which is unknown")
    else:
        kind_type, function, fixed = _plain(kind, name, dtype, options)
    if size != fixed:
        raise DataError(f"column {name!r} ({encoding}) has values of {size} bytes in the index instead of {fixed}")
    return Column(name, size, kind_type, function)


_Made = tuple[pa.DataType | None, Callable[[Values, Any], Any], int | None]


def _plain(kind: str, name: str, dtype: str | None, options: Options) -> _Made:
    if kind in _SCALARS:
        return _SCALARS[kind], decode.fixed, _SCALARS[kind].bit_width // 8
    if kind in ("jpeg", "png"):
        return _IMAGE, decode.images, None
    if kind in ("list[jpeg]", "list[png]"):
        return pa.list_(_IMAGE), partial(decode.image_lists, head=4), None
    if kind in ("jpeg_array", "jpegarray"):
        return pa.list_(_IMAGE), partial(decode.image_lists, head=0), None
    if kind == "pil":
        return _IMAGE, decode.raw_images, None
    if kind == "list[pil]":
        return pa.list_(_IMAGE), partial(decode.image_lists, head=4, raw=True), None
    if kind == "bytes":
        if dtype is None:
            return pa.binary(), decode.binary, None
        return pa.list_(decode.DTYPES[dtype]), decode.number_bytes, None
    if kind == "str" or (kind == "json" and options.json == "text") or kind == "str_decimal":
        return pa.string(), decode.text, None
    if kind in _TEXT_NUMBERS:
        if options.numbers == "text":
            return pa.string(), decode.text, None
        return _TEXT_NUMBERS[kind], decode.text_numbers, None
    if kind == "json":
        return None, decode.json_values, None
    if kind == "pkl":
        if not options.allow_pickle:
            raise DataError(
                f"column {name!r} holds pickles; reading one runs code that is in it",
                hint=f"allow_pickle=True if you trust who wrote the data, or leave_out=[{name!r}]",
            )
        return None, decode.pickles, None
    raise DataError(
        f"column {name!r} has the encoding {kind!r}, which is unknown",
        hint="is the data written by a newer mosaicml-streaming?",
    )


def _array(config: str, dtype: str | None, flat: bool, name: str) -> _Made:
    if not config:
        if dtype is None:
            return decode.FREE_ARRAY, decode.arrays_of_any_type, None
        return decode.array_type(decode.DTYPES[dtype], flat), partial(decode.arrays, stated=decode.CODE_OF[dtype]), None
    said, _, dims = config.partition(":")
    if said not in decode.DTYPES:
        raise DataError(f"column {name!r} is an ndarray of {said!r}, which is unknown")
    if not dims:
        return decode.array_type(decode.DTYPES[said], flat), partial(decode.arrays, stated=None), None
    shape = [int(d) if d.strip().isdecimal() else 0 for d in dims.split(",")]
    if min(shape) < 1:
        raise DataError(f"column {name!r} is an ndarray of the shape {dims!r}, which is none")
    kind = decode.DTYPES[said]
    size = int(np.prod(shape, dtype=object)) * kind.bit_width // 8
    for length in reversed(shape):
        kind = pa.list_(kind, length)
    return kind, decode.fixed, size


def locate(data: pa.Buffer, offsets: I64, row: int, columns: Sequence[Column]) -> list[Values]:
    """Where the values of each column are in these whole samples.

    Args:
        data: the samples, one after the other.
        offsets: int64[N + 1], where samples begin in `data`, and the end of the last.
        row: the number in the shard of the first one.
        columns: all of the shard.

    Raises:
        DataError: a sample's sizes don't add up to its length.
    """
    view = bytes_of(data)
    rows = np.arange(row, row + len(offsets) - 1)
    begin, length = offsets[:-1], np.diff(offsets)
    free = [c for c in columns if c.size is None]
    fixed = sum(c.size for c in columns if c.size is not None)
    short = length < 4 * len(free) + fixed
    if short.any():
        raise at_row(rows, short, f"the sample has {int(length[short][0])} bytes, too few for its {len(columns)} columns")
    sizes = uint32s(view, begin, len(free)).astype(np.int64)
    wrong = sizes.sum(axis=1) + (4 * len(free) + fixed) != length
    if wrong.any():
        raise at_row(rows, wrong, f"the sample's columns don't add up to its {int(length[wrong][0])} bytes")
    at = begin + 4 * len(free)
    found = []
    for column in columns:
        lengths = np.full(len(at), column.size, dtype=np.int64) if column.size is not None else sizes[:, free.index(column)]
        found.append(Values(column.name, data, at, lengths, rows))
        at = at + lengths
    return found


def read_columns(data: pa.Buffer, offsets: I64, row: int, columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema` out of these samples (see `locate`)."""
    if len(offsets) == 1 and len(schema):
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * (len(offsets) - 1), type=pa.struct([])))  # type: ignore[arg-type]
    places = {
        column.name: (column, values) for column, values in zip(columns, locate(data, offsets, row, columns), strict=True)
    }
    arrays = []
    for field in schema:
        column, values = places[field.name]
        assert column.decode is not None
        arrays.append(column.decode(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def infer_types(data: pa.Buffer, offsets: I64, columns: Sequence[Column]) -> dict[str, pa.DataType]:
    """The types of the columns that have none of their own, from these samples, the first of a shard."""
    found: dict[str, pa.DataType] = {}
    for column, values in zip(columns, locate(data, offsets, 0, columns), strict=True):
        if column.type is None and column.decode is not None:
            found[column.name] = column.decode(values, None).type
    return found

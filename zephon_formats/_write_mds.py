"""Writes one MDS directory with MosaicML Streaming's own writer, and merges several into one data set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.atomic import write_whole
from zephon.plugin import DataError, PluginError, RecipeError

_NUMBERS = {
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}


class MdsWriter:
    """See `ShardWriter`; it makes a directory. Text, bytes and numbers have their encodings, lists of numbers are `ndarray`s, what else is
    nested is `json`. MDS has no null (but inside JSON), no empty array and no bool: the first two are a `DataError`, a bool becomes a
    `uint8`."""

    def __init__(self, path: str, schema: pa.Schema, *, shard_bytes: int = 64 << 20) -> None:
        try:
            from streaming import MDSWriter  # noqa: PLC0415 - an optional library, needed only where MDS is written
        except ImportError as error:
            raise PluginError(
                f"writing MDS needs the package 'mosaicml-streaming': {error}", hint="pip install mosaicml-streaming"
            ) from error
        self._path = path
        self._columns = {field.name: _encoding(field) for field in schema}
        self._rows = 0
        self._writer = MDSWriter(out=path, columns=self._columns, size_limit=shard_bytes)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        values = {name: _values(batch.column(name), self._columns[name], name, self._rows) for name in self._columns}
        for row in zip(*values.values(), strict=True):
            try:
                self._writer.write(dict(zip(values, row, strict=True)))
            except Exception as error:
                raise DataError(f"row {self._rows} of the part can't be written as MDS: {error}") from error
            self._rows += 1

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._writer.finish()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        shutil.rmtree(self._path, ignore_errors=True)


def _encoding(field: pa.Field[Any]) -> str:
    kind = field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "str"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_boolean(kind):
        return "uint8"
    if str(kind) in _NUMBERS:
        return _NUMBERS[str(kind)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _NUMBERS.get(str(kind.value_type))
        return f"ndarray:{inner}" if inner else _json(field)
    return _json(field)


def _json(field: pa.Field[Any]) -> str:
    if not pa.types.is_nested(field.type) or "binary" in str(field.type):
        raise RecipeError(f"column {field.name!r} ({field.type}) has no encoding in MDS", hint="leave it out with columns")
    return "json"


def _values(array: pa.Array[Any], encoding: str, name: str, first: int) -> list[Any]:
    if array.null_count:
        row = first + int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise DataError(f"column {name!r} is null in row {row} of the part, and MDS has no nulls", hint="filter such rows out")
    if encoding.startswith("ndarray:"):
        dtype: Any = np.dtype(encoding.partition(":")[2])
        return [np.asarray(value, dtype=dtype) for value in array.to_pylist()]
    if encoding in ("str", "bytes", "json"):
        return array.to_pylist()
    return list(np.asarray(array).astype(encoding, copy=False))


def merge_mds(directory: str) -> None:
    """One `index.json` out of those of the sub-directories, which are removed; the shards stay where they are. May be repeated."""
    root = Path(directory)
    parts = sorted(root.glob("*/index.json"))
    if not parts:
        return
    whole: dict[str, Any] = {"version": 2, "shards": []}
    for part in parts:
        for shard in json.loads(part.read_text(encoding="utf-8"))["shards"]:
            for file in ("raw_data", "zip_data"):
                if shard.get(file):
                    shard[file]["basename"] = f"{part.parent.name}/{shard[file]['basename']}"
            whole["shards"].append(shard)
    index = root / "index.json"
    if not index.exists():
        write_whole(index, [json.dumps(whole, sort_keys=True).encode()], sync=True)
    for part in parts:
        part.unlink()

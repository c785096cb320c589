"""Writes one LitData directory with LitData's own writer, and merges several into one data set."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.atomic import write_whole
from zephon.plugin import DataError, PluginError, RecipeError


class LitDataWriter:
    """See `ShardWriter`; it makes a directory. A row is a dict: text, bytes, numbers and bools as such (integers as int64, floats as
    float64), lists of numbers as numpy arrays. LitData lays out all rows alike, so a null is a `DataError`."""

    def __init__(self, path: str, schema: pa.Schema, *, chunk_bytes: int = 64 << 20) -> None:
        try:
            from litdata.streaming.serializers import (  # noqa: PLC0415 - an optional library, needed only where LitData is written
                StringSerializer,
            )
            from litdata.streaming.writer import BinaryWriter  # noqa: PLC0415 - the same
        except ImportError as error:
            raise PluginError(f"writing LitData needs the package 'litdata': {error}", hint="pip install litdata") from error

        class Text(StringSerializer):  # type: ignore[misc]
            """Text is text, also where a file of that name lies in the working directory."""

            def can_serialize(self, data: Any) -> bool:
                return isinstance(data, str)

        for field in schema:
            if not _fits(field.type):
                raise RecipeError(
                    f"column {field.name!r} ({field.type}) has no form in LitData", hint="leave it out with columns"
                )
        self._path = path
        self._names = schema.names
        self._rows = 0
        self._writer = BinaryWriter(path, chunk_bytes=chunk_bytes, serializers={"str": Text()})

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        columns = [_values(batch.column(name), name, self._rows) for name in self._names]
        for row in zip(*columns, strict=True):
            try:
                self._writer.add_item(self._rows, dict(zip(self._names, row, strict=True)))
            except Exception as error:
                raise DataError(f"row {self._rows} of the part can't be written as LitData: {error}") from error
            self._rows += 1

    def close(self) -> None:
        """See `ShardWriter.close`."""
        if not self._rows:
            raise DataError("LitData can't hold zero rows")
        self._writer.done()
        self._writer.merge()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        shutil.rmtree(self._path, ignore_errors=True)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _fits(kind: Any) -> bool:
    if _is_list(kind):
        return _is_number(kind.value_type)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(
        text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_boolean(kind) or _is_number(kind)
    )


def _values(array: pa.Array[Any], name: str, first: int) -> list[Any]:
    if array.null_count:
        row = first + int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise DataError(
            f"column {name!r} is null in row {row} of the part, and LitData has no nulls", hint="filter such rows out"
        )
    if not _is_list(array.type):
        return array.to_pylist()
    dtype: Any = array.type.value_type.to_pandas_dtype()
    return [np.asarray(value, dtype=dtype) for value in array.to_pylist()]


def merge_litdata(directory: str) -> None:
    """One `index.json` out of those of the sub-directories, which are removed; their chunks move beside it. May be repeated.

    Raises:
        DataError: the parts' layouts differ.
    """
    root = Path(directory)
    parts = sorted(root.glob("*/index.json"))
    if not parts:
        return
    index = root / "index.json"
    merged: dict[str, Any] = {"chunks": [], "config": None}
    for part in [] if index.exists() else parts:
        data = json.loads(part.read_text(encoding="utf-8"))
        config, mine = merged["config"] or data["config"], data["config"]
        if any(config.get(name) != mine.get(name) for name in config.keys() | mine.keys() if name != "types"):
            raise DataError(f"{part} has another layout than the parts before it")
        merged["config"] = config
        for chunk in data["chunks"]:
            here = part.parent / chunk["filename"]
            chunk["filename"] = f"{part.parent.name}.{chunk['filename']}"
            if here.exists():
                os.replace(here, root / chunk["filename"])
            merged["chunks"].append(chunk)
    if not index.exists():  # else an earlier call got so far
        write_whole(index, [json.dumps(merged, sort_keys=True).encode()], sync=True)
    for part in parts:
        part.unlink()
        part.parent.rmdir()

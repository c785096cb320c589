"""Writes one tar of samples, as WebDataset reads them."""

from __future__ import annotations

import io
import json
import re
import tarfile
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, RecipeError
from zephon_formats._write_parts import throw_away

KEY = "__key__"
_EXTENSION = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
_KEY = re.compile(r"[^./]+(/[^./]+)*")


class TarWriter:
    """See `ShardWriter`. A column is the extension of its members, so its name must be one: `jpg`, `txt`, `cls`, `seg.png`.

    Images (`struct<bytes, path>`) and bytes are written as they are, text as UTF-8, numbers and bools as JSON has them, what is nested as
    JSON. A null has no member. The key is the column `__key__`, or the row's number in the part.
    """

    def __init__(self, path: str, schema: pa.Schema) -> None:
        for field in schema:
            if field.name != KEY and not _EXTENSION.fullmatch(field.name):
                raise RecipeError(
                    f"column {field.name!r} can't be the extension of a file in a tar",
                    hint="lower-case letters, digits, _ and dots; leave it out with columns, or rename it",
                )
            if not _is_image(field.type) and pa.types.is_nested(field.type) and "binary" in str(field.type):
                raise RecipeError(
                    f"column {field.name!r} ({field.type}) has no form in a tar", hint="leave it out with columns"
                )
            if pa.types.is_null(field.type):
                raise RecipeError(f"column {field.name!r} has no values, and a tar no nulls", hint="leave it out with columns")
        if not [name for name in schema.names if name != KEY]:
            raise RecipeError("a tar of samples needs a column beside '__key__'")
        self._path, self._schema = path, schema
        self._rows = 0
        self._seen: set[str] = set()
        self._tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by close or abort

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        columns = {f.name: _bytes_of(batch.column(f.name), f.name) for f in self._schema if f.name != KEY}
        keys = batch.column(KEY).to_pylist() if KEY in self._schema.names else [None] * len(batch)
        for row, key in enumerate(keys):
            number = self._rows + row
            name = f"{number:09d}" if KEY not in self._schema.names else key
            if not isinstance(name, str) or not _KEY.fullmatch(name) or name in self._seen:
                what = "comes twice" if name in self._seen else "can't be a key (text without dots)"
                raise DataError(f"row {number} of the part: the key {name!r} {what}")
            self._seen.add(name)
            members = [(n, data) for n, values in columns.items() if (data := values[row]) is not None]
            if not members:
                raise DataError(f"row {number} of the part is null in every column, and would have no file in the tar")
            for extension, data in members:
                info = tarfile.TarInfo(f"{name}.{extension}")
                info.size, info.mode = len(data), 0o644
                self._tar.addfile(info, io.BytesIO(data))
        self._rows += len(batch)

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._tar.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        throw_away(self._path, self._tar.close)


def _is_image(kind: Any) -> bool:
    return pa.types.is_struct(kind) and {kind.field(i).name for i in range(kind.num_fields)} == {"bytes", "path"}


def _bytes_of(array: pa.Array[Any], name: str) -> list[bytes | None]:
    """Each value as the content of its member."""
    kind: Any = array.type
    values: list[Any] = array.to_pylist()
    if _is_image(kind):
        gone = [i for i, v in enumerate(values) if v is not None and v["bytes"] is None]
        if gone:
            raise DataError(f"column {name!r} has a path and no bytes: {values[gone[0]]['path']!r}")
        return [None if v is None else v["bytes"] for v in values]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return values
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [None if v is None else v.encode() for v in values]
    if pa.types.is_floating(kind):
        values = [None if v is None else float(np.float64(v)) for v in values]
    try:
        return [None if v is None else json.dumps(v, ensure_ascii=False).encode() for v in values]
    except TypeError as error:
        raise DataError(f"column {name!r} ({kind}) can't be written as JSON: {error}") from error

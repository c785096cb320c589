"""Writes one file of JSON lines."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa

from zephon.plugin import DataError, RecipeError
from zephon_formats._write_parts import throw_away


class JsonlWriter:
    """See `ShardWriter`. Times and decimals become text; bytes, NaN and infinities, which JSON doesn't have, are refused."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        for field in schema:
            if _holds_bytes(field.type):
                raise RecipeError(
                    f"column {field.name!r} ({field.type}) holds bytes, which JSON can't", hint="leave it out with columns"
                )
        self._path = path
        self._rows = 0
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed by close() or abort()

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            try:
                line = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_as_text)
            except (ValueError, TypeError) as error:
                raise DataError(f"row {self._rows} of the part can't be written as JSON: {error}") from error
            self._file.write(line + "\n")
            self._rows += 1

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._file.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        throw_away(self._path, self._file.close)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    return any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))


def _as_text(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")

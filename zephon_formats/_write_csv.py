"""Writes one CSV or TSV file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv as pc

from zephon.plugin import RecipeError
from zephon_formats._write_parts import throw_away


class CsvWriter:
    """See `ShardWriter`. A header line, text in quotes, null as nothing (an empty text as `""`). Flat columns only."""

    def __init__(self, path: str, schema: pa.Schema, *, delimiter: str = ",") -> None:
        for field in schema:
            kind = field.type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                raise RecipeError(f"column {field.name!r} ({kind}) can't be kept in CSV", hint="leave it out with columns")
            if not field.name:
                raise RecipeError(
                    "a column without a name can't be kept in CSV", hint="leave it out with columns, or rename it"
                )
        self._path, self._schema = path, schema
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close() or abort()
        self._writer = pc.CSVWriter(
            self._file, schema, write_options=pc.WriteOptions(delimiter=delimiter, quoting_style="needed")
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        if len(batch):
            self._writer.write_batch(batch)

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        throw_away(self._path, self._writer.close, self._file.close)

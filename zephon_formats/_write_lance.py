"""Writes one Lance data set with `pylance`."""

from __future__ import annotations

import shutil
from types import ModuleType

import pyarrow as pa

from zephon.plugin import DataError, RecipeError

_FRAGMENT_BYTES = 256 << 20


class LanceWriter:
    """See `ShardWriter`; it makes a directory. A fragment for every 256 MiB of rows, which are held in memory until then."""

    def __init__(self, lance: ModuleType, path: str, schema: pa.Schema) -> None:
        dotted = next((name for name in schema.names if "." in name), None)
        if dotted is not None:
            raise RecipeError(
                f"column {dotted!r} can't be kept in Lance: its names have no dots",
                hint="leave it out with columns, or rename it",
            )
        self._lance, self._path, self._schema = lance, path, schema
        self._held: list[pa.RecordBatch] = []
        self._nbytes, self._began = 0, False

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        self._held.append(batch)
        self._nbytes += batch.nbytes
        if self._nbytes >= _FRAGMENT_BYTES:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._held, schema=self._schema)
        self._held, self._nbytes = [], 0
        if len(table):
            self._lance.write_dataset(table, self._path, mode="append" if self._began else "create")
            self._began = True

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._flush()
        if not self._began:
            raise DataError("a Lance data set with zero rows has no data file, and would not be found again")

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        self._held = []
        shutil.rmtree(self._path, ignore_errors=True)

"""Parquet files that an `index.json` of LitData lists (`index_parquet_dataset`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon.plugin import DataError, Shard, Store, Units, at
from zephon_formats._asked import check_rows, schema_in, unread
from zephon_formats._ordinary import ordinary_batches, ordinary_type

_BATCH_BYTES = 512 << 20


class OpenParquet:
    """One file's footer; each read opens the file anew. A unit is a row group, as a whole or in part."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store, self._shard = store, shard
        self._footer, schema = self._with_file(None, lambda file: (file.metadata, file.schema_arrow))
        rows = int(shard.extra["rows"])
        if self._footer.num_rows != rows:
            raise DataError(f"the Parquet file has {self._footer.num_rows} rows, its index says {rows}")
        if len(set(schema.names)) < len(schema.names):
            raise DataError(f"the file has a column twice: {schema.names}")
        self.schema: pa.Schema = pa.schema([pa.field(f.name, ordinary_type(f.type)) for f in schema])
        groups = [self._footer.row_group(i) for i in range(self._footer.num_row_groups)]
        self._rows = np.array([g.num_rows for g in groups], dtype=np.int64)
        self._nbytes = np.array([g.total_byte_size for g in groups], dtype=np.int64)
        self._closed = False

    def _with_file(self, footer: Any, use: Any) -> Any:
        try:
            with self._store.open(self._shard.path) as source, pq.ParquetFile(source, metadata=footer, pre_buffer=True) as file:
                return use(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"the Parquet file can't be read: {error}") from error

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size before compression, of all columns."""
        return Units(self._rows, np.maximum(self._nbytes, np.minimum(self._rows, 1)))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. Row groups over 512 MB come in several batches."""
        with at(shard=self._shard.path):
            rows = int(self._rows[unit])
            check_rows(unit, start, stop, rows, closed=self._closed, what="row group")
            schema = schema_in(self.schema, columns)
            if start == stop or not len(schema):
                return [unread(schema, stop - start)]
            at_once = max(1, int(rows * min(1.0, _BATCH_BYTES / max(1, int(self._nbytes[unit])))))
            made: list[pa.RecordBatch] = self._with_file(
                self._footer, lambda file: _slices(file, unit, schema, start, stop, at_once)
            )
            if sum(map(len, made)) != stop - start:
                raise DataError(f"row group {unit} ends before its footer says")
            return made

    def close(self) -> None:
        """See `OpenShard.close`; no file is held open between reads."""
        self._closed = True


def _slices(file: pq.ParquetFile, unit: int, schema: pa.Schema, start: int, stop: int, at_once: int) -> list[pa.RecordBatch]:
    made: list[pa.RecordBatch] = []
    begin = 0
    for batch in file.iter_batches(batch_size=at_once, row_groups=[unit], columns=schema.names, use_threads=False):
        low, high = max(start - begin, 0), min(stop - begin, len(batch))
        if low < high:
            made += ordinary_batches(batch.slice(low, high - low), schema)
            made[-1].validate(full=True)  # text that isn't UTF-8
        begin += len(batch)
        if begin >= stop:
            break
    return made

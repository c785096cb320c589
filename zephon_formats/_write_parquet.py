"""Writes one Parquet file."""

from __future__ import annotations

import contextlib
import os

import pyarrow as pa
import pyarrow.parquet as pq

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20


class ParquetWriter:
    """See `ShardWriter`. Row groups of about 32 MiB before compression (zstd): a read unit that several lanes can share."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._file = pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
        self._held: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        at_once = max(1, min(_GROUP_ROWS, _GROUP_BYTES * len(batch) // max(1, batch.nbytes)))
        for start in range(0, len(batch), at_once):
            piece = batch.slice(start, at_once)
            self._held.append(piece)
            self._rows += len(piece)
            self._nbytes += piece.nbytes
            if self._nbytes >= _GROUP_BYTES or self._rows >= _GROUP_ROWS:
                self._flush()

    def _flush(self) -> None:
        if self._held:
            self._file.write_table(pa.Table.from_batches(self._held, schema=self._schema), row_group_size=self._rows)
        self._held, self._rows, self._nbytes = [], 0, 0

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._flush()
        self._file.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        self._held = []
        with contextlib.suppress(Exception):  # it is thrown away; why it can't be finished doesn't matter
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

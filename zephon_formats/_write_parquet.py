"""Writes one Parquet file."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from zephon_formats._write_parts import Joined, throw_away

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20


class ParquetWriter:
    """See `ShardWriter`. Row groups of about 32 MiB before compression (zstd): a read unit that several lanes can share."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._file = pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
        self._joined = Joined(self._write, rows=_GROUP_ROWS, nbytes=_GROUP_BYTES)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        self._joined.add(batch)

    def _write(self, pieces: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(pieces, schema=self._schema)
        self._file.write_table(table, row_group_size=len(table))

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._joined.flush()
        self._file.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        self._joined.forget()
        throw_away(self._path, self._file.close)

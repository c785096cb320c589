"""Writes one Arrow IPC file."""

from __future__ import annotations

import pyarrow as pa

from zephon_formats._write_parts import Joined, throw_away

_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 16


class ArrowWriter:
    """See `ShardWriter`. The random-access file format, uncompressed so that it can be mapped; batches of at most 16 MiB."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._file = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._joined = Joined(self._write, rows=_BATCH_ROWS, nbytes=_BATCH_BYTES)

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        self._joined.add(batch)

    def _write(self, pieces: list[pa.RecordBatch]) -> None:
        # small groups are joined: a batch in the file is a read unit
        for batch in pa.Table.from_batches(pieces, schema=self._schema).combine_chunks().to_batches():
            self._writer.write_batch(batch)

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._joined.flush()
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        self._joined.forget()
        throw_away(self._path, self._writer.close, self._file.close)

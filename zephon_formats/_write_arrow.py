"""Writes one Arrow IPC file."""

from __future__ import annotations

import contextlib
import os

import pyarrow as pa

_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 1 << 16


class ArrowWriter:
    """See `ShardWriter`. The random-access file format, uncompressed so that it can be mapped; batches of at most 16 MiB."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        self._file = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._held: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        at_once = max(1, min(_BATCH_ROWS, _BATCH_BYTES * len(batch) // max(1, batch.nbytes)))
        for start in range(0, len(batch), at_once):
            piece = batch.slice(start, at_once)
            self._held.append(piece)
            self._rows += len(piece)
            self._nbytes += piece.nbytes
            if self._nbytes >= _BATCH_BYTES or self._rows >= _BATCH_ROWS:
                self._flush()

    def _flush(self) -> None:
        # small groups are joined: a batch in the file is a read unit
        for batch in pa.Table.from_batches(self._held, schema=self._schema).combine_chunks().to_batches():
            self._writer.write_batch(batch)
        self._held, self._rows, self._nbytes = [], 0, 0

    def close(self) -> None:
        """See `ShardWriter.close`."""
        self._flush()
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        self._held = []
        with contextlib.suppress(Exception):  # it is thrown away; why it can't be finished doesn't matter
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

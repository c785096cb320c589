"""Writes one Vortex file with `vortex-data`."""

from __future__ import annotations

import pyarrow as pa

from zephon.plugin import PluginError
from zephon_formats._rust import system_errors
from zephon_formats._write_parts import throw_away


class VortexWriter:
    """See `ShardWriter`. Vortex's writer pulls its input, so the part is held in memory until `close`."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        try:
            import vortex  # noqa: PLC0415 - an optional library, needed only where Vortex is written
        except ImportError as error:
            raise PluginError(
                f"writing Vortex needs the package 'vortex-data': {error}", hint="pip install 'zephon[vortex]'"
            ) from error
        self._vortex = vortex
        self._path, self._schema = path, schema
        self._held: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """See `ShardWriter.write`."""
        self._held.append(batch)

    def close(self) -> None:
        """See `ShardWriter.close`."""
        reader = pa.RecordBatchReader.from_batches(self._schema, self._held)
        with system_errors():
            self._vortex.io.write(reader, self._path)
        self._held = []

    def abort(self) -> None:
        """See `ShardWriter.abort`."""
        self._held = []
        throw_away(self._path)

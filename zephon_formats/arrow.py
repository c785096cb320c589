"""Arrow IPC (https://arrow.apache.org/docs/format/Columnar.html): files (Feather version 2), streams, and the folders of streams that
Hugging Face `save_to_disk` writes.

A file's footer says where its batches are; for a stream, one pass over the headers of its messages does, and for remote shards this is
kept in a sidecar. Local shards are mapped: what isn't compressed is not copied. Of remote ones only the columns that are needed are
fetched, and of large batches only the rows. Whatever is read is checked before it is used: offsets, dictionary indices, UTF-8.

Types are the ordinary ones (`zephon_formats._ordinary`): dictionaries and views are decoded, extension types become their storage (so
an Image feature of Hugging Face is `struct<bytes: binary, path: string>`), metadata is left aside. Union columns are refused when
they are read. A folder of Hugging Face is read in the order of its `state.json`; one with several splits is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.plugin import DataError, FileInfo, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._arrow_folders import data_files
from zephon_formats._arrow_index import ROWS, ArrowIndex, cut_units, load_index, read_schema
from zephon_formats._arrow_messages import I64, Read
from zephon_formats._arrow_read import Batches, Mapped
from zephon_formats._asked import check_rows, schema_in, unread
from zephon_formats._ordinary import ordinary_batches, ordinary_type
from zephon_formats._sidecar import local_version
from zephon_formats._write_arrow import ArrowWriter

_LITTLE = 256 << 10


@dataclass(frozen=True, kw_only=True)
class Arrow(Reader):
    """Arrow IPC files and streams. An open shard holds the places of its batches, and a map of the file where that is local."""

    name: ClassVar[str] = "arrow"
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ".arrow"

    unit_bytes: int = 4 << 20
    """Size of a read unit: smaller record batches are joined, larger ones cut by rows (compressed ones are not)."""

    def __post_init__(self) -> None:
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """See `Reader.shards`; folders of Hugging Face in their own order.

        Raises:
            RecipeError: the files are of several splits, or results of `map` lie beside the data.
            DataError: a listed file is missing, or a saved data set has an indices mapping.
        """
        mine = data_files(store, files, self.suffixes)
        return [Shard(path=f.path, size=f.size, etag=f.etag) for f in (mine or self._forced(files))]

    def _forced(self, files: Sequence[FileInfo]) -> list[FileInfo]:
        """All files where none has one of the suffixes; none in a saved data set that has no rows, which has no data files."""
        return [] if any(f.path.endswith("/state.json") for f in files) else list(files)

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """See `Reader.writer`."""
        return ArrowWriter(path, schema)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Find the batches of one shard, from the footer, a sidecar, or one pass over the headers.

        Raises:
            DataError: not Arrow IPC, Feather version 1, cut short, damaged, or two columns have one name.
        """
        with at(shard=shard.path):
            path = store.local(shard.path)
            mapped, version = None, ""
            if path is not None:
                version = local_version(path)
                found = int(version.partition(" ")[0])
                if found != shard.size:  # a map of a file that was cut would end the process with SIGBUS
                    raise DataError(
                        f"the file has {found} bytes; it had {shard.size} when it was listed",
                        hint="data must not change during a run",
                    )
                mapped = Mapped(path) if found else None
            read: Read = mapped.read if mapped else lambda start, stop: _exactly(store, shard.path, start, stop)
            index = load_index(store, shard, read, local=path is not None)
            return _OpenArrow(self, shard, index, Batches(index, read_schema(index.schema), read, mapped), path, version)


def _exactly(store: Store, path: str, start: int, stop: int) -> bytes:
    data = store.read(path, start, stop)
    if len(data) != stop - start:
        raise DataError(
            f"bytes [{start}, {stop}) were asked for, {len(data)} came; the file is shorter than when it was listed",
            hint="data must not change during a run",
        )
    return data


class _OpenArrow:
    """One shard's batches. Reads share the map and nothing else."""

    def __init__(
        self, reader: Arrow, shard: Shard, index: ArrowIndex, batches: Batches, path: str | None, version: str
    ) -> None:
        schema = batches.schema
        groups.check_names(schema)
        self.schema: pa.Schema = pa.schema([pa.field(f.name, ordinary_type(f.type)) for f in schema])
        self._shard, self._path, self._version = shard, path, version
        self._batches: Batches | None = batches
        self.mapped = batches.mapped
        self._table: I64 = index.batches
        self._begins: I64 = np.concatenate([[0], np.cumsum(self._table[:, ROWS])])
        self._units, self._nbytes = cut_units(self._table, reader.unit_bytes)

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size in the file, of all columns, doubled where it's compressed."""
        return Units(np.diff(self._units), self._nbytes)

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. Small record batches are joined."""
        first, last = int(self._units[unit]), int(self._units[unit + 1])
        with at(shard=self._shard.path, rows=f"{first + start}-{first + stop - 1}"):
            batches = self._batches
            check_rows(unit, start, stop, last - first, closed=batches is None)
            assert batches is not None
            schema = schema_in(self.schema, columns)
            if start == stop or not len(schema):
                return [unread(schema, stop - start)]
            self._check(schema)
            return self._rows(batches, schema, first + start, first + stop)

    def _rows(self, batches: Batches, schema: pa.Schema, start: int, stop: int) -> list[pa.RecordBatch]:
        low = int(np.searchsorted(self._begins, start, side="right")) - 1
        high = int(np.searchsorted(self._begins, stop, side="left"))
        begin = int(self._begins[low])
        found = batches.read(self._table[low:high], schema.names, start - begin, stop - begin)
        made = [piece for batch in found for piece in ordinary_batches(batch, schema)]
        return _joined(made, schema) if len(made) > 1 else made

    def _check(self, schema: pa.Schema) -> None:
        if self._path is not None and local_version(self._path) != self._version:
            raise DataError("the file was changed after it was opened", hint="start again; data must not change during a run")
        for column in schema:
            if _has_union(column.type):
                raise DataError(
                    f"column {column.name!r} is a union ({column.type}), which can't be carried", hint="leave it out: columns=…"
                )

    def close(self) -> None:
        """See `OpenShard.close`. The map lasts as long as what was read from it."""
        self._batches = None


def _has_union(kind: pa.DataType) -> bool:
    return bool(pa.types.is_union(kind)) or any(_has_union(kind.field(i).type) for i in range(kind.num_fields))


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Many little batches as one, since each costs every later step something."""
    if sum(b.nbytes for b in batches) > len(batches) * _LITTLE:
        return batches
    made = pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
    return made or batches[:1]

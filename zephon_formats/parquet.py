"""Apache Parquet (https://parquet.apache.org/docs/file-format/): a read unit is a row group, columns are read by their top-level names.

Types are the ordinary ones: view, dictionary and run-end encoded types are decoded, extension types become their storage, list items
and fields lose names and flags that only describe the file, and the file's own metadata (pandas, Hugging Face) is left aside.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon import groups
from zephon.plugin import DataError, FileInfo, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._asked import check_rows, schema_in
from zephon_formats._hive import partition_columns, partition_types, partitions_of, with_partitions
from zephon_formats._ordinary import ordinary_batches, ordinary_type
from zephon_formats._sound_text import sound_text
from zephon_formats._told import Told
from zephon_formats._write_parquet import ParquetWriter

_log = logging.getLogger("zephon.formats.parquet")

_BATCH_BYTES = 512 << 20
"""A larger row group comes in several batches: Arrow can't put more than 2 GiB of text into one array (nor nest it in a list)."""
_LIST_BATCH_BYTES = 1 << 20
"""Lists of numbers come in batches of this size, since for each batch Arrow takes buffers of levels, and buffers that grow by doubling: in
one batch, a row group of token ids touches three times its size of fresh memory, which costs more than decoding it."""
_MANY_GROUPS, _TINY_GROUP = 10_000, 1_000


@dataclass(frozen=True, kw_only=True)
class Parquet(Reader):
    """Parquet files. One open shard holds its footer in memory and no file."""

    name: ClassVar[str] = "parquet"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq")
    splittable: ClassVar[bool] = False
    part_suffix: ClassVar[str | None] = ".parquet"

    hive: bool = False
    """Directories called `column=value` above the files are columns, too: int64 where all values are integers, else string."""
    bad_text: Literal["replace", "error"] = "replace"
    """Text that is not UTF-8, which some writers let pass: U+FFFD in its place, or an error of the row group that names the row."""

    def __post_init__(self) -> None:
        if self.bad_text not in ("replace", "error"):
            raise RecipeError(f"bad_text must be 'replace' or 'error', got {self.bad_text!r}")

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """See `Reader.shards`. Raises `RecipeError` for `hive` where files have different partition columns, or none."""
        found = super().shards(store, files)
        if not self.hive:
            named = next((f"{name}={value}" for shard in found[:1] for name, value in partitions_of(shard.path).items()), None)
            if named:
                _log.warning("%s: directories such as %r are not read as columns; hive=True does", found[0].path, named)
            return found
        columns = partition_columns([shard.path for shard in found])
        types = partition_types(columns)
        return [replace(s, extra={"hive": c, "types": types}) for s, c in zip(found, columns, strict=True)]

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """A writer of one file; row groups of about 32 MiB before compression (zstd)."""
        return ParquetWriter(path, schema)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Read the footer of one shard. Raises `DataError` where it's damaged, encrypted or has two columns of one name."""
        with at(shard=shard.path), _opened(store, shard, None) as file:
            return _OpenParquet(self, store, shard, file.metadata, file.schema_arrow)


@contextmanager
def _opened(store: Store, shard: Shard, footer: pq.FileMetaData | None) -> Iterator[pq.ParquetFile]:
    """The file, for one thread. Local files are mapped; what Arrow raises is a `DataError`."""
    path = store.local(shard.path)
    source: Any
    if path is None:
        source = store.open(shard.path)
    else:
        _check_size(path, shard.size)
        source = path
    try:
        with pq.ParquetFile(
            source, metadata=footer, memory_map=path is not None, pre_buffer=path is None, page_checksum_verification=True
        ) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"the Parquet file can't be read: {error}") from error
    finally:
        if path is None:
            source.close()


def _check_size(path: str, size: int) -> None:
    # a map of a file that was cut would end the process with SIGBUS
    try:
        found = os.stat(path).st_size
    except OSError as error:
        raise DataError(f"{path!r} can't be read: {error.strerror}") from error
    if found != size:
        raise DataError(
            f"the file has {found} bytes; it had {size} when it was listed", hint="data must not change during a run"
        )
    if not found:
        raise DataError("the file is empty (0 bytes), which is not Parquet", hint="was it written to its end?")


class _OpenParquet:
    """One shard's footer. Each read opens the file anew with that footer, so reads share nothing."""

    def __init__(self, reader: Parquet, store: Store, shard: Shard, footer: pq.FileMetaData, schema: pa.Schema) -> None:
        groups.check_names(schema)
        self._store, self._shard, self._footer = store, shard, footer
        self._told = Told(shard.path) if reader.bad_text == "replace" else None
        stored = pa.schema([pa.field(f.name, ordinary_type(f.type)) for f in schema])
        self._hive: dict[str, Any] = dict(shard.extra.get("hive", {}))
        for name in self._hive:
            if stored.get_field_index(name) >= 0:  # as pyarrow: what the path says counts
                stored = stored.remove(stored.get_field_index(name))
            stored = stored.append(pa.field(name, pa.type_for_alias(shard.extra["types"][name])))
        self.schema: pa.Schema = stored
        row_groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        self._rows = np.array([g.num_rows for g in row_groups], dtype=np.int64)
        self._begins = np.cumsum(self._rows) - self._rows
        self._nbytes = np.array([g.total_byte_size for g in row_groups], dtype=np.int64)
        self._closed = False
        if len(row_groups) > _MANY_GROUPS and footer.num_rows < _TINY_GROUP * len(row_groups):
            _log.warning(
                "%s has %d row groups of %d rows on average; its footer alone takes %d bytes and reads are slow: write larger row groups",
                shard.path, len(row_groups), footer.num_rows // len(row_groups), footer.serialized_size,
            )  # fmt: skip

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size before compression, of all columns."""
        return Units(self._rows, self._nbytes)

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. Row groups over 512 MB come in several batches."""
        rows = int(self._rows[unit])
        with at(shard=self._shard.path, rows=f"{start}-{stop - 1} of row group {unit}"):
            check_rows(unit, start, stop, rows, closed=self._closed, what="row group")
            schema = schema_in(self.schema, columns)
            wanted = schema.names
            if start == stop:
                return [groups.empty_group(schema)]
            inside = [n for n in wanted if n not in self._hive]
            kept = pa.schema([self.schema.field(n) for n in inside])
            made: list[pa.RecordBatch] = []
            row = int(self._begins[unit]) + start
            for batch in self._batches(unit, inside, start, stop):
                for piece in ordinary_batches(batch, kept):
                    made.append(sound_text(piece, row, self._told))
                    row += len(piece)
            if self._hive:
                made = [with_partitions(batch, wanted, self._hive, self.schema) for batch in made]
            if sum(len(batch) for batch in made) != stop - start:
                raise DataError(f"row group {unit} ends {stop - start - sum(map(len, made))} rows before its footer says")
            return made

    def _batches(self, unit: int, wanted: Sequence[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        rows = int(self._rows[unit])
        part = min(1.0, _BATCH_BYTES / max(1, int(self._nbytes[unit])), self._list_part(unit, wanted))
        at_once = max(1, int(rows * part))
        begin = 0
        with _opened(self._store, self._shard, self._footer) as file:
            for batch in file.iter_batches(batch_size=at_once, row_groups=[unit], columns=list(wanted), use_threads=False):
                low, high = max(start - begin, 0), min(stop - begin, len(batch))
                if low < high:
                    yield batch.slice(low, high - low) if high - low < len(batch) else batch
                begin += len(batch)
                if begin >= stop:
                    return

    def _list_part(self, unit: int, wanted: Sequence[str]) -> float:
        """The part of a row group that is a batch of lists of numbers; 1: there are columns of another kind, or no lists."""
        kinds = {name: self.schema.field(name).type for name in wanted}
        lists = {name for name, kind in kinds.items() if pa.types.is_list(kind) or pa.types.is_large_list(kind)}
        if not lists or not all(pa.types.is_primitive(k.value_type if n in lists else k) for n, k in kinds.items()):
            return 1.0
        group = self._footer.row_group(unit)
        columns = (group.column(i) for i in range(group.num_columns))
        size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.partition(".")[0] in lists)
        return _LIST_BATCH_BYTES / max(1, size)

    def close(self) -> None:
        """See `OpenShard.close`; no file is held open between reads."""
        self._closed = True

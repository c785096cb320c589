"""MDS, the shards of MosaicML Streaming (https://docs.mosaicml.com/projects/streaming), version 2, as every release has written them.

A directory with an `index.json` is a stream; several of them below one another are one data set, in the order of their paths. A shard is
the number of samples, the offsets of the samples and of their end (uint32 each), the columns as JSON, and the samples. A plain shard is
read by ranges of about `unit_bytes`; a packed one (zstd, gz, br, bz2, snappy) can't be entered in the middle and is one read unit.
Shards over 4 GiB, whose offsets have wrapped, are read by their true offsets.

    encoding                            Arrow type
    str, json                           string (JSON as it was written; see `Mds.json`)
    bytes                               binary (see `Mds.dtypes`)
    int, uint8 … int64, float16 … 64    int64, the same number
    str_int, str_float, str_decimal     int64, float64, string (see `Mds.numbers`)
    jpeg, png                           struct<bytes: binary, path: string>: the file, never decoded; path is null
    pil                                 the same; the raw pixels are put into an uncompressed PNG (modes 1, L, LA, P, RGB, RGBA, I;16)
                                        or TIFF (CMYK, I, F), which hold the same pixels; other modes are an error.
                                        MDS loses palettes: the numbers of a P image stay, and stand for grey
    list[jpeg], list[png], list[pil],   list of these
    jpeg_array
    ndarray:T:2,3                       fixed_size_list<fixed_size_list<T, 3>, 2>
    ndarray:T                           struct<data: list<T>, shape: list<int64>>, in C order (see `Mds.arrays`)
    ndarray                             struct<data: binary, dtype: string, shape: list<int64>> (see `Mds.dtypes`)
    pkl                                 refused, unless `Mds.allow_pickle`
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from zephon.plugin import DataError, FileInfo, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._asked import check_rows, schema_in
from zephon_formats._compression import unpack
from zephon_formats._mds_columns import Column, Options, infer_types, make_columns, read_columns
from zephon_formats._mds_decode import DTYPES
from zephon_formats._mds_index import INDEX, PACKED, find_shards, is_streaming_index
from zephon_formats._mds_shard import ShardHead, read_head
from zephon_formats._write_mds import MdsWriter, merge_mds

_BATCH_BYTES = 256 << 20
"""A larger unit comes in several batches; Arrow can't put more than 2 GiB into one array of bytes."""
_SAMPLED_ROWS = 256
_SAMPLED_BYTES = 16 << 20
"""How many rows of a shard, and bytes at most, show the types of pickles and parsed JSON."""
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Mds(Reader):
    """Shards of MosaicML Streaming. See the module's docstring for columns and types."""

    name: ClassVar[str] = "mds"
    suffixes: ClassVar[tuple[str, ...]] = (".mds", *(f".mds{packed}" for packed in PACKED))
    index_files: ClassVar[tuple[str, ...]] = (INDEX,)
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ""

    allow_pickle: bool = False
    """Load columns of pickles. Doing so runs whatever code is in them: only for data of people that you trust."""
    check_hashes: bool = False
    """Compare each shard with all hashes that the index has of it, before its first row is read."""
    json: Literal["text", "parsed"] = "text"
    """`"parsed"`: JSON columns have the type that the first 256 rows of a shard show, for which opening it reads them."""
    numbers: Literal["parsed", "text"] = "parsed"
    """`"text"`: `str_int` and `str_float` are strings, for numbers that int64 and float64 can't hold."""
    arrays: Literal["shaped", "flat"] = "shaped"
    """`"flat"`: arrays of free shape are plain `list<T>`; one that does not have one dimension is an error."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Column → numpy dtype of its numbers, for what MDS doesn't say: a `bytes` column becomes `list<T>` (LLM Foundry writes tokens so),
    an `ndarray` column without a dtype what one with a dtype is."""
    leave_out: Sequence[str] = ()
    """Columns that are treated as if they weren't there, pickles for example."""
    unit_bytes: int = 8 << 20
    """Size of a read unit of a plain shard."""

    def __post_init__(self) -> None:
        for name, known in (("json", ("text", "parsed")), ("numbers", ("parsed", "text")), ("arrays", ("shaped", "flat"))):
            if getattr(self, name) not in known:
                raise RecipeError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        for column, dtype in self.dtypes.items():
            if dtype not in DTYPES:
                raise RecipeError(f"dtypes[{column!r}] is {dtype!r}; it must be one of {', '.join(DTYPES)}")
        if isinstance(self.leave_out, str):
            raise RecipeError(f"leave_out must be a list of columns, got {self.leave_out!r}")
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")

    @classmethod
    def claims(cls, store: Store, files: Sequence[FileInfo]) -> bool:
        """Whether an `index.json` among these files is MosaicML's; other formats have files of that name too. Shards without one are."""
        indices = [f.path for f in files if f.path.rsplit("/", 1)[-1] == INDEX]
        return any(is_streaming_index(store, path) for path in indices) or not indices

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """The shards that the indices among `files` name; where there is no index among them, those of `files` that the index
        beside them names.

        Raises:
            DataError: an index is damaged or of another version or format, or a shard that it names is missing.
            RecipeError: a setting names a column that no shard has.
        """
        found = find_shards(store, files, self.suffixes)
        names = {name for shard in found for name, _, _ in shard.extra["columns"]}
        for setting in ("dtypes", "leave_out"):
            for column in getattr(self, setting):
                if found and column not in names:
                    raise RecipeError(f"{setting} names {column!r}; the columns are {', '.join(sorted(names))}")
        return found

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """See `Reader.writer`."""
        return MdsWriter(path, schema)

    def finish(self, directory: str) -> None:
        """See `Reader.finish`."""
        merge_mds(directory)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Make ready one shard; nothing is read of it (but its first rows, where pickles or JSON have to show their types).

        Raises:
            DataError: the file has another size than the index says, a column is unknown, holds pickles, or doesn't show its type.
            RecipeError: `dtypes` names a column that has a type of its own.
        """
        with at(shard=shard.path):
            return _OpenMds(self, store, shard)


class _OpenMds:
    """One shard. Only its offsets stay in memory, once they were needed."""

    def __init__(self, reader: Mds, store: Store, shard: Shard) -> None:
        info = shard.extra
        if shard.size != info["bytes"]:
            raise DataError(
                f"the file has {shard.size} bytes where its index promises {info['bytes']}",
                hint="it was not written or copied to its end, or replaced",
            )
        if reader.check_hashes and not info["hashes"]:
            raise DataError(
                "check_hashes is set, and the index has no hashes", hint="MDSWriter(hashes=['xxh3_64']) writes them"
            )
        self._reader, self._store, self._shard = reader, store, shard
        self._rows, self._codec = int(info["rows"]), info["codec"]
        self._nbytes = int(info["raw_bytes"])
        options = Options(reader.allow_pickle, reader.json, reader.numbers, reader.arrays, reader.dtypes, reader.leave_out)
        self._columns: list[Column] = make_columns(info["columns"], options)
        self._units = _cut(self._rows, 1 if self._codec else -(-self._nbytes // reader.unit_bytes))
        self._guard = threading.Lock()
        self._head: ShardHead | None = None
        self._is_checked = not reader.check_hashes
        self._closed = False
        self.schema = self._make_schema()

    def _make_schema(self) -> pa.Schema:
        inferred: dict[str, pa.DataType] = {}
        if any(c.type is None and c.decode is not None for c in self._columns):
            data, offsets, _ = next(self._pieces(0, min(_SAMPLED_ROWS, self._rows), limit=_SAMPLED_BYTES))
            inferred = infer_types(data, offsets, self._columns)
        kept = [c for c in self._columns if c.decode is not None]
        return pa.schema([(c.name, c.type if c.type is not None else inferred.get(c.name, pa.null())) for c in kept])

    def units(self) -> Units:
        """See `OpenShard.units`; rows are dealt evenly, and sizes are the average."""
        rows = np.diff(self._units)
        return Units(rows, np.maximum(rows * self._nbytes // max(1, self._rows), 1))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. More than 256 MB come in several batches."""
        with at(shard=self._shard.path):
            first, last = int(self._units[unit]), int(self._units[unit + 1])
            check_rows(unit, start, stop, last - first, closed=self._closed)
            schema = schema_in(self.schema, columns)
            return [
                read_columns(data, offsets, row, self._columns, schema)
                for data, offsets, row in self._pieces(first + start, first + stop)
            ]

    def close(self) -> None:
        """See `OpenShard.close`; no file is held open between reads."""
        self._closed = True
        _KEPT.forget(self)

    # ------------------------------------------------------------------------------------------------------- bytes

    def _pieces(
        self, start: int, stop: int, *, limit: int = _BATCH_BYTES
    ) -> Iterator[tuple[pa.Buffer, npt.NDArray[np.int64], int]]:
        """The samples [start, stop) as (bytes, offsets in them, first row), at least one piece, none much over the limit."""
        self._check_size()
        whole: pa.Buffer | None = None
        if self._codec or len(self._units) <= 2:
            whole = self._whole(is_part=stop - start < self._rows)
            head = self._read_head(whole)
        else:
            head = self._lazy_head()
        while True:
            offsets = head.offsets(start, stop)
            end = start + max(1, int(np.searchsorted(offsets, offsets[0] + limit, side="right")) - 1)
            end = min(end, stop)
            offsets = offsets[: end - start + 1]
            low, high = int(offsets[0]), int(offsets[-1])
            data = (
                pa.py_buffer(self._store.read(self._shard.path, low, high)) if whole is None else whole.slice(low, high - low)
            )
            if data.size != high - low:
                raise DataError(f"the file ends at byte {low + data.size}, before the samples that its offsets promise")
            yield data, offsets - low, start
            start = end
            if start >= stop:
                return

    def _check_size(self) -> None:
        path = self._store.local(self._shard.path)
        if path is None:
            return
        try:
            found = os.stat(path).st_size
        except OSError as error:
            raise DataError(f"{path!r} can't be read: {error.strerror}") from error
        if found != self._shard.size:
            raise DataError(
                f"the file has {found} bytes; it had {self._shard.size} when it was listed",
                hint="data must not change during a run",
            )

    def _whole(self, *, is_part: bool) -> pa.Buffer:
        kept = _KEPT.get(self) if self._codec else None
        if kept is not None:
            return kept
        data = pa.py_buffer(self._store.read(self._shard.path))
        if data.size != self._shard.size:
            raise DataError(f"{data.size} bytes could be read where the file had {self._shard.size} when it was listed")
        self._check_hashes(lambda: iter([data]), self._shard.extra["hashes"])
        if self._codec:
            data = unpack(data, self._codec, self._nbytes)
            self._check_hashes(lambda: iter([data]), self._shard.extra["raw_hashes"])
            if is_part:
                _KEPT.put(self, data)
        self._is_checked = True
        return data

    def _lazy_head(self) -> ShardHead:
        with self._guard:
            if not self._is_checked:
                self._check_hashes(self._blocks, self._shard.extra["hashes"])
                self._is_checked = True
            if self._head is None:
                self._head = self._read_head(None)
            return self._head

    def _read_head(self, data: pa.Buffer | None) -> ShardHead:
        def read(start: int, stop: int) -> pa.Buffer:
            if data is not None:
                return data.slice(start, stop - start)
            return pa.py_buffer(self._store.read(self._shard.path, start, stop))

        return read_head(read, self._rows, self._nbytes, self._shard.extra["columns"])

    def _blocks(self) -> Iterator[pa.Buffer]:
        for start in range(0, self._shard.size, 8 << 20):
            yield pa.py_buffer(self._store.read(self._shard.path, start, min(start + (8 << 20), self._shard.size)))

    def _check_hashes(self, blocks: Any, promised: Mapping[str, str]) -> None:
        if self._is_checked or not promised:
            return
        digests = {name: _new_hash(name) for name in promised}
        for block in blocks():
            for digest in digests.values():
                digest.update(block)
        for name, digest in digests.items():
            if digest.hexdigest() != promised[name]:
                raise DataError(
                    f"the {name} hash is {digest.hexdigest()} where the index says {promised[name]}",
                    hint="the file is damaged or was replaced: copy it again",
                )


def _cut(rows: int, parts: int) -> npt.NDArray[np.int64]:
    """The rows of a shard in so many even units: int64[U + 1]."""
    parts = min(max(1, parts), rows)
    return np.arange(parts + 1, dtype=np.int64) * rows // max(1, parts)


def _new_hash(name: str) -> Any:
    if name in xxhash.algorithms_available:
        return getattr(xxhash, name)()
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, usedforsecurity=False)
    raise DataError(f"the index has a hash of the kind {name!r}, which is unknown", hint="read without check_hashes")


class _Kept:
    """The packed shard that was last read in part, unpacked: whoever reads one part of a unit (to find the row at fault) reads others."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: _OpenMds | None = None
        self._data: pa.Buffer | None = None

    def get(self, owner: _OpenMds) -> pa.Buffer | None:
        with self._guard:
            return self._data if self._owner is owner else None

    def put(self, owner: _OpenMds, data: pa.Buffer) -> None:
        with self._guard:
            if data.size <= _KEPT_BYTES:
                self._owner, self._data = owner, data

    def forget(self, owner: _OpenMds) -> None:
        with self._guard:
            if self._owner is owner:
                self._owner = self._data = None


_KEPT = _Kept()

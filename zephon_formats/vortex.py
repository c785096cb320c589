"""Vortex (https://docs.vortex.dev/specs/file-format): read by its own library, `vortex-data`, which alone knows its encodings.

A read unit is one of the file's splits (the row ranges at which its columns are cut, most often 8192 rows or a multiple), or an even
part of one that is larger than `Vortex.unit_bytes`. Local files are mapped into memory, so a part of a split costs what the part
costs, and bytes that aren't compressed are not copied at all. From other stores the library gets the byte ranges that it asks for, of
the columns that are read; it asks for whole segments (a column of a split), so a part of a split costs as much as all of it there.

Types are the ordinary ones: `string_view` and `binary_view`, which Vortex gives for all text and bytes, become `string` and `binary`.
Vortex itself forgets dictionaries and the "large" types, and can't hold durations and binaries of fixed width. The format has no
checksums: what is read is checked to be sound (offsets, UTF-8), but a changed byte in the middle of the data may go unnoticed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.plugin import DataError, OpenShard, PluginError, Reader, RecipeError, Shard, ShardWriter, Store, Units, at, errors
from zephon_formats._asked import check_rows, schema_in, unread
from zephon_formats._ordinary import ordinary_batches, ordinary_type
from zephon_formats._rust import foreign_errors
from zephon_formats._write_vortex import VortexWriter

_SMALLEST = 64
"""Bytes of an empty Vortex file's end; what is shorter can't be one."""
_FEW_ROWS, _FEW_BYTES = 1024, 1 << 20


@dataclass(frozen=True, kw_only=True)
class Vortex(Reader):
    """Vortex files. See the module's docstring."""

    name: ClassVar[str] = "vortex"
    suffixes: ClassVar[tuple[str, ...]] = (".vortex", ".vtx")
    splittable: ClassVar[bool] = False
    part_suffix: ClassVar[str | None] = ".vortex"

    unit_bytes: int = 256 << 20
    """Splits that are larger (in the file) are read in parts of about this size. Vortex cuts by rows, so a split of images can have
    gigabytes."""

    def __post_init__(self) -> None:
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Read the footer of one shard.

        Raises:
            DataError: the file is missing, damaged, changed since it was listed, or holds something else than columns.
            PluginError: `vortex-data` isn't installed.
        """
        with at(shard=shard.path):
            return _OpenVortex(_vortex(), store, shard, self.unit_bytes)

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """See `Reader.writer`. Dictionaries and "large" types are read back as the ordinary ones."""
        for column in schema:
            lost = _not_kept(column.type)
            if lost is not None:
                raise RecipeError(f"Vortex can't hold the type {lost} of column {column.name!r}")
        _vortex()
        return VortexWriter(path, schema)


def _vortex() -> ModuleType:
    try:
        import vortex  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise PluginError(
            f"reading Vortex needs the package 'vortex-data': {error}", hint="pip install 'zephon[vortex]'"
        ) from error
    return vortex


def _not_kept(kind: pa.DataType) -> pa.DataType | None:
    """The type in `kind` that Vortex has no equal of, or None."""
    if (
        pa.types.is_fixed_size_binary(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_interval(kind)
        or pa.types.is_union(kind)
    ):
        return kind
    return next(filter(None, (_not_kept(kind.field(i).type) for i in range(kind.num_fields))), None)


class _Ranges:
    """What Vortex reads from where the store has no local path (a `vortex.io.ReadBytesAt`). Called by its threads, several at once."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store, self._shard = store, shard
        self.failed: Exception | None = None
        """The last error of the store; Vortex only passes on its text."""

    def size(self) -> int:
        return self._shard.size

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            data = self._store.read(self._shard.path, offset, offset + length)
            if not data and length:
                raise DataError(f"the file ends before byte {offset}; it had {self._shard.size} bytes when it was listed")
        except Exception as error:
            self.failed = error
            raise
        return data


class _OpenVortex:
    """One shard with its footer; a local file is mapped until `close`. Nothing of the data is kept between reads."""

    def __init__(self, vortex: ModuleType, store: Store, shard: Shard, unit_bytes: int) -> None:
        self._shard = shard
        self._local = store.local(shard.path)
        self.shares_file = self._local is not None
        before = _maps_of(self._local)
        self._ranges = _Ranges(store, shard)
        _check_size(shard, self._local)
        with self._explained("the Vortex file can't be opened"):
            if self._local is not None:
                self._file: Any = vortex.open(os.path.abspath(self._local), memory_map=True)
            else:
                self._file = vortex.open_readable(self._ranges, without_segment_cache=True)
            if not isinstance(self._file.dtype, vortex.StructDType):
                raise DataError(f"the file holds values of type {self._file.dtype} and no columns", hint="write a struct array")
            found = self._file.dtype.to_arrow_schema()
            rows, splits = len(self._file), self._file.splits()
        # what other threads map meanwhile is a map of the same file: values there last as well, but aren't known to, and are copied
        self.mapped = next(iter(_maps_of(self._local) - before), None)
        self.schema: pa.Schema = pa.schema([pa.field(f.name, ordinary_type(f.type)) for f in found])
        size = max(shard.size, rows * sum(_width(f.type) for f in self.schema))
        self._borders = unit_borders(splits, rows, size, unit_bytes)
        counts = np.diff(self._borders)
        self._units = Units(counts, np.ceil(counts * (size / max(1, rows))).astype(np.int64))

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            with foreign_errors(what):
                yield
        except DataError:
            failed, self._ranges.failed = self._ranges.failed, None
            if isinstance(failed, errors.ZephonError):
                raise failed from None
            raise

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the unit's share of the file, or what its fixed-width columns take, if that is more."""
        return self._units

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. A group ends where a split does."""
        with at(shard=self._shard.path, rows=f"{start}-{stop - 1} of unit {unit}"):
            file, rows = self._file, int(self._units.rows[unit])
            check_rows(unit, start, stop, rows, closed=file is None)
            assert file is not None
            schema = schema_in(self.schema, columns)
            if start == stop or not len(schema):
                return [unread(schema, stop - start)]
            _check_size(self._shard, self._local)
            first = int(self._borders[unit])
            made: list[pa.RecordBatch] = []
            with self._explained("the Vortex file can't be read"):
                scan = file.to_repeated_scan(schema.names).execute(row_range=(first + start, first + stop))
                for piece in scan:
                    made += _checked(piece.to_arrow_array(), schema)
            if sum(map(len, made)) != stop - start:
                raise DataError(f"unit {unit} ends {stop - start - sum(map(len, made))} rows before its footer says")
            return made

    def close(self) -> None:
        """See `OpenShard.close`. The map stays as long as a group that was read needs it."""
        self._file = None


def _checked(array: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """A struct array's fields as columns, once they are known to be sound; rows that are null as a whole are nulls in every column."""
    batch = pa.RecordBatch.from_struct_array(array)
    batch.validate(full=True)  # Vortex passes damaged offsets on, which crash whoever follows them
    return ordinary_batches(batch, schema)


def _maps_of(path: str | None) -> set[tuple[int, int]]:
    """Address and size of each map that this process has of a file; Vortex doesn't say. None where the system doesn't, either."""
    if path is None:
        return set()
    try:
        inode = str(os.stat(path).st_ino)
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(maxsplit=5) for line in file if inode in line]  # of thousands, a few
    except OSError:
        return set()
    spans = [fields[0].split("-") for fields in lines if len(fields) > 5 and fields[4] == inode]
    return {(int(begin, 16), int(end, 16) - int(begin, 16)) for begin, end in spans}


def _check_size(shard: Shard, path: str | None) -> None:
    """Raises `DataError` where the file can't be what was listed. A map of a file that was cut would end the process with SIGBUS."""
    found = shard.size
    if path is not None:
        try:
            found = os.stat(path).st_size
        except OSError as error:
            raise DataError(f"{path!r} can't be read: {error.strerror}") from error
    if found != shard.size:
        raise DataError(
            f"the file has {found} bytes; it had {shard.size} when it was listed", hint="data must not change during a run"
        )
    if found < _SMALLEST:
        raise DataError(f"the file has {found} bytes, too few for Vortex", hint="was it written to its end?")


def unit_borders(splits: Sequence[tuple[int, int]], rows: int, size: int, unit_bytes: int) -> npt.NDArray[np.int64]:
    """The first row of each read unit, and the number of rows: int64[U+1].

    Small splits are read together, up to 1024 rows or 1 MiB; large ones in even parts. Where it depends on sizes, every row counts alike.
    """
    row_bytes = max(size / max(1, rows), 1e-9)
    enough = max(1, min(_FEW_ROWS, int(_FEW_BYTES / row_bytes)))
    borders = [0]
    for _, stop in splits:
        if stop - borders[-1] >= enough or stop == rows:
            begin = borders[-1]
            parts = min(stop - begin, max(1, int(np.ceil((stop - begin) * row_bytes / unit_bytes))))
            borders += np.linspace(begin, stop, parts + 1).astype(np.int64)[1:].tolist()
    return np.array(borders, dtype=np.int64)


def _width(kind: pa.DataType) -> int:
    """Bytes that a value takes at least, decoded."""
    if pa.types.is_struct(kind):
        return sum(_width(f.type) for f in kind)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return max(1, kind.bit_width // 8)
    return 0 if pa.types.is_null(kind) else 4

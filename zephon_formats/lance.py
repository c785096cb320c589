"""Lance (https://lance.org/format/): read by its own library, `pylance`, which alone knows its encodings.

A Lance data set is a directory (`data/*.lance`, and `_versions`, `_deletions`, … beside `data`) and is read as a whole, in one version:
the latest at planning, unless `Lance.version` names another. A shard is a fragment of that version, in the data set's order; deleted rows
are not there. A read unit is a range of rows of about `Lance.unit_bytes`; a part of it costs what the part costs. Several data sets below
one directory are read one after the other.

Blob columns (of either kind) come as `large_binary` with the bytes themselves. Types are otherwise the ordinary ones of the schema.
On stores without local paths, the data files of a fragment are fetched as a whole when it is first read (see `_lance_mirror`): projections
save decoding there, not transfer. Shallow copies, whose data files lie in another data set, are read from local disk only.
Lance keeps no checksums of data: what is read is checked to be sound (offsets, UTF-8), but a changed byte may go unnoticed, and Lance
itself ends the process where a damaged length makes it ask for more memory than there is. Nor can it scan columns that have no name or
a backtick in it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, FileInfo, OpenShard, PluginError, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._asked import check_rows, schema_in, unread
from zephon_formats._lance_mirror import Mirror
from zephon_formats._lance_plan import roots_of, shards_of
from zephon_formats._ordinary import ordinary_batches, ordinary_type
from zephon_formats._rust import foreign_errors
from zephon_formats._write_lance import LanceWriter

_BATCH_BYTES = 4 << 20
"""Lance is asked for batches of about this size, although all of them are kept: memory for large ones is new each time, and the kernel's
clearing of it takes as long as reading does."""


@dataclass(frozen=True, kw_only=True)
class Lance(Reader):
    """Lance data sets. See the module's docstring."""

    name: ClassVar[str] = "lance"
    suffixes: ClassVar[tuple[str, ...]] = (".lance",)
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ".lance"

    version: int | str | None = None
    """The version to read: its number, or a tag. None: the latest; what is added later is not read, and a restore notices that the
    latest one is another."""
    unit_bytes: int = 32 << 20
    """Size of a read unit, as it is in the file."""

    def __post_init__(self) -> None:
        if isinstance(self.version, bool) or (isinstance(self.version, int) and self.version < 1) or self.version == "":
            raise RecipeError(f"version must be a number from 1 on, or a tag, got {self.version!r}")
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def _handles(self) -> _Handles:
        return _Handles()

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """A shard for each fragment; only manifests are read.

        Raises:
            DataError: no Lance data set there, no such version, or a data file is missing.
            RecipeError: only some data files of a data set were given.
            PluginError: `pylance` isn't installed.
        """
        lance = _lance()
        made: list[Shard] = []
        for root, given in roots_of(files, self.suffixes).items():
            with at(shard=root), _dataset(lance, store, root, self.version) as (dataset, mirror):
                fragments = [(f, _rows(f, mirror)) for f in dataset.get_fragments()]
                made += shards_of(fragments, root, dataset.version, given, store)
        return made

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """A writer of one data set (a directory); several side by side are read one after the other. It can't have zero rows."""
        return LanceWriter(_lance(), path, schema)

    def paths(self, shard: Shard) -> Sequence[str]:
        """See `Reader.paths`: the fragment's data files; not its blobs, of which there may be thousands."""
        return [f"{shard.extra['root']}/{name}" for name, _ in shard.extra["files"] if name.endswith(".lance")] or [shard.path]

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Open one fragment; no data is read.

        Raises:
            DataError: a file of it is missing or has another size than before, or the version is gone.
            PluginError: `pylance` isn't installed.
        """
        with at(shard=shard.path):
            if "fragment" not in shard.extra:
                raise DataError("the file can't be read without its Lance data set", hint="give the data set's directory")
            return _OpenLance(_lance(), self._handles, store, shard, self.unit_bytes)


def _lance() -> ModuleType:
    try:
        import lance  # noqa: PLC0415 - an optional library
    except ImportError as error:
        raise PluginError(f"reading Lance needs the package 'pylance': {error}", hint="pip install 'zephon[lance]'") from error
    return lance


@contextmanager
def _dataset(lance: ModuleType, store: Store, root: str, version: int | str | None) -> Iterator[tuple[Any, Mirror | None]]:
    """The data set for the length of the block, and the mirror that it is in, if the store isn't local."""
    local = store.local(root)
    mirror = None if local is not None else Mirror(store, root, version)
    try:
        with foreign_errors("the Lance data set can't be opened"):
            place = (local, version) if mirror is None else (mirror.folder, mirror.version)
            yield lance.dataset(place[0], version=place[1]), mirror
    finally:
        if mirror is not None:
            mirror.close()


def _rows(fragment: Any, mirror: Mirror | None) -> int:
    """Rows that aren't deleted; from the manifest, if it says."""
    meta = fragment.metadata.to_json()
    deleted = meta["deletion_file"]
    known = meta["physical_rows"] and (deleted is None or deleted["num_deleted_rows"] is not None)
    if mirror is not None and not known:
        _fetch(fragment, mirror, [(f"data/{f['path']}", None) for f in meta["files"]])
    return int(fragment.count_rows())


def _fetch(fragment: Any, mirror: Mirror, files: Sequence[tuple[str, int | None]]) -> None:
    """Have all files of a fragment in the mirror."""
    deletions = fragment.deletion_file()
    if deletions:
        mirror.link(deletions)
    for name, size in files:
        mirror.link(name, size)


class _Handles:
    """Data sets that are open, by place and version: the shards of a data set share one, since its manifest may be large."""

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[tuple[str, int], Any] = weakref.WeakValueDictionary()
        self._guard = threading.Lock()

    def get(self, lance: ModuleType, path: str, version: int) -> Any:
        """The data set at this local path."""
        with self._guard:
            found = self._open.get((path, version))
            if found is None:
                found = self._open[path, version] = lance.dataset(path, version=version)
            return found


class _OpenLance:
    """One fragment. Nothing of the data is kept between reads; files are, where they had to be fetched, until `close`."""

    def __init__(self, lance: ModuleType, handles: _Handles, store: Store, shard: Shard, unit_bytes: int) -> None:
        extra: Mapping[str, Any] = shard.extra
        self._shard = shard
        self._files: list[tuple[str, int]] = [(str(name), int(size)) for name, size in extra["files"]]
        self._root = store.local(extra["root"])
        self._mirror: Mirror | None = None
        if self._root is None:
            if extra["elsewhere"]:
                raise DataError("its files lie in another Lance data set (a shallow copy); such are read from local disk only")
            self._mirror = Mirror(store, extra["root"], extra["version"])
        self._check_files()
        with foreign_errors("the Lance data set can't be opened"):
            if self._mirror is None:
                dataset = handles.get(lance, str(self._root), extra["version"])
            else:
                dataset = lance.dataset(self._mirror.folder, version=extra["version"])
            self._fragment: Any = dataset.get_fragment(extra["fragment"])
            if self._fragment is None:
                raise DataError(f"version {extra['version']} of the Lance data set has no fragment {extra['fragment']}")
            found = self._fragment.scanner(blob_handling="all_binary").projected_schema
            rows = _rows(self._fragment, self._mirror)
        if rows != extra["rows"]:
            raise DataError(f"the fragment has {rows} rows; it had {extra['rows']} when it was listed")
        self.schema: pa.Schema = pa.schema([pa.field(f.name, ordinary_type(f.type)) for f in found])
        self._row_bytes = max(1.0, shard.size / max(1, rows))
        count = min(rows, max(1, round(rows * self._row_bytes / unit_bytes)))
        self._borders = np.linspace(0, rows, count + 1).astype(np.int64)
        counts = np.diff(self._borders)
        self._units = Units(counts, np.ceil(counts * self._row_bytes).astype(np.int64))

    def _check_files(self) -> None:
        for name, size in self._files if self._root is not None else ():
            if not name.endswith(".lance"):
                continue  # there may be thousands of blobs
            try:
                found = os.stat(f"{self._root}/{name}").st_size
            except OSError as error:
                raise DataError(f"{name!r} can't be read: {error.strerror}") from error
            if found != size:
                raise DataError(
                    f"{name!r} has {found} bytes; it had {size} when it was listed", hint="data must not change during a run"
                )

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the unit's share of the fragment's files."""
        return self._units

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`."""
        with at(shard=self._shard.path, rows=f"{start}-{stop - 1} of unit {unit}"):
            fragment, rows = self._fragment, int(self._units.rows[unit])
            check_rows(unit, start, stop, rows, closed=fragment is None)
            assert fragment is not None
            schema = schema_in(self.schema, columns)
            if start == stop or not len(schema):
                return [unread(schema, stop - start)]
            self._check_files()
            if self._mirror is not None:
                _fetch(fragment, self._mirror, self._files)
            made = self._scan(fragment, schema, int(self._borders[unit]) + start, stop - start)
            if sum(map(len, made)) != stop - start:
                raise DataError(f"unit {unit} has {sum(map(len, made))} rows where its manifest promises {stop - start}")
            return made

    def _scan(self, fragment: Any, schema: pa.Schema, first: int, rows: int) -> list[pa.RecordBatch]:
        made: list[pa.RecordBatch] = []
        try:
            with foreign_errors("the Lance data set can't be read"):
                scanner = fragment.scanner(
                    columns=schema.names,
                    offset=first,
                    limit=rows,
                    batch_size=min(rows, max(1, int(_BATCH_BYTES / self._row_bytes))),
                    blob_handling="all_binary",
                )
                for batch in scanner.to_batches():
                    batch.validate(full=True)  # Lance passes damaged offsets on, which crash whoever follows them
                    made += ordinary_batches(batch, schema)
        except DataError as error:
            # a column of the range decodes to more than the 2 GiB that Lance can put into one batch
            if rows < 2 or "overflow" not in error.message.lower():
                raise
            half = rows // 2
            return self._scan(fragment, schema, first, half) + self._scan(fragment, schema, first + half, rows - half)
        return made

    def close(self) -> None:
        """See `OpenShard.close`."""
        self._fragment = None
        if self._mirror is not None:
            self._mirror.close()

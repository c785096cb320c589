"""Dataset: a name, shards, a reader; row counts and read units without reading the data."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.errors import DataError, PluginError, RecipeError, Where, at, unknown
from zephon.keys import key
from zephon.plan.units import UnitTable, unit_table
from zephon.plugin import FileInfo, OpenShard, Reader, Shard, Store, Units
from zephon.registry import available, load
from zephon.storage import expand, open_store

_OPEN_SHARDS = 64
_MEMORY_UNIT_ROWS = 1 << 16


class Shards(Protocol):
    """Where a data set's shards come from: files through a reader, or memory."""

    def list(self) -> Sequence[Shard]: ...

    def open(self, shard: Shard) -> OpenShard: ...

    def recipe(self) -> dict[str, Any]: ...

    @property
    def splittable(self) -> bool: ...


class Dataset:
    """A named collection of shards. Making one lists and reads nothing; the first use of `units` or `schema` does.

    Use `from_path`, `from_records` or `from_dict`.
    """

    def __init__(self, name: str, shards: Shards, *, columns: Sequence[str] | None = None, exclude: Any = None) -> None:
        if not isinstance(name, str) or not name:
            raise RecipeError(f"a data set's name must be a non-empty string, got {name!r}")
        self.name = name
        self.columns = None if columns is None else tuple(columns)
        self.exclude = exclude
        self._shards = shards
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._open_guard = threading.Lock()

    # ------------------------------------------------------------------------------------------------ making one

    @classmethod
    def from_path(
        cls,
        name: str,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        fmt: str | None = None,
        *,
        format: str | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        **options: Any,
    ) -> Dataset:
        """A data set in files: a file, a directory (recursive), a glob, or several of these.

        Args:
            name: its name in the mixture, in errors and in reports.
            path: a local path or a URL that fsspec knows.
            fmt, format: a reader's name; None: by index file and suffix.
            columns: read only these.
            storage_options: for fsspec.
            cache_dir: where indices go that can't be written beside the data.
            options: the reader's own settings.

        Raises:
            RecipeError: nothing there, a mixture of formats, an unknown option.
            PluginError: an unknown or broken reader.
        """
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        if not paths:
            raise RecipeError(f"data set {name!r} has no path")
        if fmt is not None and format is not None and fmt != format:
            raise RecipeError(f"fmt={fmt!r} and format={format!r} are one setting; give one of them")
        where = FileShards(name, [os.fspath(p) for p in paths], fmt or format, storage_options, cache_dir, options)
        return cls(name, where, columns=columns)

    @classmethod
    def from_records(cls, name: str, records: Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch) -> Dataset:
        """A data set in memory: a list of dicts, or an Arrow table (not copied)."""
        if isinstance(records, pa.RecordBatch):
            table = pa.Table.from_batches([records])
        elif isinstance(records, pa.Table):
            table = records
        else:
            with at(dataset=name):
                table = pa.Table.from_batches([groups.from_rows(list(records))])
        return cls(name, MemoryShards({"memory": table}))

    @classmethod
    def from_dict(cls, name: str, shards: Mapping[str, Any]) -> Dataset:
        """A data set in memory, shard by shard: `{shard name: InMemoryShard([row, …]) or a list of rows}`."""
        tables = {}
        for shard_name, rows in shards.items():
            with at(dataset=name, shard=shard_name):
                tables[shard_name] = pa.Table.from_batches([groups.from_rows(list(getattr(rows, "rows", rows)))])
        return cls(name, MemoryShards(tables))

    def excluding(self, rows: Mapping[str, Sequence[int]]) -> Dataset:
        """The same data set, whose rows `{shard name or path: row numbers}` are left out, counted with the reason "excluded"."""
        made = Dataset(self.name, self._shards, columns=self.columns)
        made.exclude = {shard: sorted(set(map(int, numbers))) for shard, numbers in rows.items()}
        return made

    # ---------------------------------------------------------------------------------------------- what is in it

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards in their fixed order."""
        with at(dataset=self.name):
            return list(self._shards.list())

    @cached_property
    def _scan(self) -> tuple[UnitTable, pa.Schema]:
        shards = self.shards
        with ThreadPoolExecutor(min(16, max(1, len(shards)))) as pool:
            scanned = list(pool.map(self._scan_shard, range(len(shards))))
        schema = pa.schema([])
        for number, (_, shard_schema) in enumerate(scanned):
            try:
                schema = pa.unify_schemas([schema, shard_schema], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                first = next((i for i, (_, s) in enumerate(scanned) if not _unifies(s, shard_schema)), 0)
                raise DataError(
                    f"shards {shards[first].path!r} and {shards[number].path!r} have types that don't go together: {error}",
                    where=Where(dataset=self.name),
                ) from error
        if self.columns is not None:
            for column in self.columns:
                if schema.get_field_index(column) < 0 and len(schema):
                    raise RecipeError(f"data set {self.name!r} has no column {column!r}; it has {', '.join(schema.names)}")
            schema = pa.schema([f for f in schema if f.name in self.columns])
        return unit_table([(u.rows, u.nbytes) for u, _ in scanned]), schema.remove_metadata()

    def _scan_shard(self, number: int) -> tuple[Units, pa.Schema]:
        shard = self._opened(number)
        with at(dataset=self.name, shard=self.shards[number].path):
            return shard.units(), shard.schema

    @property
    def units(self) -> UnitTable:
        """The table of read units; from footers and indices."""
        return self._scan[0]

    @property
    def schema(self) -> pa.Schema:
        """All columns over all shards, types widened where nothing is lost."""
        return self._scan[1]

    @property
    def splittable(self) -> bool:
        """Whether a part of a unit can be read by itself."""
        return self._shards.splittable

    def __len__(self) -> int:
        return self.units.total_rows

    def _opened(self, number: int) -> OpenShard:
        with self._open_guard:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        shard = self.shards[number]
        with at(dataset=self.name, shard=shard.path):
            made = self._shards.open(shard)
        with self._open_guard:
            # shards that fall out are left to the garbage collector: another thread may be reading them
            self._open[number] = made
            if len(self._open) > _OPEN_SHARDS:
                self._open.popitem(last=False)
        return made

    def read(self, unit: int, columns: Sequence[str] | None, start: int = 0, stop: int | None = None) -> list[pa.RecordBatch]:
        """The rows [start, stop) of one unit of `units`, columns that the shard lacks left out. Raises `DataError`."""
        table = self.units
        number = int(table.shard[unit])
        end = int(table.rows[unit]) if stop is None else stop
        with at(dataset=self.name, shard=self.shards[number].path):
            made = list(self._opened(number).read(int(table.number[unit]), columns, start, end))
            found = sum(len(g) for g in made)
            if found != end - start:
                raise DataError(f"unit {int(table.number[unit])} gave {found} rows where its index promises {end - start}")
        return made

    def fingerprint(self) -> dict[str, Any]:
        """What the recipe keeps of the data: shard names, sizes, row counts and schema, hashed. Cheap: no data is read."""
        table = self.units
        parts: list[int | str] = []
        for shard in self.shards:
            parts += [shard.path.rsplit("/", 1)[-1], shard.size, shard.etag]
        rows = np.bincount(table.shard, weights=table.rows, minlength=len(self.shards)).astype(np.int64)
        parts += [int(r) for r in rows] + [int(u) for u in table.rows]
        excluded = key(*[x for s, rs in sorted(self.exclude.items()) for x in (s, *rs)]) if self.exclude else None
        return {
            "name": self.name,
            "shards": len(self.shards),
            "rows": table.total_rows,
            "content": f"{key(*parts):016x}",
            "columns": None if self.columns is None else sorted(self.columns),
            "schema": f"{key(str(self.schema)):016x}",
            "excluded": None if excluded is None else f"{excluded:016x}",
            **self._shards.recipe(),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_open", "_open_guard")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _open=OrderedDict(), _open_guard=threading.Lock())

    def __repr__(self) -> str:
        return f"Dataset({self.name!r})"


def _unifies(first: pa.Schema, second: pa.Schema) -> bool:
    try:
        pa.unify_schemas([first, second], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


class FileShards:
    """Shards that a reader finds among files."""

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        fmt: str | None,
        storage_options: Mapping[str, Any] | None,
        cache_dir: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.paths = list(paths)
        self.fmt = fmt
        self.options = dict(options)
        self.storage_options = storage_options
        self.cache_dir = cache_dir
        if fmt is not None:
            self.reader_class = load("zephon.formats", fmt)
            self._make_reader(self.reader_class)

    def _make_reader(self, reader: type[Reader]) -> Reader:
        known = list(getattr(reader, "__dataclass_fields__", {}))
        for option in self.options:
            if option not in known:
                from_path = ["fmt", "format", "columns", "storage_options", "cache_dir"]
                what = f"option of data set {self.name!r} or its reader {reader.name!r}"
                raise RecipeError(unknown(what, option, known + from_path))
        return reader(**self.options)

    @cached_property
    def _found(self) -> tuple[Store, Reader, list[FileInfo]]:
        files: dict[str, FileInfo] = {}
        store: Store | None = None
        for path in self.paths:
            here, inner = open_store(path, self.storage_options, self.cache_dir)
            if store is not None and type(here) is not type(store):
                raise RecipeError(f"data set {self.name!r} mixes local paths and URLs", hint="make two data sets of it")
            store = here
            for file in expand(here, inner):
                files.setdefault(file.path, file)  # a file that two of the paths name is one shard
        assert store is not None
        found = list(files.values())
        reader = self._make_reader(self.reader_class if self.fmt is not None else detect(found, ", ".join(self.paths)))
        return store, reader, found

    def list(self) -> Sequence[Shard]:
        store, reader, files = self._found
        return reader.shards(store, files)

    def open(self, shard: Shard) -> OpenShard:
        store, reader, _ = self._found
        return reader.open(store, shard)

    @property
    def splittable(self) -> bool:
        return self._found[1].splittable

    def recipe(self) -> dict[str, Any]:
        return {"format": self._found[1].name, "options": {k: _plain(v) for k, v in self.options.items()}}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | type(None)) else repr(value)


def detect(files: Sequence[FileInfo], place: str) -> type[Reader]:
    """The one reader whose index file or suffix is among `files`.

    Raises:
        RecipeError: none fits, or several do (with what was found).
    """
    names = {f.path.rsplit("/", 1)[-1] for f in files}
    by_index: dict[str, type[Reader]] = {}
    by_suffix: dict[str, tuple[type[Reader], int]] = {}
    broken: list[str] = []
    for name in available("zephon.formats"):
        try:
            reader = load("zephon.formats", name)
        except PluginError as error:
            broken.append(str(error))
            continue
        if any(index in names for index in reader.index_files):
            by_index[name] = reader
        count = sum(f.path.endswith(reader.suffixes) for f in files) if reader.suffixes else 0
        if count:
            by_suffix[name] = reader, count
    claims = by_index or {name: reader for name, (reader, _) in by_suffix.items()}
    if len(claims) == 1:
        return next(iter(claims.values()))
    if claims:
        found = ", ".join(f"{name} ({by_suffix[name][1]} files)" if name in by_suffix else name for name in sorted(claims))
        raise RecipeError(f"{place} mixes formats: {found}", hint="give format=… or a narrower path")
    notes = "".join(f"\n  {b}" for b in broken)
    raise RecipeError(
        f"no reader knows the {len(files)} files at {place}, for example {min(names, default='(none)')!r}{notes}",
        hint=f"give format=…; installed: {', '.join(available('zephon.formats'))}",
    )


class InMemoryShard:
    """Rows in memory, for `Dataset.from_dict`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)


class MemoryShards:
    """Arrow tables as shards."""

    splittable = True

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = {name: plain_table(table) for name, table in tables.items()}

    def list(self) -> Sequence[Shard]:
        return [Shard(path=name, size=table.nbytes, etag=self._content(table)) for name, table in self.tables.items()]

    def _content(self, table: pa.Table) -> str:
        return f"{key(*[groups.hash_group(b) for b in table.to_batches()]):016x}"

    def open(self, shard: Shard) -> OpenShard:
        return _OpenTable(self.tables[shard.path])

    def recipe(self) -> dict[str, Any]:
        return {"format": "memory", "options": {}}


def plain_table(table: pa.Table) -> pa.Table:
    """The table with view and dictionary types turned into the ordinary ones, and in batches of at most 65,536 rows."""
    for index, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_string_view(kind):
            kind = pa.string()
        elif pa.types.is_binary_view(kind):
            kind = pa.binary()
        if kind != field.type:
            table = table.set_column(index, field.name, table.column(index).cast(kind))
    return pa.Table.from_batches(table.to_batches(max_chunksize=_MEMORY_UNIT_ROWS), schema=table.schema)


class _OpenTable:
    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self._batches = [b for b in table.to_batches() if len(b)]

    def units(self) -> Units:
        rows = np.array([len(b) for b in self._batches], dtype=np.int64)
        return Units(rows, np.array([b.nbytes for b in self._batches], dtype=np.int64))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        batch = self._batches[unit].slice(start, stop - start)
        if columns is None:
            return [batch]
        return [groups.select(batch, [c for c in columns if batch.schema.get_field_index(c) >= 0])]

    def close(self) -> None:
        """Nothing is open."""

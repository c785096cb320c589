"""Dataset: a name, shards, a reader; row counts and read units without reading the data."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.contents import describe_columns, describe_files
from zephon.discovery import FileShards
from zephon.errors import DataError, RecipeError, Where, at
from zephon.exclusion import excluded_rows
from zephon.given import check_read, checked_units
from zephon.keys import key
from zephon.memory import InMemoryShard, MemoryShards, table_of
from zephon.plan.units import I64, UnitTable, unit_table
from zephon.plugin import OpenShard, Shard, Units
from zephon.selection import Kept, Mask, Part, Selection, columns_of, evaluate, judge, load_kept, save_kept
from zephon.shards import Looks, LookTable, Shards
from zephon.storage import StoreOptions

if TYPE_CHECKING:
    from pyarrow.compute import Expression

__all__ = ["Dataset", "InMemoryShard", "MemoryShards", "Shards"]

_OPEN_SHARDS = 64
_ALONE_S = 0.005
"""Opening shards takes so long before threads help with the rest: a few small footers are read before threads have started."""
_CRUMBS = 1 << 16
"""Bytes of a group that may lie beside the map: validity, offsets."""


class Dataset:
    """A named collection of shards. Making one lists and reads nothing; the first use of `units` or `schema` does.

    Use `from_path`, `from_records` or `from_dict`. They all take a part of what is stored, which is decided before anything is planned:

    * `columns`: only these.
    * `rows`: a slice of the rows, counted over all shards in their order; negative numbers count from the end, the step is positive.
    * `fraction`: a range of the rows instead: 0.1 the first tenth, (0.9, 1.0) the last one. It is one piece, so that little is read;
      borders are rounded to the nearest row, so that (0, f) and (f, 1) share no row and leave none out. Where the order of the rows
      means something, `rows=slice(k, None, n)`, every n-th one, is the fairer part.
    * `filter`: an Arrow expression (`pc.field("score") > 0.5`) over the rows of that range and all stored columns. Rows for which it is
      false or null are left out. It is evaluated once, over the columns that it needs, and kept as a bit per row in memory and, for
      files whose version is known, in the cache directory. A row that can't be read then is an error, whatever `on_error` says.

    Rows outside of the part are not drops: for the plan, the mixture and the accounting they don't exist. Errors and provenance name
    a row by its place in the stored shard all the same. Raises `RecipeError` for a name, columns or a part that can't be.
    """

    def __init__(
        self,
        name: str,
        shards: Shards,
        *,
        columns: Sequence[str] | None = None,
        rows: slice | None = None,
        fraction: float | Sequence[float] | None = None,
        filter: Expression | None = None,
        exclude: Any = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise RecipeError(f"a data set's name must be a non-empty string, got {name!r}")
        if isinstance(columns, str):
            raise RecipeError(f"columns must be a list of names, got {columns!r}", hint=f"columns=[{columns!r}]")
        self.name = name
        self.columns = None if columns is None else tuple(columns)
        with at(dataset=name):
            self.part = Part.of(rows, fraction, filter)
        self.exclude = exclude
        self._shards = shards
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._open_guard = threading.Lock()
        self.shares_files = False
        """Whether what is read may lie in maps of the files; known once the shards were scanned."""

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
        rows: slice | None = None,
        fraction: float | Sequence[float] | None = None,
        filter: Expression | None = None,
        storage_options: Mapping[str, Any] | None = None,
        io_options: StoreOptions | Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        **options: Any,
    ) -> Dataset:
        """A data set in files: a file, a directory (recursive), a glob, or several of these.

        Args:
            name: its name in the mixture, in errors and in reports.
            path: a local path or a URL that fsspec knows.
            fmt, format: a reader's name; None: by index file and suffix.
            columns, rows, fraction, filter: which part of it; see the class.
            storage_options: for fsspec.
            io_options: retries, time-outs and the shard cache of remote stores; they change no byte, and are no part of the recipe.
            cache_dir: where indices go that can't be written beside the data, and what filters left.
            options: the reader's own settings.

        Raises:
            RecipeError: nothing there, a mixture of formats, an unknown option.
            PluginError: an unknown or broken reader.
        """
        made = _paths_of(name, path)
        if fmt is not None and format is not None and fmt != format:
            raise RecipeError(f"fmt={fmt!r} and format={format!r} are one setting; give one of them")
        where = FileShards(
            name, made, fmt or format, options, storage_options=storage_options, io_options=io_options, cache_dir=cache_dir
        )
        return cls(name, where, columns=columns, rows=rows, fraction=fraction, filter=filter)

    @classmethod
    def from_records(cls, name: str, records: Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch, **part: Any) -> Dataset:
        """A data set in memory: a list of dicts, or an Arrow table (not copied). `part`: `columns`, `rows`, `fraction`, `filter`."""
        with at(dataset=name):
            table = table_of(records)
        return cls(name, MemoryShards({"memory": table}), **part)

    @classmethod
    def from_dict(cls, name: str, shards: Mapping[str, Any] | Mapping[int, Any], **part: Any) -> Dataset:
        """A data set in memory, shard by shard: `{shard name: InMemoryShard([row, …]), a list of rows, or an Arrow table}`; `part` as
        `from_records`.

        Shards may be named by numbers, too. Raises `RecipeError` where two have one name as text.
        """
        tables: dict[str, pa.Table] = {}
        for shard, rows in shards.items():
            shard_name = str(shard)
            if shard_name in tables:
                raise RecipeError(f"data set {name!r} has two shards named {shard_name!r}")
            with at(dataset=name, shard=shard_name):
                tables[shard_name] = table_of(getattr(rows, "rows", rows))
        return cls(name, MemoryShards(tables), **part)

    def excluding(self, rows: Mapping[str, Sequence[int]]) -> Dataset:
        """The same data set, whose rows `{shard name or path: row numbers}` are left out, counted with the reason "excluded"."""
        made = Dataset(self.name, self._shards, columns=self.columns)
        made.part = self.part
        made.exclude = {shard: sorted(set(map(int, numbers))) for shard, numbers in rows.items()}
        return made

    # ---------------------------------------------------------------------------------------------- what is in it

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards in their fixed order."""
        with at(dataset=self.name):
            return list(self._shards.list())

    @cached_property
    def excluded(self) -> dict[int, I64]:
        """Shard number → its rows that are left out, ascending."""
        return excluded_rows(self.name, self.exclude, [s.path for s in self.shards]) if self.exclude else {}

    @cached_property
    def _scan(self) -> tuple[UnitTable, pa.Schema, LookTable]:
        scanned = self._scanned()
        schema = self._widened([schema for _, schema, _ in scanned])
        looks = LookTable([looks for _, _, looks in scanned])
        return unit_table([(u.rows, u.nbytes) for u, _, _ in scanned]), schema.remove_metadata(), looks

    def _widened(self, schemas: Sequence[pa.Schema]) -> pa.Schema:
        """One schema for all shards, without those columns whose types don't go together, unless they are asked for."""
        schema, odd = pa.schema([]), set[str]()
        for number, found in enumerate(schemas):
            mine = _without(found, odd) if odd else found
            try:
                schema = pa.unify_schemas([schema, mine], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                clash = {n for n in mine.names if not _unifies(_only(schema, {n}), _only(mine, {n}))}
                if self.columns is None or not clash or not clash.isdisjoint(self.columns):
                    first = next((i for i, s in enumerate(schemas) if not _unifies(_only(s, clash), _only(mine, clash))), 0)
                    raise DataError(
                        f"shards {self.shards[first].path!r} and {self.shards[number].path!r} have types that don't go together: {error}",
                        where=Where(dataset=self.name),
                        hint="leave the column out with columns=…, or declare its type with schema=… where the format has that "
                        "(csv, jsonl)",
                    ) from error
                odd |= clash
                # each column is unified by itself, so without these all of them are
                schema = pa.unify_schemas([_without(schema, odd), _without(mine, odd)], promote_options="permissive")
        return schema

    def _scanned(self) -> list[tuple[Units, pa.Schema, Looks]]:
        """All shards, in threads; but a few small local ones are done before the threads are there."""
        made: list[tuple[Units, pa.Schema, Looks]] = []
        begun, total = perf_counter(), len(self.shards)
        with at(dataset=self.name):
            near = self.in_memory or (total and self._shards.look(self.shards[0]))  # what is far isn't looked at
        while near and len(made) < total and perf_counter() - begun < _ALONE_S:
            made.append(self._scan_shard(len(made)))
        if len(made) == total:
            return made
        with ThreadPoolExecutor(min(16, total - len(made))) as pool:
            return made + list(pool.map(self._scan_shard, range(len(made), total)))

    def _scan_shard(self, number: int) -> tuple[Units, pa.Schema, Looks]:
        with at(dataset=self.name, shard=self.shards[number].path):
            looks = self._shards.look(self.shards[number])  # before it is opened: what comes after is noticed
            shard = self._opened(number)
            groups.check_names(shard.schema, self.columns)
            return checked_units(shard.units()), shard.schema, looks

    @cached_property
    def _selection(self) -> Selection | None:
        if self.part is None:
            return None
        table, schema, _ = self._scan
        span = self.part.span(table.total_rows)
        if self.part.expression is None:
            return Selection(table, span, None)
        with at(dataset=self.name):
            return Selection(table, span, self._filtered(self.part, table, schema, span))

    def _filtered(self, part: Part, table: UnitTable, schema: pa.Schema, span: range) -> Kept:
        """The rows of `span` that the filter leaves, from the cache directory or from the data."""
        if not len(schema):
            return Kept(np.zeros(0, np.uint8), len(span))
        names = columns_of(part.expression, schema) or schema.names[:1]
        wanted = pa.schema([schema.field(n) for n in names])
        path = self._shards.keep_at(self.shards, part.key().hex())
        kept = None if path is None else load_kept(path, len(span))
        if kept is None:

            def judged(unit: int, places: slice) -> Mask:
                shard = int(table.shard[unit])
                with at(shard=self.shards[shard].path):
                    mask = judge(part.expression, self._stored(shard, int(table.number[unit]), places, wanted), places.step)
                    if self.shares_files:  # it may have been written to since it was read
                        self._shards.check(self.shards[shard], self._scan[2][shard])
                    return mask

            kept = evaluate(_overlaps(table, span), judged, len(span))
            if path is not None:
                save_kept(path, kept)
        return kept

    def _stored(self, shard: int, number: int, places: slice, wanted: pa.Schema) -> pa.Table:
        """A stored unit's rows from the first to the last of the places: these columns, in the data set's types, null where missing."""
        names = [n for n in wanted.names if self._opened(shard).schema.get_field_index(n) >= 0]
        made = self._read(shard, number, names, places.start, places.stop) if names else []
        columns = [
            pa.chunked_array([b.column(field.name).cast(field.type) for b in made], field.type)
            if field.name in names
            else pa.chunked_array([pa.nulls(places.stop - places.start, field.type)])
            for field in wanted
        ]
        return pa.table(columns, schema=wanted)

    @property
    def units(self) -> UnitTable:
        """The table of read units, from footers and indices; of the chosen part, where there is one."""
        return self._scan[0] if self._selection is None else self._selection.units

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns over all shards (those of `columns`), types widened where nothing is lost. Raises `RecipeError`, `DataError`."""
        schema = self._scan[1]
        if self.columns is None:
            return schema
        for column in self.columns:
            if schema.get_field_index(column) < 0 and len(schema):
                raise RecipeError(f"data set {self.name!r} has no column {column!r}; it has {', '.join(schema.names)}")
        return pa.schema([f for f in schema if f.name in self.columns])

    @property
    def splittable(self) -> bool:
        """Whether a part of a unit can be read by itself."""
        return self._shards.splittable

    def use_io_options(self, options: Any) -> None:
        """Read through a store with these options from now on, unless the data set was given some of its own."""
        if self._shards.use_io_options(options):
            with self._open_guard:
                self._open.clear()
            if "shards" in vars(self):  # they were listed before the cache's limit was known
                with at(dataset=self.name):
                    self._shards.check_limits(self.shards)

    def prefetch(self, units: I64) -> None:
        """Fetch the shards of these units into the shard cache, in the background; without a cache, nothing."""
        if self.has_cache:
            numbers = dict.fromkeys(self.units.shard[units].tolist())
            self._shards.prefetch([self.shards[n] for n in numbers])

    def cancel_prefetch(self) -> None:
        """Stop fetching ahead."""
        self._shards.cancel_prefetch()

    @property
    def has_cache(self) -> bool:
        """Whether shards are fetched into a cache on local disk."""
        return self._shards.has_cache

    @property
    def in_memory(self) -> bool:
        """Whether reading a unit is no more than slicing memory."""
        return self._shards.in_memory

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
        self.shares_files |= getattr(made, "mapped", None) is not None or getattr(made, "shares_file", False)
        with self._open_guard:
            # shards that fall out are left to the garbage collector: another thread may be reading them
            self._open[number] = made
            if len(self._open) > _OPEN_SHARDS:
                self._open.popitem(last=False)
        return made

    def read(
        self, unit: int, columns: Sequence[str] | None, start: int = 0, stop: int | None = None, *, views: bool = False
    ) -> list[pa.RecordBatch]:
        """The rows [start, stop) of one unit of `units`, columns that the shard lacks left out. Raises `DataError`.

        Args:
            views: of a whole unit of which nothing is left out, text and bytes may be views of a map.
        """
        table = self.units
        shard, number = int(table.shard[unit]), int(table.number[unit])
        end = int(table.rows[unit]) if stop is None else stop
        if self._selection is None:
            return self._read(shard, number, columns, start, end, views=views)
        low, high, places = self._selection.offsets(unit, start, end)
        made = self._read(shard, number, columns, low, high)
        return made if places is None else list(_at_places(made, places))

    def _read(
        self, shard: int, number: int, columns: Sequence[str] | None, start: int, stop: int, *, views: bool = False
    ) -> list[pa.RecordBatch]:
        looks = self._scan[2][shard]
        with at(dataset=self.name, shard=self.shards[shard].path):
            try:
                opened = self._opened(shard)
                shown = getattr(opened, "views", None) if views else None
                made = list(opened.read(number, columns, start, stop) if shown is None else shown(number, columns))
            except DataError:
                self._shards.check(self.shards[shard], looks)  # if it was replaced, that is what to say
                raise
            # after the read: a file that was replaced before or meanwhile may have all that was asked for, and wrong rows in it
            self._shards.check(self.shards[shard], looks)
            check_read(made, columns, opened.schema)
            found = sum(len(g) for g in made)
            if found != stop - start:
                raise DataError(f"unit {number} gave {found} rows where its index promises {stop - start}")
        return made

    def check(self, shards: Iterable[int]) -> None:
        """Raises `DataError` where the files of these shards are not any more what they were when they were listed."""
        looks = self._scan[2]
        for shard in shards:
            try:  # not `with`: it is called for each chunk of mapped files, and takes microseconds
                self._shards.check(self.shards[shard], looks[shard])
            except DataError:
                with at(dataset=self.name, shard=self.shards[shard].path):
                    raise

    def may_last(self, unit: int) -> bool:
        """Whether what is read of a unit may be memory that lasts: a map of a file, or the data set's own."""
        if self._selection is not None:
            return False
        return self.in_memory or getattr(self._opened(int(self.units.shard[unit])), "mapped", None) is not None

    def lasts(self, unit: int, read: Sequence[pa.RecordBatch]) -> bool:
        """Whether all of what was `read` of such a unit is memory that lasts, but for crumbs."""
        if self.in_memory:
            return True
        begin, size = getattr(self._opened(int(self.units.shard[unit])), "mapped", None) or (0, 0)
        buffers = [b for group in read for array in group.columns for b in array.buffers() if b is not None]
        crumbs = sum(b.size for b in buffers if not begin <= b.address < begin + size)
        return crumbs <= _CRUMBS + sum(b.size for b in buffers) // 64

    def row_of(self, unit: npt.ArrayLike, row: npt.ArrayLike) -> I64:
        """The place in its stored shard of each row, given as a unit of `units` and a row there; int64, shaped as both broadcast."""
        if self._selection is None:
            made: I64 = self.units.first_row[np.asarray(unit)] + np.asarray(row)
            return made
        return self._selection.row_of(unit, row)

    def fingerprint(self) -> dict[str, Any]:
        """What the recipe keeps of the data: sizes and versions of shards, rows and bytes of their units, columns, the chosen part.

        Cheap: listings, footers and indices; no data is read, but for a `filter`, which planning has evaluated anyway. Plain values, a
        kilobyte or two however many shards there are. `zephon.recipe.difference` says in words how two of them differ.
        """
        table = self._scan[0]
        shards = self.shards
        parts: list[int | str] = []
        for shard in shards:
            parts += [shard.path.rsplit("/", 1)[-1], shard.size, shard.etag]
        rows = np.bincount(table.shard, weights=table.rows, minlength=len(shards)).astype(np.int64)
        parts += [int(r) for r in rows] + [int(u) for u in table.rows] + [int(n) for n in table.nbytes] + [str(self.schema)]
        # by the shards' places and not by their paths: those in a quarantine file may be from before the data moved
        excluded = [x for number, left_out in sorted(self.excluded.items()) for x in (number, -1, *left_out.tolist())]
        return {
            "name": self.name,
            **self._shards.recipe(),
            "files": describe_files(shards, rows),
            "schema": describe_columns(self.schema),
            "columns": None if self.columns is None else sorted(self.columns),
            "part": None if self.part is None or self._selection is None else self.part.recipe() | self._selection.recipe(),
            "excluded": f"{key(*excluded):016x}" if excluded else None,
            "shards": len(shards),
            "rows": table.total_rows,
            "content": f"{key(*parts):016x}",
        }

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_open", "_open_guard")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _open=OrderedDict(), _open_guard=threading.Lock())

    def __repr__(self) -> str:
        return f"Dataset({self.name!r})"


def _paths_of(name: str, path: Any) -> list[str]:
    """What `from_path` was given, as text. Raises `RecipeError`."""
    given: list[Any] = [path] if isinstance(path, str | bytes | os.PathLike) or not isinstance(path, Iterable) else list(path)
    paths = [os.fspath(p) if isinstance(p, os.PathLike) else p for p in given]
    if isinstance(path, Mapping) or not all(isinstance(p, str) for p in paths):
        raise RecipeError(
            f"the path of data set {name!r} is {path!r}",
            hint="give a local path, a URL, a pattern, or a list of these, as text",
        )
    if not paths:
        raise RecipeError(f"data set {name!r} has no path")
    return paths


def _unifies(first: pa.Schema, second: pa.Schema) -> bool:
    try:
        pa.unify_schemas([first, second], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return True


def _only(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])


def _without(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names])


def _overlaps(table: UnitTable, span: range) -> Iterator[tuple[int, slice]]:
    """The stored units that `span` touches, and its places in each."""
    start = 0
    for unit, rows in enumerate(table.rows.tolist()):
        inside = range(
            max(0, -((span.start - start) // span.step)), min(len(span), -((span.start - start - rows) // span.step))
        )
        if len(inside):
            places = span[inside.start : inside.stop]
            yield unit, slice(places.start - start, places[-1] + 1 - start, span.step)
        start += rows


def _at_places(made: Sequence[pa.RecordBatch], places: I64) -> Iterator[pa.RecordBatch]:
    begin = 0
    for group in made:
        low, high = np.searchsorted(places, [begin, begin + len(group)])
        if low < high:
            yield groups.take(group, places[low:high] - begin)
        begin += len(group)

"""`check_format`: what the author of a reader runs in a test to know that Zephon can rely on it."""

from __future__ import annotations

import math
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from zephon.errors import DataError, ZephonError
from zephon.hashing import hash_group
from zephon.plugin import FileInfo, OpenShard, Reader, Shard, Store
from zephon.storage import LocalStore, expand
from zephon.views import stands_for

__all__ = ["SAMPLE_ROWS", "CountingStore", "check_format"]

Rows = Sequence[Mapping[str, Any]]
Write = Callable[[Path, list[dict[str, Any]]], Sequence[Path]]
"""Writes rows into files of the format below a directory, in order, and returns the paths (sorted as the rows go)."""

Elsewhere = Callable[[Path], tuple[Store, str]]
"""Copies the files below a directory to another store; the store, and the address of the copy there."""

SAMPLE_ROWS: list[dict[str, Any]] = [
    {
        "id": i,
        "text": None if i % 11 == 3 else ["", "plain", "ünï → 日本語 😀", "two\nlines\t", "long " * 40][i % 5],
        "score": None if i % 13 == 5 else i / 8 - 3,
        "flag": i % 3 == 0,
        "tags": None if i % 7 == 2 else ["t"] * (i % 4),
    }
    for i in range(150)
]
"""What `check_format` writes unless told otherwise: nulls, empty strings and lists, text beyond ASCII."""


class CountingStore:
    """A store that passes everything on and counts the bytes that are read. `local` False: it has no local paths."""

    def __init__(self, inner: Store, *, local: bool = True) -> None:
        self.inner = inner
        self.nbytes: dict[str, int] = {}
        self._is_local = local
        self._guard = threading.Lock()

    def count(self, path: str, nbytes: int) -> None:
        """Note that so many bytes of a file were read."""
        with self._guard:
            self.nbytes[path] = self.nbytes.get(path, 0) + nbytes

    @property
    def total(self) -> int:
        """Bytes read so far, of all files."""
        return sum(self.nbytes.values())

    def files(self, path: str) -> Sequence[FileInfo]:
        return self.inner.files(path)

    def open(self, path: str) -> BinaryIO:
        return _CountingFile(self.inner.open(path), path, self)  # type: ignore[return-value]

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        data = self.inner.read(path, start, stop)
        self.count(path, len(data))
        return data

    def local(self, path: str) -> str | None:
        return self.inner.local(path) if self._is_local else None

    @contextmanager
    def on_disk(self, path: str) -> Iterator[str]:
        with self.inner.on_disk(path) as copy:
            if not self._is_local:
                self.count(path, Path(copy).stat().st_size)
            yield copy

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        return self.inner.sidecar(path, suffix)


class _CountingFile:
    def __init__(self, file: BinaryIO, path: str, store: CountingStore) -> None:
        self._file, self._path, self._store = file, path, store

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._store.count(self._path, len(data))
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(memoryview(buffer).cast("B")))
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _CountingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def check_format(
    reader: Reader, write: Write, *, rows: Rows | None = None, damaged: bool = True, elsewhere: Elsewhere | None = None
) -> None:
    """Check a reader against the contract in `zephon.plugin`.

    It writes files with `write`, reads them back through the reader from a local store and from one without local paths, and checks:
    settings that pickle and compare; shards found again among other files; units that are consistent and have sizes; every row
    there, once, in order, with its values; every slice of a unit equal to that part of the whole; each column by itself, in any
    order, and one that doesn't exist left out; ordinary types, the same in every group; zero rows; the same bytes from eight
    threads at once; damaged, cut and missing files as `DataError` that names the file; `close`, twice, and no read after it.

    Args:
        reader: with the settings to test.
        write: `(directory, rows) -> paths`. It must write all rows it gets; it may choose how many files. With no rows it
            may return no path, where the format can't hold zero rows.
        rows: what to write; default `SAMPLE_ROWS`. Give your own where the format can't hold nulls or lists.
        damaged: whether to damage files. False for a format in which damage can't be noticed.
        elsewhere: also read the files from another store, to which this copies them.

    Raises:
        AssertionError: the first promise that the reader doesn't keep, in words.
    """
    written = [dict(row) for row in (SAMPLE_ROWS if rows is None else rows)]
    _check_settings(reader)
    with tempfile.TemporaryDirectory(prefix="zephon-check-") as folder:
        data, cache = Path(folder, "data"), Path(folder, "cache")
        data.mkdir()
        paths = [Path(p) for p in write(data, written)]
        _require(bool(paths), "write() returned no path for rows")
        for local in (True, False):
            store = CountingStore(LocalStore(str(cache)), local=local)
            with _saying("a local store" if local else "a store without local paths"):
                _check_contents(_Case(reader, store, _shards(reader, store, data, paths), written))
        if elsewhere is not None:
            place, address = elsewhere(data)
            store = CountingStore(place, local=False)
            with _saying(f"the store of {address}"):
                _check_contents(_Case(reader, store, reader.shards(store, place.files(address)), written))
        _check_empty(reader, LocalStore(str(cache)), write, Path(folder, "empty"))
        if damaged:
            _check_damage(reader, LocalStore(str(cache)), write, Path(folder, "bad"), written)


@dataclass
class _Case:
    """One reader on one store, and what must come out."""

    reader: Reader
    store: CountingStore
    shards: list[Shard]
    rows: list[dict[str, Any]]
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = list({name: None for row in self.rows for name in row})


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


@contextmanager
def _saying(where: str) -> Iterator[None]:
    """Failures in the block say where they happened; what else the reader raises becomes one."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error} (on {where})") from error
    except ZephonError as error:
        raise AssertionError(f"the reader raised {type(error).__name__} on good data: {error} (on {where})") from error


def _check_settings(reader: Reader) -> None:
    kind = type(reader)
    _require(isinstance(reader, Reader) and is_dataclass(reader), f"{kind.__name__} must be a dataclass derived from Reader")
    _require(kind.__dataclass_params__.frozen, f"{kind.__name__} must be a frozen dataclass")  # type: ignore[attr-defined]
    _require(isinstance(getattr(kind, "name", None), str) and bool(kind.name), f"{kind.__name__} has no `name`")
    _require(
        isinstance(kind.suffixes, tuple) and isinstance(kind.index_files, tuple), "`suffixes` and `index_files` must be tuples"
    )
    again = pickle.loads(pickle.dumps(reader))
    same = [f.name for f in fields(reader) if getattr(again, f.name) != getattr(reader, f.name)]
    _require(again == reader and not same, f"the reader is not itself after pickling; different: {same}")


def _shards(reader: Reader, store: CountingStore, data: Path, paths: Sequence[Path]) -> list[Shard]:
    files = expand(LocalStore(), str(data))
    shards = reader.shards(store, files)
    _require(shards == reader.shards(store, files), "shards() gives different answers for the same files")
    names = {s.path for s in shards}
    if reader.suffixes and not reader.index_files:
        missing = [str(p) for p in paths if str(p) not in names]
        _require(not missing, f"shards() does not list {missing}, which write() says it wrote")
        stranger = FileInfo(str(data / "README.something"), 3)
        _require(reader.shards(store, [*files, stranger]) == shards, "shards() takes a file of another suffix for data")
    again = pickle.loads(pickle.dumps(shards))
    _require(again == shards, "a Shard is not itself after pickling; `extra` must hold plain values")
    return shards


def _unit_count(shard: OpenShard) -> list[int]:
    units = shard.units()
    for what, array in (("rows", units.rows), ("nbytes", units.nbytes)):
        _require(
            isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1, f"units().{what} must be int64[U]"
        )
    _require(len(units.rows) == len(units.nbytes), f"units() has {len(units.rows)} row counts and {len(units.nbytes)} sizes")
    _require(bool((units.rows >= 0).all()), "units() has a negative row count")
    _require(bool((units.nbytes[units.rows > 0] > 0).all()), "units() has a size of 0 or less for a unit with rows")
    return [int(n) for n in units.rows]


def _check_contents(case: _Case) -> None:
    found: list[dict[str, Any]] = []
    for shard in case.shards:
        opened = case.reader.open(case.store, shard)
        counts = _unit_count(opened)
        _require(counts == _unit_count(opened), "units() gives different answers")
        _check_schema(opened.schema)
        for unit, count in enumerate(counts):
            whole = _read(opened, unit, None, 0, count)
            found += whole.to_pylist()
            _check_slices(opened, unit, count, whole)
            _check_projection(opened, unit, count, whole)
            _check_views(opened, unit, whole)
        _check_threads(case, shard, opened, counts)
        _check_close(opened, counts)
    _require(len(found) == len(case.rows), f"{len(case.rows)} rows were written, {len(found)} were read")
    for number, (want, got) in enumerate(zip(case.rows, found, strict=True)):
        for name in case.names:
            same = _same(want.get(name), got.get(name))
            _require(
                same, f"row {number}, column {name!r}: {_short(want.get(name))} was written, {_short(got.get(name))} was read"
            )


def _check_schema(schema: pa.Schema) -> None:
    _require(isinstance(schema, pa.Schema), f"schema must be a pyarrow.Schema, got {type(schema).__name__}")
    _require(len(set(schema.names)) == len(schema.names), f"schema has a name twice: {schema.names}")
    for column in schema:
        _require(not _is_special(column.type), f"column {column.name!r} has the type {column.type}; views, dictionaries and "
                 "extension types must be turned into ordinary ones")  # fmt: skip


def _is_special(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return True
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) or pa.types.is_list_view(kind):
        return True
    return any(_is_special(kind.field(i).type) for i in range(kind.num_fields))


def _read(opened: OpenShard, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> pa.Table:
    """The rows as a table, its groups valid and of one schema."""
    batches = list(opened.read(unit, columns, start, stop))
    place = f"read(unit={unit}, columns={columns}, start={start}, stop={stop})"
    _require(all(isinstance(b, pa.RecordBatch) for b in batches), f"{place} must give RecordBatches")
    for batch in batches:
        batch.validate(full=True)
        for column in batch.schema:
            want = opened.schema.field(column.name).type if column.name in opened.schema.names else None
            _require(want == column.type, f"{place}: column {column.name!r} is {column.type}, the shard's schema says {want}")
    names = opened.schema.names if columns is None else [c for c in columns if c in opened.schema.names]
    schema = pa.schema([opened.schema.field(n) for n in names])
    if start == stop:
        _require(sum(map(len, batches)) == 0, f"{place} gave rows")
        return schema.empty_table()
    rows = sum(map(len, batches))
    _require(rows == stop - start, f"{place} gave {rows} rows instead of {stop - start}")
    for batch in batches:
        _require(batch.schema.names == names, f"{place} gave the columns {batch.schema.names} instead of {names}")
    return pa.Table.from_batches(batches, schema=schema)


def _check_slices(opened: OpenShard, unit: int, count: int, whole: pa.Table) -> None:
    middle = count // 2
    ends = {(0, count), (0, 0), (count, count), (0, middle), (middle, count), (count // 3, count - count // 4)}
    singles = {(i, i + 1) for i in {*range(min(count, 8)), *range(max(0, count - 8), count)}}
    for start, stop in sorted(ends | singles):
        part = _read(opened, unit, None, start, stop)
        _require(
            _equal(part, whole.slice(start, stop - start)),
            f"unit {unit}: the rows [{start}, {stop}) differ from that part of the whole unit",
        )


def _check_projection(opened: OpenShard, unit: int, count: int, whole: pa.Table) -> None:
    names = whole.schema.names
    absent = "no such column"
    choices = [[name] for name in names] + [names[::-1], [*names[:1], absent, *names[1:2]]]
    for chosen in choices:
        part = _read(opened, unit, chosen, 0, count)
        wanted = [n for n in chosen if n != absent]
        _require(_equal(part, whole.select(wanted)), f"unit {unit}: the columns {chosen} differ from those of the whole unit")


def _check_views(opened: OpenShard, unit: int, whole: pa.Table) -> None:
    """Of a shard that has `views`: the same rows, of the same types or views of them."""
    views = getattr(opened, "views", None)
    if views is None:
        return
    for names in (None, whole.schema.names[:1]):
        wanted = whole if names is None else whole.select(names)
        made = list(views(unit, names))
        for group in made:
            group.validate(full=True)
            _require(
                all(f.type == w.type or stands_for(f.type, w.type) for f, w in zip(group.schema, wanted.schema, strict=True)),
                f"views(unit={unit}, columns={names}) has the types {group.schema.types}",
            )
        _require(
            [row for group in made for row in group.to_pylist()] == wanted.to_pylist(),
            f"views(unit={unit}, columns={names}) gave other rows than read",
        )


def _check_threads(case: _Case, shard: Shard, opened: OpenShard, counts: Sequence[int]) -> None:
    jobs = [(u, a, b) for u, n in enumerate(counts) if n for a, b in ((0, n), (n // 2, n), (0, (n + 1) // 2))][:60]
    alone = [_digest(opened.read(u, None, a, b)) for u, a, b in jobs]
    other = case.reader.open(case.store, pickle.loads(pickle.dumps(shard)))
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda job: _digest(other.read(job[0], None, job[1], job[2])), jobs * 3))
    other.close()
    _require(together == alone * 3, f"{shard.path}: reads from several threads at once give other bytes than reads one by one")


def _digest(batches: Sequence[pa.RecordBatch]) -> tuple[int, ...]:
    return tuple(hash_group(batch) for batch in batches)


def _check_close(opened: OpenShard, counts: Sequence[int]) -> None:
    opened.close()
    opened.close()
    unit = next((u for u, n in enumerate(counts) if n), None)
    if unit is None:
        return
    try:
        opened.read(unit, None, 0, 1)
    except ZephonError:
        return
    except Exception as error:
        raise AssertionError(f"a read after close() must raise DataError, got {type(error).__name__}: {error}") from error
    raise AssertionError("a read after close() must be an error")


def _check_empty(reader: Reader, store: Store, write: Write, folder: Path) -> None:
    folder.mkdir()
    paths = write(folder, [])
    if not paths:
        return
    with _saying("files with zero rows"):
        for shard in reader.shards(store, expand(LocalStore(), str(folder))):
            opened = reader.open(store, shard)
            _require(sum(_unit_count(opened)) == 0, "a file written with zero rows has rows")
            _check_schema(opened.schema)
            opened.close()


def _check_damage(reader: Reader, store: Store, write: Write, folder: Path, rows: list[dict[str, Any]]) -> None:
    """Files that are cut, full of noise, or gone: a `DataError` at open or read that names the file, and nothing else."""
    damages: dict[str, Callable[[bytes], bytes | None]] = {
        "cut in the middle of a row": lambda data: data[: len(data) * 2 // 3 - 1],
        "noise": lambda data: np.random.Generator(np.random.Philox(7)).bytes(max(64, len(data))),
        "gone": lambda _: None,
    }
    for number, (name, damage) in enumerate(damages.items()):
        place = folder / str(number)
        place.mkdir(parents=True)
        write(place, rows)
        shards = reader.shards(store, expand(LocalStore(), str(place)))
        victim = Path(shards[0].path)
        made = damage(victim.read_bytes())
        if made is None:
            victim.unlink()
        else:
            victim.write_bytes(made)
        size = 0 if made is None else len(made)
        shard = Shard(victim.as_posix(), size or shards[0].size, shards[0].etag, shards[0].extra)
        _expect_error(reader, store, shard, name)


def _expect_error(reader: Reader, store: Store, shard: Shard, damage: str) -> None:
    try:
        opened = reader.open(store, shard)
        try:
            for unit, count in enumerate(_unit_count(opened)):
                opened.read(unit, None, 0, count)
        finally:
            opened.close()
    except DataError as error:
        _require(shard.path in str(error), f"the error for a file that is {damage} does not name it: {error}")
    except Exception as error:
        raise AssertionError(f"a file that is {damage} must be a DataError, got {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"a file that is {damage} was read without an error")


def _equal(one: pa.Table, other: pa.Table) -> bool:
    return one.num_rows == other.num_rows and all(
        _same(a, b) for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)
    ) and one.schema.equals(other.schema)  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    """Equal values, with NaN equal to itself, null apart from empty, and 1 apart from True."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_same(one.get(name), other.get(name)) for name in one.keys() | other.keys())
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

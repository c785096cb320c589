"""`zephon convert`: a data set into another format, part by part; what is finished stays, so that an interrupted run goes on.

The parts are decided before anything is written: ranges of rows, a function of the source and the settings. Each part is written under
a hidden name, renamed when it is complete, and noted in the journal (`.zephon-convert.jsonl`) of the destination. A run that finds a
journal goes on only if it is its own, and every part in it is still there in the size noted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.dataset import Dataset
from zephon.errors import DataError, RecipeError, at
from zephon.keys import key
from zephon.plugin import Reader
from zephon.recipe import difference
from zephon.registry import available, load

JOURNAL = ".zephon-convert.jsonl"
_DEFAULT_BYTES = 256 << 20

Advance = Callable[[int], None]


def convert(
    source: str,
    destination: str,
    *,
    to: str,
    fmt: str | None = None,
    columns: Sequence[str] | None = None,
    rows_per_shard: int | None = None,
    shard_bytes: int | None = None,
) -> int:
    """Convert, or go on with it; 0.

    Raises:
        RecipeError: settings that don't fit, a format without a writer, a destination that holds something else.
        DataError: the source can't be read, the destination not written, or the numbers of rows differ at the end.
    """
    try:
        return _convert(source, destination, to, fmt, columns, rows_per_shard, shard_bytes)
    except OSError as error:
        raise DataError(
            f"{destination} can't be written: {error.strerror or error}",
            hint="parts that are finished stay: start the same command again when that is mended",
        ) from error


def _convert(
    source: str,
    destination: str,
    to: str,
    fmt: str | None,
    columns: Sequence[str] | None,
    rows_per_shard: int | None,
    shard_bytes: int | None,
) -> int:
    if rows_per_shard is not None and shard_bytes is not None:
        raise RecipeError("--rows-per-shard and --shard-bytes both set the size of a shard; give one of them")
    if "://" in destination:
        raise RecipeError(f"{destination!r} is not on local disk", hint="convert to a local directory, and copy that")
    reader = _writing(to)
    dataset = Dataset.from_path("source", source, fmt, columns=columns)
    if not len(dataset.schema):
        raise RecipeError(f"{source} has no columns")
    bounds = part_bounds(dataset, rows_per_shard, shard_bytes or _DEFAULT_BYTES)
    header = {
        "convert": 1,
        "to": to,
        "source": {k: v for k, v in dataset.fingerprint().items() if k != "name"},
        "parts": len(bounds) - 1,
        "cuts": f"{key(*bounds.tolist()):016x}",
        "rows": int(bounds[-1]),
    }
    with _Destination(Path(destination), header, reader.part_suffix or "", len(bounds) - 1) as place:
        if place.finished:
            _compare(destination, to, dataset, int(bounds[-1]))
            print(f"{destination} is complete already: {header['rows']:,} rows in {len(bounds) - 1:,} parts")
            return 0
        if not place.written:
            if place.done:
                print(f"going on: {len(place.done)} of {len(bounds) - 1} parts are there", file=sys.stderr)
            _write_parts(dataset, reader, bounds, place)
            place.note({"written": True})
        reader.finish(destination)
        _compare(destination, to, dataset, int(bounds[-1]))
        place.note({"finished": True})
    print(f"{destination}: {header['rows']:,} rows in {len(bounds) - 1:,} parts of {to}, as many as {source} has")
    return 0


def _writing(to: str) -> Reader:
    kind: type[Reader] = load("zephon.formats", to)
    if kind.part_suffix is None:
        can = [n for n in available("zephon.formats") if n != to and _can_write(n)]
        raise RecipeError(f"format {to!r} has no writer", hint=f"formats with one: {', '.join(can)}")
    return kind()


def _can_write(name: str) -> bool:
    with contextlib.suppress(Exception):  # a broken plug-in is just not among those that can
        return load("zephon.formats", name).part_suffix is not None
    return False


def part_bounds(dataset: Dataset, rows_per_shard: int | None, shard_bytes: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where parts begin and end, in rows of the data set: int64[parts + 1]; one part at least, also of nothing.

    Parts of so many bytes are of about equal numbers of decoded bytes, as the read units' sizes tell.
    """
    table = dataset.units
    total = table.total_rows
    if rows_per_shard is not None:
        if rows_per_shard < 1:
            raise RecipeError(f"--rows-per-shard must be 1 or more, got {rows_per_shard}")
        return np.append(np.arange(0, max(total, 1), rows_per_shard, dtype=np.int64), total)
    if shard_bytes < 1:
        raise RecipeError(f"--shard-bytes must be 1 or more, got {shard_bytes}")
    parts = max(1, min(-(-table.total_bytes // shard_bytes), total))
    ends = np.cumsum(np.append(0, np.maximum(table.nbytes, table.rows))).astype(np.float64)  # a row is a byte at least
    rows = np.cumsum(np.append(0, table.rows)).astype(np.float64)
    cuts = np.interp(np.linspace(0, ends[-1], parts + 1), ends, rows).round().astype(np.int64)
    return np.unique(cuts) if total else np.zeros(2, dtype=np.int64)


# ----------------------------------------------------------------------------------------------------- destination


class _Destination:
    """The directory that is written, with its journal; a lock on that keeps a second run out."""

    def __init__(self, path: Path, header: dict[str, Any], suffix: str, parts: int) -> None:
        self.path = path
        self.names = [f"part-{number:05d}-of-{parts:05d}{suffix}" for number in range(parts)]
        self.done: set[str] = set()
        self.written = False
        """All parts are: from here on the format may put them together, so they are not looked at any more."""
        self.finished = False
        self._header = json.loads(json.dumps(header))
        self._file: Any = None

    def __enter__(self) -> _Destination:
        journal = self.path / JOURNAL
        if self.path.exists() and not self.path.is_dir():
            raise RecipeError(f"{self.path} is a file", hint="give a directory")
        if self.path.is_dir() and not journal.exists() and any(self.path.iterdir()):
            raise RecipeError(f"{self.path} is not empty, and no conversion began there", hint="give a new directory")
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = open(journal, "a+", encoding="utf-8")
        try:
            _lock(self._file, self.path)
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the last line was cut short; its part is written again
            self._file.truncate(len(whole.encode()))
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise RecipeError(
                f"{self.path / JOURNAL} is damaged: {error}", hint="remove the directory, and start again"
            ) from error
        if not lines:
            self.note(self._header)
            return
        if lines[0] != self._header:
            changed = "; ".join(difference(lines[0], self._header)[:6])
            raise RecipeError(f"{self.path} holds another conversion: {changed}", hint="give a new directory")
        self.finished = any("finished" in line for line in lines)
        self.written = any("written" in line for line in lines)
        if self.written:
            return
        for line in lines[1:]:
            self._check(line["part"], line["size"])
        self._clean()

    def _check(self, name: str, size: int) -> None:
        found = size_of(self.path / name)
        if found != size:
            state = "is gone" if found is None else f"has {found:,} bytes, not {size:,}"
            raise RecipeError(f"{self.path / name}, which is finished, {state}", hint="remove the directory, and start again")
        self.done.add(name)

    def _clean(self) -> None:
        """Remove what an interrupted run left; refuse what is not this conversion's."""
        for entry in sorted(self.path.iterdir()):
            if entry.name == JOURNAL or entry.name in self.done:
                continue
            if entry.name.startswith(".tmp-part-") or entry.name in self.names:
                # complete but not noted, or not complete
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            elif not entry.name.startswith("."):
                raise RecipeError(f"{entry} is not of this conversion", hint="take it away, or give a new directory")

    def note(self, line: dict[str, Any]) -> None:
        """Append a line to the journal, and see that it is on disk."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def temporary(self, name: str) -> Path:
        """Where a part is written; hidden, so that no reader sees it."""
        return self.path / f".tmp-{name}"

    def keep(self, name: str) -> None:
        """The temporary part is complete: give it its name, and note it."""
        temporary = self.temporary(name)
        for file in temporary.rglob("*") if temporary.is_dir() else [temporary]:
            if file.is_file():
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
        os.replace(temporary, self.path / name)
        self.note({"part": name, "size": size_of(self.path / name)})
        self.done.add(name)


def size_of(path: Path) -> int | None:
    """Bytes of a file, or of all files in a directory; None: it isn't there."""
    if path.is_dir():
        return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    return path.stat().st_size if path.exists() else None


def _lock(file: Any, path: Path) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: two runs at once are the user's affair
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RecipeError(f"another conversion is writing to {path}") from error


# --------------------------------------------------------------------------------------------------------- writing


def _write_parts(dataset: Dataset, reader: Reader, bounds: Any, place: _Destination) -> None:
    total = int(bounds[-1])
    with _progress(total) as advance:
        for number, name in enumerate(place.names):
            start, stop = int(bounds[number]), int(bounds[number + 1])
            if name in place.done:
                advance(stop - start)
                continue
            writer = reader.writer(str(place.temporary(name)), dataset.schema)
            try:
                for group in read_rows(dataset, start, stop):
                    with _writing_part(name, start, stop):
                        writer.write(group)
                    advance(len(group))
                with _writing_part(name, start, stop):
                    writer.close()
                    if dataset.shares_files and stop > start:  # maps that may have been written to since they were read
                        dataset.check(np.unique(dataset.units.shard[slice(*_units_of(dataset, start, stop))]).tolist())
            except BaseException:
                with contextlib.suppress(Exception):  # what went wrong first is what matters
                    writer.abort()
                raise
            place.keep(name)


@contextlib.contextmanager
def _writing_part(name: str, start: int, stop: int) -> Iterator[None]:
    """Errors say which part; those of the disk are left to who knows the destination."""
    full: OSError | None = None
    with at(rows=f"{start}-{stop - 1} of the source, for {name}" if stop > start else f"none, for {name}"):
        try:
            yield
        except OSError as error:
            full = error
    if full is not None:
        raise full


def read_rows(dataset: Dataset, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """The rows [start, stop) of a data set in their order, with all its columns in its types; one unit is read ahead."""
    if start >= stop:
        return
    table, schema = dataset.units, dataset.schema
    ends = np.cumsum(table.rows)
    ahead: deque[Future[list[pa.RecordBatch]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="zephon-convert") as pool:
        for unit in range(*_units_of(dataset, start, stop)):
            begin, size = int(ends[unit] - table.rows[unit]), int(table.rows[unit])
            ahead.append(pool.submit(dataset.read, unit, schema.names, max(start - begin, 0), min(stop - begin, size)))
            if len(ahead) > 1:
                yield from (_conform(group, schema) for group in ahead.popleft().result())
        yield from (_conform(group, schema) for group in ahead.popleft().result())


def _units_of(dataset: Dataset, start: int, stop: int) -> tuple[int, int]:
    """The first unit of the rows [start, stop), one at least, and the one after the last."""
    first, last = np.searchsorted(np.cumsum(dataset.units.rows), [start, stop - 1], side="right").tolist()
    return first, last + 1


def _conform(group: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if group.schema.equals(schema):
        return group
    have = set(group.schema.names)
    arrays = [groups.column(group, f.name).cast(f.type) if f.name in have else pa.nulls(len(group), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_written(destination: str, to: str, schema: pa.Schema) -> Dataset:
    """What a reader finds. Of formats without types, one part may hold nothing but numbers in a column of text: then that is declared."""
    made = Dataset.from_path("destination", destination, to)
    text = {f.name: "string" for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)}
    try:
        len(made)
    except DataError:
        if not text or "schema" not in {f.name for f in fields(load("zephon.formats", to))}:
            raise
        made = Dataset.from_path("destination", destination, to, schema=text)
        len(made)
        print(f"note: {to} has no types, and the parts don't show the same ones: read it with schema={text}", file=sys.stderr)
    return made


def _compare(destination: str, to: str, source: Dataset, rows: int) -> None:
    """Count what was written, as a reader sees it; say which types changed on the way."""
    made = _as_written(destination, to, source.schema)
    if len(made) != rows:
        raise DataError(f"{destination} has {len(made):,} rows, the source {rows:,}", hint="please report it")
    if not rows:
        return
    types = {f.name: f.type for f in made.schema}
    for field in source.schema:
        if field.name not in types:
            raise DataError(
                f"column {field.name!r} is not in {destination}",
                hint=f"all its values are null, which {to} has no place for? leave it out with --columns",
            )
        if types[field.name] != field.type:
            print(f"note: column {field.name!r} was {field.type}, in {to} it is {types[field.name]}", file=sys.stderr)


@dataclass
class _Lines:
    """A line on stderr for every tenth of the way."""

    total: int
    rows: int = 0
    said: int = 0

    def advance(self, rows: int) -> None:
        self.rows += rows
        tenth = self.rows * 10 // self.total if self.total else 10
        if tenth > self.said:
            self.said = tenth
            print(f"{self.rows:,} of {self.total:,} rows", file=sys.stderr)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Advance]:
    """A bar on a terminal where rich is installed; else lines."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from zephon.cli.terminal import Console
    except ModuleNotFoundError:
        yield _Lines(total).advance
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(total).advance
        return
    columns = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("rows", total=total)
        yield lambda rows: bar.update(task, advance=rows)

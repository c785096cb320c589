"""JSON lines (https://jsonlines.org, https://github.com/ndjson/ndjson-spec): one JSON object a line; plain, gzip or zstd.

The first time that a file is opened, one pass finds its lines and keeps an index (`zephon_formats._index`); no later open or read
scans it again. A packed file is unpacked by that pass, once per machine, into the cache directory, since gzip and zstd can't be
entered in the middle; it needs that much disk. A UTF-8 byte-order mark, CRLF, blank lines and a last line without an end are fine.

Columns and types come from a sample (see `Jsonl.sample_bytes`):

* integers are int64, or uint64 where the sample goes beyond it; beyond uint64 they are doubles. A later integer that its
  column's type can't hold is a `DataError`, never a rounded value.
* strings stay strings, whatever they look like.
* a column whose sampled values have no common type (`1` and `"1"`) is a string column with their JSON text.
* null and a missing key are null; `[]` and `{}` are themselves.
* a top-level key that the sample doesn't show is no column of the schema, but can be read by name; it then has the type of
  its values in the range that is read. Deeper keys that the sample doesn't show are left out. `schema` declares either.
* a key twice in one object: the last one counts.

A later value that doesn't fit is a `DataError` with the row and the byte offset of its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._bytes import I64
from zephon_formats._index import Index, Read, load_or_build, local_version
from zephon_formats._json import Columns, Lines, infer_columns, parse
from zephon_formats._types import declared_types
from zephon_formats._write_jsonl import JsonlWriter

_SPREAD = 16
_SPREAD_BYTES = 128 << 10


@dataclass(frozen=True, kw_only=True)
class Jsonl(Reader):
    """JSON lines, plain or packed. See the module's docstring for columns and types."""

    name: ClassVar[str] = "jsonl"
    suffixes: ClassVar[tuple[str, ...]] = tuple(
        f".{name}{packed}" for name in ("jsonl", "ndjson") for packed in ("", ".gz", ".zst")
    )
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ".jsonl"

    schema: Mapping[str, Any] = field(default_factory=dict)
    """Types of columns by name, as text (`"int64"`, `"list<string>"`, `"struct<a: int64>"`, …) or as Arrow types; columns that are
    not named keep what the sample shows. A declared string takes any value: what isn't a string, as its JSON text. `"json"` is a
    string column with the JSON text of every value, strings too."""
    bad_text: Literal["replace", "error"] = "replace"
    """What becomes of bytes that are not UTF-8, NUL bytes and lone surrogates: U+FFFD, or a `DataError` that names the row."""
    sample_bytes: int | None = 4 << 20
    """How much of a file is parsed to find its columns: so much at its beginning (one row at least), and a little at 16 places
    spread over the rest. None: all of it, which makes the first open several times slower, and certain."""
    unit_bytes: int = 2 << 20
    """Size of a read unit in text."""

    def __post_init__(self) -> None:
        if self.bad_text not in ("replace", "error"):
            raise RecipeError(f"bad_text must be 'replace' or 'error', got {self.bad_text!r}")
        if self.unit_bytes < 1 or (self.sample_bytes is not None and self.sample_bytes < 1):
            raise RecipeError(f"unit_bytes and sample_bytes must be at least 1, got {self.unit_bytes} and {self.sample_bytes}")
        declared_types(self.schema)

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """A writer of one plain file. Raises `RecipeError` for columns of bytes, which JSON can't hold."""
        return JsonlWriter(path, schema)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Load the index of one shard, or make it (one pass) and keep it.

        Raises:
            DataError: the file is missing, cut short, damaged, not UTF-8, or none of the sampled lines is a JSON object.
            PluginError: a zstd file, and no `zstandard` package.
        """
        with at(shard=shard.path):
            sampled = 0 if self.sample_bytes is None else self.sample_bytes
            index = load_or_build(store, shard, unit_bytes=self.unit_bytes, sampled=sampled, sample=self._sample)
            return _OpenJsonl(self, store, shard, index)

    def _sample(self, read: Read, starts: I64) -> Columns:
        rows = len(starts) - 1
        if not rows:
            return Columns.none()
        if self.sample_bytes is None:
            borders = np.append(np.searchsorted(starts[:-1], np.arange(int(starts[0]), int(starts[-1]), 16 << 20)), rows)
            ranges = [(int(a), int(b)) for a, b in pairwise(borders) if a < b]
        else:
            ranges = _sample_ranges(starts, self.sample_bytes)
        return infer_columns([_lines(read, starts[a : b + 1], a) for a, b in ranges], self.bad_text)


def _sample_ranges(starts: I64, nbytes: int) -> list[tuple[int, int]]:
    """Which rows to sample: whole rows within the first `nbytes`, and a few after each of 16 places in the rest."""
    rows = len(starts) - 1
    head = max(1, int(np.searchsorted(starts, starts[0] + nbytes, side="right")) - 1)
    ranges = [(0, min(head, rows))]
    for place in np.linspace(head, rows, _SPREAD, endpoint=False).astype(np.int64).tolist():
        begin = max(place, ranges[-1][1])
        end = min(int(np.searchsorted(starts, starts[begin] + min(_SPREAD_BYTES, nbytes), side="right")) - 1, rows)
        if begin < end:
            ranges.append((begin, end))
    return ranges


def _lines(read: Read, starts: I64, row: int) -> Lines:
    first = int(starts[0])
    data = read(first, int(starts[-1]))
    if len(data) != int(starts[-1]) - first:
        raise DataError(f"the file ends at byte {first + len(data)}, before the rows that its index promises")
    return Lines(data, starts - first, row, first)


class _OpenJsonl:
    """One shard with its index. Reads are ranges of the file (or of its unpacked copy); nothing but numbers is kept in memory."""

    def __init__(self, reader: Jsonl, store: Store, shard: Shard, index: Index) -> None:
        self.reader = reader
        self.columns = index.columns.declare(declared_types(reader.schema))
        self.schema: pa.Schema = self.columns.schema
        self._store, self._shard, self._index = store, shard, index
        self._local = store.local(shard.path) if index.unpacked is None else None
        self._closed = False

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size of the text."""
        return Units(np.diff(self._index.units), self._index.unit_bytes)

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`."""
        with at(shard=self._shard.path):
            first, last = int(self._index.units[unit]), int(self._index.units[unit + 1])
            if self._closed:
                raise DataError("the shard is closed")
            if not 0 <= start <= stop <= last - first:
                raise DataError(f"rows [{start}, {stop}) are not in unit {unit}, which has {last - first}")
            wanted = list(dict.fromkeys(self.schema.names if columns is None else columns))
            lines = _lines(self._read, self._index.offsets.get(first + start, first + stop), first + start)
            return [parse(lines, wanted, self.columns, bad_text=self.reader.bad_text)]

    def _read(self, start: int, stop: int) -> bytes:
        if self._index.unpacked is not None:
            return self._index.unpacked.read(start, stop)
        if self._local is not None and local_version(self._local) != self._index.stamp.version and not self._shard.etag:
            raise DataError("the file was changed after it was indexed", hint="start again; data must not change during a run")
        return self._store.read(self._shard.path, start, stop)

    def close(self) -> None:
        """See `OpenShard.close`."""
        self._closed = True
        if self._index.unpacked is not None:
            self._index.unpacked.close()

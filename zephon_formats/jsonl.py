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
  its values in the range that is read. Deeper keys that the sample doesn't show are left out, with a warning for each file.
  `schema` declares either.
* a key twice in one object: the last one counts.

A later value that doesn't fit is a `DataError` with the row and the byte offset of its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa

from zephon.plugin import OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, at
from zephon_formats._bytes import I64
from zephon_formats._index import Index, Read, load_or_build
from zephon_formats._json import Columns, Lines, infer_columns, parse
from zephon_formats._lines import IndexedText, read_rows, sample_rows
from zephon_formats._told import Told
from zephon_formats._types import declared_types
from zephon_formats._write_jsonl import JsonlWriter


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
    """What becomes of bytes that are not UTF-8, NUL bytes and lone surrogates: U+FFFD, with a warning for each file, or a `DataError` that
    names the row."""
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
        if len(starts) < 2:
            return Columns.none()
        return infer_columns(list(sample_rows(read, starts, self.sample_bytes, Lines)), self.bad_text)


class _OpenJsonl(IndexedText):
    """One shard with its index."""

    def __init__(self, reader: Jsonl, store: Store, shard: Shard, index: Index) -> None:
        super().__init__(store, shard, index)
        self.reader = reader
        self._told = Told(shard.path)
        self.columns = index.columns.declare(declared_types(reader.schema))
        self.schema: pa.Schema = self.columns.schema

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`."""
        with at(shard=self._shard.path):
            first, starts = self._starts(unit, start, stop)
            wanted = list(dict.fromkeys(self.schema.names if columns is None else columns))
            lines = read_rows(self._read, starts, first, Lines)
            return [parse(lines, wanted, self.columns, bad_text=self.reader.bad_text, told=self._told)]

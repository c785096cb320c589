"""CSV and TSV (RFC 4180, https://www.rfc-editor.org/rfc/rfc4180), plain, gzip or zstd: one row per record, in UTF-8.

The first time that a file is opened, one pass finds its records (line ends inside quotes don't count) and keeps an index
(`zephon_formats._index`); a packed file is unpacked by that pass, once per machine, into the cache directory. A byte-order mark, LF, CRLF
or CR, blank lines and a last line without an end are fine. A quote that opens no field is a character like any other.

Columns are named by the header, types come from a sample (see `Csv.sample_bytes`): int64, double or bool where all its values are that,
else string. Times, and numbers that would lose digits (`007`, `0x1f`, more than 15 digits with a point elsewhere), stay strings. A later
value that doesn't fit is a `DataError` with its row; `schema` declares a column. An unquoted empty field is null in every column, a
quoted one is an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import pyarrow as pa

from zephon.plugin import DataError, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at, keys
from zephon_formats._asked import schema_in, unread
from zephon_formats._bytes import I64
from zephon_formats._csv_parse import Dialect, header_names, infer_types, parse
from zephon_formats._csv_split import RecordStarts, raw_fields
from zephon_formats._index import Index, Read, load_or_build
from zephon_formats._json import Columns
from zephon_formats._lines import IndexedText, sample_rows
from zephon_formats._told import Told
from zephon_formats._types import declared_types
from zephon_formats._write_csv import CsvWriter

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Csv(Reader):
    """CSV and TSV files, plain or packed. See the module's docstring for columns and types."""

    name: ClassVar[str] = "csv"
    suffixes: ClassVar[tuple[str, ...]] = tuple(f".{name}{packed}" for name in ("csv", "tsv") for packed in ("", ".gz", ".zst"))
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ".csv"

    delimiter: str | None = None
    """What divides fields; None: a tab for `.tsv`, else a comma."""
    quote: str | None = '"'
    """What encloses fields that hold delimiters, quotes (doubled) or line ends; None: nothing does, quotes are text."""
    header: bool | None = None
    """Whether the first record holds the columns' names; None: unless `column_names` does. With both, the record is left out."""
    column_names: Sequence[str] = ()
    """The columns' names. Without them and without a header they are f0, f1, …"""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """Types of columns by name, as text (`"int64"`, `"string"`, `"timestamp[s]"`, …) or as Arrow types; columns that are not named keep
    what the sample shows."""
    null_values: Sequence[str] = ("",)
    """Unquoted fields that are null, in columns of every type."""
    quoted_nulls: bool = False
    """Whether these are null in quotes too, as in files that quote every field."""
    ragged: Literal["error", "pad"] = "error"
    """A record with another number of fields: a `DataError` that names its row, or fill it up with nulls, leave out what is too much."""
    bad_text: Literal["replace", "error"] = "replace"
    """What becomes of bytes that are not UTF-8 and of NUL bytes: U+FFFD, or a `DataError` that names the row."""
    sample_bytes: int | None = 4 << 20
    """How much of a file is parsed to find its types: so much at its beginning (one row at least), and a little at 16 places spread
    over the rest. None: all of it."""
    unit_bytes: int = 2 << 20
    """Size of a read unit in text."""

    def __post_init__(self) -> None:
        for what, value in (("delimiter", self.delimiter), ("quote", self.quote)):
            if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n\0"):
                raise RecipeError(f"{what} must be one ASCII character and no line end, got {value!r}")
        if self.quote is not None and self.quote == self.delimiter:
            raise RecipeError(f"delimiter and quote are both {self.quote!r}")
        if self.ragged not in ("error", "pad"):
            raise RecipeError(f"ragged must be 'error' or 'pad', got {self.ragged!r}")
        if self.bad_text not in ("replace", "error"):
            raise RecipeError(f"bad_text must be 'replace' or 'error', got {self.bad_text!r}")
        if isinstance(self.column_names, str) or isinstance(self.null_values, str):
            raise RecipeError("column_names and null_values must be lists of strings, not a string")
        if len(set(self.column_names)) < len(self.column_names):
            raise RecipeError(f"column_names has a name twice: {', '.join(self.column_names)}")
        if self.unit_bytes < 1 or (self.sample_bytes is not None and self.sample_bytes < 1):
            raise RecipeError(f"unit_bytes and sample_bytes must be at least 1, got {self.unit_bytes} and {self.sample_bytes}")
        for name, kind in declared_types(self.schema).items():
            if kind is None or kind.num_fields or pa.types.is_dictionary(kind):
                raise RecipeError(f"schema: a field of CSV can't be {self.schema[name]!r} (column {name!r})")

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """See `Reader.writer`."""
        return CsvWriter(path, schema, delimiter=self.delimiter or ",")

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Load the index of one shard, or make it (one pass) and keep it.

        Raises:
            DataError: the file is missing, cut short, damaged or UTF-16, a quote is never closed, or the header doesn't fit the options.
            PluginError: a zstd file, and no `zstandard` package.
        """
        with at(shard=shard.path):
            dialect = self._dialect(shard.path)
            header = (not self.column_names) if self.header is None else self.header
            quote = None if dialect.quote is None else ord(dialect.quote)
            splitter = partial(RecordStarts, delimiter=ord(dialect.delimiter), quote=quote, header=header)
            kind = f"{ord(dialect.delimiter):02x}{0 if quote is None else quote:02x}{header:d}.csv"
            settings = keys.key(repr((dialect, header, tuple(self.column_names), self.sample_bytes)))
            index = load_or_build(
                store, shard, unit_bytes=self.unit_bytes, sampled=settings, splitter=splitter, kind=kind,
                sample=partial(self._sample, dialect=dialect, header=header),
            )  # fmt: skip
            return _OpenCsv(self, store, shard, index, dialect)

    def _dialect(self, path: str) -> Dialect:
        delimiter = self.delimiter or ("\t" if path.lower().endswith((".tsv", ".tsv.gz", ".tsv.zst")) else ",")
        return Dialect(
            delimiter,
            self.quote,
            tuple(self.null_values),
            self.quoted_nulls,
            pad=self.ragged == "pad",
            replace=self.bad_text == "replace",
        )

    def _sample(self, read: Read, starts: I64, *, dialect: Dialect, header: bool) -> Columns:
        first = read(0, int(starts[0])).removeprefix(_BOM) if header else b""
        record = (
            first.strip(b"\r\n")
            if header
            else (read(int(starts[0]), int(starts[1])) if len(starts) > 1 else b"").rstrip(b"\r\n")
        )
        fields = len(raw_fields(record, *dialect.marks)) if record else 0
        if self.column_names:
            names = list(self.column_names)
            if fields not in (0, len(names)) and not dialect.pad:
                raise DataError(f"the first record has {fields} fields, and column_names {len(names)}")
        else:
            names = header_names(record, dialect) if header and record else [f"f{i}" for i in range(fields)]
        types = infer_types(sample_rows(read, starts, self.sample_bytes), names, len(starts) - 1, dialect)
        return Columns(pa.schema(list(zip(names, types, strict=True))))


class _OpenCsv:
    """One shard with its records."""

    def __init__(self, reader: Csv, store: Store, shard: Shard, index: Index, dialect: Dialect) -> None:
        declared = declared_types(reader.schema)
        found = index.columns.schema
        missing = [name for name in declared if name not in found.names]
        if missing and len(found):
            raise DataError(f"schema names the column {missing[0]!r}; the file has {', '.join(found.names)}")
        self.schema: pa.Schema = pa.schema([pa.field(f.name, declared.get(f.name) or f.type) for f in found])
        self._path, self._dialect, self._told = shard.path, dialect, Told(shard.path)
        self._text = IndexedText(store, shard, index)

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size of the text."""
        return self._text.units()

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`."""
        with at(shard=self._path):
            runs = self._text.rows(unit, start, stop)
            schema = schema_in(self.schema, columns)
            wanted = schema.names
            if not wanted or not runs:
                return [unread(schema, stop - start)]
            return [parse(run, self.schema, wanted, self._dialect, self._told) for run in runs]

    def close(self) -> None:
        """See `OpenShard.close`."""
        self._text.close()

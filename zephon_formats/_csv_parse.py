"""CSV records to Arrow: one pyarrow call for a range of records, and a closer look where Arrow refuses the range."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from zephon.plugin import DataError
from zephon_formats._csv_split import plain_field, raw_fields
from zephon_formats._rows import Rows
from zephon_formats._told import Told

_WIDE_INT = 1 << 53
"""A double holds every integer up to here."""
_NOT_A_NUMBER = r"^[+-]?0[0-9xXbBoO]"
"""What Arrow would take for a number, and would lose characters of: a postal code, a hash."""
_ROW, _COLUMN = re.compile(r"(CSV parse error: )?Row #\d+: "), re.compile(r"In CSV column #(\d+): ")
_LONG_NUMBER = r"^[+-]?[0-9]{16,}$"


@dataclass(frozen=True)
class Dialect:
    """How the text is written."""

    delimiter: str
    quote: str | None
    null_values: tuple[str, ...]
    quoted_nulls: bool
    pad: bool
    replace: bool

    @property
    def marks(self) -> tuple[bytes, bytes | None]:
        """The delimiter and the quote as bytes."""
        return self.delimiter.encode(), None if self.quote is None else self.quote.encode()


def header_names(data: bytes, dialect: Dialect) -> list[str]:
    """The names in a header record; an empty one is `Unnamed: 0` (with its number), as in pandas.

    Raises:
        DataError: a name is there twice, or is not UTF-8.
    """
    names = []
    for number, field in enumerate(raw_fields(data.strip(b"\r\n"), *dialect.marks)):
        content = plain_field(field, dialect.marks[1])
        if dialect.replace:
            name = content.decode("utf-8", "replace").replace("\0", "\ufffd")
        else:
            try:
                name = content.decode()
            except UnicodeDecodeError as error:
                raise DataError(f"the name of column {number} is not UTF-8: {error}") from None
        names.append(name or f"Unnamed: {number}")
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise DataError(
            f"the header has several columns of the name {twice[0]!r}", hint="give other names: column_names=…, header=True"
        )
    return names


# ------------------------------------------------------------------------------------------------------------- reading


def parse(rows: Rows, schema: pa.Schema, wanted: Sequence[str], dialect: Dialect, told: Told) -> pa.RecordBatch:
    """The columns `wanted` (one at least) of these rows in the types of `schema`, which names all columns of the text.

    Raises:
        DataError: a record has another number of fields, or a field doesn't fit its column's type; with the row.
    """
    if not len(rows):
        return pa.RecordBatch.from_arrays([pa.array([], schema.field(n).type) for n in wanted], names=list(wanted))
    try:
        return _parse(rows, schema, wanted, dialect)
    except pa.ArrowInvalid:
        pass
    if dialect.pad:
        rows = _padded(rows, len(schema), dialect)
    if dialect.replace:
        cleaned = _cleaned(rows)
        if cleaned.data != rows.data:
            told.replaced_text()
        rows = cleaned
    try:
        return _parse(rows, schema, wanted, dialect)
    except pa.ArrowInvalid as error:
        raise _first_error(rows, error, schema.names, lambda part: _parse(part, schema, wanted, dialect)) from None


def _parse(rows: Rows, schema: pa.Schema, wanted: Sequence[str], dialect: Dialect) -> pa.RecordBatch:
    if b"\0" in rows.data and any(_is_text(schema.field(n).type) for n in wanted):
        raise pa.ArrowInvalid("the record holds a NUL byte")
    options = _convert(dialect, include_columns=list(wanted), column_types={f.name: f.type for f in schema})
    table = _arrow(rows.data, schema.names, dialect, options)
    if table.num_rows != len(rows):
        raise pa.ArrowInvalid(f"{len(rows)} records became {table.num_rows} rows")
    return table.combine_chunks().to_batches()[0]


def _arrow(
    data: bytes,
    names: Sequence[str],
    dialect: Dialect,
    convert: pacsv.ConvertOptions,
) -> pa.Table:
    # one block, however long a record is; our workers are the threads
    read = pacsv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1)
    options: dict[str, Any] = {"delimiter": dialect.delimiter, "quote_char": dialect.quote or False}
    parsing = pacsv.ParseOptions(**options, newlines_in_values=True)
    source: Any = pa.BufferReader(data)
    return pacsv.read_csv(source, read, parsing, convert)


def _convert(dialect: Dialect, **options: Any) -> pacsv.ConvertOptions:
    return pacsv.ConvertOptions(
        null_values=list(dialect.null_values),
        strings_can_be_null=True,
        quoted_strings_can_be_null=dialect.quoted_nulls,
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
        **options,
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _padded(rows: Rows, fields: int, dialect: Dialect) -> Rows:
    """The rows with as many fields each: empty ones added, superfluous ones left out."""
    delimiter, quote = dialect.marks
    records = []
    for number in range(len(rows)):
        record = rows.one(number).rstrip(b"\r\n")
        found = raw_fields(record, delimiter, quote)
        if len(found) != fields:
            record = delimiter.join([*found, *[b""] * (fields - len(found))][:fields])
        records.append(record + b"\n")
    return _joined(rows, records)


def _cleaned(rows: Rows) -> Rows:
    """The rows with U+FFFD in place of what is not UTF-8 and of NUL bytes."""
    records = [rows.one(i).decode("utf-8", "replace").replace("\0", "\ufffd").encode() for i in range(len(rows))]
    return _joined(rows, records)


def _joined(rows: Rows, records: Sequence[bytes]) -> Rows:
    ends = np.cumsum([0, *map(len, records)], dtype=np.int64)
    return Rows(b"".join(records), ends, rows.row, rows.byte)


def _first_error(rows: Rows, error: Exception, names: Sequence[str], attempt: Callable[[Rows], Any]) -> DataError:
    """What is wrong with the first row that can't be read by itself, found by halves."""
    start, stop = 0, len(rows)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(rows.part(start, middle))
            start = middle
        except pa.ArrowInvalid as found:
            stop, error = middle, found
    try:
        attempt(rows.part(start, stop))
    except pa.ArrowInvalid as found:
        error = found
    return rows.error(start, *_explained(str(error), names))


def _explained(message: str, names: Sequence[str]) -> tuple[str, str | None]:
    """Arrow's message in terms of the file, and what to do."""
    if "Expected" in message and "columns" in message:
        return _ROW.sub("", message), "ragged='pad' fills missing fields with null and drops superfluous ones"
    column = _COLUMN.match(message)
    name = names[int(column[1])] if column and int(column[1]) < len(names) else ""
    said = _ROW.sub("", message)
    if column:
        said = f"column {name!r}: {said[len(column[0]) :]}"
    if "UTF8" in message or "NUL" in message:
        return said, "bad_text='replace' puts U+FFFD there"
    return said, f"declare it: schema={{{name!r}: 'string'}}" if column else None


# ------------------------------------------------------------------------------------------------------------ sampling


def infer_types(pieces: Iterable[Rows], names: Sequence[str], rows: int, dialect: Dialect) -> list[pa.DataType]:
    """The type of each column in these of `rows` rows: int64, double or bool where every value is one, else string.

    A column without any value is null where these are all rows, so that it goes together with those of other shards; else string.
    Records with another number of fields are passed over; reading them is an error.
    """
    found = ["" for _ in names]
    seen = 0
    for piece in pieces:
        seen += len(piece)
        kinds = _infer_piece(piece, names, dialect)
        found = [_unify(a, b) for a, b in zip(found, kinds, strict=True)]
    types: dict[str, pa.DataType] = {
        "": pa.null() if seen == rows else pa.string(),
        "int": pa.int64(),
        "wide": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }
    return [types.get(kind, pa.string()) for kind in found]


def _infer_piece(rows: Rows, names: Sequence[str], dialect: Dialect) -> list[str]:
    unique = [str(i) for i in range(len(names))]
    data = rows.data
    try:
        table = _arrow(data, unique, dialect, _convert(dialect))
    except pa.ArrowInvalid:
        # not by `invalid_row_handler`: it prints a traceback for each record that is not UTF-8 (pyarrow 26)
        data = _even(rows, len(names), dialect)
        if not data:
            return ["" for _ in names]
        table = _arrow(data, unique, dialect, _convert(dialect))
    kinds = [_kind(column) for column in table.columns]
    numbers = [unique[i] for i, kind in enumerate(kinds) if kind in ("int", "wide", "double")]
    if numbers:
        texts = {name: pa.string() for name in numbers}
        again = _arrow(data, unique, dialect, _convert(dialect, include_columns=numbers, column_types=texts))
        for name in numbers:
            number = int(name)
            long = kinds[number] == "double" and _any(again.column(name), _LONG_NUMBER)
            if long or _any(again.column(name), _NOT_A_NUMBER):
                kinds[number] = "string"
    return kinds


def _even(rows: Rows, fields: int, dialect: Dialect) -> bytes:
    """The records that have so many fields."""
    records = (rows.one(i) for i in range(len(rows)))
    return b"".join(r for r in records if len(raw_fields(r.rstrip(b"\r\n"), *dialect.marks)) == fields)


def _any(column: Any, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, pattern)).as_py())


def _kind(column: Any) -> str:
    """What a column that Arrow inferred counts as; "" where it has no value. Times are text."""
    if pa.types.is_null(column.type):
        return ""
    if pa.types.is_integer(column.type):
        ends: Any = pc.min_max(column).as_py()
        return "wide" if max(abs(ends["min"]), abs(ends["max"])) > _WIDE_INT else "int"
    if pa.types.is_floating(column.type):
        return "double"
    return "bool" if pa.types.is_boolean(column.type) else "string"


def _unify(one: str, other: str) -> str:
    if one == other or not other:
        return one
    if not one:
        return other
    both = {one, other}
    if both == {"int", "wide"}:
        return "wide"
    return "double" if both == {"int", "double"} else "string"

"""JSON lines to Arrow: one pyarrow call for a range of lines, and line by line where Arrow refuses the range.

Both ways give a row the same values, and neither looks at the other rows: the types are settled before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.json as paj

from zephon.plugin import DataError
from zephon_formats._bytes import BLANKS, one_object_each
from zephon_formats._rows import Rows
from zephon_formats._told import Told
from zephon_formats._types import Misfit, Number, clean, fit, has_null, infer, plain, text_of, unify

_REPLACED = re.compile(
    "[\0\ud800-\udfff]"  # what bytes that are not UTF-8 become by surrogateescape
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""What becomes U+FFFD in a text."""
_MAX_BLOCK = (1 << 31) - 64  # Arrow counts a block's bytes in int32
_LONG = re.compile(rb"(?<![.0-9])[0-9]{19}")
_REFUSED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowCapacityError, OverflowError)


@dataclass(frozen=True)
class Columns:
    """What is known about the columns of a text.

    `as_json` hold any JSON value as its text; `declared` were typed by the user: a declared string takes other values as text too.
    """

    schema: pa.Schema
    as_json: frozenset[str] = frozenset()
    declared: frozenset[str] = field(default=frozenset())

    @classmethod
    def none(cls) -> Columns:
        """Nothing is known."""
        return cls(pa.schema([]))

    def declare(self, types: Mapping[str, pa.DataType | None]) -> Columns:
        """The same, with the user's types in place of the found ones; None stands for "as JSON"."""
        schema = self.schema
        for name, kind in types.items():
            made = pa.field(name, pa.string() if kind is None else kind)
            index = schema.get_field_index(name)
            schema = schema.append(made) if index < 0 else schema.set(index, made)
        as_json = (self.as_json - types.keys()) | {name for name, kind in types.items() if kind is None}
        return Columns(schema, frozenset(as_json), frozenset(types))


@dataclass(frozen=True)
class Lines(Rows):
    """A run of rows of JSON."""

    noun: ClassVar[str] = "line"

    def line(self, number: int) -> bytes:
        """One line without blanks at its ends."""
        return self.one(number).strip(BLANKS)


def parse(lines: Lines, wanted: Sequence[str], columns: Columns, *, bad_text: str, told: Told) -> pa.RecordBatch:
    """The columns `wanted` of these lines, those left out that neither `columns` nor any of the lines has.

    A column that `columns` does not know, or knows only as null, has the type of the values in these lines.

    Raises:
        DataError: a line is not a JSON object, or a value doesn't fit its column's type; with the row and the byte offset.
    """
    if not len(lines):
        return _batch([(n, pa.array([], columns.schema.field(n).type)) for n in wanted if n in columns.schema.names], 0)
    names = [n for n in wanted if n in columns.schema.names or _mentions(lines.data, n)]
    looks = not told.unseen and any(_has_struct(f.type) for f in columns.schema if f.name in names)
    # with all columns asked for, Arrow itself says whether there are others
    made = _parse_fast(lines, names, columns, unknown="error") if looks and set(columns.schema.names) <= set(names) else None
    if made is not None:
        return made
    made = _parse_fast(lines, names, columns)
    if made is None:
        if bad_text == "replace" and _REPLACED.search(lines.data.decode("utf-8", "surrogateescape")):
            told.replaced_text()
        made = _parse_slow(lines, names, columns, bad_text)
    if looks and (set(columns.schema.names) <= set(names) or lines.row % 16 == 0):
        _tell_unseen(lines, columns.schema, names, told)
    return made


def _tell_unseen(lines: Lines, schema: pa.Schema, names: Sequence[str], told: Told) -> None:
    """Tell of keys that the schema lacks, inside of these columns or, where they are all of them, beside them: they are not read.

    Of a few columns Arrow can't say so: the lines are parsed once more for it, and only some are, those of every 16th first row.
    """
    table = _arrow(lines.data, [], others="infer")
    known = pa.struct([f for f in schema if f.name in names])
    every = len(known) == len(schema)
    found = pa.struct([f for f in table.schema if every or f.name in names]) if table is not None else None
    missing = None if found is None else _missing(found, known)
    if missing:
        told.unseen_key(missing)


def _has_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) or any(_has_struct(kind.field(i).type) for i in range(kind.num_fields))


def _missing(found: pa.DataType, known: pa.DataType) -> str | None:
    """The path of a field of `found` that `known` lacks."""
    if pa.types.is_struct(found) and pa.types.is_struct(known):
        names = {f.name: f.type for f in known}
        for field in found:
            if field.name not in names:
                return field.name
            deeper = _missing(field.type, names[field.name])
            if deeper:
                return f"{field.name}.{deeper}"
    elif pa.types.is_list(found) and hasattr(known, "value_type"):
        return _missing(found.value_type, known.value_type)
    return None


def _mentions(data: bytes, name: str) -> bool:
    return any(json.dumps(name, ensure_ascii=ascii_only).encode("utf-8", "replace") in data for ascii_only in (True, False))


def _batch(named: Sequence[tuple[str, pa.Array[Any]]], rows: int) -> pa.RecordBatch:
    if not named:  # no column, but the number of rows remains
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))  # type: ignore[arg-type]
    return pa.RecordBatch.from_arrays(
        [array for _, array in named], schema=pa.schema([(name, array.type) for name, array in named])
    )


# ----------------------------------------------------------------------------------------------------------- fast path


def _parse_fast(
    lines: Lines, names: Sequence[str], columns: Columns, *, unknown: Literal["ignore", "error"] = "ignore"
) -> pa.RecordBatch | None:
    """The rows by pyarrow's parser, or None where it refuses any of them or finds another number of rows; also, with `unknown="error"`,
    where one has a key, at any depth, that is not known."""
    if columns.as_json.intersection(names) or len(lines.data) > _MAX_BLOCK or not one_object_each(lines.data, lines.starts):
        return None
    known = [columns.schema.field(n) for n in names if n in columns.schema.names]
    table = _arrow(lines.data, known, others="infer" if len(known) < len(names) else unknown)
    if table is None and any(has_null(f.type) for f in known):
        known = [f for f in known if not has_null(f.type)]
        table = _arrow(lines.data, known, others="infer")
    if table is None or table.num_rows != len(lines):
        return None
    others = [f for f in table.schema if f.name in names and f.name not in {k.name for k in known}]
    strict = [pa.field(f.name, plain(f.type)) for f in others]
    if any(a.type != b.type for a, b in zip(others, strict, strict=True)):
        table = _arrow(lines.data, [*known, *strict], others="ignore")  # Arrow took strings for times
        if table is None:
            return None
    named = [(n, _one(table.column(n))) for n in names if n in table.schema.names]
    try:
        made = _batch(named, len(lines))
        # Arrow's parser takes any bytes for UTF-8, and makes invalid lists of `[null, null]` (seen in pyarrow 26)
        made.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return made


def _arrow(data: bytes, known: Sequence[pa.Field[Any]], *, others: Literal["infer", "ignore", "error"]) -> pa.Table | None:
    options = paj.ParseOptions(explicit_schema=pa.schema(known), unexpected_field_behavior=others)
    source: Any = pa.BufferReader(data)
    try:
        # one block, however long a line is; our workers are the threads
        return paj.read_json(source, paj.ReadOptions(use_threads=False, block_size=len(data) + 1), options)
    except _REFUSED:
        return None


def _one(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)  # type: ignore[return-value]


# ----------------------------------------------------------------------------------------------------------- slow path


def _parse_slow(lines: Lines, names: Sequence[str], columns: Columns, bad_text: str) -> pa.RecordBatch:
    values: dict[str, list[Any]] = {name: [] for name in names}
    seen: set[str] = set()
    for number in range(len(lines)):
        record = _load_line(lines, number, bad_text)
        for name in names:
            values[name].append(record.get(name))
        seen.update(record)
    found = [name for name in names if name in columns.schema.names or name in seen]
    return _batch([(name, _build(lines, name, values[name], columns, bad_text)) for name in found], len(lines))


def _load_line(lines: Lines, number: int, bad_text: str) -> dict[str, Any]:
    line = lines.line(number)
    # surrogateescape keeps bad bytes apart until it is known whether somebody needs them
    text = line.decode("utf-8", "replace" if bad_text == "replace" else "surrogateescape")
    if "\0" in text:
        if bad_text != "replace":
            raise lines.error(number, "the line holds a NUL byte", "bad_text='replace' puts U+FFFD there")
        text = text.replace("\0", "\ufffd")
    try:
        record = loads(text)
    except (ValueError, RecursionError) as error:
        table = _arrow(line, [], others="infer") if line[:1] == b"{" and line[-1:] == b"}" else None
        if table is None or table.num_rows != 1:
            raise lines.error(number, _why(line, error), _hint(line)) from None
        record = table.to_pylist()[0]  # deeper nesting than Python's parser takes, or `Inf`
    if not isinstance(record, dict):
        raise lines.error(number, f"a row must be a JSON object, found {line[:40].decode('utf-8', 'replace')!r}", _hint(line))
    return record


def _why(line: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    start = line[:60].decode("utf-8", "replace")
    return f"not valid JSON: {error}; the line begins {start!r}"


def _hint(line: bytes) -> str | None:
    if line[:1] == b"[":
        return "a file that is one JSON array must be written as one object a line: jq -c '.[]' FILE"
    return "the last line looks cut off" if line[:1] == b"{" and line[-1:] != b"}" else None


def loads(text: str) -> Any:
    """`json.loads`, with numbers as the text that was written (`Number`), and control characters in strings let through."""
    return json.loads(text, parse_int=Number.of_int, parse_float=Number.of_float, strict=False)


def _build(lines: Lines, name: str, values: Sequence[Any], columns: Columns, bad_text: str) -> pa.Array[Any]:
    if name in columns.as_json:
        return pa.array([None if v is None else clean(text_of(v)) for v in values], pa.string())
    kind = _kind(lines, name, values, columns)
    fitted = []
    for number, value in enumerate(values):
        try:
            fitted.append(fit(value, kind, as_text=name in columns.declared, replace=bad_text == "replace"))
        except Misfit as why:
            raise lines.error(
                number, f"column {name!r}: {why}", f"declare it: schema={{{name!r}: 'string'}} or 'json'"
            ) from None
    try:
        return _array(fitted, kind)
    except (*_REFUSED, ValueError, TypeError) as error:
        for number, value in enumerate(fitted):
            try:
                _array([value], kind)
            except (*_REFUSED, ValueError, TypeError) as why:
                raise lines.error(number, f"column {name!r}: {why}") from None
        raise DataError(f"column {name!r} can't be built: {error}") from error


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _kind(lines: Lines, name: str, values: Sequence[Any], columns: Columns) -> pa.DataType:
    """The type that a column has in these lines: the known one, or that of the values where it is unknown."""
    known = columns.schema.field(name).type if name in columns.schema.names else pa.null()
    if name in columns.declared or not has_null(known):
        return known
    kind = known
    for number, value in enumerate(values):
        merged = unify(kind, infer(value))
        if merged is None:
            raise lines.error(
                number, f"column {name!r} has values of several types, first here", f"declare it: schema={{{name!r}: 'json'}}"
            )
        kind = merged
    return kind


# ------------------------------------------------------------------------------------------------------------ sampling


def infer_columns(pieces: Sequence[Lines], bad_text: str) -> Columns:
    """The columns of these rows: types widened where nothing is lost, JSON text for a column whose values have no common type.

    Lines that are not JSON objects are passed over. Raises `DataError` (of the first one) where there is no other line.
    """
    found: dict[str, pa.DataType | None] = {}
    first: DataError | None = None
    useful = False
    for lines in pieces:
        types, error = _infer_piece(lines, bad_text)
        first = first or error
        useful = useful or types is not None
        for name, kind in (types or {}).items():
            found[name] = unify(found[name], kind) if name in found else kind
    if first is not None and not useful:
        raise first
    schema = pa.schema([(name, pa.string() if kind is None else kind) for name, kind in found.items()])
    return Columns(schema, frozenset(name for name, kind in found.items() if kind is None))


def _infer_piece(lines: Lines, bad_text: str) -> tuple[dict[str, pa.DataType | None] | None, DataError | None]:
    if len(lines.data) <= _MAX_BLOCK and one_object_each(lines.data, lines.starts):
        table = _arrow(lines.data, [], others="infer")
        # Arrow makes doubles of integers beyond int64; they are found, and told apart, line by line
        if table is not None and table.num_rows == len(lines) and not (_any_double(table.schema) and _long_number(lines.data)):
            return {f.name: plain(f.type) for f in table.schema}, None
    types: dict[str, pa.DataType | None] = {}
    first: DataError | None = None
    useful = False
    for number in range(len(lines)):
        try:
            record = _load_line(lines, number, bad_text)
        except DataError as error:
            first = first or error
            continue
        useful = True
        for name, value in record.items():
            before = types.get(name, pa.null())
            types[name] = None if before is None else unify(before, infer(value))
    return (types if useful else None), first


def _any_double(schema: pa.Schema) -> bool:
    return "double" in str(schema)


def _long_number(data: bytes) -> bool:
    return _LONG.search(data) is not None

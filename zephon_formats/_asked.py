"""What a read is asked for: rows of a unit, and columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zephon import groups
from zephon.plugin import DataError


def check_rows(unit: int, start: int, stop: int, rows: int, *, closed: bool, what: str = "unit") -> None:
    """Raise `DataError` where the shard is closed, or where the rows [start, stop) are not in a unit of so many."""
    if closed:
        raise DataError("the shard is closed")
    if not 0 <= start <= stop <= rows:
        raise DataError(f"rows [{start}, {stop}) are not in {what} {unit}, which has {rows}")


def names_in(schema: pa.Schema, columns: Sequence[str] | None) -> list[str]:
    """The columns that are asked for (None: all) and there, each once, in the order asked."""
    asked = dict.fromkeys(schema.names if columns is None else columns)
    return [name for name in asked if schema.get_field_index(name) >= 0]


def schema_in(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The same as a schema."""
    return pa.schema([schema.field(name) for name in names_in(schema, columns)])


def unread(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """What needs no reading: a group of no rows, or of no column."""
    return groups.empty_group(schema) if len(schema) else no_columns(rows)


def no_columns(rows: int) -> pa.RecordBatch:
    """A group of no column, in which only the number of rows remains."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))  # type: ignore[arg-type]

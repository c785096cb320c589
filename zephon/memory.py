"""Data sets in memory: Arrow tables as shards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.encodings import decoded_group, is_encoded
from zephon.errors import DataError, Where
from zephon.hashing import hash_group
from zephon.keys import key
from zephon.plugin import OpenShard, Shard, Units
from zephon.shards import Shards

Rows = Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch
_UNIT_ROWS = 1 << 16


class InMemoryShard:
    """Rows in memory, for `Dataset.from_dict`."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows if isinstance(rows, pa.Table | pa.RecordBatch) else list(rows)


def table_of(rows: Rows) -> pa.Table:
    """Records as an Arrow table; a table stays what it is. Lists and dicts that have no common type become their JSON text, as the
    JSONL reader has it: of chats, the content of one message is often a text and that of another a list of parts.

    Raises:
        DataError: a record is no mapping or has a name that is no text; other values of a column that don't go together, or such lists
            that JSON can't hold.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    rows = list(rows)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"a record is a dict, not {row!r:.60}", where=Where(row=number))
        if not all(isinstance(name, str) for name in row):
            raise DataError(f"the names of columns are text: {list(row)!r:.60}", where=Where(row=number))
    try:
        return pa.Table.from_batches([groups.from_rows(rows)])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        made: list[dict[str, Any]] = [dict(row) for row in rows]
        for name in dict.fromkeys(name for row in made for name in row):
            _write_out(made, name)
        return pa.Table.from_batches([groups.from_rows(made)])


def _write_out(rows: Sequence[dict[str, Any]], name: str) -> None:
    """Put JSON text in place of the column's values, if they have no common type."""
    values = [row.get(name) for row in rows]
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        try:
            if not all(value is None or isinstance(value, list | dict) for value in values):
                raise TypeError("only lists and dicts become JSON text")
            for row in rows:
                if row.get(name) is not None:
                    row[name] = json.dumps(row[name], ensure_ascii=False)
        except (TypeError, ValueError) as reason:
            raise DataError(
                f"the values of column {name!r} don't go together: {error} ({reason})",
                hint="give all records one type, or an Arrow table",
            ) from error


class MemoryShards(Shards):
    """Arrow tables as shards."""

    in_memory = True
    splittable = True

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = {name: plain_table(table) for name, table in tables.items()}

    def list(self) -> Sequence[Shard]:
        """See `Shards`; a table's version is a hash of its contents."""
        return [Shard(path=name, size=table.nbytes, etag=self._content(table)) for name, table in self.tables.items()]

    def _content(self, table: pa.Table) -> str:
        return f"{key(*[hash_group(b) for b in table.to_batches()]):016x}"

    def open(self, shard: Shard) -> OpenShard:
        """See `Shards`."""
        return _OpenTable(self.tables[shard.path])

    def recipe(self) -> dict[str, Any]:
        """See `Shards`."""
        return {"format": "memory", "options": {}}

    def keep_at(self, shards: Sequence[Shard], what: str) -> str | None:  # noqa: ARG002 - the protocol's
        """See `Shards`: what is in memory is quick to look through."""
        return None


def plain_table(table: pa.Table) -> pa.Table:
    """The table with view, dictionary and encoded types turned into the ordinary ones, and in batches of at most 65,536 rows."""
    if any(is_encoded(kind) for kind in table.schema.types):
        table = pa.Table.from_batches([decoded_group(b) for b in table.to_batches() or [groups.empty_group(table.schema)]])
    for index, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            # Arrow's cast does not notice that 32-bit offsets don't suffice
            large = any(chunk.nbytes >= 2**31 for chunk in table.column(index).chunks)
            if pa.types.is_string_view(kind):
                kind = pa.large_string() if large else pa.string()
            else:
                kind = pa.large_binary() if large else pa.binary()
        if kind != field.type:
            table = table.set_column(index, field.name, table.column(index).cast(kind))
    return pa.Table.from_batches(table.to_batches(max_chunksize=_UNIT_ROWS), schema=table.schema)


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

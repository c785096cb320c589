"""Columns that are in no file but in its path: `year=2024/month=07/part.parquet`, as Hive, Spark and pyarrow lay out partitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from zephon.plugin import RecipeError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def partitions_of(path: str) -> dict[str, str | None]:
    """`{column: value}` of the directories above a file that are called `column=value`; outermost first."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name:
            plain = unquote(value)
            found[unquote(name)] = None if plain == _NULL else plain
    return found


def partition_columns(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The partition columns of each file. All files must have the same ones; values are integers where all of a column's are, else text.

    Raises:
        RecipeError: there are none, or two files have different ones.
    """
    found = [partitions_of(path) for path in paths]
    for path, one in zip(paths, found, strict=True):
        if list(one) != list(found[0]):
            raise RecipeError(
                f"hive partitions differ: {paths[0]!r} has {list(found[0]) or 'none'}, {path!r} has {list(one) or 'none'}"
            )
    if found and not found[0]:
        raise RecipeError(f"hive=True, and no directory of {paths[0]!r} is called column=value")
    names = list(found[0]) if found else []
    whole = {n for n in names if all(one[n] is None or _WHOLE.fullmatch(str(one[n])) for one in found)}
    return [{n: int(v) if n in whole and v is not None else v for n, v in one.items()} for one in found]


def partition_types(columns: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The Arrow type of each column, by name."""
    kinds = {n: {type(one[n]) for one in columns} for n in (columns[0] if columns else ())}
    return {n: "int64" if int in found and str not in found else "string" for n, found in kinds.items()}


def with_partitions(batch: pa.RecordBatch, wanted: Sequence[str], values: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the wanted partition columns, in the wanted order."""
    rows = len(batch)
    arrays = [pa.repeat(pa.scalar(values[n], schema.field(n).type), rows) if n in values else batch.column(n) for n in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(n) for n in wanted]))

"""`zephon inspect`: what a data set is, what is in it, and what a training pipeline would do with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from zephon import groups
from zephon.cli.columns import Column, recognise
from zephon.cli.image_header import read_header
from zephon.dataset import Dataset
from zephon.errors import RecipeError
from zephon.registry import available

_LOOK = 8
_WIDTH = 60


def show_dataset(uri: str, *, fmt: str | None, rows: int) -> int:
    """Print it; 0. Raises what reading the data set raises, `RecipeError` for a negative number of rows."""
    if rows < 0:
        raise RecipeError(f"--rows must be 0 or more, got {rows}")
    dataset = Dataset.from_path("data", uri, fmt)
    table, shards = dataset.units, dataset.shards
    stored = sum(shard.size for shard in shards)
    print(f"{uri}")
    print(f"  format   {dataset.fingerprint()['format']}")
    print(f"  shards   {len(shards):,}, {_size(stored)} stored")
    print(f"  rows     {table.total_rows:,}, about {_size(table.total_bytes)} decoded")
    print(f"  units    {len(table):,} read units" + ("" if dataset.splittable else ", each read whole"))
    if len(table):
        print(f"           rows  {_spread(table.rows, lambda n: f'{n:,}')}")
        print(f"           size  {_spread(table.nbytes, _size)}")
    first = _first_rows(dataset, max(rows, _LOOK))
    columns = recognise(dataset.schema, first)
    print("\ncolumns")
    _table(["column", "type", "seems to be"], [[c.name, c.type, c.note] for c in columns])
    if rows and first:
        shown = [[show_value(row.get(c.name)) for c in columns] for row in first[:rows]]
        print(f"\nfirst {len(shown)} of {table.total_rows:,} rows")
        _table([c.name for c in columns], shown)
    print("\nfor training")
    for line in _advice(columns, dataset):
        print(f"  {line}")
    return 0


def _first_rows(dataset: Dataset, count: int) -> list[dict[str, Any]]:
    """Up to `count` rows from the beginning; columns that a shard lacks are missing."""
    made: list[dict[str, Any]] = []
    for unit in range(len(dataset.units)):
        if len(made) >= count:
            break
        stop = min(int(dataset.units.rows[unit]), count - len(made))
        for group in dataset.read(unit, dataset.schema.names, 0, stop):
            made += group.to_pylist()
    return made


def _advice(columns: Sequence[Column], dataset: Dataset) -> list[str]:
    known = available("zephon.operators")

    def step(operator: str, call: str) -> str:
        return f"{call}" if operator in known else f"{call} (operator {operator!r} is not installed)"

    lines = []
    for column in columns:
        if column.role == "tokens":
            name = "" if column.name == groups.TOKENS else f" after renaming it to {groups.TOKENS!r}"
            lines.append(f"{column.name!r} holds tokens → {step('pack_flat', '.pack_flat(max_length=…)')}{name}")
        elif column.role == "chat":
            lines.append(
                f"{column.name!r} holds conversations → {step('tokenize_interleaved', f'.tokenize_chat(field={column.name!r})')}"
            )
        elif column.role in ("image", "images"):
            what = "images" if column.role == "image" else "lists of images"
            lines.append(f"{column.name!r} holds {what} → the operators of zephon_vision (probe early, decode after packing)")
        elif column.role == "text":
            lines.append(f"{column.name!r} holds text → {step('tokenize', f'.tokenize(field={column.name!r})')}")
    if not lines:
        lines.append("no text, tokens, conversations or images were recognised; .map(fn) makes what the pipeline needs")
    if len(dataset.units) and len(dataset.units) < 8:
        lines.append(
            f"only {len(dataset.units)} read units: lanes will share them; smaller row groups or shards would spread better"
        )
    return lines


def show_value(value: Any) -> str:
    """A value in at most 60 characters: text cut, bytes by their size, images by what their header says."""
    if isinstance(value, bytes):
        return f"{read_header(value) or 'bytes'}, {_size(len(value))}"
    if isinstance(value, dict) and set(value) == {"bytes", "path"}:
        if value["bytes"] is None:
            return _cut(f"path {value['path']}")
        return show_value(value["bytes"]) + (_cut(f" ({value['path']})") if value["path"] else "")
    if isinstance(value, list):
        if len(value) > 4 or any(isinstance(v, dict | list) for v in value):
            shown = ", ".join(show_value(v) for v in value[:2])
            return _cut(f"{len(value)} × [{shown}{', …' if len(value) > 2 else ''}]")
        return _cut("[" + ", ".join(show_value(v) for v in value) + "]")
    if isinstance(value, dict):
        return _cut("{" + ", ".join(f"{k}: {show_value(v)}" for k, v in value.items()) + "}")
    if value is None:
        return "null"
    return _cut(value if isinstance(value, str) else str(value))


def _cut(text: str) -> str:
    """One line of printable characters: what moves the cursor is shown as an escape."""
    short = text[: _WIDTH * 2]
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)
    return plain if len(plain) <= _WIDTH and len(text) <= len(short) else plain[: _WIDTH - 1] + "…"


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(nbytes) < 999.5 or unit == "TB":
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 9.95 else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    raise AssertionError


def _spread(values: Any, shown: Any) -> str:
    low, middle, high = int(values.min()), math.floor(float(np.median(values))), int(values.max())
    return f"{shown(low)} / {shown(middle)} / {shown(high)} (least / median / most)"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table by rich, on a terminal and where that is installed; else aligned text, a row a line."""
    try:
        from rich.table import Table
        from rich.text import Text

        from zephon.cli.terminal import Console
    except ModuleNotFoundError:
        return _plain_table(names, rows)
    console = Console(highlight=False)
    if not console.is_terminal:
        return _plain_table(names, rows)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for name in names:
        made.add_column(Text(name), overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return console.print(made)


def _plain_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[i]) for line in [names, *rows]) for i in range(len(names))]
    for line in [names, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())

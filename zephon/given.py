"""Checks of what a reader gives: what it gets wrong would lose rows, or fail later in words that don't name its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.errors import PluginError
from zephon.plugin import Units


def checked_units(units: Any) -> Units:
    """The units that a shard says it has. Raises `PluginError` unless they are two arrays of whole numbers, of one length and ≥ 0."""
    rows, nbytes = (np.asarray(getattr(units, name, None)) for name in ("rows", "nbytes"))
    whole = all(array.ndim == 1 and (array.dtype.kind in "iu" or not len(array)) for array in (rows, nbytes))
    if not whole or len(rows) != len(nbytes) or (len(rows) and min(rows.min(), nbytes.min()) < 0):
        raise PluginError(
            f"the reader's units() gave {_shown(units)}; it must give Units of two arrays int64[U], rows and nbytes, with no number below 0"
        )
    return Units(rows.astype(np.int64, copy=False), nbytes.astype(np.int64, copy=False))


def check_read(made: Sequence[Any], columns: Sequence[str] | None, schema: pa.Schema) -> None:
    """Raises `PluginError` unless these are record batches with the columns of the shard's `schema` that were asked for (None: all)."""
    wanted = schema.names if columns is None else [name for name in columns if schema.get_field_index(name) >= 0]
    for group in made:
        if not isinstance(group, pa.RecordBatch):
            raise PluginError(f"the reader's read() gave {type(group).__name__}; it must give record batches")
        missing = [name for name in wanted if group.schema.get_field_index(name) < 0]
        if missing:
            raise PluginError(
                f"the reader's read() gave no column {missing[0]!r}, which its schema has, and which was asked for"
            )


def _shown(units: Any) -> str:
    if not isinstance(units, Units):
        return type(units).__name__
    return f"rows {np.asarray(units.rows)!r:.60} and nbytes {np.asarray(units.nbytes)!r:.60}"

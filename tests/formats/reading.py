"""Reading through a reader the way the core does, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zephon.plugin import OpenShard, Reader, Store
from zephon.storage import LocalStore, expand


def open_file(reader: Reader, path: Path, *, store: Store | None = None, cache: Path | None = None) -> OpenShard:
    """One file, opened."""
    local = LocalStore(str(cache or path.parent / ".cache"))
    (shard,) = reader.shards(local, expand(local, str(path)))
    return reader.open(store or local, shard)


def read_rows(opened: OpenShard, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """All rows, unit by unit."""
    out: list[dict[str, Any]] = []
    for unit, rows in enumerate(opened.units().rows.tolist()):
        for batch in opened.read(unit, columns, 0, rows):
            batch.validate(full=True)
            out += batch.to_pylist()
    return out

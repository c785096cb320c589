"""`zephon cache`: what the shard cache holds, and how to empty it."""

from __future__ import annotations

import os

from zephon.errors import DataError
from zephon.notes import default_cache_dir
from zephon.storage.disk import ShardCache, Usage


def show_cache(root: str | None, clear: bool) -> int:
    """Print root, limit, bytes and files of the shard cache at `root` (default: the user's), emptied before if `clear`.

    Raises:
        DataError: it can't be read or emptied.
    """
    folder = os.path.abspath(os.path.expanduser(root or os.path.join(default_cache_dir(), "shards")))
    cache = ShardCache(folder, 0)
    try:
        before = cache.usage()
        after = cache.clear() if clear else before
    except OSError as error:
        raise DataError(f"the shard cache at {folder!r} can't be used: {error.strerror or error}") from error
    _print(_rows(folder, before, after, cleared=clear))
    return 0


def _rows(folder: str, before: Usage, after: Usage, *, cleared: bool) -> list[tuple[str, str]]:
    rows = [
        ("root", folder),
        ("limit", size(after.limit_bytes or before.limit_bytes) if after.limit_bytes or before.limit_bytes else "never used"),
    ]
    if cleared:
        rows.append(("removed", f"{before.files - after.files} files, {size(before.nbytes - after.nbytes)}"))
    rows += [("files", str(after.files)), ("bytes", size(after.nbytes))]
    if cleared and after.files:
        rows.append(("in use", f"{after.files} files that somebody reads now were left"))
    return rows


def size(count: int) -> str:
    """A number of bytes for people: `50.0 GB (50,000,000,000)`."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            break
        value /= 1000
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit} ({count:,})"


def _print(rows: list[tuple[str, str]]) -> None:
    try:
        from rich.table import Table

        from zephon.cli.terminal import Console
    except ImportError:
        for name, value in rows:
            print(f"{name:<8} {value}")
        return
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)

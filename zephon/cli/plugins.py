"""`zephon plugins`: every installed format, operator and image policy, and whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zephon.errors import PluginError
from zephon.registry import Group, available, load

_GROUPS: tuple[tuple[str, Group], ...] = (
    ("formats", "zephon.formats"),
    ("operators", "zephon.operators"),
    ("image policies", "zephon.image_policies"),
)


def show_plugins() -> int:
    """Print the list. A plug-in that doesn't load is a line with its error; the others are listed all the same."""
    for title, group in _GROUPS:
        rows = [row for name in available(group) for row in _rows(group, name)]
        print(title)
        for line in _aligned(rows):
            print(f"  {line}")
        if not rows:
            print("  (none)")
        print()
    return 0


def _rows(group: Group, name: str) -> list[tuple[str, ...]]:
    """One line per package that claims the name."""
    try:
        target = load(group, name)
        what = _what(group, target)
    except PluginError as error:
        what = "BROKEN: " + str(error).replace("\n  →", " →")
    return [(name, f"{c.distribution} {c.version}", c.target, what) for c in available(group)[name]]


def _what(group: Group, target: Any) -> str:
    if group == "zephon.formats":
        return ", ".join(target.suffixes) or "-"
    if group == "zephon.operators":
        return "stateful" if getattr(target, "stateful", False) else "stateless"
    return ""


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

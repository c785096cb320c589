"""Which split of a data set a file belongs to, by the words that data sets are published with."""

from __future__ import annotations

import re
from collections.abc import Iterable

KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Split → the names that it goes by, as the library `datasets` knows them."""

_SPLIT_OF = {word: split for split, words in KEYWORDS.items() for word in words}
_FIRST_WORD = re.compile(r"([a-z]+)(?:[-._ 0-9]|$)")


def split_of(path: str) -> str | None:
    """The split that a relative path names: by a directory of exactly that name, or by the first word of the file's name
    (`train-00000-of-00002.parquet`, `test.jsonl`; `trainer.csv` names none)."""
    *folders, name = path.lower().split("/")
    for folder in folders:
        if folder in _SPLIT_OF:
            return _SPLIT_OF[folder]
    first = _FIRST_WORD.match(name)
    return _SPLIT_OF.get(first.group(1)) if first else None


def count_splits(paths: Iterable[str]) -> dict[str | None, list[str]]:
    """Paths by split, None for those that name none; relative to the directory that all of them are in."""
    parts = [path.split("/") for path in paths]
    if not parts:
        return {}
    low, high = min(p[:-1] for p in parts), max(p[:-1] for p in parts)
    common = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    found: dict[str | None, list[str]] = {}
    for part in parts:
        found.setdefault(split_of("/".join(part[common:])), []).append("/".join(part))
    return found

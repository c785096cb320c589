"""From an address to the files that it stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from zephon.errors import RecipeError
from zephon.plugin import FileInfo
from zephon.storage.listed import ListedStore
from zephon.storage.names import INDEX_SUFFIX

_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")
_LOOK_UPS_AT_ONCE = 16


def expand(store: ListedStore, path: str) -> list[FileInfo]:
    """The files that an address stands for: a file, a directory (recursive), or a pattern.

    A name that exists is taken literally, also with `*`, `?`, `[` or `{` in it. Else `{a,b}` and `{00..12}` are written out (each
    must match) and globs matched. Names that begin with `.` or `_` are hidden, unless the address itself spells them out; index
    files (`*.zidx`) never count. Sorted by path, each file once.

    Raises:
        RecipeError: nothing there, no match, or only hidden files.
        DataError: the store can't be asked.
    """
    here = store.look(path)
    if here is not None:
        parts = [_data_files(path, here)]
    elif (written := _braces(path)) == [path]:
        parts = [_matched(store, path)]
    elif store.local(path) is None:
        with ThreadPoolExecutor(min(_LOOK_UPS_AT_ONCE, len(written))) as pool:
            parts = list(pool.map(lambda one: _expand_one(store, one), written))
    else:
        parts = [_expand_one(store, one) for one in written]
    found = {info.path: info for part in parts for info in part}
    return [found[name] for name in sorted(found)]


def _expand_one(store: ListedStore, path: str) -> Sequence[FileInfo]:
    here = store.look(path)
    return _matched(store, path) if here is None else _data_files(path, here)


def _matched(store: ListedStore, path: str) -> Sequence[FileInfo]:
    if not _MAGIC.search(path):
        raise RecipeError(f"{path!r} does not exist")
    matches = store.match(path, lambda name: not _glob_hides(path, name))
    if not matches:
        raise RecipeError(f"no file matches {path!r}")
    return _data_files(path, [info for files in matches for info in files])


def _data_files(path: str, files: Sequence[FileInfo]) -> Sequence[FileInfo]:
    found = [info for info in files if not info.path.endswith(INDEX_SUFFIX)]
    if not found:
        bare = "; a Lance data set without rows has none" if path.rstrip("/").endswith(".lance") else ""
        raise RecipeError(f"there is no data file at {path!r}{bare}", hint="names that begin with '.' or '_' are left out")
    return found


def _glob_hides(pattern: str, match: str) -> bool:
    """Whether a match is hidden: it has a hidden part where the pattern did not spell that out."""
    fixed = pattern[: _MAGIC.search(pattern).start()] if _MAGIC.search(pattern) else pattern  # type: ignore[union-attr]
    root = fixed.rfind("/") + 1
    spelled = {part[0] for part in pattern[root:].split("/") if part[:1] in (".", "_")}
    return any(part[:1] in (".", "_") and part[0] not in spelled for part in match[root:].split("/"))


def _braces(path: str) -> list[str]:
    """`a{1,2}{00..02}` written out; braces without a comma or a range mean themselves."""
    for group in _BRACES.finditer(path):
        inside = group.group(1)
        numbers = _RANGE.match(inside)
        if numbers:
            low, high = numbers.groups()
            width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
            options = [str(n).zfill(width) for n in range(int(low), int(high) + 1)]
        elif "," in inside:
            options = inside.split(",")
        else:
            continue
        return [rest for option in options for rest in _braces(path[: group.start()] + option + path[group.end() :])]
    return [path]

"""Which shards a Lance data set has: one for each fragment of the version that is read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from zephon.plugin import DataError, FileInfo, RecipeError, Shard, Store, keys

_log = logging.getLogger("zephon.formats.lance")

DATA = "/data/"


def roots_of(files: Sequence[FileInfo], suffixes: tuple[str, ...]) -> dict[str, set[str]]:
    """Data set roots, sorted, each with the names below it of the data files that were given.

    Raises:
        DataError: there is none: a data file lies in a directory `data` below its data set's root.
    """
    roots: dict[str, set[str]] = {}
    for file in files:
        root, found, name = file.path.rpartition(DATA)
        if found and "/" not in name and name.endswith(suffixes):
            roots.setdefault(root, set()).add(f"data/{name}")
    if not roots:
        example = f", such as {files[0].path!r}" if files else ""
        raise DataError(
            f"no Lance data set is among the {len(files)} files{example}",
            hint="give the directory that has `data` and `_versions` in it",
        )
    return dict(sorted(roots.items()))


def shards_of(
    fragments: Sequence[tuple[Any, int]], root: str, version: int, given: AbstractSet[str], store: Store
) -> Iterator[Shard]:
    """A shard for each `(fragment, rows)`. Its path is the fragment's first data file, and its `etag` depends on the names of its data
    and deletion files alone, so a fragment that a newer version kept is the same shard still.

    Raises:
        DataError: a data file is missing, or has another size than the manifest says.
        RecipeError: not all data files were given.
    """
    here = {file.path[len(root) + 1 :]: file.size for file in store.files(f"{root}/data")}
    blobs: dict[str, list[tuple[str, int]]] = {}
    for name, size in here.items():
        if name.endswith(".blob"):
            blobs.setdefault(f"{name.rpartition('/')[0]}.lance", []).append((name, size))
    used = set()
    for fragment, rows in fragments:
        meta = fragment.metadata.to_json()
        # files with a base are another data set's, which this one is a shallow copy of
        elsewhere = [f for f in meta["files"] if f.get("base_id") is not None]
        mine = [(f"data/{f['path']}", f.get("file_size_bytes")) for f in meta["files"] if f.get("base_id") is None]
        used |= {name for name, _ in mine}
        files = [(name, _size(name, stated, here, given)) for name, stated in mine]
        files += [blob for name, _ in mine for blob in blobs.get(name, ())]
        parts: list[int | str] = [x for f in meta["files"] for x in (f["path"], *f["fields"])]
        yield Shard(
            path=f"{root}/data/{meta['files'][0]['path']}",
            size=sum(size for _, size in files) + sum(int(f.get("file_size_bytes") or 0) for f in elsewhere),
            etag=f"{keys.key(*parts, fragment.deletion_file() or '', rows):016x}",
            extra={
                "root": root,
                "version": version,
                "fragment": int(fragment.fragment_id),
                "rows": rows,
                "files": files,
                "elsewhere": len(elsewhere),
            },
        )
    if given - used:
        _log.info("%s: %d data files are not of version %d and left aside", root, len(given - used), version)


def _size(name: str, stated: int | None, here: Mapping[str, int], given: AbstractSet[str]) -> int:
    found = here.get(name)
    if found is None:
        raise DataError(f"the data file {name!r} is missing")
    if name not in given:
        raise RecipeError(
            f"a Lance data set can only be read as a whole, and its data file {name!r} was left out",
            hint="give the data set's directory, not files in it",
        )
    if stated and found != stated:
        raise DataError(f"the data file {name!r} has {found} bytes; its manifest says {stated}")
    return found

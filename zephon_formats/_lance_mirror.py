"""A folder that looks to Lance like a data set that is elsewhere.

Lance opens storage by itself, from an address, with credentials of its own; a reader of ours is given a store instead. So for a store
without local paths, what Lance is to see of a data set (one manifest, and of a fragment its deletions and data files) is fetched through
`Store.on_disk` (which is the shard cache, where there is one) and linked into a temporary folder, each file when it is first needed.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import weakref
from contextlib import ExitStack

from zephon.plugin import DataError, Store

_MANIFEST = re.compile(r"(\d+)\.manifest")
_NEWEST = 2**64 - 1


class Mirror:
    """One version of the data set at `root`, as a local folder; gone after `close`, or with the object.

    Attributes:
        folder: the folder's path.
        version: the version that it shows, as a number.

    Raises:
        DataError: there is no such version, or a file of it can't be had.
    """

    def __init__(self, store: Store, root: str, version: int | str | None) -> None:
        self._store, self._root = store, root
        self._linked: set[str] = set()
        self._guard = threading.Lock()
        self._held = ExitStack()
        self.close = weakref.finalize(self, self._held.close)
        path, self.version = manifest_of(store, root, version)
        self.folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="zephon-lance-"))
        self.link(path)

    def link(self, name: str, size: int | None = None) -> None:
        """Make a file of the data set appear (once). Raises `DataError` where it is missing or not of this size."""
        with self._guard:
            if name in self._linked:
                return
            if not self.close.alive:
                raise DataError("the shard is closed")
            copy = self._held.enter_context(self._store.on_disk(f"{self._root}/{name}"))
            found = os.stat(copy).st_size
            if size is not None and found != size:
                raise DataError(
                    f"{name!r} has {found} bytes; it had {size} when it was listed", hint="data must not change during a run"
                )
            place = os.path.join(self.folder, *name.split("/"))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(copy, place)
            self._linked.add(name)


def manifest_of(store: Store, root: str, version: int | str | None) -> tuple[str, int]:
    """The name of the manifest below `root`, and the version's number; None: of the latest one, text: of a tag.

    The name is the number, or, since Lance 0.16, what it lacks to 2**64 - 1, in 20 digits.
    """
    if isinstance(version, str):
        version = _tagged(store, root, version)
    versions: dict[int, str] = {}
    for file in store.files(f"{root}/_versions"):
        name = file.path.rpartition("/")[2]
        match = _MANIFEST.fullmatch(name)
        if match:
            digits = match.group(1)
            versions[_NEWEST - int(digits) if len(digits) == 20 else int(digits)] = name
    if not versions:
        raise DataError("there is no Lance data set: no manifest in its directory '_versions'")
    number = max(versions) if version is None else version
    if number not in versions:
        raise DataError(f"the Lance data set has no version {number}; it has {_listed(sorted(versions))}")
    return f"_versions/{versions[number]}", number


def _tagged(store: Store, root: str, tag: str) -> int:
    try:
        return int(json.loads(store.read(f"{root}/_refs/tags/{tag}.json"))["version"])
    except (DataError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the Lance data set has no tag {tag!r}: {error}") from error


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"

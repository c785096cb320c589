"""What is kept on disk from process to process: what follows from the content of a file, and takes long to find out."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import xxhash

from zephon.atomic import write_whole


def default_cache_dir() -> str:
    """Where this platform's user keeps caches, with `zephon` below it; the temporary directory where there is no home."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base):  # no home directory: `~` stays as it is
        return os.path.join(tempfile.gettempdir(), f"zephon-{getattr(os, 'getuid', lambda: 0)()}")
    return os.path.join(base, "zephon")


class Notes:
    """What is known of one thing, as plain values by name. Where the cache directory can't be used, nothing is known.

    Args:
        kind: what it is a thing of; the file's name begins so.
        content: what all facts follow from, versions of libraries included; bytes count as the text that they are in UTF-8.
    """

    def __init__(self, kind: str, *content: str | bytes) -> None:
        digest = xxhash.xxh3_128()
        for part in content:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        self._path = _path(f"{kind}-{digest.hexdigest()}.json")
        self._known = self._load()

    def of(self, name: str, make: Callable[[], Any]) -> Any:
        """The fact of this name: as noted, else made now and noted. It is never None."""
        found = self.get(name)
        if found is None:
            found = make()
            self.put(name, found)
        return found

    def get(self, name: str) -> Any:
        """The fact of this name; None: not noted."""
        return self._known.get(name)

    def put(self, name: str, value: Any) -> None:
        """Note a fact, in place of an older one."""
        self._known = {**self._load(), **self._known, name: value}
        _write(self._path, json.dumps(self._known).encode())

    def _load(self) -> dict[str, Any]:
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def kept_text(kind: str, content: str, make: Callable[[], str]) -> str:
    """A long text that follows from something else: as it was kept, else made now and kept. A file that was cut or changed counts as none.

    Args:
        kind: what it is; the file's name begins so.
        content: hex digits of what the text follows from, and of how it is made.
        make: makes the text. What it raises is raised.
    """
    path = _path(f"{kind}-{content}.txt")
    with contextlib.suppress(OSError, ValueError):
        with open(path, "rb") as file:
            data = memoryview(file.read())
        if xxhash.xxh3_128_digest(data[_DIGEST:]) == data[:_DIGEST]:
            return str(data[_DIGEST:], "utf-8", "surrogatepass")
    text = make()
    made = text.encode("utf-8", "surrogatepass")
    _write(path, xxhash.xxh3_128_digest(made) + made)
    return text


_DIGEST = 16


def _path(name: str) -> str:
    return os.path.join(default_cache_dir(), "notes", name)


def _write(path: str, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a note is never needed
        write_whole(path, [data])

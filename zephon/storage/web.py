"""Plain web servers: what a directory is there, and what its page links to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from zephon.errors import DataError
from zephon.plugin import FileInfo
from zephon.storage.names import is_hidden
from zephon.storage.remote import FsspecStore

_MOST_FOLDERS = 10_000


class HttpStore(FsspecStore):
    """Files of `http(s)://` URLs. An address whose answer ends with `/` is a directory; its files are the links below it."""

    def _ask_info(self, fs: Any, inner: str) -> Mapping[str, Any]:
        """As fsspec, which calls everything a file; servers redirect from `…/folder` to `…/folder/`."""
        found = super()._ask_info(fs, inner)
        folder = urlsplit(str(found.get("url", inner))).path.endswith("/")
        return {**found, "type": "directory"} if folder else found

    def _linked(self, folder: str) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._listed(folder, lambda fs: fs.ls(folder, detail=True))
        return found

    def _below(self, path: str) -> Sequence[FileInfo]:
        root = path.rstrip("/") + "/"
        folders, names = [root], set[str]()
        for folder in folders:
            if len(folders) > _MOST_FOLDERS:
                raise DataError(f"{path!r} links to more than {_MOST_FOLDERS} folders")
            for info in self._linked(folder):
                name = str(info["name"])
                if not name.startswith(folder) or name == folder or "?" in name or is_hidden(name[len(root) :].rstrip("/")):
                    continue  # a link to elsewhere, or to this page in another order
                if name.endswith("/"):
                    folders += [name] if name not in folders else []
                else:
                    names.add(name)
        return self._infos([{"name": name, "size": None, "type": "file"} for name in names])

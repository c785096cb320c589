"""Where files are: local paths by plain system calls, URLs through fsspec, which is imported for them only.

A store is what a reader is given (`zephon.plugin.Store`). `open_store` chooses one by the look of the address: what has `://` or
`::` in it is a URL; everything else is a local path and is never parsed, so `%`, `#`, `?` and spaces in names mean themselves.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from zephon.errors import DataError, PluginError, RecipeError, Where
from zephon.plugin import FileInfo, Store

__all__ = ["FsspecStore", "ListedStore", "LocalStore", "default_cache_dir", "expand", "open_store"]

INDEX_SUFFIX = ".zidx"
"""Files that readers keep beside the data (indices, unpacked copies) end so, and are never data themselves."""

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(://|::)")
_LOCAL_URL = re.compile(r"^(file|local)://")
_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")


class ListedStore(Store, Protocol):
    """A store that `expand` can look things up in."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of exactly that name. Raises `RecipeError` where the name can't be one."""
        ...

    def glob(self, pattern: str) -> list[str]:
        """The files and directories that match, sorted; `**` matches any depth."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether it is a file (or a link to one)."""
        ...


class LocalStore:
    """Files on local disk. Paths are absolute; `etag` is empty, since a local file has no version that survives copying."""

    def __init__(self, cache_dir: str | None = None) -> None:
        self.cache_dir = cache_dir

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            raise RecipeError(f"{path!r} can't be looked up: {error}") from error
        return True

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern, recursive=True))

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def files(self, path: str) -> Sequence[FileInfo]:
        """See `Store.files`. Links to directories are followed; one that leads back into itself is read once.

        Raises:
            DataError: a directory can't be listed, or a link leads nowhere.
        """
        try:
            found = os.stat(path)
            if not stat.S_ISDIR(found.st_mode):
                return [FileInfo(path, found.st_size)]
            return sorted(_walk(path, {(found.st_dev, found.st_ino)}), key=lambda f: f.path)
        except OSError as error:
            raise DataError(f"{error.filename or path!r} can't be listed: {error.strerror}") from error

    def open(self, path: str) -> BinaryIO:
        with _naming(path):
            return open(path, "rb")

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        with _naming(path), open(path, "rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size if stop is None else stop
            return _read_fully(file.fileno(), start, end)

    def local(self, path: str) -> str | None:
        return path

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        return [path + suffix, _cached_name(self.cache_dir, path, suffix)]

    def __repr__(self) -> str:
        return "LocalStore()"


class FsspecStore:
    """Files of one fsspec file system. Paths are full URLs, so that they name a file wherever they appear."""

    def __init__(self, fs: Any, cache_dir: str | None = None) -> None:
        self.fs = fs
        self.cache_dir = cache_dir

    def exists(self, path: str) -> bool:
        with _naming(path):
            return bool(self.fs.exists(self._inner(path)))

    def glob(self, pattern: str) -> list[str]:
        with _naming(pattern):
            return sorted(self._url(p) for p in self.fs.glob(self._inner(pattern)))

    def is_file(self, path: str) -> bool:
        with _naming(path):
            return bool(self.fs.isfile(self._inner(path)))

    def files(self, path: str) -> Sequence[FileInfo]:
        """See `Store.files`. Raises `DataError` where it can't be listed."""
        root = self._inner(path)
        with _naming(path):
            if self.fs.isfile(root):
                return [self._info(self.fs.info(root))]
            found = self.fs.find(root, detail=True)
        below = len(root.rstrip("/"))
        infos = [self._info(info) for name, info in found.items() if not _hidden(name[below:])]
        return sorted(infos, key=lambda f: f.path)

    def open(self, path: str) -> BinaryIO:
        with _naming(path):
            return self.fs.open(self._inner(path), "rb")  # type: ignore[no-any-return]

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if stop is not None and stop <= start:
            return b""
        with _naming(path):
            return bytes(self.fs.cat_file(self._inner(path), start=start, end=stop))

    def local(self, path: str) -> str | None:  # noqa: ARG002 - the protocol's
        return None

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        return [_cached_name(self.cache_dir, path, suffix)]

    def _inner(self, path: str) -> str:
        return str(self.fs._strip_protocol(path))

    def _url(self, inner: str) -> str:
        return str(self.fs.unstrip_protocol(inner))

    def _info(self, info: Mapping[str, Any]) -> FileInfo:
        version = info.get("ETag") or info.get("etag") or info.get("version_id") or info.get("blob_id") or ""
        return FileInfo(self._url(info["name"]), int(info.get("size") or 0), str(version).strip('"'))

    def __repr__(self) -> str:
        return f"FsspecStore({self.fs.protocol!r})"


def open_store(
    uri: str, storage_options: Mapping[str, Any] | None = None, cache_dir: str | None = None
) -> tuple[ListedStore, str]:
    """The store that an address belongs to, and the address as that store spells it (an absolute path, or a full URL).

    Raises:
        RecipeError: an empty address, a protocol that fsspec doesn't know, or options that don't fit it.
        PluginError: the package for that protocol isn't installed.
    """
    if not uri:
        raise RecipeError("a path is empty")
    if _LOCAL_URL.match(uri):
        return LocalStore(cache_dir), _absolute(_LOCAL_URL.sub("", uri))
    if not _URL.match(uri) or ("://" not in uri and os.path.lexists(uri)):
        return LocalStore(cache_dir), _absolute(uri)
    from fsspec.core import url_to_fs  # noqa: PLC0415 - 140 ms that local paths need not pay

    try:
        fs, inner = url_to_fs(uri, **(storage_options or {}))
    except ImportError as error:
        raise PluginError(f"{uri!r} can't be opened: {error}", hint="install the package that it names") from error
    except (ValueError, TypeError) as error:
        raise RecipeError(f"{uri!r} can't be opened: {error}", hint="check the protocol and storage_options") from error
    return FsspecStore(fs, cache_dir), str(fs.unstrip_protocol(inner))


def expand(store: ListedStore, path: str) -> list[FileInfo]:
    """The files that an address stands for: a file, a directory (recursive), or a pattern.

    A name that exists is taken literally, also with `*`, `?`, `[` or `{` in it. Else `{a,b}` and `{00..12}` are written out (each
    must match) and globs matched. Names that begin with `.` or `_` are hidden, unless the address itself spells them out; index
    files (`*.zidx`) never count. Sorted by path, each file once.

    Raises:
        RecipeError: nothing there, no match, or only hidden files.
    """
    found: dict[str, FileInfo] = {}
    for one in [path] if store.exists(path) else _braces(path):
        for info in _expand_one(store, one):
            found[info.path] = info
    return [found[name] for name in sorted(found)]


def _expand_one(store: ListedStore, path: str) -> Iterable[FileInfo]:
    if store.exists(path):
        matches = [path]
    elif _MAGIC.search(path):
        matches = [m for m in store.glob(path) if not _glob_hides(path, m)]
        if not matches:
            raise RecipeError(f"no file matches {path!r}")
    else:
        raise RecipeError(f"{path!r} does not exist")
    files = [info for match in matches for info in store.files(match) if not info.path.endswith(INDEX_SUFFIX)]
    if not files:
        raise RecipeError(f"there is no data file at {path!r}", hint="names that begin with '.' or '_' are left out")
    return files


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


def _walk(directory: str, seen: set[tuple[int, int]]) -> Iterator[FileInfo]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if _hidden(entry.name):
                continue
            found = entry.stat()  # follows links; one that leads nowhere raises and is named
            if not stat.S_ISDIR(found.st_mode):
                yield FileInfo(entry.path, found.st_size)
            elif (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield from _walk(entry.path, seen)


def _hidden(path: str) -> bool:
    return any(part[:1] in (".", "_") for part in path.split("/")) or path.endswith(INDEX_SUFFIX)


def _absolute(path: str) -> str:
    if path[0] == "~" and not os.path.lexists(path):
        path = os.path.expanduser(path)
    if ".." in path.split(os.sep):
        # `link/..` is the parent of what the link leads to, which only the system knows
        return os.path.join(os.getcwd(), path).rstrip(os.sep) or os.sep
    return os.path.abspath(path)


def _read_fully(fd: int, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of an open file; one system call may give less than asked (2 GiB at most)."""
    first = os.pread(fd, max(0, stop - start), start)
    if len(first) >= stop - start or not first:
        return first
    parts, at_byte = [first], start + len(first)
    while at_byte < stop:
        part = os.pread(fd, stop - at_byte, at_byte)
        if not part:
            break
        parts.append(part)
        at_byte += len(part)
    return b"".join(parts)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """What the system or fsspec raises about `path` becomes a `DataError` that names it."""
    try:
        yield
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"can't be read: {error.strerror or error}"
        raise DataError(f"{path!r} {why}", where=Where(shard=path)) from error


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


def _cached_name(cache_dir: str | None, path: str, suffix: str) -> str:
    """A file in the cache directory, keyed by the whole path: `x/0.jsonl` and `y/0.jsonl` never meet."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:60]
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return os.path.join(cache_dir or default_cache_dir(), f"{readable}-{digest}{suffix}")

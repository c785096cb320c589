"""Files on local disk, by plain system calls."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from zephon.errors import DataError, RecipeError, Where
from zephon.plugin import FileInfo
from zephon.storage.names import cached_name, is_hidden


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
        """Sorted. What `**` finds once more behind a link that leads back is left out, as in `files`."""
        found = sorted(glob.glob(pattern, recursive=True))
        if "**" not in pattern:
            return found
        known: dict[str, tuple[int, int]] = {}
        return [path for path in found if not _came_back(path, known)]

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def look(self, path: str) -> Sequence[FileInfo] | None:
        return self.files(path) if self.exists(path) else None

    def match(self, pattern: str, keep: Callable[[str], bool]) -> Sequence[Sequence[FileInfo]]:
        return [self.files(path) for path in self.glob(pattern) if keep(path)]

    def files(self, path: str) -> Sequence[FileInfo]:
        """See `Store.files`. Links to directories are followed; one that leads back into itself is read once.

        Raises:
            DataError: a directory can't be listed, a link leads nowhere, or `path` is a pipe or a device, which can't be read twice.
        """
        try:
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode):
                return [FileInfo(path, found.st_size)]
            if not stat.S_ISDIR(found.st_mode):
                raise DataError(
                    f"{path!r} is a pipe or a device, and data is read more than once", hint="write it to a file first"
                )
            return sorted(_walk(path, {(found.st_dev, found.st_ino)}), key=lambda f: f.path)
        except OSError as error:
            raise DataError(f"{error.filename or path!r} can't be listed: {error.strerror}") from error

    def open(self, path: str) -> BinaryIO:
        with _naming(path):
            return open(path, "rb")

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        with _naming(path), open(path, "rb", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size if stop is None else stop
            return read_fully(file.fileno(), start, end)

    def local(self, path: str) -> str | None:
        return path

    @contextlib.contextmanager
    def on_disk(self, path: str) -> Iterator[str]:
        with _naming(path):
            os.stat(path)
        yield path

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        return [path + suffix, cached_name(self.cache_dir, path, suffix)]

    def check_limits(self, files: Iterable[FileInfo]) -> None:
        """Local files are read where they are."""

    def prefetch(self, paths: Iterable[str]) -> None:
        """Local files are where they should be."""

    def cancel_prefetch(self) -> None:
        """Nothing runs."""

    def __repr__(self) -> str:
        return "LocalStore()"


def absolute(path: str) -> str:
    """The absolute form of a local path; `~` is the home directory unless a file is called so."""
    if path[0] == "~" and not os.path.lexists(path):
        path = os.path.expanduser(path)
    if ".." in path.split(os.sep):
        # `link/..` is the parent of what the link leads to, which only the system knows
        return os.path.join(os.getcwd(), path).rstrip(os.sep) or os.sep
    return os.path.abspath(path)


def look_at(path: str) -> tuple[int, int, int, int]:
    """What tells one version of a local file from another, for `is_another`. Raises `DataError` where it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        with _naming(path):
            raise
    return found.st_size, found.st_mtime_ns, found.st_ino % 2**63, found.st_ctime_ns  # numbers that int64 holds


def is_another(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Whether a file was written to or replaced between two looks: another size or time; or, where somebody kept these, another inode
    with another time of its own. Not the inode alone: file systems that stand for object stores (FUSE) give it anew."""
    return before[:2] != now[:2] or (before[2] != now[2] and before[3] != now[3])


def read_fully(fd: int, start: int, stop: int) -> bytes:
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


def _walk(directory: str, seen: set[tuple[int, int]]) -> Iterator[FileInfo]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            found = entry.stat()  # follows links; one that leads nowhere raises and is named
            if stat.S_ISREG(found.st_mode):
                yield FileInfo(entry.path, found.st_size)
            elif stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield from _walk(entry.path, seen)


def _came_back(path: str, known: dict[str, tuple[int, int]]) -> bool:
    """Whether a path leads twice through one directory; `known`: device and inode of those that were looked at."""
    passed: set[tuple[int, int]] = set()
    above = os.path.dirname(path)
    while True:
        if above not in known:
            found = os.stat(above or os.curdir)
            known[above] = found.st_dev, found.st_ino
        if known[above] in passed:
            return True
        passed.add(known[above])
        higher = os.path.dirname(above)
        if higher == above:
            return False
        above = higher


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """What the system raises about `path` becomes a `DataError` that names it."""
    try:
        yield
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"can't be read: {error.strerror or error}"
        raise DataError(f"{path!r} {why}", where=Where(shard=path)) from error

"""Unpacked copies of packed files, and the lock that lets one process at a time make one (or an index).

A copy lies in the cache directory, beside the data where that can't be written, or in an unnamed temporary file where neither can. Its
name holds the stamp of the packed file, so a copy of an earlier version is never taken for the present one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence

from zephon.atomic import hidden_beside
from zephon.plugin import DataError
from zephon_formats._bytes import LocalFile, open_fd


class CopyWriter:
    """Writes the unpacked text to the first place that takes it; its name appears when it is complete."""

    def __init__(self, places: Sequence[str], path: str) -> None:
        self._path = path
        self._place, self._temporary, self._fd = "", "", -1
        for place in places:
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                temporary = hidden_beside(place)
                self._fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
                self._place, self._temporary = place, temporary
                return
        file = tempfile.TemporaryFile(prefix="zephon-")  # noqa: SIM115 - only its descriptor lives on
        self._fd = os.dup(file.fileno())
        file.close()

    def write(self, block: bytes) -> None:
        """Append. Raises `DataError` where the disk is full."""
        view = memoryview(block)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DataError(
                f"no space left for the unpacked text of {self._path!r} in {os.path.dirname(self._place) or tempfile.gettempdir()!r}",
                hint="give cache_dir=… on a disk with more space, or unpack the data",
            ) from error

    def finish(self) -> LocalFile:
        """Put it in its place, and open it."""
        if self._place:
            os.fsync(self._fd)
            os.replace(self._temporary, self._place)
            _remove_older(self._place)
        return LocalFile(self._fd)

    def discard(self) -> None:
        """Remove what was written."""
        os.close(self._fd)
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)


def unpacked_copy(copies: Sequence[str], size: int) -> LocalFile | None:
    """The first of these unpacked copies that is there and has so many bytes."""
    for place in copies:
        fd = open_fd(place)
        if fd is not None:
            file = LocalFile(fd)
            if file.size == size:
                return file
            file.close()
    return None


def _remove_older(place: str) -> None:
    """Delete copies of earlier versions of the same file; who still reads one has it open."""
    directory, name = os.path.split(place)
    version = re.compile(r"\.[0-9a-f]{16}\.text\.zidx$")
    stem = version.sub("", name)
    with contextlib.suppress(OSError):
        for other in os.listdir(directory):
            if other != name and version.search(other) and version.sub("", other) == stem:
                os.unlink(os.path.join(directory, other))


@contextlib.contextmanager
def exclusive(places: Sequence[str]) -> Iterator[None]:
    """Let one process at a time do what is inside, where the system has file locks; the others wait, then find its work.

    The lock is advisory and only saves work: nothing is wrong when two get in. The system frees it when its owner dies.
    """
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError:
        yield
        return
    lock, fd = "", -1
    for place in places:
        directory, name = os.path.split(place)
        lock = os.path.join(
            directory, f".{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()}.lock.zidx"
        )
        with contextlib.suppress(OSError):
            os.makedirs(directory, exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
            break
    if fd < 0:
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
        os.close(fd)

"""Groups that wait for long, in a file without a name instead of in memory: the images of a shuffle's sequences.

The file is read and written by calls, never mapped: what the kernel keeps of it is page cache, which it can write out and take back, and
no memory of this process.
"""

from __future__ import annotations

import errno
import heapq
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from zephon import groups
from zephon.errors import RecipeError, RunnerError

log = logging.getLogger("zephon.engine")

_PAGE = 64 << 10
"""The file is given out in pages of so many bytes, wherever they are free: no holes that are too small for what comes next."""
_LEAST = 32 << 10
"""Smaller groups stay in memory."""


class Parked:
    """A group in the file. Its pages are given back when nobody holds it any more."""

    __slots__ = ("_pages", "_schema", "_size", "_spill")

    nbytes = 1 << 10
    """About what it takes in memory."""

    def __init__(self, spill: Spill, pages: list[int], size: int, schema: pa.Schema) -> None:
        self._spill, self._pages, self._size, self._schema = spill, pages, size, schema

    def read(self) -> pa.RecordBatch:
        """The group, in memory of its own. Any thread may call it.

        Raises:
            RunnerError: it can't be read.
        """
        buffer: Any = pa.allocate_buffer(self._size)
        self._spill.read(self._pages, memoryview(buffer).cast("B"))
        return pa.ipc.read_record_batch(buffer, self._schema)

    def __del__(self) -> None:
        self._spill.give_back(self._pages)


Source = pa.RecordBatch | Parked
"""A group that decision rows draw on, wherever it is."""


def in_memory_of_its_own(group: pa.RecordBatch) -> Source:
    """A copy, for what shows little of much."""
    return groups.copied([group])


def in_memory(sources: Sequence[Source]) -> list[pa.RecordBatch]:
    """The groups, read where they are parked."""
    return [source.read() if isinstance(source, Parked) else source for source in sources]


def held_bytes(source: Source) -> int:
    """Bytes of memory that a source takes."""
    return source.nbytes if isinstance(source, Parked) else groups.nbytes(source)


class Spill:
    """The file of one run.

    Args:
        folder: on a disk. (In a file system that is memory, nothing is gained.) None: there is no file, and what is parked is copied.

    Raises:
        RecipeError: no file can be made there.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._file: Any = None
        try:
            if folder is not None:
                self._file = tempfile.TemporaryFile(dir=folder, prefix="zephon-spill-", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise RecipeError(
                f"spill_dir {folder!r} can't be used: {error.strerror}", hint="name a folder that exists and can be written to"
            ) from error
        self._guard = threading.RLock()  # a collected `Parked` gives its pages back, perhaps while this thread takes some
        self._free: list[int] = []
        self._pages = 0
        self._refused = False
        self.nbytes = self.peak_bytes = 0
        """Bytes of the file that are in use; the most that were."""

    def park(self, group: pa.RecordBatch) -> Source:
        """The group in the file. In memory of its own instead where it is small, or where the disk has no room for it, which is logged."""
        if self._file is None or groups.nbytes(group) < _LEAST:
            return in_memory_of_its_own(group)
        data: Any = group.serialize()
        pages = self._take(-(-data.size // _PAGE))
        parked = Parked(self, pages, data.size, group.schema)
        try:
            self._write(pages, memoryview(data).cast("B"))
        except OSError as error:
            if not self._refused:
                self._refused = True
                log.warning("spill_dir %r takes no more (%s): what it can't take waits in memory", self._folder, error.strerror)
            return in_memory_of_its_own(group)
        return parked

    def read(self, pages: list[int], into: memoryview) -> None:
        """Fill `into` with what these pages hold. Raises `RunnerError`."""
        try:
            for offset, part in _parts(pages, into):
                while len(part):
                    done = os.preadv(self._file.fileno(), [part], offset)
                    if not done:
                        raise OSError(errno.EIO, "the file ends too early")
                    part, offset = part[done:], offset + done
        except (OSError, ValueError) as error:
            raise RunnerError(f"what was spilled to {self._folder!r} can't be read again: {error}") from error

    def give_back(self, pages: list[int]) -> None:
        """These pages are free. Where all are, the file is empty again."""
        with self._guard:
            for page in pages:
                heapq.heappush(self._free, page)
            self.nbytes -= len(pages) * _PAGE
            if not self.nbytes and not self._file.closed:
                self._free, self._pages = [], 0
                self._file.truncate(0)

    def close(self) -> None:
        """Give the file back. Idempotent; a run that fails while it is made leaves it to the collection of garbage."""
        if self._file is not None:
            self._file.close()

    __del__ = close

    def _take(self, count: int) -> list[int]:
        """The first free pages, ascending: mostly neighbours."""
        with self._guard:
            pages = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
            more = count - len(pages)
            pages += range(self._pages, self._pages + more)
            self._pages += more
            self.nbytes += count * _PAGE
            self.peak_bytes = max(self.peak_bytes, self.nbytes)
            return pages

    def _write(self, pages: list[int], data: memoryview) -> None:
        for offset, part in _parts(pages, data):
            while len(part):
                done = os.pwrite(self._file.fileno(), part, offset)
                part, offset = part[done:], offset + done


def _parts(pages: Sequence[int], memory: memoryview) -> Iterator[tuple[int, memoryview]]:
    """`(place in the file, part of the memory)` for each run of pages that follow one another."""
    begin = 0
    for number, page in enumerate(pages, 1):
        if number == len(pages) or pages[number] != page + 1:
            part = memory[begin * _PAGE : number * _PAGE]
            yield pages[begin] * _PAGE, part
            begin = number

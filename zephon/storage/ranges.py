"""A remote file as a Python file object that reads by ranges."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import BinaryIO

from zephon.errors import DataError

_FIRST_AHEAD = 64 << 10
_MOST_AHEAD = 8 << 20


def open_ranges(name: str, size: int, read: Callable[[int, int], bytes]) -> BinaryIO:
    """A seekable file of `size` bytes over `read(start, stop)`; each call is whole in itself when several threads use it."""
    return _Ranges(name, size, read)  # type: ignore[return-value] # it has all of a BinaryIO


class _Ranges(io.RawIOBase):
    """Reads exactly what is asked, in one request, and ahead of it while it is read in order: twice as far each time.

    `io.BufferedReader` would make two requests of most reads: the whole blocks, and the rest.
    """

    def __init__(self, name: str, size: int, read: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self.name = name
        self.mode = "rb"
        self._size = size
        self._fetch = read
        self._at = 0
        self._held = b""
        self._held_at = -1
        self._ahead = 0
        self._guard = threading.RLock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._guard:
            self._checkClosed()
            at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
            if at < 0:
                raise ValueError(f"negative position {at}")
            self._at = at
            return at

    def read(self, size: int | None = -1) -> bytes:
        with self._guard:
            self._checkClosed()
            data = self._bytes(self._size if size is None or size < 0 else size)
            self._at += len(data)
            return data

    read1 = read

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def peek(self, size: int = 0) -> bytes:
        """Some bytes from here on without moving; `readline` looks for its line end so."""
        with self._guard:
            self._checkClosed()
            from_held = self._at - self._held_at
            if 0 <= from_held < len(self._held):
                return self._held[from_held : from_held + max(size, 8192)]
            return self._bytes(max(size, 8192))

    def _bytes(self, count: int) -> bytes:
        """Up to `count` bytes from here on, fewer only at the end."""
        stop = min(self._at + count, self._size)
        if stop <= self._at:
            return b""
        from_held = self._at - self._held_at
        head = self._held[from_held : stop - self._held_at] if 0 <= from_held <= len(self._held) else None
        start = self._at + len(head or b"")
        if start == stop:
            return head or b""
        # what begins where the last read ended is read in order
        self._ahead = min(max(_FIRST_AHEAD, 2 * self._ahead), _MOST_AHEAD) if head is not None else 0
        until = min(self._size, max(stop, start + self._ahead))
        data = self._fetch(start, until)
        if len(data) != until - start:
            raise DataError(f"{self.name!r} gave {len(data)} bytes at {start}..{until}")
        self._held_at, self._held = (start, data) if len(data) <= _MOST_AHEAD else (until, b"")
        rest = data[: stop - start]  # not a copy where it is all of it
        return head + rest if head else rest

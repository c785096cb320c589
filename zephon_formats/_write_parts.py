"""What writers of one file share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pyarrow as pa


class Joined:
    """Small groups joined to larger ones, large ones cut: each that `write` is given has about `nbytes`, and at most `rows` rows.

    Args:
        write: takes the pieces of one.
    """

    def __init__(self, write: Callable[[list[pa.RecordBatch]], object], *, rows: int, nbytes: int) -> None:
        self._write, self._most_rows, self._most_bytes = write, rows, nbytes
        self._held: list[pa.RecordBatch] = []
        self._rows = self._nbytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a group; write what is full."""
        at_once = max(1, min(self._most_rows, self._most_bytes * len(batch) // max(1, batch.nbytes)))
        for start in range(0, len(batch), at_once):
            piece = batch.slice(start, at_once)
            self._held.append(piece)
            self._rows += len(piece)
            self._nbytes += piece.nbytes
            if self._nbytes >= self._most_bytes or self._rows >= self._most_rows:
                self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            self._write(self._held)
        self.forget()

    def forget(self) -> None:
        """Let go of what is held."""
        self._held, self._rows, self._nbytes = [], 0, 0


def throw_away(path: str, *closes: Callable[[], object]) -> None:
    """Close what is open, in this order, and remove the file. Why it can't be finished doesn't matter: the disk may be full."""
    for close in closes:
        with contextlib.suppress(Exception):
            close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)

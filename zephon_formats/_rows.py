"""A run of rows of a text file: what the readers of lines, records and paragraphs parse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zephon.plugin import DataError, errors
from zephon_formats._bytes import I64


@dataclass(frozen=True)
class Rows:
    """A run of rows: their bytes, and where each begins in these (int64[N + 1]). `row` and `byte` are those of the first in its shard."""

    noun: ClassVar[str] = "row"
    """What errors call one."""

    data: bytes
    starts: I64
    row: int = 0
    byte: int = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    def one(self, number: int) -> bytes:
        """The bytes of one row, with its line end."""
        return self.data[int(self.starts[number]) : int(self.starts[number + 1])]

    def part(self, start: int, stop: int) -> Rows:
        """The rows [start, stop) of this run."""
        first, last = int(self.starts[start]), int(self.starts[stop])
        return Rows(self.data[first:last], self.starts[start : stop + 1] - first, self.row + start, self.byte + first)

    def error(self, number: int, message: str, hint: str | None = None) -> DataError:
        """An error about one row that says which."""
        place = f"{message} (the {self.noun} at byte {self.byte + int(self.starts[number])})"
        return DataError(place, where=errors.Where(row=self.row + number), hint=hint)

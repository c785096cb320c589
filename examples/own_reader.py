"""A file format of your own: a record is a line of text. The entry point is `lines = "my_package.lines:Lines"` in `zephon.formats`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, OpenShard, Reader, Shard, Store, Units
from zephon.testing import check_format


@dataclass(frozen=True, kw_only=True)
class Lines(Reader):
    """Lines of UTF-8 text."""

    name: ClassVar[str] = "lines"
    suffixes: ClassVar[tuple[str, ...]] = (".lines",)
    splittable: ClassVar[bool] = True  # a part of a unit costs in proportion to the part
    unit_lines: int = 1000

    def open(self, store: Store, shard: Shard) -> OpenShard:
        data = store.read(shard.path)
        ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
        last = [] if data.endswith(b"\n") or not data else [len(data)]  # a last line without an end is a line
        return OpenLines(self.unit_lines, store, shard, np.concatenate([[0], ends, last]).astype(np.int64))


class OpenLines:  # it keeps the places of the line ends, not the text
    schema = pa.schema([pa.field("text", pa.string())])

    def __init__(self, unit_lines: int, store: Store, shard: Shard, ends: Any) -> None:
        self.unit_lines, self.store, self.shard, self.ends = unit_lines, store, shard, ends

    def units(self) -> Units:
        cuts = np.append(np.arange(0, len(self.ends) - 1, self.unit_lines), len(self.ends) - 1)
        return Units(rows=np.diff(cuts), nbytes=np.diff(self.ends[cuts]))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        if self.ends is None:
            raise DataError("the file is closed")
        low, high = (int(self.ends[unit * self.unit_lines + row]) for row in (start, stop))
        lines = self.store.read(self.shard.path, low, high).decode().removesuffix("\n").split("\n") if start < stop else []
        group = pa.record_batch([pa.array(lines, pa.string())], schema=self.schema)
        return [group if columns is None else group.select([name for name in columns if name == "text"])]

    def close(self) -> None:
        self.ends = None


def write(folder: Path, rows: Sequence[Any]) -> Sequence[Path]:
    (path := folder / "part.lines").write_bytes("".join(row["text"] + "\n" for row in rows).encode())
    return [path]


check_format(Lines(unit_lines=7), write, rows=[{"text": f"line {i}"} for i in range(50)], damaged=False)
print("the reader keeps every promise")

"""The readers of this package keep the promises of the plug-in API, and the kit notices a reader that doesn't."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from zephon.plugin import OpenShard, Shard, Store, Units
from zephon.testing import check_format
from zephon_formats.jsonl import Jsonl
from zephon_formats.parquet import Parquet


def write_parquet(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
    table = pa.Table.from_pylist(rows) if rows else pa.table({"id": pa.array([], pa.int64())})
    half = len(rows) // 2
    for name, part in (("a.parquet", table.slice(0, half)), ("b.parquet", table.slice(half))):
        pq.write_table(part, folder / name, row_group_size=17)
    return [folder / "a.parquet", folder / "b.parquet"]


def lines_of(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n" for number, row in enumerate(rows)).encode()


def jsonl_writer(suffix: str, pack: Callable[[bytes], bytes]) -> Callable[[Path, list[dict[str, Any]]], Sequence[Path]]:
    def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
        half = len(rows) // 2
        paths = [folder / f"a{suffix}", folder / f"b{suffix}"]
        for path, part in zip(paths, (rows[:half], rows[half:]), strict=True):
            path.write_bytes(pack(lines_of(part)))
        return paths

    return write


def test_parquet_conforms() -> None:
    check_format(Parquet(), write_parquet)


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".jsonl", bytes), (".ndjson.gz", gzip.compress), (".jsonl.zst", zstandard.ZstdCompressor().compress)],
)
def test_jsonl_conforms(suffix: str, pack: Callable[[bytes], bytes]) -> None:
    check_format(Jsonl(unit_bytes=1000), jsonl_writer(suffix, pack))


@dataclass(frozen=True, kw_only=True)
class _Broken(Jsonl):
    """JSON lines with one fault."""

    fault: str = ""
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl",)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        return _BrokenShard(super().open(store, shard), self.fault)


class _BrokenShard:
    def __init__(self, inner: OpenShard, fault: str) -> None:
        self.inner, self.fault = inner, fault
        self.schema = inner.schema
        self.reads = 0

    def units(self) -> Units:
        units = self.inner.units()
        return Units(units.rows, np.zeros_like(units.nbytes)) if self.fault == "sizes" else units

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        self.reads += 1
        if self.fault == "slices" and start:
            start, stop = start - 1, stop - 1
        if self.fault == "projection" and columns is not None:
            columns = sorted(columns)
        if self.fault == "views":
            return [
                b.set_column(1, "text", b.column(1).cast(pa.string_view())) for b in self.inner.read(unit, columns, start, stop)
            ]
        if self.fault == "short" and stop - start > 1:
            stop -= 1
        return self.inner.read(unit, columns, start, stop)

    def close(self) -> None:
        if self.fault != "close":
            self.inner.close()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("sizes", "size of 0 or less"),
        ("slices", "differ from that part"),
        ("projection", "instead of"),
        ("views", "string_view"),
        ("short", "rows instead of"),
        ("close", "after close"),
    ],
)
def test_the_kit_notices_a_fault_and_says_which(fault: str, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_format(_Broken(fault=fault, unit_bytes=1000), jsonl_writer(".jsonl", bytes))

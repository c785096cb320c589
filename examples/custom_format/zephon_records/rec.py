"""The format `rec`: records of an id and a text, each with its length before it, and a footer that says where they are.

    magic  b"REC1"
    record uint32 length of the text, int64 id, the text in UTF-8
    ...
    footer int64 offset of each record and of the footer itself, uint64 number of records, magic b"1CER"

All numbers are little endian. A footer is what makes a format good for training: the rows are known without reading the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError, OpenShard, Reader, RecipeError, Shard, Store, Units, at

HEAD, TAIL = b"REC1", b"1CER"
PREFIX = np.dtype([("length", "<u4"), ("id", "<i8")])
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def write_rec(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows of `id` and `text` into a file; returns its path."""
    parts, offsets = [HEAD], [len(HEAD)]
    for row in rows:
        text = row["text"].encode()
        parts.append(struct.pack("<Iq", len(text), row["id"]) + text)
        offsets.append(offsets[-1] + len(parts[-1]))
    footer = np.array(offsets, dtype="<i8").tobytes() + struct.pack("<Q", len(offsets) - 1) + TAIL
    path.write_bytes(b"".join(parts) + footer)
    return path


@dataclass(frozen=True, kw_only=True)
class Rec(Reader):
    """`.rec` files. The dataclass's fields are the reader's options: `Dataset.from_path(name, path, unit_rows=100)`."""

    name: ClassVar[str] = "rec"
    suffixes: ClassVar[tuple[str, ...]] = (".rec",)
    splittable: ClassVar[bool] = True  # a part of a unit costs in proportion to the part

    unit_rows: int = 1000
    """How many rows are read in one go."""

    def __post_init__(self) -> None:
        if self.unit_rows < 1:
            raise RecipeError(f"unit_rows must be at least 1, got {self.unit_rows}")

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Read the footer, and nothing else. Raises `DataError` where the file is damaged or cut short."""
        with at(shard=shard.path):  # every error in this block says which file
            return OpenRec(self, store, shard, _offsets(store, shard))


def _offsets(store: Store, shard: Shard) -> Any:
    tail = store.read(shard.path, max(0, shard.size - 12), shard.size)
    if store.read(shard.path, 0, 4) != HEAD or tail[8:] != TAIL:
        raise DataError("the file is no rec file, or it was cut short", hint="was its writer stopped?")
    begin = shard.size - 12 - 8 * (int.from_bytes(tail[:8], "little") + 1)
    if begin < len(HEAD):
        raise DataError("the footer promises more records than the file can hold")
    offsets = np.frombuffer(store.read(shard.path, begin, shard.size - 12), dtype="<i8")
    if offsets[0] != len(HEAD) or offsets[-1] != begin or (np.diff(offsets) < PREFIX.itemsize).any():
        raise DataError("the footer is damaged: its offsets do not run from the first record to its own place")
    return offsets


class OpenRec:
    """One file. It keeps the offsets and opens nothing, so that any number of threads may read at once."""

    schema = SCHEMA

    def __init__(self, reader: Rec, store: Store, shard: Shard, offsets: Any) -> None:
        self.store, self.shard, self.offsets, self.closed = store, shard, offsets, False
        self.cuts = np.append(np.arange(0, len(offsets) - 1, reader.unit_rows), len(offsets) - 1)

    def units(self) -> Units:
        return Units(rows=np.diff(self.cuts), nbytes=np.diff(self.offsets[self.cuts]))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        with at(shard=self.shard.path):
            if self.closed:
                raise DataError("the file is closed")
            first = int(self.cuts[unit])
            offsets = self.offsets[first + start : first + stop + 1]
            data = np.frombuffer(self.store.read(self.shard.path, int(offsets[0]), int(offsets[-1])), dtype=np.uint8)
            if len(data) != offsets[-1] - offsets[0]:
                raise DataError("the file ends before its records do: it was replaced during the run")
            ids, texts = _columns(data, offsets - offsets[0], first + start)
            group = pa.record_batch([ids, texts], schema=SCHEMA)
            return [group if columns is None else group.select([name for name in columns if name in SCHEMA.names])]

    def close(self) -> None:
        self.closed = True


def _columns(data: Any, offsets: Any, row: int) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Records as two columns, without a loop over them: gather the prefixes, squeeze them out, and what is left are the texts."""
    places = offsets[:-1, None] + np.arange(PREFIX.itemsize)
    prefix = data[places].view(PREFIX).ravel()
    lengths = np.diff(offsets) - PREFIX.itemsize
    wrong = np.flatnonzero(prefix["length"] != lengths)
    if len(wrong):
        with at(row=row + int(wrong[0])):  # a row in the shard
            raise DataError("the length of the record is not what the footer says")
    is_text = np.ones(len(data), dtype=bool)
    is_text[places.ravel()] = False
    ends: Any = np.append(0, np.cumsum(lengths)).astype(np.int32)
    texts = pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data[is_text])])
    return pa.array(prefix["id"].astype(np.int64)), texts.cast(pa.string())  # the cast checks that it is UTF-8

"""Sets of LitData as its own writer makes them, and rows as its own reader and ours give them."""

from __future__ import annotations

import gc
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from formats.reading import read_rows

from zephon.plugin import OpenShard, Shard
from zephon.storage import LocalStore, expand
from zephon_formats.litdata import LitData

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what litdata does at import is not ours
    from litdata import StreamingDataset
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter


def write(folder: Path, items: Sequence[Any], *, chunk_size: int | None = 4, **options: Any) -> list[Path]:
    """Write the items, and return the chunks in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = BinaryWriter(str(folder), chunk_size=None if "chunk_bytes" in options else chunk_size, **options)
        for number, item in enumerate(items):
            writer[number] = item
        made = [Path(p) for p in writer.done()]
        if items:
            writer.merge()
    return sorted(folder.glob("chunk-*.bin"), key=lambda p: int(p.name.split(".")[0].split("-")[2])) or made


def writer(
    convert: Callable[[dict[str, Any]], Any] = dict, **options: Any
) -> Callable[[Path, list[dict[str, Any]]], Sequence[Path]]:
    """A `write` for `check_format`."""
    return lambda folder, rows: write(folder, [convert(row) for row in rows], **options)


def tokens(**options: Any) -> dict[str, Any]:
    """Options of `write` for a set of tokens."""
    return {"item_loader": TokensLoader(), "chunk_size": 100, **options}


def read_back(folder: Path, block_size: int | None = None) -> list[Any]:
    """All rows, from litdata's own reader. It works on a copy, since it unpacks chunks in place."""
    copy = folder.with_name(folder.name + "-copy")
    shutil.copytree(folder, copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = None if block_size is None else TokensLoader(block_size=block_size)
        dataset = StreamingDataset(str(copy), item_loader=loader)
        rows = [dataset[i] for i in range(len(dataset))]
        del dataset
        gc.collect()  # it leaves files open
        return rows


def plain(value: Any) -> Any:
    """A value of litdata's as the reader's columns hold it."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return value.item()
        if value.ndim > 1:
            return {"data": value.tobytes(), "shape": list(value.shape), "dtype": value.dtype.name}
        return [[v.real, v.imag] for v in value.tolist()] if value.dtype.kind == "c" else value.tolist()
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def fields(item: Any) -> Any:
    """A value like this for `optimize`, which imports it in another process."""
    return {"id": item, "text": f"row {item}", "vector": np.arange(item, dtype=np.float32)}


PACKINGS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd", "compression_batch_size": 7},
    {"compression": "zstd:2", "compression_level": "chunk"},
    {"compression": "zstd", "compression_level": "sample"},
]


def opened(folder: Path, reader: LitData | None = None) -> list[OpenShard]:
    reader, store = reader or LitData(), LocalStore(str(folder.parent / ".cache"))
    return [reader.open(store, shard) for shard in reader.shards(store, expand(store, str(folder)))]


def rows_of(folder: Path, reader: LitData | None = None) -> list[dict[str, Any]]:
    return [row for shard in opened(folder, reader) for row in read_rows(shard)]


def shard_of(folder: Path, number: int = 0, **options: Any) -> Shard:
    store = LocalStore()
    return LitData(**options).shards(store, expand(store, str(folder)))[number]

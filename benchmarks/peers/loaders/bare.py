"""Limits of the machine: the libraries that do the work, with nothing around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .. import tools
from ..measuring import Given, Loader


def _tables(given: Given, kind: str) -> list[Any]:
    import pyarrow.parquet as pq

    return [pq.read_table(p) for p in sorted(Path(given.data, kind, "parquet").glob("*.parquet"))]


def _pool(given: Given, items: Iterator[Any], call: Callable[[Any], Any]) -> Iterator[Any]:
    """Results in order of a pool that always has a few items ahead."""
    pool = ThreadPoolExecutor(given.workers)
    waiting: list[Future[Any]] = [pool.submit(call, item) for item in itertools.islice(items, 2 * given.workers)]
    while waiting:
        made = waiting.pop(0).result()
        waiting += [pool.submit(call, item) for item in itertools.islice(items, 1)]
        yield made


def fetch(given: Given) -> Loader:
    """Scans in file order (`iter_batches` of Parquet, a mapped Arrow file), and a copy of every image in memory.

    The consumer is the same as everybody's: it reads a byte of each page of the images. With "hash" in the variant the scan itself
    reads all bytes once, as ours does for its digest.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(given.data, "images")

    def parquet() -> Iterator[Any]:
        for path in sorted((folder / "parquet").glob("*.parquet")):
            yield from pq.ParquetFile(path).iter_batches(batch_size=tools.BATCH)

    def arrow() -> Iterator[Any]:
        for path in sorted((folder / "arrow").glob("data-*.arrow")):
            for batch in pa.ipc.open_stream(pa.memory_map(str(path))):
                yield from (batch.slice(at, tools.BATCH) for at in range(0, len(batch), tools.BATCH))

    if "memcpy" in given.variant:
        images = [v.as_buffer() for t in _tables(given, "images") for v in t.column("image")]
        copies = tools.grouped((bytes(memoryview(i)) for i in tools.forever(lambda: images)), tools.BATCH)
        return Loader(copies, lambda batch: float(tools.touch(batch)))
    batches = tools.forever(arrow if "arrow" in given.variant else parquet)
    hashes = tools.hash_arrow if "hash" in given.variant else lambda _: None

    def work(batch: Any) -> float:
        hashes(batch.column("image"))
        return float(tools.touch_arrow(batch.column("image"), batch.column("text")))

    return Loader(batches, work)


def text(given: Given) -> Loader:
    """The tokenizer alone, documents in memory, a pool of threads, lists of 64 documents."""
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    documents = [str(d) for t in _tables(given, "text") for d in t.column("text").to_pylist()]
    order = np.random.default_rng(1).permutation(len(documents))
    lists = ([documents[i] for i in order[at : at + 64]] for at in range(0, len(order), 64))
    encode.many(["warm"])
    return Loader(_pool(given, lists, lambda part: encode.many(part) + len(part)), float)


def tokens(given: Given) -> Loader:
    """`numpy.concatenate` of lists in shuffled order."""
    values = [v.values.to_numpy() for t in _tables(given, "tokens") for v in t.column("input_ids")]
    random = np.random.default_rng(1)
    order = tools.forever(lambda: random.permutation(len(values)))
    return Loader(tools.concat_then_split(values[i] for i in order), lambda rows: float(rows.size))


def vision(given: Given) -> Loader:
    """Decode, resize and tokenise in a pool of threads, 8 samples at a time; nothing is read, shuffled or packed."""
    rows = [r for t in _tables(given, "images") for r in t.to_pylist()]
    make = tools.Sample(given.tokenizer, given.variant)
    order = np.random.default_rng(1).permutation(len(rows))
    parts = tools.grouped(tools.forever(lambda: order), 8)
    made = _pool(given, parts, lambda part: [make(rows[i]["image"], rows[i]["text"]) for i in part])
    return Loader(made, lambda part: tools.stacked(sample["pixels"] for sample in part))


CASES = {"B1": fetch, "B2": vision, "B3": text, "B4": tokens}

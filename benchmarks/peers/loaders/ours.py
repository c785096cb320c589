"""Zephon, this tree."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from .. import tools
from ..measuring import Given, Loader, cpu, restored


def _source(name: str, folder: Path, **settings: Any) -> Any:
    from zephon import Dataset, StaticMixtureWorkSource

    return StaticMixtureWorkSource([Dataset.from_path(name, folder)], seed=1, **settings)


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32; the default order, which is shuffled over stripes of the whole data set."""
    from zephon import Pipeline

    # of mapped files large chunks are views, which take no memory
    large = {"chunk_size": 1024} if "chunks" in given.variant else {}
    source = _source("photographs", Path(given.data, "images", given.variant.split()[0]), **large)
    pipeline = Pipeline(source).batch(tools.BATCH).options(lanes=2, **_runner(given))
    names: list[str] = []

    def work(batch: Any) -> float:
        if not names:
            columns = list(batch.to_pydict())
            names.extend(next(n for n in wanted if n in columns) for wanted in (("image", "jpg"), ("text", "txt")))
            if batch.column(names[0]).type.num_fields:  # WebDataset's images have a path beside their bytes
                names[0] += ".bytes"
        assert len(batch.column(names[1]).to_pylist()) == len(batch)
        return float(tools.touch(batch.buffers(names[0])))

    return Loader(iter(pipeline), work)


def text(given: Given) -> Loader:
    """Tokenise, pack, batch; `tokenize` chooses the quickest library that gives equal ids, unless the variant says which."""
    from zephon import Pipeline

    slow = "tokenizers" in given.variant
    backend: Any = "tokenizers" if slow else "auto"
    # a slow tokenizer must not have seconds of work in the queue when the window begins
    ahead = {"prefetch_batches": 8} if slow else {}
    form = "arrow" if "arrow" in given.variant else "parquet"
    source = _source("text", Path(given.data, "text", form), stop_after_passes=1)
    end = tools.end_of_text(given.tokenizer)
    pipeline = (
        Pipeline(source)
        .tokenize(tokenizer_id=given.tokenizer, field="text", special_tokens="eos", eos_token_id=end, backend=backend)
        .pack_flat(max_length=tools.LENGTH, algorithm="wrap", pad_token_id=end)
        .batch(tools.ROWS)
        .options(lanes=2, **ahead, **_runner(given))
    )
    # once one lane is dry it gives empty sequences until the others are: those are no tokens
    return Loader(iter(pipeline), lambda batch: float(ids(batch)[: len(batch) - batch.empty].size), ids)


def ids(batch: Any) -> Any:
    """int32[8, 2048], where the batch has it. (Arrow's `to_numpy` would import pandas, which happens to be installed here.)"""
    column = batch.group.column("input_ids")
    _, ends, _, values = column.buffers()
    start = int(np.frombuffer(ends, np.int32)[column.offset]) + column.values.offset
    return np.frombuffer(values, np.int32, len(batch) * tools.LENGTH, start * 4).reshape(len(batch), tools.LENGTH)


def tokens(given: Given) -> Loader:
    """Lists of ids from Parquet, packed and batched."""
    from zephon import Pipeline

    pipeline = (
        Pipeline(_source("tokens", Path(given.data, "tokens", "parquet")))
        .pack_flat(max_length=tools.LENGTH, algorithm="wrap", pad_token_id=0)
        .batch(tools.ROWS)
        .options(lanes=2, **_runner(given))
    )
    return Loader(iter(pipeline), lambda batch: float(ids(batch).size))


def vision(given: Given) -> Loader:
    """The standard recipe: headers first, pixels last."""
    from zephon import Pipeline

    shuffle = given.more.get("shuffle")
    # windows of 4,096 images, of 8,192 with a shuffle, in chunks of the usual size or, where memory is all that counts, smaller ones
    lean = "spill" in given.variant
    form = "arrow" if "arrow" in given.variant else "parquet"
    chunk, window = ({}, {"flush_every_chunks": 64}) if shuffle else ({"chunk_size": 512}, {})
    if lean:
        chunk, window = {"chunk_size": 32}, {"flush_every_chunks": 256}
    pipeline = (
        Pipeline(_source("photographs", Path(given.data, "images", form), **chunk))
        .interleave()
        .probe_images()
        .tokenize_interleaved(tokenizer=given.tokenizer, images=f'siglip{{"size": {tools.SIDE}}}', max_length=tools.LENGTH)
        .pack_multimodal(max_length=tools.LENGTH)
    )
    if shuffle:
        pipeline = pipeline.shuffle(buffer_size=shuffle)
    lanes = 1 if shuffle else 2  # each lane has a buffer, and the peers have one
    options = {"scaled_decode": "gap2"} if "scaled" in given.variant else {}
    arrays: dict[str, Any] = {}
    if "numpy" in given.variant:  # what peers give, and then nothing needs torch
        options["backend"], arrays["dtype"] = "cykooz", np.int64
    less: dict[str, Any] = {"spill_dir": given.data, "max_bytes": 256 << 20} if lean else {}
    pipeline = pipeline.decode_images(**options).batch(tools.ROWS)
    pipeline = pipeline.options(lanes=lanes, prefetch_batches=4, **window, **less, **_runner(given))
    arrays["pixel_dtype"] = "float32" if "float" in given.variant else None  # None: bytes, as decoded
    return Loader(iter(pipeline), lambda batch: float(len(batch.to_training(**arrays)["pixel_values"])))


def checkpoint(given: Given) -> dict[str, Any]:
    """One process owns all lanes."""
    from zephon import Pipeline

    lanes = int(given.variant.split()[0])

    def start(state: Any) -> Any:
        pipeline = (
            Pipeline(_source("tokens", Path(given.data, "tokens", "parquet")))
            .pack_flat(max_length=tools.LENGTH, algorithm="wrap", pad_token_id=0)
            .batch(1)
            .options(lanes=lanes, **_runner(given))
        )
        if state is not None:
            pipeline.restore(state)
        return iter(pipeline), pipeline.checkpoint

    return restored(start, 40 * lanes)


def planning(given: Given) -> dict[str, Any]:
    """All that planning does for a record; of the data set nothing but its table of read units is there."""
    from benchmarks.plan import Walk, dataset
    from zephon import StaticMixtureWorkSource

    words = given.variant.split()
    lanes, records = int(words[0]), 10 ** int(words[2].removeprefix("10^"))
    plan = StaticMixtureWorkSource([dataset("web", records // 1000, records)], seed=1).plan(lanes)
    walk = Walk(plan, range(lanes))
    rows = max(1 << 21, walk.round)
    walk.on(rows)  # the first orders, and arrays in memory that the kernel must clear
    began, used = time.perf_counter(), cpu()
    done = walk.on(rows)
    return {"work": done, "wall_s": time.perf_counter() - began, "cpu_s": cpu() - used}


def python_map(given: Given) -> Loader:
    """A user's function in plain Python, per record."""
    from zephon import Pipeline

    pipeline = (
        Pipeline(_source("text", Path(given.data, "text", "parquet")))
        .map(tools.heavy_record)
        .batch(tools.BATCH)
        .options(lanes=2, runner=given.variant.split()[0], workers=given.workers)
    )
    return Loader(iter(pipeline), lambda batch: float(len(batch)))


def _runner(given: Given) -> dict[str, Any]:
    return {"runner": next((r for r in ("inline", "processes") if r in given.variant), "threads"), "workers": given.workers}


CASES = {
    "B1": fetch,
    "B2": vision,
    "B3": text,
    "B3b": text,
    "B4": tokens,
    "B5": text,
    "B6": checkpoint,
    "B7": planning,
    "B8": vision,
    "B9": python_map,
}

"""The public loader `zephon` 0.2.0, used as its page on PyPI and its `help()` say. Its source was not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from .. import tools
from ..measuring import Given, Loader, restored


def _source(given: Given, kind: str, **settings: Any) -> Any:
    from zephon.io import Dataset
    from zephon.work import MixtureSpec, StaticMixtureWorkSource

    folder = Path(given.data, kind, next((f for f in ("litdata", "mds", "vortex") if f in given.variant), "parquet"))
    rows = sum(pq.read_metadata(p).num_rows for p in Path(given.data, kind, "parquet").glob("*.parquet"))
    ways = {
        "shuffle_shards": True,
        "shuffle_within_shard": True,
        "stop_after_passes": 1_000,
        "chunk_size": min(16384, rows // 2),
    }
    ways |= settings
    return StaticMixtureWorkSource([Dataset.from_path("data", str(folder))], MixtureSpec({"data": 1.0}), seed=1, **ways)


def _options(given: Given, pipeline: Any) -> Any:
    runner = "process" if "processes" in given.variant else "threads"
    return pipeline.options(runner=runner, max_workers=given.workers)


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32."""
    from zephon import Pipeline

    pipeline = _options(given, Pipeline(_source(given, "images")).batch(tools.BATCH))
    return Loader(iter(pipeline), lambda batch: float(tools.touch(r.payload["image"] for r in batch.records)))


def _ids(batch: Any) -> Any:
    return np.asarray([r.payload["input_ids"] for r in batch.records], np.int32)


def text(given: Given) -> Loader:
    """Its own `tokenize`, or (B3b) a user's function with the fast tokenizer in `map_transform`; `pack_flat`, wrap."""
    from transformers import PreTrainedTokenizerFast

    from zephon import Pipeline

    end = tools.end_of_text(given.tokenizer)
    pipeline = Pipeline(_source(given, "text", stop_after_passes=1)).decode_text()
    if "fast" in given.variant:
        encode = tools.Encode(given.tokenizer, fast=True)
        pipeline = pipeline.map_transform(lambda payload: {"input_ids": encode(payload["text"])})
    else:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=given.tokenizer, eos_token="<|endoftext|>")
        options = {"special_tokens": "eos", "eos_token_id": end, "add_attention_mask": False}
        pipeline = pipeline.tokenize(tokenizer=tokenizer, field="text", **options)
    pipeline = pipeline.pack_flat(tools.LENGTH, algorithm="wrap", emit_positions=False).batch(tools.ROWS)
    return Loader(iter(_options(given, pipeline)), lambda batch: float(_ids(batch).size), _ids)


def tokens(given: Given) -> Loader:
    """Ids as they are."""
    from zephon import Pipeline

    pipeline = Pipeline(_source(given, "tokens"))
    pipeline = pipeline.pack_flat(tools.LENGTH, algorithm="wrap", tokens_field="input_ids", emit_positions=False).batch(
        tools.ROWS
    )
    return Loader(iter(_options(given, pipeline)), lambda batch: float(_ids(batch).size))


def vision(given: Given) -> Loader:
    """Decode in `map_transform`, `pack_sequences` by first fit, which keeps the images with their documents."""
    from zephon import Pipeline

    make = tools.Sample(given.tokenizer, given.variant)

    def one(payload: Any) -> Any:
        return make(bytes(payload["image"]), payload["text"])

    pipeline = Pipeline(_source(given, "images")).decode_text().map_transform(one)
    pipeline = pipeline.pack_sequences(tools.LENGTH, algorithm="first_fit", num_bins=tools.ROWS, tokens_field="input_ids")
    if given.more.get("shuffle"):
        pipeline = pipeline.shuffle(buffer_size=given.more["shuffle"])
    return Loader(
        iter(_options(given, pipeline.batch(tools.ROWS))),
        lambda batch: tools.stacked(s["pixels"] for r in batch.records for s in r.payload["packed_samples"]),
    )


def checkpoint(given: Given) -> dict[str, Any]:
    """One process owns all lanes."""
    from zephon import Pipeline

    lanes = int(given.variant.split()[0])

    def start(state: Any) -> Any:
        pipeline = Pipeline(_source(given, "tokens")).pack_flat(
            tools.LENGTH, algorithm="wrap", tokens_field="input_ids", emit_positions=False
        )
        pipeline = _options(given, pipeline.batch(1)).options(canonical_replicas=lanes)
        if state is not None:
            pipeline.restore(state)
        return iter(pipeline), pipeline.checkpoint

    return restored(start, 40 * lanes)


def python_map(given: Given) -> Loader:
    """A user's function in plain Python."""
    from zephon import Pipeline

    pipeline = Pipeline(_source(given, "text")).decode_text().map_transform(tools.heavy_record).batch(tools.BATCH)
    return Loader(iter(_options(given, pipeline)), lambda batch: float(len(batch)))


CASES = {
    "B1": fetch,
    "B2": vision,
    "B3": text,
    "B3b": text,
    "B4": tokens,
    "B5": text,
    "B6": checkpoint,
    "B8": vision,
    "B9": python_map,
}

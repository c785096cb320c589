"""Grain, from ArrayRecord: `MapDataset` with its global shuffle, then reading threads or worker processes."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import tools
from ..measuring import Given, Loader, restored


def _records(given: Given, kind: str, *, repeat: bool) -> Any:
    logging.getLogger("absl").setLevel(logging.ERROR)
    import grain

    files = sorted(str(p) for p in Path(given.data, kind, "arrayrecord").glob("*.array_record"))
    made = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).seed(1).shuffle()
    return made.repeat() if repeat else made


def _read(given: Given, dataset: Any) -> Any:
    """The variants: `threads` as by default (16 of them), `one thread` as the documents advise for data in memory, `processes`."""
    import grain

    if "threads" in given.variant:
        return dataset.to_iter_dataset()
    return dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))


def _workers(given: Given, dataset: Any) -> Any:
    import grain

    if "processes" not in given.variant:
        return iter(dataset)
    options = grain.MultiprocessingOptions(num_workers=given.workers, per_worker_buffer_size=4)
    return iter(dataset.mp_prefetch(options))


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32."""
    made = _read(given, _records(given, "images", repeat=True).map(pickle.loads)).batch(tools.BATCH, batch_fn=list)
    return Loader(_workers(given, made), lambda batch: float(tools.touch(record["image"] for record in batch)))


def _packed(given: Given, dataset: Any, decode: Callable[[bytes], Any]) -> Loader:
    import grain

    made = _read(given, dataset.map(lambda record: {"input_ids": decode(record)}))
    made = grain.experimental.ConcatThenSplitIterDataset(made, length_struct={"input_ids": tools.LENGTH})
    made = made.batch(tools.ROWS, drop_remainder=True)
    return Loader(_workers(given, made), lambda batch: float(batch["input_ids"].size), lambda batch: batch["input_ids"])


def text(given: Given) -> Loader:
    """Tokenise in `map`, pack with Grain's own concat-then-split."""
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    return _packed(given, _records(given, "text", repeat=False), lambda record: encode(record.decode()))


def tokens(given: Given) -> Loader:
    """Ids as they are."""
    return _packed(given, _records(given, "tokens", repeat=True), lambda record: np.frombuffer(record, np.int32))


def vision(given: Given) -> Loader:
    """Decode in `map`, pack with Grain's first fit; pixels travel along as a meta feature."""
    import grain

    make = tools.Sample(given.tokenizer, given.variant)

    def one(record: bytes) -> Any:
        row = pickle.loads(record)
        sample = make(row["image"], row["text"])
        return sample | {"input_ids": sample["input_ids"][: tools.LENGTH]}

    made = _read(given, _records(given, "images", repeat=True).map(one))
    made = grain.experimental.FirstFitPackIterDataset(
        made,
        length_struct={"input_ids": tools.LENGTH},
        num_packing_bins=tools.ROWS,
        meta_features=("pixels",),
        shuffle_bins=False,
    )
    if given.more.get("shuffle"):
        made = grain.experimental.WindowShuffleIterDataset(made, window_size=given.more["shuffle"], seed=1)
    made = made.batch(tools.ROWS, batch_fn=list)
    return Loader(_workers(given, made), lambda batch: tools.stacked(image for row in batch for image in _images(row)))


def _images(row: Any) -> Any:
    return (row[0] if isinstance(row, tuple) else row)["pixels"]


def checkpoint(given: Given) -> dict[str, Any]:
    """Its iterators have a state."""

    def start(state: Any) -> Any:
        import grain

        made = _records(given, "tokens", repeat=True).map(lambda record: {"input_ids": np.frombuffer(record, np.int32)})
        made = grain.experimental.ConcatThenSplitIterDataset(_read(given, made), length_struct={"input_ids": tools.LENGTH})
        flow = iter(made.batch(1))
        if state is not None:
            flow.set_state(state)
        return flow, flow.get_state

    return restored(start, 40)


def python_map(given: Given) -> Loader:
    """A user's function in plain Python."""
    made = _records(given, "text", repeat=True).map(lambda record: tools.heavy_record({"text": record.decode()}))
    return Loader(_workers(given, _read(given, made).batch(tools.BATCH, batch_fn=list)), lambda batch: float(len(batch)))


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

"""SPDL: a pipeline of threads over indices in shuffled order; it has no reader, so rows come from a mapped Arrow file by a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import tools
from ..measuring import Given, Loader


def _rows(given: Given, kind: str, repeat: bool) -> tuple[Any, Iterator[list[int]]]:
    import pyarrow as pa

    files = sorted(Path(given.data, kind, "arrow").glob("data-*.arrow"))
    table = pa.concat_tables(pa.ipc.open_stream(pa.memory_map(str(p))).read_all().replace_schema_metadata() for p in files)
    random = np.random.default_rng(1)

    def indices() -> Iterator[list[int]]:
        while True:
            order = random.permutation(len(table))
            for at in range(0, len(order) - tools.BATCH + 1, tools.BATCH):
                yield order[at : at + tools.BATCH].tolist()
            if not repeat:
                return

    return table, indices()


def _run(given: Given, source: Iterator[Any], stage: Callable[[Any], Any]) -> Iterator[Any]:
    from spdl.pipeline import PipelineBuilder

    made = PipelineBuilder().add_source(source).pipe(stage, concurrency=given.workers, output_order="input").add_sink(4)
    pipeline = made.build(num_threads=given.workers)
    pipeline.start()
    while True:
        try:
            yield pipeline.get_item(timeout=60)
        except EOFError:
            return


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32."""
    table, source = _rows(given, "images", repeat=True)
    batches = _run(given, source, lambda rows: table.take(rows))
    return Loader(
        batches, lambda batch: float(sum(map(tools.touch_arrow, batch.column("image").chunks, batch.column("text").chunks)))
    )


def text(given: Given) -> Loader:
    """Tokenise in a stage of threads; it has no packing, so ours in numpy."""
    table, source = _rows(given, "text", repeat=False)
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    groups = _run(given, source, lambda rows: [encode(t) for t in table.column("text").take(rows).to_pylist()])
    packed = tools.concat_then_split(ids for group in groups for ids in group)
    return Loader(packed, lambda rows: float(rows.size), lambda rows: rows)


def vision(given: Given) -> Loader:
    """Decode and tokenise in a stage of threads."""
    table, source = _rows(given, "images", repeat=True)
    make = tools.Sample(given.tokenizer, given.variant)
    groups = _run(given, source, lambda rows: [make(r["image"], r["text"]) for r in table.take(rows).to_pylist()])
    return Loader(tools.pack_samples(sample for group in groups for sample in group), lambda batch: tools.stacked(batch[1]))


CASES = {"B1": fetch, "B2": vision, "B3": text, "B3b": text, "B5": text}

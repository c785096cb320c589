"""Hugging Face datasets: map-style Arrow shuffled by indices, or Parquet streamed with a shuffle buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import tools
from ..measuring import Given, Loader


def _open(given: Given, kind: str) -> Any:
    import datasets

    datasets.disable_progress_bars()
    if "streaming" in given.variant:
        files = sorted(str(p) for p in Path(given.data, kind, "parquet").glob("*.parquet"))
        made = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        return made.shuffle(seed=1, buffer_size=1000)
    return datasets.load_from_disk(str(Path(given.data, kind, "arrow"))).shuffle(seed=1, keep_in_memory=True)


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32; as Arrow, which its documents call the quickest format."""
    data = _open(given, "images").with_format("arrow")
    batches = tools.forever(lambda: data.iter(batch_size=tools.BATCH))
    return Loader(
        batches, lambda batch: float(sum(map(tools.touch_arrow, batch.column("image").chunks, batch.column("text").chunks)))
    )


def text(given: Given) -> Loader:
    """Streamed, a batched `map` with the tokenizer, packed by ours in numpy."""
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    data = _open(given, "text").map(lambda rows: {"input_ids": [encode(t) for t in rows["text"]]}, batched=True, batch_size=64)
    packed = tools.concat_then_split(row["input_ids"] for row in data.with_format("numpy"))
    return Loader(packed, lambda rows: float(rows.size), lambda rows: rows)


CASES = {"B1": fetch, "B3": text, "B3b": text, "B5": text}

"""WebDataset: tars in shuffled order and a buffer of 1,000, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import tools
from ..measuring import Given, Loader


def _open(given: Given, kind: str) -> Any:
    import webdataset

    shards = sorted(str(p) for p in Path(given.data, kind, "webdataset").glob("*.tar"))
    return webdataset.WebDataset(shards, shardshuffle=len(shards), seed=1, empty_check=False).shuffle(1000)


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32."""
    data = _open(given, "images").to_tuple("jpg", "txt")
    return Loader(tools.grouped(tools.forever(lambda: data), tools.BATCH), lambda b: float(tools.touch(row[0] for row in b)))


def text(given: Given) -> Loader:
    """Tokenise in `map`; it has no packing, so ours in numpy."""
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    data = _open(given, "text").map(lambda row: encode(row["txt"].decode()))
    return Loader(tools.concat_then_split(data), lambda rows: float(rows.size), lambda rows: rows)


def vision(given: Given) -> Loader:
    """Decode and tokenise in `map`."""
    make = tools.Sample(given.tokenizer, given.variant)
    data = _open(given, "images").map(lambda row: make(row["jpg"], row["txt"].decode()))
    return Loader(tools.pack_samples(tools.forever(lambda: data)), lambda batch: tools.stacked(batch[1]))


CASES = {"B1": fetch, "B2": vision, "B3": text, "B3b": text, "B5": text}

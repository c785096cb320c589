"""LitData: `StreamingDataset` with shuffle and `transform`, in `StreamingDataLoader`, with no worker process or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import tools
from ..measuring import Given, Loader


def _loader(given: Given, kind: str, transform: Callable[[Any], Any] | None = None) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(Path(given.data, kind, "litdata")), shuffle=True, drop_last=False, seed=1, transform=transform)
    workers = given.workers if "processes" in given.variant else 0
    return StreamingDataLoader(data, batch_size=tools.BATCH, num_workers=workers, collate_fn=list)


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32."""
    loader = _loader(given, "images")
    return Loader(tools.forever(lambda: loader), lambda batch: float(tools.touch(row["image"] for row in batch)))


def _packed(batches: Any) -> Loader:
    packed = tools.concat_then_split(ids for batch in batches for ids in batch)
    return Loader(packed, lambda rows: float(rows.size), lambda rows: rows)


def text(given: Given) -> Loader:
    """Tokenise in `transform`; it has no packing, so ours in numpy."""
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    return _packed(_loader(given, "text", lambda row: encode(row["text"])))


def tokens(given: Given) -> Loader:
    """Ids as they are."""
    loader = _loader(given, "tokens", lambda row: row["input_ids"])
    return _packed(tools.forever(lambda: loader))


def vision(given: Given) -> Loader:
    """Decode and tokenise in `transform`."""
    make = tools.Sample(given.tokenizer, given.variant)
    loader = _loader(given, "images", lambda row: make(row["image"], row["text"]))
    samples = (sample for batch in tools.forever(lambda: loader) for sample in batch)
    return Loader(tools.pack_samples(samples), lambda batch: tools.stacked(batch[1]))


CASES = {"B1": fetch, "B2": vision, "B3": text, "B3b": text, "B4": tokens, "B5": text}

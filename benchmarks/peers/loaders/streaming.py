"""MosaicML Streaming: `StreamingDataset` over local MDS, py1e shuffle, in torch's `DataLoader`, with no worker process or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import tools
from ..measuring import Given, Loader
from .litdata import _packed


def _loader(given: Given, kind: str, transform: Callable[[Any], Any] | None = None) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()  # of a run that was stopped, as its documents say

    class Transformed(StreamingDataset):  # type: ignore[misc]
        """Its documents change records by a subclass."""

        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return row if transform is None else transform(row)

    data = Transformed(local=str(Path(given.data, kind, "mds")), shuffle=True, batch_size=tools.BATCH, shuffle_seed=1)
    workers = given.workers if "processes" in given.variant else 0
    return DataLoader(data, batch_size=tools.BATCH, num_workers=workers, collate_fn=list)


def fetch(given: Given) -> Loader:
    """(image, text) in batches of 32."""
    loader = _loader(given, "images")
    return Loader(tools.forever(lambda: loader), lambda batch: float(tools.touch(row["image"] for row in batch)))


def text(given: Given) -> Loader:
    """Tokenise in `__getitem__`; it has no packing, so ours in numpy."""
    encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
    return _packed(_loader(given, "text", lambda row: encode(row["text"])))


def tokens(given: Given) -> Loader:
    """Ids as they are."""
    loader = _loader(given, "tokens", lambda row: row["input_ids"])
    return _packed(tools.forever(lambda: loader))


def vision(given: Given) -> Loader:
    """Decode and tokenise in `__getitem__`."""
    make = tools.Sample(given.tokenizer, given.variant)
    loader = _loader(given, "images", lambda row: make(row["image"], row["text"]))
    samples = (sample for batch in tools.forever(lambda: loader) for sample in batch)
    return Loader(tools.pack_samples(samples), lambda batch: tools.stacked(batch[1]))


CASES = {"B1": fetch, "B2": vision, "B3": text, "B3b": text, "B4": tokens, "B5": text}

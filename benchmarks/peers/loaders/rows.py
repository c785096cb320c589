"""The cases of peers whose data sets hand out one record at a time, changed by a function of the user's, and don't pack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import tools
from ..measuring import Given, Loader

Transform = Callable[[Any], Any]


def cases(load: Callable[[Given, str, Transform | None], Any]) -> dict[str, Callable[[Given], Loader]]:
    """All that such a peer can do.

    Args:
        load: one pass over a kind of data, in batches that are lists of records, each changed by the function.
    """

    def fetch(given: Given) -> Loader:
        """(image, text) in batches of 32."""
        loader = load(given, "images", None)
        return Loader(tools.forever(lambda: loader), lambda batch: float(tools.touch(row["image"] for row in batch)))

    def text(given: Given) -> Loader:
        """Tokenise in the function; there is no packing, so ours in numpy."""
        encode = tools.Encode(given.tokenizer, fast="fast" in given.variant)
        return _packed(load(given, "text", lambda row: encode(row["text"])))

    def tokens(given: Given) -> Loader:
        """Ids as they are."""
        loader = load(given, "tokens", lambda row: row["input_ids"])
        return _packed(tools.forever(lambda: loader))

    def vision(given: Given) -> Loader:
        """Decode and tokenise in the function."""
        make = tools.Sample(given.tokenizer, given.variant)
        loader = load(given, "images", lambda row: make(row["image"], row["text"]))
        samples = (sample for batch in tools.forever(lambda: loader) for sample in batch)
        return Loader(tools.pack_samples(samples), lambda batch: tools.stacked(batch[1]))

    return {"B1": fetch, "B2": vision, "B3": text, "B3b": text, "B4": tokens, "B5": text}


def _packed(batches: Any) -> Loader:
    packed = tools.concat_then_split(ids for batch in batches for ids in batch)
    return Loader(packed, lambda rows: float(rows.size), lambda rows: rows)

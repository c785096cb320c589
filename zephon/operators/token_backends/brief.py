"""A `tokenizer.json` as short as it can be written: libraries that parse it in full load it a quarter quicker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zephon.notes import kept_text
from zephon.operators.token_backends.base import Ready

_WAY = 1
"""Raised where `shortened` gives another text than before."""


def brief(ready: Ready) -> str:
    """The tokenizer's text `shortened`, kept on disk: parsing and writing it takes as long as is gained."""
    return kept_text("brief", f"{ready.digest}-{_WAY}", lambda: shortened(ready.plain))


def shortened(plain: Mapping[str, Any]) -> str:
    """The same JSON without white space, and each merge as one string, as older files have it, instead of a list of two."""
    model = plain["model"]
    if model.get("merges"):
        merges = [merge if isinstance(merge, str) else _joined(merge) for merge in model["merges"]]
        plain = {**plain, "model": {**model, "merges": merges}}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _joined(merge: list[str]) -> str | list[str]:
    """With a space between the two. What has a space in it must stay as it is."""
    left, right = merge
    return merge if not left or not right or " " in left or " " in right else f"{left} {right}"

"""Wrote `litdata_0_2_30/` with litdata 0.2.30 (and torch 2.14.1): `python write_litdata.py DIRECTORY`.

Four sets: dicts of several types, the same packed by zstd (whole chunks, which was the only way then), tokens, and bare texts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataset
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter

ITEMS = [
    {"id": i, "text": f"row {i} " + "ü→日" * (i % 3), "score": i / 8, "blob": bytes([i]) * i, "vector": np.arange(i, dtype=np.float32),
     "parts": [i, f"p{i}"], "inner": {"flag": i % 2 == 0}}
    for i in range(10)
]  # fmt: skip
DOCUMENTS = [torch.arange(i, 2 * i + 1, dtype=torch.int32) for i in range(10)]


def plain(value: Any) -> Any:
    """As JSON takes it."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    return value.tolist() if hasattr(value, "tolist") else value


def main(folder: Path) -> None:
    """All sets, and `expected.json`: the rows that litdata itself reads from each."""
    expected = {}
    sets: dict[str, tuple[Any, dict[str, Any]]] = {
        "dicts": (ITEMS, {}),
        "zstd": (ITEMS, {"compression": "zstd"}),
        "tokens": (DOCUMENTS, {"item_loader": TokensLoader()}),
        "texts": ([item["text"] for item in ITEMS], {}),
    }
    for name, (items, options) in sets.items():
        size = {"chunk_bytes": 128} if name == "tokens" else {"chunk_size": 4}
        writer = BinaryWriter(str(folder / name), **size, **options)
        for number, item in enumerate(items):
            writer[number] = item
        writer.done()
        writer.merge()
        loader = TokensLoader(block_size=5) if name == "tokens" else None
        made = StreamingDataset(str(folder / name), item_loader=loader)
        expected[name] = [plain(made[i]) for i in range(len(made))]
        for chunk in (folder / name).glob("*.bin"):
            if (folder / name / f"{chunk.stem}.zstd.bin").exists():
                chunk.unlink()  # what its reader unpacked
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

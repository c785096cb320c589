"""Wrote `mds_0_6_0/` (two streams) with mosaicml-streaming 0.6.0, numpy 1.26 and Pillow 13: `python write_mds.py DIRECTORY`.

Only the writer is loaded, so that none of that release's other dependencies (torch, the clouds' clients) need be installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLUMNS = {
    "bytes": "bytes",
    "f16": "float16",
    "fixed": "ndarray:int16:2,3",
    "free": "ndarray",
    "i": "int",
    "jpeg": "jpeg",
    "json": "json",
    "pil": "pil",
    "png": "png",
    "str": "str",
    "str_decimal": "str_decimal",
    "str_float": "str_float",
    "str_int": "str_int",
    "tokens": "ndarray:uint16",
    "u8": "uint8",
}


def rows() -> list[dict[str, Any]]:
    """What was written."""
    return [
        {
            "bytes": bytes(range(n)),
            "f16": n / 4,
            "fixed": np.arange(6, dtype=np.int16).reshape(2, 3) - n,
            "free": np.arange(n + 1, dtype=("uint8", "float32", "int64")[n % 3]).reshape(1, -1),
            "i": 10**12 * n - 7,
            "jpeg": Image.new("RGB", (4, 3), (40 * n, 0, 255)),
            "json": {"n": n, "ü": [None, True]},
            "pil": Image.new("RGB", (3, 2), (n, 2 * n, 3 * n)),
            "png": Image.new("L", (5, 1), 50 * n),
            "str": "日本語 " * n,
            "str_decimal": Decimal(f"{n}.10"),
            "str_float": n * 1e-300,
            "str_int": -n,
            "tokens": np.arange(n + 1, dtype=np.uint16) * 300,
            "u8": n,
        }
        for n in range(5)
    ]


class _Absent(types.ModuleType):
    """Stands for a module that the writer imports and does not use."""

    def __getattr__(self, name: str) -> Any:
        return None


class _Uploader:
    """Of local directories, which need none."""

    remote = None

    def __init__(self, out: str) -> None:
        self.local = out
        Path(out).mkdir(parents=True)

    @classmethod
    def get(cls, out: str, *_: Any) -> _Uploader:
        """One for this directory."""
        return cls(out)

    def upload_file(self, name: str) -> None:
        """Nothing to do."""


def main(out: Path) -> None:
    """Write both streams."""
    ours = ("distributed", "shared", "shared.prefix", "storage", "storage.upload")
    for name in ("torch", "torch.distributed", *(f"streaming.base.{n}" for n in ours)):
        sys.modules[name] = _Absent(name)
        sys.modules[name].__path__ = []
    root = str(importlib.metadata.distribution("mosaicml-streaming").locate_file("streaming"))
    for name, path in (("streaming", root), ("streaming.base", root + "/base")):
        module = types.ModuleType(name)
        module.__path__ = [path]
        sys.modules[name] = module

    sys.modules["streaming.base.storage.upload"].CloudUploader = _Uploader  # type: ignore[attr-defined]
    writer = importlib.import_module("streaming.base.format.mds.writer").MDSWriter
    for name, packing, part in (("a", None, rows()[:3]), ("b", "zstd:7", rows()[3:])):
        with writer(
            out=str(out / name), columns=COLUMNS, compression=packing, hashes=["sha1", "xxh64"], size_limit=2000
        ) as made:
            for row in part:
                made.write(row)
    print(importlib.metadata.version("mosaicml-streaming"), json.loads((out / "a" / "index.json").read_text())["version"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

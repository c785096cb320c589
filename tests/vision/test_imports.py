"""What a run of the vision recipe loads, and what it leaves alone. In a fresh process: others of the same one may have loaded it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def documents(kind: str) -> pa.Table:
    files = [jpeg(scene(60, 40 + n, seed=n)) for n in range(6)]
    if kind == "caption":
        return pa.table({"image": pa.array(files), "text": [f"page {n}" for n in range(6)]})
    talk = [{"role": "user", "content": "<image> what?"}, {"role": "assistant", "content": "a page"}]
    images: Any = [[{"bytes": f, "path": None}] if n else None for n, f in enumerate(files)]
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table(
        {
            "messages": pa.array([talk if n else talk[1:] for n in range(6)], MESSAGES),
            "images": pa.array(images, pa.list_(image)),
        }
    )


@pytest.mark.parametrize("kind", ["caption", "chat"])
def test_the_whole_vision_recipe_needs_neither_pandas_nor_torch(tmp_path: Path, kind: str) -> None:
    """pandas is 0.35 s and 50 MB, torch 3 s and up to 0.5 GB; both are installed here."""
    pq.write_table(documents(kind), tmp_path / "pages.parquet", row_group_size=4)
    fast((*QWEN, "<image>")).save(str(tmp_path / "tokenizer.json"))
    code = f"""
import sys
import numpy as np
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
data = Dataset.from_path("pages", {str(tmp_path / "pages.parquet")!r})
source = StaticMixtureWorkSource([data], seed=1, stop_after_passes=1, chunk_size=3)
pipeline = (
    Pipeline(source)
    .interleave()
    .probe_images()
    .tokenize_interleaved(tokenizer={str(tmp_path / "tokenizer.json")!r}, images='siglip{{"size": 28}}', train_on="all")
    .pack_multimodal(max_length=64, pad_token_id=0)
    .shuffle(buffer_size=2)
    .decode_images(backend="pil")
    .batch(1)
    .options(lanes=2)
)
images = sum(len(b.to_training(dtype=np.int64, pixel_dtype="float32").get("pixel_values", ())) for b in pipeline)
print(images, sorted({{"pandas", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    images = 6 if kind == "caption" else 5
    assert (done.stdout.strip(), done.returncode) == (f"{images} []", 0), done.stderr

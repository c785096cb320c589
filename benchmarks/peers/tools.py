"""What cases call inside the peers' loaders: the same functions for all, in numpy and the libraries that everybody uses."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

BATCH = 32
"""Samples per batch where nothing is packed."""
LENGTH = 2048
ROWS = 8
"""Sequences per batch where something is."""
SIDE = 224
IMAGE_TOKENS = 256
"""Of an image of 224 × 224 in patches of 14."""
_PAGE = 4096

Ids = npt.NDArray[np.int32]


def touch(payloads: Iterable[Any]) -> int:
    """Read one byte of every page of each payload: a mapped file must really have been read. How many payloads there were."""
    count = 0
    for payload in payloads:
        np.frombuffer(payload, np.uint8)[::_PAGE].sum()
        count += 1
    return count


def touch_arrow(images: Any, texts: Any) -> int:
    """The same for an Arrow array of binary, where its values lie (a scalar's `as_buffer` is a copy), with a list of text, as other
    loaders' records have it."""
    _, offsets, data = images.buffers()
    ends = np.frombuffer(offsets, np.int32, len(images) + 1, images.offset * 4).tolist()
    values = memoryview(data)
    assert len(texts.to_pylist()) == len(images)
    return touch(values[begin:end] for begin, end in itertools.pairwise(ends))


def hash_arrow(images: Any) -> int:
    """xxh3 of all bytes of an Arrow array of binary: the quickest way to have read each of them."""
    import xxhash

    _, offsets, data = images.buffers()
    ends = np.frombuffer(offsets, np.int32, len(images) + 1, images.offset * 4)
    return int(xxhash.xxh3_64_intdigest(memoryview(data)[int(ends[0]) : int(ends[-1])]))


def forever(make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Pass after pass."""
    while True:
        yield from make()


def grouped(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size`; the last partial one is left out."""
    held: list[Any] = []
    for item in items:
        held.append(item)
        if len(held) == size:
            yield held
            held = []


# ------------------------------------------------------------------------------------------------ text


@lru_cache(maxsize=2)
def _slow(path: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True  # special strings in the text are text
    return tokenizer


@lru_cache(maxsize=2)
def _fast(path: str) -> Any:
    os.environ["FASTOKENS_BPE_THREADS"] = "1"  # the loader's workers call
    import fastokens

    with open(path, encoding="utf-8") as file:
        return fastokens.Tokenizer.from_json_str(file.read())


@lru_cache(maxsize=2)
def end_of_text(path: str) -> int:
    """The id that ends every document. Looked up in the text: to load a tokenizer for it would be part of every first batch."""
    with open(path, encoding="utf-8") as file:
        found = re.search(r'"id":\s*(\d+),\s*"content":\s*"<\|endoftext\|>"', file.read(1 << 16))
    assert found is not None
    return int(found[1])


class Encode:
    """Text to ids and the end-of-text id, int32; made anew in each process that it is sent to."""

    def __init__(self, path: str, *, fast: bool) -> None:
        self.path, self.fast = path, fast

    def __call__(self, text: str) -> Ids:
        """One document, as a user's function gets it."""
        end = end_of_text(self.path)
        if self.fast:
            ids, _ = _fast(self.path).encode_batch_flat([text], False, True)
            return np.append(np.frombuffer(ids, "<u4").view(np.int32), np.int32(end))
        return np.array([*_slow(self.path).encode(text, add_special_tokens=False).ids, end], np.int32)

    def many(self, texts: list[str]) -> int:
        """A list of documents with the library's own batches: how many ids they were, ends not counted. For the limits."""
        if self.fast:
            ids, _ = _fast(self.path).encode_batch_flat(texts, False, True)
            return len(ids) // 4
        return sum(map(len, _slow(self.path).encode_batch_fast(texts, add_special_tokens=False)))


def concat_then_split(documents: Iterable[Ids]) -> Iterator[Ids]:
    """For loaders that can't pack: ids one after the other, cut into int32[8, 2048]. Numpy, one copy."""
    held: list[Ids] = []
    have, want = 0, LENGTH * ROWS
    for ids in documents:
        held.append(ids)
        have += len(ids)
        if have >= want:
            flat = np.concatenate(held)
            whole = len(flat) // want * want
            yield from flat[:whole].reshape(-1, ROWS, LENGTH)
            held, have = [flat[whole:]], len(flat) - whole


# ------------------------------------------------------------------------------------------------ images


def pillow_pixels(image: bytes) -> npt.NDArray[np.float32]:
    """As documents of the peers show it: Pillow, 224 × 224, normalised; float32[3, 224, 224]."""
    from PIL import Image

    rgb = Image.open(io.BytesIO(image)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    return ((np.asarray(rgb, np.float32) / 255 - 0.5) / 0.5).transpose(2, 0, 1)


@lru_cache(maxsize=1)
def _torch() -> Any:
    """torch where it is installed, as our decoder chooses it."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)  # the loader's workers call
    return torch


def fast_pixels(image: bytes) -> npt.NDArray[np.uint8]:
    """The calls that our decoder makes: simplejpeg, then torch or fast_image_resize; uint8[3, 224, 224], the device normalises."""
    import simplejpeg

    rgb = simplejpeg.decode_jpeg(image, colorspace="RGB")
    torch = _torch()
    if torch is not None:
        picture = torch.from_numpy(rgb).permute(2, 0, 1)[None]
        made = torch.nn.functional.interpolate(picture, size=[SIDE, SIDE], mode="bicubic", align_corners=False, antialias=True)
        return np.asarray(made[0].numpy())
    import cykooz_resizer as library

    source = library.ImageData(rgb.shape[1], rgb.shape[0], library.PixelType.U8x3, rgb.tobytes())
    target = library.ImageData(SIDE, SIDE, library.PixelType.U8x3)
    options = library.ResizeOptions(resize_alg=library.ResizeAlg.convolution(library.FilterType.catmull_rom))
    library.Resizer().resize(source, target, options)
    return np.frombuffer(target.get_buffer(), np.uint8).reshape(SIDE, SIDE, 3).transpose(2, 0, 1)


def pixels(how: str) -> Callable[[bytes], Any]:
    """`pillow` or `fast`."""
    return pillow_pixels if "pillow" in how else fast_pixels


class Sample:
    """(JPEG, text) → ids with the image's places first, and pixels: what a vision-language user writes per record."""

    def __init__(self, path: str, how: str) -> None:
        self.encode, self.how = Encode(path, fast="fast" in how), how

    def __call__(self, image: bytes, text: str) -> dict[str, Any]:
        """`input_ids`: int32[256 + text], `pixels`: [3, 224, 224]."""
        ids = np.concatenate([np.zeros(IMAGE_TOKENS, np.int32), self.encode(text)])
        return {"input_ids": ids, "pixels": pixels(self.how)(image)}


def stacked(images: Iterable[Any]) -> float:
    """The images of a batch as one array, as a trainer takes them: how many they were."""
    return float(len(np.stack(list(images))))


def pack_samples(samples: Iterable[dict[str, Any]]) -> Iterator[tuple[Ids, list[Any]]]:
    """For loaders that can't pack images: first fit in order, int32[8, 2048] padded with 0, and the images of the batch."""
    rows, images, at, row = np.zeros((ROWS, LENGTH), np.int32), [], 0, 0
    for sample in samples:
        ids = sample["input_ids"][:LENGTH]
        if at + len(ids) > LENGTH:
            row, at = row + 1, 0
            if row == ROWS:
                yield rows, images
                rows, images, row = np.zeros((ROWS, LENGTH), np.int32), [], 0
        rows[row, at : at + len(ids)] = ids
        images.append(sample["pixels"])
        at += len(ids)


# ------------------------------------------------------------------------------------------------ Python


def heavy(text: str) -> int:
    """What users do in plain Python: about 0.4 ms per document that never releases the interpreter's lock."""
    counts: dict[str, int] = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return sum(len(w) * n for w, n in sorted(counts.items()))


def heavy_record(record: dict[str, Any]) -> dict[str, Any]:
    """The same for loaders that give dicts."""
    return {"number": heavy(record["text"])}

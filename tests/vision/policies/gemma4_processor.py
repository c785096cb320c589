"""What transformers' own processor of Gemma 4 makes; `python gemma4_processor.py` writes it to `golden/gemma4.npz`.

It needs transformers 5, which some library of the test environment doesn't allow yet; so the tests compare with what it gave once, and,
where it is installed, with the processor itself. With tests/ and the project on the path:

    python tests/vision/policies/gemma4_processor.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import transformers
from vision.policies.kit import random_sizes, tokenizer_for

from zephon_vision.policies.gemma import Gemma4

GOLDEN = Path(__file__).with_name("golden") / "gemma4.npz"
SOFT = (70, 140, 280, 560, 1120)
SIZES = list(random_sizes(300, 21))
PICTURES = ((300, 200), (97, 413), (640, 480), (12, 300))
TEXT = "a photo<|image|> of a cat\n\n<|image|> and a dog"
NAMES = {
    "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>", "boa_token": "<|audio>",
    "eoa_token": "<audio|>", "video_token": "<|video|>",
}  # fmt: skip
EVERY = 29
"""Of the patches of a picture, every 29th is kept."""


def picture(number: int) -> np.ndarray[Any, Any]:
    """Noise, which no resizing forgives; the same with every release of numpy."""
    height, width = PICTURES[number]
    bits = np.random.Generator(np.random.PCG64(number)).integers(0, 256, (height, width, 3), dtype=np.int64)
    return bits.astype(np.uint8)


def observe() -> dict[str, np.ndarray[Any, Any]]:
    """Sizes after resizing (0: refused) for each limit and size; patches, positions and counts of pictures; ids of a text with two."""
    from transformers.models.gemma4 import image_processing_gemma4 as module  # type: ignore[import-not-found]

    sizes = np.zeros((len(SOFT), len(SIZES), 2), dtype=np.int32)
    for row, soft in zip(sizes, SOFT, strict=True):
        for place, (height, width) in zip(row, SIZES, strict=True):
            try:
                place[:] = module.get_aspect_ratio_preserving_size(height, width, 16, soft * 9, 3)
            except ValueError:
                continue
    images: Any = module.Gemma4ImageProcessor(max_soft_tokens=70)
    pictures = [picture(number) for number in range(len(PICTURES))]
    made = images([p.copy() for p in pictures], return_tensors="np")
    values = np.asarray(made["pixel_values"])
    bytes_ = np.rint(values * 255).astype(np.uint8)
    assert np.array_equal(bytes_ * np.float32(1 / 255), values), "bytes say all"
    kinds: Any = transformers
    processor = kinds.Gemma4Processor(
        feature_extractor=kinds.Gemma4AudioFeatureExtractor(),
        image_processor=images,
        tokenizer=tokenizer_for(Gemma4(), **NAMES),
        video_processor=kinds.Gemma4VideoProcessor(),
    )
    ids = processor(text=[TEXT], images=[[p.copy() for p in pictures[:2]]], return_tensors="np")["input_ids"]
    return {
        "sizes": sizes,
        "patches": bytes_[:, ::EVERY],
        "positions": np.asarray(made["image_position_ids"], dtype=np.int16),
        "soft": np.asarray(made["num_soft_tokens_per_image"]),
        "ids": np.asarray(ids, dtype=np.int32),
    }


if __name__ == "__main__":
    np.savez_compressed(GOLDEN, **observe(), written_by=np.array(f"transformers {transformers.__version__}"))
    print(GOLDEN, GOLDEN.stat().st_size)

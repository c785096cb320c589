"""What the policy tests share: the policies, the models' own processors of both back-ends, resizers, images and tokenizers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2
from transformers import PreTrainedTokenizerFast

from zephon_vision.policies.base import Pixels, Policy, Resize, SpecialIds
from zephon_vision.policies.clip import Clip, Siglip, Siglip2
from zephon_vision.policies.gemma import Gemma3, Gemma4
from zephon_vision.policies.idefics import Idefics3, SmolVLM
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llama4 import Llama4
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.pixtral import Mistral, Pixtral
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL, Qwen25VL

ALL: tuple[type[Policy], ...] = (
    Clip, Siglip, Siglip2, Llava15, LlavaNext, LlavaOnevision, InternVL, Idefics3, SmolVLM, Qwen2VL, Qwen25VL, Qwen3VL, Pixtral, Mistral,
    Gemma3, Gemma4, Llama4,
)  # fmt: skip

SMALL: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"max_pixels": 28 * 28 * 200},
    "qwen2_5_vl": {"max_pixels": 28 * 28 * 200, "min_pixels": 28 * 28 * 4},
    "qwen3_vl": {"max_pixels": 32 * 32 * 200},
    "gemma3": {"pan_and_scan": True, "size": 448, "min_crop_size": 32},
    "idefics3": {"longest_edge": 400, "tile": 100},
    "smolvlm": {"longest_edge": 256, "tile": 64},
    "gemma4": {"max_soft_tokens": 70},
    "internvl": {"max_patches": 6},
    "llama4": {"max_patches": 6},
    "llava_onevision": {"image_grid_pinpoints": ((384, 768), (768, 384), (768, 768)), "max_tiles": 2},
}
"""Settings that keep images small."""

MODERN = hasattr(transformers, "Qwen2VLImageProcessorPil")
"""transformers 5: an image processor without a suffix is torchvision's, and Pillow's has one."""

COLOURS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}


class PilResize(Resize):
    """Pillow, as the NumPy processors use it."""

    backend = "pil"

    def __call__(
        self, rgb: Pixels, size: tuple[int, int], filter: str, box: tuple[float, float, float, float] | None = None
    ) -> Pixels:
        return np.asarray(Image.fromarray(rgb).resize((size[1], size[0]), COLOURS[filter], box=box))


class TorchResize(Resize):
    """torchvision on bytes, as the fast processors use it; those of transformers 4 take bicubic where Lanczos is asked for."""

    backend = "torch"
    functional: Any = v2

    def __call__(
        self, rgb: Pixels, size: tuple[int, int], filter: str, box: tuple[float, float, float, float] | None = None
    ) -> Pixels:
        assert box is None
        image = torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1)))
        mode = v2.InterpolationMode.BILINEAR if filter == "bilinear" else v2.InterpolationMode.BICUBIC
        if filter == "lanczos" and MODERN:
            mode = v2.InterpolationMode.LANCZOS
        made = self.functional.resize(image, list(size), interpolation=mode, antialias=True)
        return np.ascontiguousarray(made.numpy().transpose(1, 2, 0))


class FloatTorchResize(TorchResize):
    """torchvision's first functional interface, which resizes in floating point; Idefics3's fast processor of transformers 4 uses it."""

    functional: Any = v1


def processor_class(name: str, backend: str) -> Any | None:
    """The image processor `name` of a back-end, by the names of transformers 4 or 5; None: there is none."""
    suffix = {"pil": "Pil", "torch": ""}[backend] if MODERN else {"pil": "", "torch": "Fast"}[backend]
    return getattr(transformers, name + suffix, None)


def qwen_pixels(least: int, most: int) -> dict[str, Any]:
    """Settings of a Qwen image processor for images of so many pixels.

    The Pillow processor of transformers 4 takes no notice of `size`; and its fast one, without `size`, writes the other two into the
    defaults of its class, which all that are made later in the process have then.
    """
    return {"min_pixels": least, "max_pixels": most, "size": {"shortest_edge": least, "longest_edge": most}}


def random_sizes(count: int, seed: int, largest: int = 4000) -> Iterator[tuple[int, int]]:
    """Odd sizes first, then random ones, small and large sides alike."""
    yield from [
        (1, 1), (1, 2), (2, 1), (28, 28), (27, 29), (224, 224), (336, 336), (364, 364), (448, 448), (512, 512), (672, 336), (640, 480),
        (480, 640), (1080, 1920), (1920, 1080), (896, 896), (1, 150), (150, 1), (20, 8), (2304, 2304), (1456, 1456), (333, 999),
    ]  # fmt: skip
    draw = random.Random(seed)
    for _ in range(count):
        if draw.random() < 0.5:
            yield draw.randint(1, largest), draw.randint(1, largest)
        else:
            yield int(largest ** draw.random()), int(largest ** draw.random())


@lru_cache(maxsize=32)
def photo(height: int, width: int) -> Pixels:
    """A picture with gradients, edges and noise; always the same one."""
    y, x = np.mgrid[:height, :width]
    draw = np.random.default_rng(height * 10007 + width)
    waves = np.stack([np.sin(x / 7 + y / 13), np.cos(x / 3 - y / 29), np.sin(x * y / 900)], axis=-1) * 70 + 128
    made = waves + draw.normal(0, 12, waves.shape) + 60 * ((x // 31 + y // 17) % 2)[..., None]
    made = np.clip(made, 0, 255).astype(np.uint8)
    made.flags.writeable = False
    return made


@lru_cache(maxsize=4)
def byte_level(merging: bool) -> str:
    """A small byte-level BPE tokenizer; with `merging`, line breaks merge."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    texts = ["a photo of a cat and a dog\n\nHere is the original image \n\n and here are some crops to help you see better"] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=400 if merging else 256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return str(made.to_str())


def tokenizer_for(policy: Policy, *, merging: bool = True, **names: str) -> PreTrainedTokenizerFast:
    """A tokenizer with the policy's special tokens; `names` are tokens that processors look up as attributes."""
    fast = Tokenizer.from_str(byte_level(merging))
    kind = getattr(transformers, "Qwen2TokenizerFast", PreTrainedTokenizerFast) if policy.mrope else PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = kind(
        tokenizer_object=fast, bos_token="<s>", eos_token="</s>", pad_token="<pad>", extra_special_tokens=names
    )
    made.add_special_tokens({"additional_special_tokens": [*policy.special_tokens]})
    return made


def special_ids(policy: Policy, tokenizer: PreTrainedTokenizerFast) -> SpecialIds:
    """What the operator makes for `token_run`."""

    def text(of: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(of, add_special_tokens=False))

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in policy.special_tokens}
    return SpecialIds(ids, text("\n"), {piece: text(piece) for piece in policy.texts})


def plain_ids(policy: Policy) -> SpecialIds:
    """Ids for `token_run` where line breaks and pieces of text are one token each."""
    ids = {token: number for number, token in enumerate(policy.special_tokens, start=1000)}
    return SpecialIds(ids, (10,), {piece: (11 + number,) for number, piece in enumerate(policy.texts)})


def processor_of(
    name: str, images: Any, policy: Policy, names: dict[str, str] | None = None, *, merging: bool = True, **settings: Any
) -> Any:
    """The processor `name` around an image processor and a small tokenizer."""
    kind = getattr(transformers, name)
    if "video_processor" in (kind.get_attributes() if MODERN else kind.attributes):
        video = "Qwen3VLVideoProcessor" if "Qwen3" in name else "Qwen2VLVideoProcessor"
        settings["video_processor"] = getattr(transformers, video)()
    tokenizer = tokenizer_for(policy, merging=merging, **(names or {}))
    return kind(image_processor=images, tokenizer=tokenizer, **settings)

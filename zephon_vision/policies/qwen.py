"""Policies of Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import patches
from zephon_vision.policies.clip import OPENAI_MEAN, OPENAI_STD


@dataclass(frozen=True, kw_only=True)
class Qwen2VL(Policy):
    """Qwen2-VL: the image's own ratio between `min_pixels` and `max_pixels`, sides multiples of patch_size · merge_size.

    Blocks are uint8[n, 3·patch_size²], a patch each, columns (channel, y, x); squares of merge_size × merge_size patches, one token
    each, lie together. The model wants every patch `temporal_patch_size` times: an image is a film that stands still. The blocks leave
    that to the device (half the bytes); `to_float` does it, with the model's columns (channel, time, y, x).
    """

    name = "qwen2_vl"
    planar = True
    special_tokens = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    placeholder = "<|vision_start|><|image_pad|><|vision_end|>"
    mrope = True
    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 16384 * 28 * 28
    """The limits of the published checkpoints; the class in `transformers` has lower ones by default."""
    image_mean: tuple[float, ...] = OPENAI_MEAN
    image_std: tuple[float, ...] = OPENAI_STD

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("patch_size", "merge_size", "temporal_patch_size", "min_pixels", "max_pixels")
        if self.min_pixels > self.max_pixels:
            raise RecipeError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels} in policy {self.name!r}")

    @property
    def merge(self) -> int:
        return self.merge_size

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        size = sizing.smart_resize(height, width, self.patch_size * self.merge_size, self.min_pixels, self.max_pixels)
        grid = (1, size[0] // self.patch_size, size[1] // self.patch_size)
        count = grid[1] * grid[2]
        return Plan(height, width, (size,), grid, count, count // self.merge_size**2 + 2)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        return patches(resize(rgb, plan.sizes[0], self.filter), self.patch_size, self.merge_size, empty=resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3 * self.patch_size**2)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<|vision_start|>"], *[ids["<|image_pad|>"]] * (plan.tokens - 2), ids["<|vision_end|>"]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        return {"image_grid_thw": np.array([plan.grid for plan in plans], dtype=np.int64).reshape(-1, 3)}

    def to_float(self, blocks: Pixels, *, backend: str = "torch") -> Floats:
        """uint8[n, 3·p²] to float32[n, 3·t·p²]: normalised, each channel of a patch repeated t times; see `Policy.to_float`."""
        still = super().to_float(blocks, backend=backend).reshape(len(blocks), 3, 1, -1)
        return np.repeat(still, self.temporal_patch_size, axis=2).reshape(len(blocks), -1)


@dataclass(frozen=True, kw_only=True)
class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: the same as Qwen2-VL."""

    name = "qwen2_5_vl"


@dataclass(frozen=True, kw_only=True)
class Qwen3VL(Qwen2VL):
    """Qwen3-VL: Qwen2-VL's way with patches of 16, other limits, and 0.5 as mean and deviation."""

    name = "qwen3_vl"
    patch_size: int = 16
    min_pixels: int = 65536
    max_pixels: int = 16777216
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)

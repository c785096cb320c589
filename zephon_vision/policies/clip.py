"""Policies of contrastive encoders: CLIP, SigLIP and SigLIP 2 (NaFlex)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw, pixel_patches, planes

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Clip(Policy):
    """CLIP: the short side to `shortest_edge`, then the middle `crop` × `crop`. One block uint8[3, crop, crop]; no tokens in the text."""

    name = "clip"
    planar = True
    shortest_edge: int = 224
    crop: int = 224
    image_mean: tuple[float, ...] = OPENAI_MEAN
    image_std: tuple[float, ...] = OPENAI_STD

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("shortest_edge", "crop")
        if self.crop > self.shortest_edge:
            raise RecipeError(f"policy {self.name!r} can't crop {self.crop} pixels from a short side of {self.shortest_edge}")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        return Plan(height, width, (sizing.bounded(*sizing.shortest_edge(height, width, self.shortest_edge)),))

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        (high, wide), side = plan.sizes[0], self.crop
        made = resize.empty((1, 3, side, side))
        planes(resize(rgb, plan.sizes[0], self.filter), made[0], (high - side) // 2, (wide - side) // 2)
        return made

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.crop, self.crop)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:  # noqa: ARG002 - there is none
        return []

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002 - pixels are all the model wants
        return {}


@dataclass(frozen=True, kw_only=True)
class Siglip(Policy):
    """SigLIP: squashed to `size` × `size`. One block uint8[3, size, size]; (size / patch_size)² tokens where a language model reads it."""

    name = "siglip"
    planar = True
    special_tokens = ("<image>",)
    size: int = 384
    patch_size: int = 14

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("size", "patch_size")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        side = self.size // self.patch_size
        return Plan(height, width, ((self.size, self.size),), (side, side), 1, side * side)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        return chw(resize(rgb, plan.sizes[0], self.filter), resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.size, self.size)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<image>"]] * plan.tokens

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002 - pixels are all the model wants
        return {}


@dataclass(frozen=True, kw_only=True)
class Siglip2(Policy):
    """SigLIP 2 NaFlex: the image's own ratio in at most `max_patches` patches.

    Blocks are uint8[n, 3·patch²], a patch each, columns (y, x, channel), row by row and not padded; `pixel_values` pads with zeros to
    `max_patches`, which is what `pixel_attention_mask` describes.
    """

    name = "siglip2"
    special_tokens = ("<image>",)
    patch_size: int = 16
    max_patches: int = 256
    filter: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("patch_size", "max_patches")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        size = sizing.naflex(height, width, self.patch_size, self.max_patches)
        grid = (1, size[0] // self.patch_size, size[1] // self.patch_size)
        return Plan(height, width, (size,), grid, grid[1] * grid[2], grid[1] * grid[2])

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        return pixel_patches(resize(rgb, plan.sizes[0], self.filter), self.patch_size, resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3 * self.patch_size**2)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<image>"]] * plan.tokens

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        counts = np.array([plan.blocks for plan in plans], dtype=np.int64)
        return {
            "spatial_shapes": np.array([plan.grid[1:] for plan in plans], dtype=np.int64).reshape(-1, 2),
            "pixel_attention_mask": (np.arange(self.max_patches) < counts[:, None]).astype(np.int64),
        }

    def to_float(self, blocks: Pixels, *, backend: str = "torch") -> Floats:
        mean, std = (np.tile(np.array(x, dtype=np.float32), self.patch_size**2) for x in self.normalize())
        return self._normal(blocks, mean, std, backend)

    def pixel_values(self, images: Sequence[Pixels], plans: Sequence[Plan], *, backend: str = "torch") -> Floats:
        self._match(images, plans)
        made = np.zeros((len(images), self.max_patches, 3 * self.patch_size**2), dtype=np.float32)
        for row, blocks in zip(made, images, strict=True):
            row[: len(blocks)] = self.to_float(blocks, backend=backend)
        return made

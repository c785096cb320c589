"""The policy of InternVL 2, 2.5 and 3 (`GotOcr2ImageProcessor` in `transformers`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw, tiles, together
from zephon_vision.policies.clip import IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True, kw_only=True)
class InternVL(Policy):
    """InternVL: squashed to the grid of tiles with the nearest ratio; where that is more than one tile, the whole image follows as one.

    Blocks are uint8[tiles, 3, size, size], row by row, the whole image last.
    """

    name = "internvl"
    planar = True
    special_tokens = ("<img>", "<IMG_CONTEXT>", "</img>")
    placeholder = "<IMG_CONTEXT>"
    size: int = 448
    min_patches: int = 1
    max_patches: int = 12
    crop_to_patches: bool = True
    """False: one tile, whatever the size."""
    image_seq_length: int = 256
    """Tokens per tile."""
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    image_std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("size", "min_patches", "max_patches", "image_seq_length")
        if self.min_patches > self.max_patches:
            raise RecipeError(f"min_patches {self.min_patches} is above max_patches {self.max_patches} in policy {self.name!r}")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        grid = (1, 1)
        if self.crop_to_patches:
            grid = sizing.tile_grid(height, width, self.size, self.min_patches, self.max_patches)
        count = grid[0] * grid[1]
        blocks = count + 1 if count > 1 else 1
        sizes = ((grid[0] * self.size, grid[1] * self.size), (self.size, self.size))[: 2 if count > 1 else 1]
        return Plan(height, width, sizes, grid, blocks, blocks * self.image_seq_length + 2)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        cut = tiles(resize(rgb, plan.sizes[0], self.filter), self.size, resize.empty)
        if plan.blocks == 1:
            return cut
        return together([cut, chw(resize(rgb, plan.sizes[1], self.filter), resize.empty)], resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.size, self.size)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<img>"], *[ids["<IMG_CONTEXT>"]] * (plan.tokens - 2), ids["</img>"]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`num_patches` int64[n], the tiles of each image."""
        return {"num_patches": np.array([plan.blocks for plan in plans], dtype=np.int64)}

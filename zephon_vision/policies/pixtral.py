"""Policies of Pixtral and Mistral Small 3, as `transformers` and as Mistral's own library have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import from_patches, patches
from zephon_vision.policies.clip import OPENAI_MEAN, OPENAI_STD
from zephon_vision.policies.cubic import cubic_bytes


@dataclass(frozen=True, kw_only=True)
class Pixtral(Policy):
    """Pixtral: shrunk until the long side is `longest_edge`, then up to whole tokens of patch_size · spatial_merge_size pixels.

    Blocks are uint8[n, 3·patch_size²], a patch each, columns (channel, y, x), row by row: images of any size lie in one flat array.
    `pixel_values` puts them together again and pads, as the processor does. (Mistral Small 3: patch_size=14, spatial_merge_size=2,
    longest_edge=1540.)
    """

    name = "pixtral"
    planar = True
    special_tokens = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    placeholder = "[IMG]"
    nearest: ClassVar[bool] = False
    patch_size: int = 16
    spatial_merge_size: int = 1
    longest_edge: int = 1024
    image_mean: tuple[float, ...] = OPENAI_MEAN
    image_std: tuple[float, ...] = OPENAI_STD

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("patch_size", "spatial_merge_size", "longest_edge")

    @property
    def merge(self) -> int:
        return self.spatial_merge_size

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        token = self.patch_size * self.spatial_merge_size
        size = sizing.within_longest(height, width, self.longest_edge, token, nearest=self.nearest)
        grid = (1, size[0] // self.patch_size, size[1] // self.patch_size)
        return Plan(height, width, (size,), grid, grid[1] * grid[2], size[0] // token * (size[1] // token + 1))

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        return patches(resize(rgb, plan.sizes[0], self.filter), self.patch_size, empty=resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3 * self.patch_size**2)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        rows, columns = (patches // self.spatial_merge_size for patches in plan.grid[1:])
        row = [*[ids["[IMG]"]] * columns, ids["[IMG_BREAK]"]]
        return [*(row * rows)[:-1], ids["[IMG_END]"]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`image_sizes` int64[n, 2], the sizes after resizing."""
        return {"image_sizes": np.array([plan.sizes[0] for plan in plans], dtype=np.int64).reshape(-1, 2)}

    def pixel_values(self, images: Sequence[Pixels], plans: Sequence[Plan], *, backend: str = "torch") -> Floats:
        """float32[n, 3, tallest, widest], zeros below and right of smaller images."""
        self._match(images, plans)
        sizes = self.fields(plans)["image_sizes"]
        made = np.zeros((len(images), 3, *sizes.max(axis=0)), dtype=np.float32)
        for room, blocks, plan, (height, width) in zip(made, images, plans, sizes, strict=True):
            whole = from_patches(blocks, self.patch_size, (plan.grid[1], plan.grid[2]))
            room[:, :height, :width] = self.to_float(whole[None], backend=backend)[0]
        return made


@dataclass(frozen=True, kw_only=True)
class Mistral(Pixtral):
    """The same models through Mistral's own library (`mistral-common`): sizes are rounded to the nearest pixel, not down.

    Sizes and tokens are that library's, and so is the interpolation, OpenCV's cubic one without antialiasing, whatever resizes else. It
    works in floating point and keeps values beyond 0–255, which bytes can't hold: they are cut off here, and the others rounded, so
    that they differ by half a unit of 255 at most.
    """

    name = "mistral"
    nearest = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.filter != "bicubic":
            raise RecipeError(f"image policy 'mistral' resizes as OpenCV's INTER_CUBIC does, not with filter {self.filter!r}")

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        return patches(cubic_bytes(rgb, plan.sizes[0]), self.patch_size, empty=resize.empty)

"""Policies of LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw, on_canvas, square, tiles, together
from zephon_vision.policies.clip import OPENAI_MEAN, OPENAI_STD


def _colour(mean: Sequence[float]) -> tuple[int, ...]:
    return tuple(int(x * 255) for x in mean)


@dataclass(frozen=True, kw_only=True)
class Llava15(Policy):
    """LLaVA-1.5: padded to a square with the mean colour, then squashed to `size`. With `pad=False` as CLIP does it: the short side to
    `size`, then the middle (what the published `llava-hf` checkpoints ask for). One block uint8[3, size, size]."""

    name = "llava_1_5"
    special_tokens = ("<image>",)
    size: int = 336
    patch_size: int = 14
    pad: bool = True
    image_mean: tuple[float, ...] = OPENAI_MEAN
    image_std: tuple[float, ...] = OPENAI_STD

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("size", "patch_size")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        long = max(height, width)
        size = sizing.bounded(*(long, long) if self.pad else sizing.shortest_edge(height, width, self.size))
        side = self.size // self.patch_size
        return Plan(height, width, ((self.size, self.size) if self.pad else size,), (side, side), 1, side * side)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        if self.pad:
            return chw(resize(square(rgb, _colour(self.image_mean)), plan.sizes[0], self.filter), resize.empty)
        sized = resize(rgb, plan.sizes[0], self.filter)
        top, left = (sized.shape[0] - self.size) // 2, (sized.shape[1] - self.size) // 2
        return chw(sized[top : top + self.size, left : left + self.size], resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.size, self.size)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<image>"]] * plan.tokens

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:  # noqa: ARG002 - pixels are all the model wants
        return {}


def _pinpoints(sides: int, tile: int) -> tuple[tuple[int, int], ...]:
    return tuple((tile * rows, tile * columns) for rows in range(1, sides + 1) for columns in range(1, sides + 1))


@dataclass(frozen=True, kw_only=True)
class LlavaNext(Policy):
    """LLaVA-NeXT: the whole image squashed to one tile, and the image again on the best of some canvases, cut into tiles.

    Blocks are uint8[1 + tiles, 3, size, size], the whole image first. The padding of the canvas costs no tokens: the model cuts it off
    again (`image_sizes` tells it where) and ends each row of features with a newline embedding, which counts as a token.
    """

    name = "llava_next"
    special_tokens = ("<image>",)
    size: int = 336
    patch_size: int = 14
    image_grid_pinpoints: tuple[tuple[int, int], ...] = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
    extra_tokens: int = 0
    """More features per tile than patches: `num_additional_image_tokens`, less one where the model drops the class token."""
    image_mean: tuple[float, ...] = OPENAI_MEAN
    image_std: tuple[float, ...] = OPENAI_STD

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("size", "patch_size")
        sides = [side for point in self.image_grid_pinpoints for side in point]
        if not sides or any(side < 1 or side % self.size for side in sides):
            raise RecipeError(f"image_grid_pinpoints of policy {self.name!r} must be multiples of size {self.size}")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        return self._tiled(height, width)

    def _tiled(self, height: int, width: int) -> Plan:
        canvas = sizing.best_resolution(height, width, self.image_grid_pinpoints)
        grid = (canvas[0] // self.size, canvas[1] // self.size)
        side = self.size // self.patch_size
        rows, columns = sizing.unpadded(height, width, (grid[0] * side, grid[1] * side))
        rows, columns = self._pooled(rows, columns)
        tokens = side * side + self.extra_tokens + rows * (columns + 1)
        sizes = (sizing.inside(height, width, canvas), (self.size, self.size))
        return Plan(height, width, sizes, grid, 1 + grid[0] * grid[1], tokens)

    def _pooled(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, columns

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        (height, width), whole = plan.sizes
        canvas = (plan.grid[0] * self.size, plan.grid[1] * self.size)
        at = (
            (canvas[0] - height) // 2,
            (canvas[1] - width) // 2,
        )  # an odd pixel of padding goes to the right and to the bottom
        detail = tiles(on_canvas(resize(rgb, (height, width), self.filter), canvas, at), self.size, resize.empty)
        return together([chw(resize(rgb, whole, self.filter), resize.empty), detail], resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.size, self.size)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<image>"]] * plan.tokens

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`image_sizes` int64[n, 2], the sizes before resizing; `num_patches` int64[n], how many tiles of the flat blocks are whose."""
        return {
            "image_sizes": np.array([(plan.height, plan.width) for plan in plans], dtype=np.int64).reshape(-1, 2),
            "num_patches": np.array([plan.blocks for plan in plans], dtype=np.int64),
        }

    def pixel_values(self, images: Sequence[Pixels], plans: Sequence[Plan], *, backend: str = "torch") -> Floats:
        """float32[n, most tiles, 3, size, size], zeros where an image has fewer tiles."""
        self._match(images, plans)
        made = np.zeros((len(images), max(map(len, images)), 3, self.size, self.size), dtype=np.float32)
        for row, blocks in zip(made, images, strict=True):
            row[: len(blocks)] = self.to_float(blocks, backend=backend)
        return made


@dataclass(frozen=True, kw_only=True)
class LlavaOnevision(LlavaNext):
    """LLaVA-OneVision: LLaVA-NeXT's way with many canvases, whose features the model shrinks to `max_tiles` tiles' worth.

    In a sample with several images each one is padded to a square with the mean colour and takes one tile.
    """

    name = "llava_onevision"
    size: int = 384
    image_grid_pinpoints: tuple[tuple[int, int], ...] = _pinpoints(6, 384)
    max_tiles: int = 9
    """The number in `anyres_max_9`."""
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("max_tiles")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:
        sizing.positive(height, width)
        if images == 1:
            return self._tiled(height, width)
        sizing.bounded(max(height, width), max(height, width))
        side = self.size // self.patch_size
        return Plan(height, width, ((self.size, self.size),), (), 1, side * side + self.extra_tokens + 1, (images,))

    def _pooled(self, rows: int, columns: int) -> tuple[int, int]:
        side = self.size // self.patch_size
        ratio = math.sqrt(rows * columns / (self.max_tiles * side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        if plan.grid:
            return super().render(rgb, plan, resize)
        return chw(resize(square(rgb, _colour(self.image_mean)), plan.sizes[0], self.filter), resize.empty)

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """As LLaVA-NeXT's, and `batch_num_images`, the number of images of each sample (1 tells the model that the image has tiles)."""
        counts: list[int] = []
        left = 0  # how many of the running sample's images are still to come
        for plan in plans:
            if plan.grid:
                counts.append(1)
                left = 0
            elif left:
                counts[-1] += 1
                left -= 1
            else:
                counts.append(1)
                left = plan.extra[0] - 1
        return super().fields(plans) | {"batch_num_images": np.array(counts, dtype=np.int64)}

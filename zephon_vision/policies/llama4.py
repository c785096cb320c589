"""The policy of Llama 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw, on_canvas, tiles, together


@dataclass(frozen=True, kw_only=True)
class Llama4(Policy):
    """Llama 4: in the top left of the best of all canvases of up to `max_patches` tiles, hardly ever enlarged; the rest is black.

    Blocks are uint8[tiles, 3, size, size], row by row; where there is more than one, the whole image follows as one. The model's own
    processor normalises in bfloat16; `to_float` gives those values as float32.
    """

    name = "llama4"
    special_tokens = (
        "<|image_start|>", "<|image|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image_end|>",
    )  # fmt: skip
    placeholder = "<|image|>"
    size: int = 336
    max_patches: int = 16
    """Tiles at most."""
    patch_size: int = 14
    pixel_shuffle: int = 2
    """Patches per token along each side."""
    filter: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("size", "max_patches", "patch_size", "pixel_shuffle")

    @property
    def merge(self) -> int:
        return self.pixel_shuffle

    @property
    def _per_tile(self) -> int:
        return int((self.size // self.patch_size) ** 2 // self.pixel_shuffle**2)

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        canvas = sizing.canvas(height, width, self.size, self.max_patches)
        inner = sizing.on_canvas(height, width, canvas, self.size)
        rows, columns = canvas[0] // self.size, canvas[1] // self.size
        count = rows * columns
        blocks = count + 1 if count > 1 else 1
        tokens = self._per_tile + 3 + (count * (self._per_tile + 1) if count > 1 else 0)  # each tile ends with one separator
        return Plan(height, width, (inner, (self.size, self.size)), (rows, columns), blocks, tokens)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        canvas = (plan.grid[0] * self.size, plan.grid[1] * self.size)
        cut = tiles(on_canvas(resize(rgb, plan.sizes[0], self.filter), canvas, (0, 0)), self.size, resize.empty)
        if plan.blocks == 1:
            return cut
        return together([cut, chw(resize(rgb, plan.sizes[1], self.filter), resize.empty)], resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.size, self.size)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        rows, columns = plan.grid
        tile = [ids["<|patch|>"]] * self._per_tile
        made = [ids["<|image_start|>"]]
        if plan.blocks > 1:
            row = [*[*tile, ids["<|tile_x_separator|>"]] * (columns - 1), *tile, ids["<|tile_y_separator|>"]]
            made += row * rows
        return [*made, ids["<|image|>"], *tile, ids["<|image_end|>"]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`aspect_ratios` int64[n, 2], rows and columns of tiles; `num_patches` int64[n], the tiles of each image."""
        return {
            "aspect_ratios": np.array([plan.grid for plan in plans], dtype=np.int64).reshape(-1, 2),
            "num_patches": np.array([plan.blocks for plan in plans], dtype=np.int64),
        }

    def _normal(self, values: Pixels, mean: Floats, std: Floats, backend: str) -> Floats:  # noqa: ARG002 - there is one back-end
        rescaled = _bfloat16(np.arange(256, dtype=np.float32) * np.float32(1 / 255))
        table = _bfloat16(_bfloat16(rescaled - _bfloat16(mean)) / _bfloat16(std))  # of each channel's 256 values
        made = np.empty(values.shape, dtype=np.float32)
        for channel in range(3):
            made[:, channel] = table[channel][values[:, channel]]
        return made


def _bfloat16(values: Floats) -> Floats:
    """float32 rounded to bfloat16's eight bits of precision, half to even; finite values only."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)

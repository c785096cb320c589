"""Policies of Gemma 3 and Gemma 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw, pixel_patches, together

BREAK = "\n\n"
BEFORE = "Here is the original image \n\n"
BETWEEN = "\n\n and here are some crops to help you see better \n\n"
AND = "\n\n \n\n"


@dataclass(frozen=True, kw_only=True)
class Gemma3(Policy):
    """Gemma 3: squashed to `size` × `size`; with `pan_and_scan`, long images bring two to four crops along, side by side.

    Blocks are uint8[1 + crops, 3, size, size], the whole image first. A run stands between blank lines, which merge with the text
    beside it; with crops an English sentence explains them. `plan.tokens` counts one token for each piece of text between blocks.
    """

    name = "gemma3"
    special_tokens = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
    texts = (BETWEEN, AND)
    placeholder = "<start_of_image>"
    size: int = 896
    image_seq_length: int = 256
    """Tokens per block."""
    pan_and_scan: bool = False
    min_crop_size: int = 256
    max_num_crops: int = 4
    min_ratio_to_activate: float = 1.2
    filter: str = "bilinear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("size", "image_seq_length", "min_crop_size", "max_num_crops")

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        grid: tuple[int, int] = (0, 0)
        extra: tuple[int, ...] = ()
        if self.pan_and_scan:
            rows, columns, *crop = sizing.pan_and_scan(
                height, width, self.min_crop_size, self.max_num_crops, self.min_ratio_to_activate
            )
            grid, extra = (rows, columns), tuple(crop)
        blocks = 1 + grid[0] * grid[1]
        tokens = blocks * (self.image_seq_length + 2) + blocks - 1
        return Plan(height, width, ((self.size, self.size),), grid, blocks, tokens, extra)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        parts = [rgb]
        if plan.blocks > 1:
            tall, wide = plan.extra
            corners = ((row * tall, column * wide) for row in range(plan.grid[0]) for column in range(plan.grid[1]))
            parts += [rgb[top : top + tall, left : left + wide] for top, left in corners]
        return together([chw(resize(part, plan.sizes[0], self.filter), resize.empty) for part in parts], resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.size, self.size)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        block = [ids["<start_of_image>"], *[ids["<image_soft_token>"]] * self.image_seq_length, ids["<end_of_image>"]]
        made = list(block)
        for number in range(1, plan.blocks):
            made += [*ids.texts[BETWEEN if number == 1 else AND], *block]
        return made

    def around(self, plan: Plan) -> tuple[str, str]:
        return (BREAK if plan.blocks == 1 else BEFORE), BREAK

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`num_crops` int64[n], the crops of each image beside the whole one."""
        return {"num_crops": np.array([plan.blocks - 1 for plan in plans], dtype=np.int64)}


@dataclass(frozen=True, kw_only=True)
class Gemma4(Policy):
    """Gemma 4: the image's own ratio in at most `max_soft_tokens` tokens of pooling_kernel_size² patches each.

    Blocks are uint8[n, 3·patch_size²], a patch each, columns (y, x, channel), row by row and not padded; `pixel_values` pads with zeros,
    as `image_position_ids` says. No mean and deviation: values are between 0 and 1.

    As the processor of `transformers` 5.24 has it.
    """

    name = "gemma4"
    special_tokens = ("<|image>", "<|image|>", "<image|>")
    placeholder = "<|image|>"
    patch_size: int = 16
    pooling_kernel_size: int = 3
    max_soft_tokens: int = 280
    image_mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    image_std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("patch_size", "pooling_kernel_size", "max_soft_tokens")
        if self.max_soft_tokens not in (70, 140, 280, 560, 1120):
            raise RecipeError(f"max_soft_tokens of policy {self.name!r} must be 70, 140, 280, 560 or 1120")

    @property
    def merge(self) -> int:
        return self.pooling_kernel_size

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        size = sizing.pooled(height, width, self.patch_size, self.pooling_kernel_size, self.max_soft_tokens)
        grid = (1, size[0] // self.patch_size, size[1] // self.patch_size)
        count = grid[1] * grid[2]
        return Plan(height, width, (size,), grid, count, count // self.pooling_kernel_size**2 + 2)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        return pixel_patches(resize(rgb, plan.sizes[0], self.filter), self.patch_size, resize.empty)

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3 * self.patch_size**2)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        return [ids["<|image>"], *[ids["<|image|>"]] * (plan.tokens - 2), ids["<image|>"]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`image_position_ids` int64[n, most patches, 2], each patch's (x, y), -1 where there is none."""
        made = np.full((len(plans), self._most, 2), -1, dtype=np.int64)
        for rows, plan in zip(made, plans, strict=True):
            y, x = np.divmod(np.arange(plan.blocks), plan.grid[2])
            rows[: plan.blocks] = np.stack([x, y], axis=1)
        return {"image_position_ids": made}

    @property
    def _most(self) -> int:
        return self.max_soft_tokens * self.pooling_kernel_size**2

    def to_float(self, blocks: Pixels, *, backend: str = "torch") -> Floats:
        """Between 0 and 1: times 1/255 in single precision, or in double precision for `pil`."""
        if backend == "pil":
            return (blocks * np.float64(1 / 255)).astype(np.float32)
        return blocks * np.float32(1 / 255)

    def pixel_values(self, images: Sequence[Pixels], plans: Sequence[Plan], *, backend: str = "torch") -> Floats:
        self._match(images, plans)
        made = np.zeros((len(images), self._most, 3 * self.patch_size**2), dtype=np.float32)
        for rows, blocks in zip(made, images, strict=True):
            rows[: len(blocks)] = self.to_float(blocks, backend=backend)
        return made

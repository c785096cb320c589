"""Policies of Idefics3 and SmolVLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zephon.errors import RecipeError
from zephon_vision import sizing
from zephon_vision.policies.base import Floats, Pixels, Plan, Policy, Resize, SpecialIds
from zephon_vision.policies.blocks import chw, tiles, together

FAKE, GLOBAL, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
SIDE = 6
"""The tokenizers have tokens for so many rows and columns of tiles."""


@dataclass(frozen=True, kw_only=True)
class Idefics3(Policy):
    """Idefics3: resized (upwards too) until the long side is `longest_edge`, then to whole tiles, cut; the whole image follows as one.

    Blocks are uint8[tiles, 3, tile, tile], row by row, the whole image last; without splitting, or where one tile holds it, one. All
    tiles are full, so the model needs no `pixel_attention_mask`. A run has a line break after each row of tiles; how many tokens those
    are is the tokenizer's matter: `plan.tokens` counts one for a single and one for a double break.

    The filter is the Pillow processors' Lanczos. The torchvision ones take bicubic in its place (torch had no Lanczos):
    `filter="bicubic"` for theirs.
    """

    name = "idefics3"
    special_tokens = (FAKE, GLOBAL, IMAGE, *(f"<row_{r}_col_{c}>" for r in range(1, SIDE + 1) for c in range(1, SIDE + 1)))
    texts = ("\n\n",)
    longest_edge: int = 4 * 364
    tile: int = 364
    image_seq_len: int = 169
    """Tokens per tile."""
    do_image_splitting: bool = True
    filter: str = "lanczos"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("longest_edge", "tile", "image_seq_len")
        if self.do_image_splitting and min(self.longest_edge, 4096) > SIDE * self.tile:
            raise RecipeError(
                f"longest_edge {self.longest_edge} needs more than {SIDE} tiles of {self.tile} in policy {self.name!r}"
            )

    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:  # noqa: ARG002 - the same for any number of images
        sizing.positive(height, width)
        first = sizing.longest_edge(height, width, self.longest_edge)
        whole = (self.tile, self.tile)
        if not self.do_image_splitting:
            return Plan(height, width, (first, whole), (0, 0), 1, self.image_seq_len + 3)
        second = sizing.whole_tiles(*first, self.tile)
        rows, columns = second[0] // self.tile, second[1] // self.tile
        if rows * columns == 1:
            return Plan(height, width, (first, whole), (0, 0), 1, self.image_seq_len + 3)
        tokens = rows * (columns * (self.image_seq_len + 2) + 1) + self.image_seq_len + 3
        return Plan(height, width, (first, second, whole), (rows, columns), rows * columns + 1, tokens)

    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        sized = rgb
        for size in plan.sizes[:-1]:
            sized = resize(sized, size, self.filter)
        whole = chw(resize(sized, plan.sizes[-1], self.filter), resize.empty)
        return together([tiles(sized, self.tile, resize.empty), whole], resize.empty) if plan.blocks > 1 else whole

    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        return (plan.blocks, 3, self.tile, self.tile)

    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        rows, columns = plan.grid
        tile = [ids[IMAGE]] * self.image_seq_len
        made: list[int] = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                made += [ids[FAKE], ids[f"<row_{row}_col_{column}>"], *tile]
            made += ids.newline if row < rows else ids.texts["\n\n"]
        return [*made, ids[FAKE], ids[GLOBAL], *tile, ids[FAKE]]

    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """`num_patches` int64[n], the tiles of each image; `rows` and `cols` int64[n] of the grid (0: not split)."""
        grids = np.array([plan.grid for plan in plans], dtype=np.int64).reshape(-1, 2)
        return {
            "num_patches": np.array([plan.blocks for plan in plans], dtype=np.int64),
            "rows": np.ascontiguousarray(grids[:, 0]),
            "cols": np.ascontiguousarray(grids[:, 1]),
        }

    def pixel_values(self, images: Sequence[Pixels], plans: Sequence[Plan], *, backend: str = "torch") -> Floats:
        """float32[1, all tiles, 3, tile, tile]."""
        return super().pixel_values(images, plans, backend=backend)[None]


@dataclass(frozen=True, kw_only=True)
class SmolVLM(Idefics3):
    """SmolVLM and SmolVLM2 (256M, 500M): Idefics3's way with tiles of 512 and 64 tokens each. (SmolVLM-Instruct and the 2.2B models:
    longest_edge=1536, tile=384, image_seq_len=81.)"""

    name = "smolvlm"
    longest_edge: int = 2048
    tile: int = 512
    image_seq_len: int = 64

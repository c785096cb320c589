"""The size rules of the model families: a height and a width in, integers out. Arithmetic only, no pixels, no I/O.

Sizes are (height, width) in pixels everywhere. Each rule gives what the family's own processor gives, down to its roundings and its
half-precision quirks; the tests compare them on thousands of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError

Size = tuple[int, int]

MAX_RATIO = 200
"""Qwen's processors refuse images that are longer than this, relative to their short side."""

MAX_BETWEEN = 178_956_970
"""Pixels of an image on the way to the model's size; Pillow's limit for images themselves. The processors have none."""


def positive(height: int, width: int) -> None:
    """Raise `DataError` unless both sides have at least one pixel."""
    if height < 1 or width < 1:
        raise DataError(f"an image of {height} × {width} pixels has no area")


def bounded(height: int, width: int) -> Size:
    """The size, where an image of it may be made on the way to the model's.

    Raises:
        DataError: it has more than `MAX_BETWEEN` pixels: a long strip padded to a square, or enlarged until its short side fits.
    """
    if height * width > MAX_BETWEEN:
        raise DataError(f"a strip as long as this needs an image of {height} × {width} pixels in between")
    return height, width


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> Size:
    """Qwen: both sides multiples of `factor`, the area between the limits, the ratio kept as well as that allows.

    Raises:
        DataError: a ratio over 200.
    """
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise DataError(
            f"an image of {height} × {width} pixels is longer than {MAX_RATIO} times its short side; the model refuses it"
        )
    new_h, new_w = round(height / factor) * factor, round(width / factor) * factor
    if new_h * new_w > max_pixels:
        beta = math.sqrt((height * width) / max_pixels)
        new_h = max(factor, math.floor(height / beta / factor) * factor)
        new_w = max(factor, math.floor(width / beta / factor) * factor)
    elif new_h * new_w < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        new_h = math.ceil(height * beta / factor) * factor
        new_w = math.ceil(width * beta / factor) * factor
    return new_h, new_w


def naflex(height: int, width: int, patch: int, max_patches: int, eps: float = 1e-5) -> Size:
    """SigLIP2 NaFlex: the largest scale, by bisection, whose size in whole patches stays within `max_patches`."""

    def scaled(scale: float, size: int) -> int:
        return int(max(patch, math.ceil(size * scale / patch) * patch))

    low, high = eps / 10, 100.0
    while high - low >= eps:
        scale = (low + high) / 2
        if (scaled(scale, height) / patch) * (scaled(scale, width) / patch) <= max_patches:
            low = scale
        else:
            high = scale
    return scaled(low, height), scaled(low, width)


def shortest_edge(height: int, width: int, edge: int) -> Size:
    """CLIP: the short side becomes `edge`, the long one follows, rounded down."""
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def longest_edge(height: int, width: int, edge: int, limit: int = 4096) -> Size:
    """Idefics3: the long side becomes `edge` (upwards too), the other is rounded down to a pixel, then up to an even number."""
    ratio = width / height
    if width >= height:
        height, width = int(edge / ratio), edge
        height += height % 2
    else:
        height, width = edge, int(edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > limit:
        height, width = int(limit / ratio), limit
    elif height > width and height > limit:
        height, width = limit, int(limit * ratio)
    return max(height, 1), max(width, 1)


def whole_tiles(height: int, width: int, tile: int) -> Size:
    """Idefics3: the size rounded up to whole tiles, the short side from the rounded long side."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return height, width


def best_resolution(height: int, width: int, choices: Sequence[Size]) -> Size:
    """LLaVA's any-resolution: the choice that keeps most pixels, and among those wastes least. The first one wins ties."""
    best: Size = choices[0]
    most, least_waste = 0, math.inf
    for to_h, to_w in choices:
        scale = min(to_w / width, to_h / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        waste = to_w * to_h - kept
        if kept > most or (kept == most and waste < least_waste):
            best, most, least_waste = (to_h, to_w), kept, waste
    return best


def inside(height: int, width: int, canvas: Size) -> Size:
    """LLaVA: the largest size of the same ratio within a canvas, the free side rounded up."""
    to_h, to_w = canvas
    scale_w, scale_h = to_w / width, to_h / height
    if scale_w < scale_h:
        return min(math.ceil(height * scale_w), to_h), to_w
    return to_h, min(math.ceil(width * scale_h), to_w)


def unpadded(height: int, width: int, grid: Size) -> Size:
    """LLaVA: rows and columns of features that are left when the padding around the image is cut off a grid of features."""
    rows, columns = grid
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        rows -= (rows - kept) // 2 * 2
    else:
        kept = int(round(width * (rows / height), 7))
        columns -= (columns - kept) // 2 * 2
    return rows, columns


@lru_cache(maxsize=64)
def _tile_grids(least: int, most: int) -> tuple[Size, ...]:
    """All (columns, rows) with `least` to `most` tiles, few tiles first, narrow ones first."""
    sides = range(1, most + 1)
    return tuple(sorted(((c, r) for c in sides for r in sides if least <= c * r <= most), key=lambda grid: grid[0] * grid[1]))


def tile_grid(height: int, width: int, tile: int, least: int, most: int) -> Size:
    """InternVL: `(rows, columns)` of tiles whose ratio is nearest; of equally near ones more tiles, if the image can fill half of them."""
    ratio, area = width / height, width * height
    best, nearest = (1, 1), math.inf
    for columns, rows in _tile_grids(least, most):
        miss = abs(ratio - columns / rows)
        if miss < nearest or (miss == nearest and area > 0.5 * tile * tile * columns * rows):
            best, nearest = (rows, columns), miss
    return best


def within_longest(height: int, width: int, edge: int, patch: int, *, nearest: bool = False) -> Size:
    """Pixtral: shrunk until the long side is `edge`, then up to whole patches. Rounded down, or (`nearest`, Mistral's own library) to
    the nearest pixel.

    Raises:
        DataError: nothing is left of the short side (rounding down).
    """
    ratio = max(height / edge, width / edge)
    if ratio > 1 and nearest:
        height, width = max(round(height / ratio), 1), max(round(width / ratio), 1)
    elif ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
        if not (height and width):
            raise DataError(f"an image so long has no pixel left on its short side when its long side is {edge}")
    return ((height - 1) // patch + 1) * patch, ((width - 1) // patch + 1) * patch


def pan_and_scan(height: int, width: int, min_crop: int, max_crops: int, min_ratio: float) -> tuple[int, int, int, int]:
    """Gemma 3: `(rows, columns, crop height, crop width)` of the crops beside the whole image; no rows where there are none."""
    long, short = max(height, width), min(height, width)
    if long / short < min_ratio:
        return 0, 0, 0, 0
    count = min(max_crops, max(2, min(long // min_crop, math.floor(long / short + 0.5))))
    crop = math.ceil(long / count)
    if min(crop, short) < min_crop:
        return 0, 0, 0, 0
    return (1, count, height, crop) if width >= height else (count, 1, crop, width)


def pooled(height: int, width: int, patch: int, pool: int, max_tokens: int) -> Size:
    """Gemma 4: the largest size of about the same ratio in whole pooled patches with at most `max_tokens` of them.

    Raises:
        DataError: a ratio at which nothing fits.
    """
    side = patch * pool
    factor = math.sqrt(max_tokens * side * side / (height * width))
    new_h, new_w = (math.floor(factor * x / side) * side for x in (height, width))
    if new_h == 0 and new_w == 0:
        raise DataError(f"an image of {height} × {width} pixels does not fit into {max_tokens} tokens")
    if new_h == 0:
        new_h, new_w = side, min(width // height, max_tokens) * side
    elif new_w == 0:
        new_h, new_w = min(height // width, max_tokens) * side, side
    if new_h * new_w > max_tokens * side * side:
        raise DataError(f"an image of {height} × {width} pixels does not fit into {max_tokens} tokens")
    return new_h, new_w


@lru_cache(maxsize=64)
def _canvases(tile: int, most: int) -> npt.NDArray[np.int64]:
    """int64[n, 2], all canvases of up to `most` tiles, in Llama 4's order: by ratio, ratios as they turn up counting down."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                by_ratio.setdefault(rows / (count // rows), []).append((rows * tile, count // rows * tile))
    return np.array([size for sizes in by_ratio.values() for size in sizes], dtype=np.int64)


def canvas(height: int, width: int, tile: int, most: int) -> Size:
    """Llama 4: the canvas with the smallest scale of at least 1, else with the largest below 1; the smallest of those that tie.

    In single precision, as the model's own code computes it: which scales tie depends on it.
    """
    sizes = _canvases(tile, most)
    scales = (sizes.astype(np.float32) / np.array([height, width], dtype=np.float32)).min(axis=1)
    grows = scales[scales >= 1]
    chosen = sizes[scales == (grows.min() if len(grows) else scales.max())]
    best = chosen[np.argmin(chosen[:, 0] * chosen[:, 1])]
    return int(best[0]), int(best[1])


def on_canvas(height: int, width: int, to: Size, tile: int) -> Size:
    """Llama 4: the size of the image on its canvas: as large as fits, but never enlarged beyond a tile.

    A side that is limited by the canvas is a tensor in the model's own code, so its scale is a single-precision number there.
    """
    limit_h, limit_w = min(max(height, tile), to[0]), min(max(width, tile), to[1])
    single_h, single_w = to[0] < max(height, tile), to[1] < max(width, tile)
    scale_h = float(np.float32(limit_h) / np.float32(height)) if single_h else limit_h / height
    scale_w = float(np.float32(limit_w) / np.float32(width)) if single_w else limit_w / width
    mixed = single_h or single_w
    if (np.float32(scale_w) < np.float32(scale_h)) if mixed else (scale_w < scale_h):
        new = np.float32(height) * np.float32(scale_w) if single_w else height * scale_w
        return max(min(math.floor(new), limit_h), 1), limit_w
    new = np.float32(width) * np.float32(scale_h) if single_h else width * scale_h
    return limit_h, max(min(math.floor(new), limit_w), 1)

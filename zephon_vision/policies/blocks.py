"""Cutting images into blocks: uint8 arrays in, uint8 arrays out, each with one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from zephon_vision.policies.base import Pixels

_STRIP = 1 << 16
"""So many pixels at once stay in the processor's cache."""

Empty = Callable[[tuple[int, ...]], Pixels]
"""Gives memory; `Resize.empty` is one."""


def fresh(shape: tuple[int, ...]) -> Pixels:
    """New memory."""
    return np.empty(shape, dtype=np.uint8)


def tiles(rgb: Pixels, side: int, empty: Empty = fresh) -> Pixels:
    """uint8[r·side, c·side, 3] to uint8[r·c, 3, side, side], row by row."""
    rows, columns = rgb.shape[0] // side, rgb.shape[1] // side
    cut = rgb.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3)
    made = empty((rows * columns, 3, side, side))
    made.reshape(cut.shape)[...] = cut
    return made


def patches(rgb: Pixels, patch: int, merge: int = 1, empty: Empty = fresh) -> Pixels:
    """uint8[h, w, 3] to uint8[n, 3·patch²]: each row is a patch (channel, y, x); squares of merge × merge patches lie together.

    By whole lines of patches; where the channels are not apart yet, that is done first, since one step for both takes twice as long.
    """
    if rgb.strides[1] != 1:
        rgb = apart(rgb, empty)
    rows, columns = rgb.shape[0] // (patch * merge), rgb.shape[1] // (patch * merge)
    made = empty((rows * columns * merge**2, 3 * patch * patch))
    line = np.dtype((np.void, patch))
    cut = rgb.transpose(0, 2, 1).view(line).reshape(rows, merge, patch, 3, columns, merge).transpose(0, 4, 1, 5, 3, 2)
    made.view(line).reshape(cut.shape)[...] = cut
    return made


def apart(rgb: Pixels, empty: Empty = fresh) -> Pixels:
    """The same uint8[h, w, 3] in memory where each line has all of its red, then all of its green, then its blue."""
    made = empty((rgb.shape[0], 3, rgb.shape[1])).transpose(0, 2, 1)
    made[...] = rgb
    return made


def apart_words(padded: Pixels, empty: Empty = fresh) -> Pixels:
    """The same for the first three channels of uint8[h, w, 4]; whole words become bytes with the processor's vector instructions."""
    height, width = padded.shape[:2]
    made = empty((height, 3, width))
    words = padded.reshape(height, width * 4).view("<u4")
    step = max(1, _STRIP // width)
    moved = np.empty((min(step, height), width), dtype="<u4")
    for begin in range(0, height, step):
        strip, target = words[begin : begin + step], made[begin : begin + step]
        space = moved[: len(strip)]
        np.copyto(target[:, 0], strip, casting="unsafe")
        np.copyto(target[:, 1], np.right_shift(strip, 8, out=space), casting="unsafe")
        np.copyto(target[:, 2], np.right_shift(strip, 16, out=space), casting="unsafe")
    return made.transpose(0, 2, 1)


def from_patches(rows: Pixels, patch: int, grid: tuple[int, int]) -> Pixels:
    """The inverse of `patches` without merging: [gh·gw, 3·patch²] to [3, gh·patch, gw·patch], of any number type."""
    high, wide = grid
    cut = rows.reshape(high, wide, 3, patch, patch).transpose(2, 0, 3, 1, 4)
    return np.ascontiguousarray(cut).reshape(3, high * patch, wide * patch)


def pixel_patches(rgb: Pixels, patch: int, empty: Empty = fresh) -> Pixels:
    """uint8[h, w, 3] to uint8[n, 3·patch²]: each row is a patch with the channels last (y, x, channel)."""
    rows, columns = rgb.shape[0] // patch, rgb.shape[1] // patch
    cut = rgb.reshape(rows, patch, columns, patch * 3).transpose(0, 2, 1, 3)
    made = empty((rows * columns, patch * patch * 3))
    made.reshape(cut.shape)[...] = cut
    return made


def on_canvas(rgb: Pixels, size: tuple[int, int], at: tuple[int, int], colour: Sequence[int] = (0, 0, 0)) -> Pixels:
    """The image on a canvas of one colour, its top left corner at `at`."""
    height, width = rgb.shape[:2]
    made = np.empty((*size, 3), dtype=np.uint8)
    made[:] = colour
    made[at[0] : at[0] + height, at[1] : at[1] + width] = rgb
    return made


def square(rgb: Pixels, colour: Sequence[int]) -> Pixels:
    """The image in the middle of a square of its long side."""
    height, width = rgb.shape[:2]
    side = max(height, width)
    return on_canvas(rgb, (side, side), ((side - height) // 2, (side - width) // 2), colour)


def chw(rgb: Pixels, empty: Empty = fresh) -> Pixels:
    """uint8[h, w, 3] to one block uint8[1, 3, h, w]."""
    made = empty((1, 3, *rgb.shape[:2]))
    made[0] = rgb.transpose(2, 0, 1)
    return made


def together(parts: Sequence[Pixels], empty: Empty = fresh) -> Pixels:
    """Blocks of one shape, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts, out=empty((sum(map(len, parts)), *parts[0].shape[1:])))

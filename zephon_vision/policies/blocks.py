"""Cutting images into blocks: uint8 arrays in, uint8 arrays out.

Pixels are uint8[h, w, 3] everywhere. They may lie in memory with four bytes each (`FourBytes`), which decoders write as quickly, and which
resizers and `planes` read more quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from zephon_vision.policies.base import Pixels

_STRIP = 3 << 17
"""So many pixels at once: they stay in the larger caches, and each strip is several calls that let go of the interpreter lock."""
_SLACK = 4
"""Bytes of memory after pixels with four bytes each: the word that begins at the last pixel's blue ends there."""

_WORD = np.dtype("<u4")

Empty = Callable[[tuple[int, ...]], Pixels]
"""Gives memory; `Resize.empty` is one."""


def fresh(shape: tuple[int, ...]) -> Pixels:
    """New memory."""
    return np.empty(shape, dtype=np.uint8)


class FourBytes(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
    """uint8[h, w, 3] whose pixels lie in memory with four bytes each. A part of it is an ordinary array, which is only slower."""

    memory: Pixels | None = None
    """uint8[h·w·4 and a little more]: pixel by pixel red, green, blue and a byte that means nothing."""


def four_bytes(height: int, width: int, empty: Empty = fresh) -> FourBytes:
    """Not filled."""
    memory = empty((height * width * 4 + _SLACK,))
    made = FourBytes((height, width, 3), np.uint8, memory, 0, (width * 4, 4, 1))
    made.memory = memory
    return made


def planes(rgb: Pixels, made: Pixels, top: int = 0, left: int = 0) -> Pixels:
    """Write a part of uint8[h, w, 3] to `made`, uint8[3, high, wide]: that which begins there, and is as large."""
    bands(rgb, made[None], top, left)
    return made


def bands(rgb: Pixels, made: Pixels, top: int = 0, left: int = 0) -> Pixels:
    """The same in bands of some lines, one below the other: `made` is uint8[bands, 3, high, wide]."""
    count, _, high, wide = made.shape
    memory = getattr(rgb, "memory", None)
    if memory is None:
        part = rgb[top : top + count * high, left : left + wide]
        made[...] = part.reshape(count, high, wide, 3).transpose(0, 3, 1, 2)
        return made
    line = rgb.shape[1] * 4
    # words become their lowest bytes with the processor's vector instructions, in a third of the time
    strides = (high * line, 1, line, 4)
    words: Any = np.ndarray(made.shape, _WORD, memory, top * line + left * 4, strides)
    np.copyto(made, words, casting="unsafe")
    return made


def tiles(rgb: Pixels, side: int, empty: Empty = fresh) -> Pixels:
    """uint8[r·side, c·side, 3] to uint8[r·c, 3, side, side], row by row."""
    rows, columns = rgb.shape[0] // side, rgb.shape[1] // side
    made = empty((rows * columns, 3, side, side))
    for number, tile in enumerate(made):
        planes(rgb, tile, number // columns * side, number % columns * side)
    return made


def patches(rgb: Pixels, patch: int, merge: int = 1, empty: Empty = fresh) -> Pixels:
    """uint8[h, w, 3] to uint8[n, 3·patch²]: each row is a patch (channel, y, x); squares of merge × merge patches lie together.

    By whole lines of patches, after the channels were taken apart, since one step for both takes twice as long; strip by strip, so that
    what the first step wrote is still in the processor's cache. A line's channels lie one below the other, as in each of its patches.
    """
    side, width = patch * merge, rgb.shape[1]
    rows, columns, square = rgb.shape[0] // side, width // side, merge**2
    row = 3 * patch**2
    made = empty((rows * columns * square, row))
    step = max(1, _STRIP // (side * width))
    apart = empty((min(step, rows) * merge, 3, patch, width))
    band = 3 * patch * width
    # by line of blocks, column, line and column in the block, and line of the patch
    read = (merge * band, side, band, patch, width)
    write = (columns * square * row, square * row, merge * row, row, patch)
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        bands(rgb, apart[: count * merge], begin * side)
        shape = (count, columns, merge, merge, 3 * patch)
        for at, source, target in _words(patch):
            lines: Any = np.ndarray(shape, source, apart, at, read)
            np.copyto(np.ndarray(shape, target, made, begin * write[0] + at, write), lines, casting="unsafe")
    return made


@lru_cache
def _words(length: int) -> tuple[tuple[int, str, str], ...]:
    """How lines of so many bytes are copied: `(offset, type to read, type to write)` of words that cover a line.

    NumPy moves items of 1, 2, 4, 8 and 16 bytes that lie at their multiples in one instruction each; for all others it calls `memmove`. So
    a line of another length is covered with words of 8 or fewer bytes, the last of which may write again what the one before it wrote. From
    a signed to an unsigned number of the same size keeps all bits, and is read and written wherever it lies, in half of the time.
    """
    if length in (1, 2, 4, 8, 16):
        return ((0, f"V{length}", f"V{length}"),)
    width = next(width for width in (8, 4, 2) if width < length)
    return tuple((at, f"i{width}", f"u{width}") for at in (*range(0, length - width, width), length - width))


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
    planes(rgb, made[0])
    return made


def together(parts: Sequence[Pixels], empty: Empty = fresh) -> Pixels:
    """Blocks of one shape, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts, out=empty((sum(map(len, parts)), *parts[0].shape[1:])))

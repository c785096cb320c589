"""Cubic interpolation without antialiasing, as OpenCV's INTER_CUBIC computes it on float32; for Mistral's own library, which uses that.

OpenCV's `resize`: the middle of pixel i of n is at (i + 0.5) * source / n - 0.5, between four neighbours that weigh by Keys' kernel with
a = -0.75 (Keys 1981, "Cubic convolution interpolation for digital image processing"); beyond the border the outermost pixel counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zephon_vision.policies.base import Pixels

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_A = np.float32(-0.75)
_STRIP = 1 << 20
"""Values of an intermediate result, which is made and used strip by strip."""


def cubic(rgb: Pixels, size: tuple[int, int]) -> Floats:
    """uint8[h, w, c] to float32[size[0], size[1], c]: not rounded, and not within 0–255, beyond which the kernel shoots at edges."""
    height, width, channels = rgb.shape
    if (height, width) == size:
        return rgb.astype(np.float32)
    rows, row_weights = _taps(height, size[0])
    places, weights = _taps(width, size[1])
    made = np.empty((*size, channels), dtype=np.float32)
    step = max(1, _STRIP // (width * channels))
    for begin in range(0, size[0], step):
        here = slice(begin, min(begin + step, size[0]))
        lines = _weighed(rgb, rows[:, here], row_weights[:, here, None, None], axis=0)
        made[here] = _weighed(lines, places, weights[:, None, :, None], axis=1)
    return made


def cubic_bytes(rgb: Pixels, size: tuple[int, int]) -> Pixels:
    """`cubic`, rounded to the nearest byte: at most half a unit away, but where the kernel shoots beyond 0–255."""
    made = cubic(rgb, size)
    np.rint(made, out=made)
    return np.clip(made, 0, 255, out=made).astype(np.uint8)


def _weighed(values: npt.NDArray[np.generic], places: Ints, weights: Floats, *, axis: int) -> Floats:
    total: Floats | None = None
    for place, weight in zip(places, weights, strict=True):
        part = np.take(values, place, axis=axis) * weight
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def _taps(source: int, target: int) -> tuple[Ints, Floats]:
    """`(int64[4, target] neighbours, float32[4, target] their weights)` along one axis."""
    middle = (np.arange(target) + 0.5) * (source / target) - 0.5
    first = np.floor(middle)
    x = (middle - first).astype(np.float32)
    one = np.float32(1)
    before = ((_A * (x + one) - 5 * _A) * (x + one) + 8 * _A) * (x + one) - 4 * _A
    near = ((_A + 2) * x - (_A + 3)) * x * x + one
    far = ((_A + 2) * (one - x) - (_A + 3)) * (one - x) * (one - x) + one
    weights = np.stack([before, near, far, one - before - near - far]).astype(np.float32)
    places = first.astype(np.int64)[None] + np.arange(-1, 3)[:, None]
    return np.clip(places, 0, source - 1), weights

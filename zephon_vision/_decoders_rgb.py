"""Pillow's modes to RGB, and the orientations of EXIF."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.ImageFile import ImageFile

from zephon.errors import DataError
from zephon_vision.headers import Header
from zephon_vision.policies.base import Pixels


def to_rgb(image: ImageFile, head: Header) -> Pixels:
    """The pixels as uint8[h, w, 3] in memory of its own: transparency on white, 16 bits scaled, CMYK converted.

    Raises:
        DataError: numbers that mean no colour (say, a float TIFF outside of 0 to 1).
    """
    image.load()
    mode = image.mode
    if mode.startswith("I;16"):
        return _from_words(np.asarray(image), max(head.bits, 9), image.info.get("transparency"))
    if mode == "I":
        return _from_words(np.asarray(image), 16, image.info.get("transparency"))
    if mode == "F":
        return _from_floats(np.asarray(image))
    if mode == "RGB" and head.bits == 16 and isinstance(image.info.get("transparency"), tuple):
        # Pillow keeps the upper bytes of the pixels, and all of the transparent colour
        image.info["transparency"] = tuple(value >> 8 for value in image.info["transparency"])
    if mode == "L" and head.format == "PNG" and head.bits < 8 and isinstance(image.info.get("transparency"), int):
        # and here it spreads the pixels over 0 to 255, but not the transparent one
        image.info["transparency"] = image.info["transparency"] * 255 // ((1 << head.bits) - 1)
    if image.has_transparency_data:
        return _on_white(image)
    return np.array(image if mode == "RGB" else image.convert("RGB"))


def _on_white(image: Image.Image) -> Pixels:
    if image.mode in ("La", "RGBa"):
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return np.array(Image.alpha_composite(white, rgba).convert("RGB"))


def _from_words(values: npt.NDArray[Any], bits: int, transparent: object) -> Pixels:
    """Grey of 9 to 16 bits: the upper 8 count, as in Pillow's way with RGB of 16 bits."""
    numbers = values.astype(np.int32)
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= 1 << bits:
        raise DataError(f"undecodable: grey values from {low} to {high}, which mean no colour")
    grey = (numbers >> (bits - 8)).astype(np.uint8)
    if isinstance(transparent, int):
        grey[numbers == transparent] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)


def _from_floats(values: npt.NDArray[Any]) -> Pixels:
    numbers = values.astype(np.float32)
    if not (np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() <= 1):
        raise DataError("undecodable: float pixels outside of 0 to 1, which mean no colour")
    grey = np.rint(numbers * 255).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def turn(rgb: Pixels, orientation: int) -> Pixels:
    """The stored pixels upright, by the EXIF orientation 1 to 8; contiguous."""
    if orientation == 1:
        return rgb
    if orientation >= 5:
        rgb = rgb.transpose(1, 0, 2)
    down = slice(None, None, -1) if orientation in (3, 4, 7, 8) else slice(None)
    across = slice(None, None, -1) if orientation in (2, 3, 6, 7) else slice(None)
    return np.ascontiguousarray(rgb[down, across])

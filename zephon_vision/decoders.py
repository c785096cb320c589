"""One image file to upright RGB pixels. Pillow is always there; JPEG goes to simplejpeg where it is installed, with the same pixels.

What both decoders share is decided here and not by them: the pixel limit, the orientation, transparency on white, 16 bits scaled to 8,
the first picture of an animation, and that a damaged file is an error and never a part of a picture.
"""

from __future__ import annotations

import threading
import warnings
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Literal, get_args

from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from zephon.errors import DataError, PluginError, RecipeError, unknown
from zephon_vision._arena import Arena
from zephon_vision._decoders_rgb import to_rgb, turn
from zephon_vision.headers import MAX_PIXELS, Header, check_size, read_header
from zephon_vision.policies.base import Pixels
from zephon_vision.policies.blocks import four_bytes

__all__ = ["Decoder", "check_decoder", "decode", "refuses_damaged_jpeg"]

Decoder = Literal["auto", "pillow", "simplejpeg"]

_CLASSES: dict[str, type[ImageFile]] = {
    # the class itself, not `Image.open`: nothing else gets to look at the bytes, and Pillow's global limit, which warns, is not ours
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "AVIF": AvifImageFile,
    "TIFF": TiffImageFile,
    "BMP": BmpImageFile,
}

_HUFFMAN = (0xC0, 0xC1, 0xC2)

_quietly = threading.Lock()


def check_decoder(decoder: str) -> None:
    """Raises `RecipeError` for an unknown decoder, `PluginError` for one that isn't installed."""
    if decoder not in get_args(Decoder):
        raise RecipeError(unknown("decoder", decoder, get_args(Decoder)))
    if decoder == "simplejpeg" and _simplejpeg() is None:
        raise PluginError("decoder 'simplejpeg' is not installed", hint="pip install simplejpeg, or decoder='auto'")


def refuses_damaged_jpeg(decoder: Decoder = "auto") -> bool:
    """Whether damage in the middle of a JPEG that libjpeg warns of is an error: with simplejpeg; Pillow hides the warnings.

    Good files give the same pixels by either decoder, so this is all that the choice changes.
    """
    return decoder != "pillow" and _simplejpeg() is not None


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:
    if find_spec("simplejpeg") is None:
        return None
    import simplejpeg  # type: ignore[import-untyped] # noqa: PLC0415 - optional

    return simplejpeg


def decode(
    data: bytes | memoryview,
    header: Header | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
    salvage: bool = False,
    decoder: Decoder = "auto",
    scale: int = 1,
    upright: bool = True,
    arena: Arena | None = None,
    words: bool = False,
) -> Pixels:
    """The first picture of an image file.

    Args:
        data: the file.
        header: what `read_header` said, where that is known.
        max_pixels: larger images are refused from the header, before a decoder sees them.
        salvage: take a JPEG that is cut off or damaged for what can be decoded of it; what is missing is grey.
        decoder: which library decodes JPEG.
        scale: 1, 2, 4 or 8: decode a JPEG to that part of its size, each side rounded up (libjpeg's scaled decoding, much less work).
            Others are decoded whole.
        upright: turn the picture as its EXIF orientation says; else it comes as it is stored.
        arena: where the pixels go, if the decoder can be told; they hold until it is reset.
        words: with four bytes a pixel in memory, if the decoder can; see `policies.blocks`.

    Returns:
        uint8[height, width, 3]; without `arena` in memory of its own.

    Raises:
        DataError: not an image, too large, damaged or of a kind that can't be shown in 8 bits; the message is short.
    """
    if isinstance(data, memoryview) and data.format != "B":
        data = data.cast("B")
    head = read_header(data) if header is None else header
    check_size(head, max_pixels=max_pixels)
    head, back = (head, 1) if upright else _as_stored(head)
    if head.format != "JPEG":
        scale = 1
    height, width = -(-head.height // scale), -(-head.width // scale)
    try:
        rgb = None
        if decoder != "pillow" and head.coding in _HUFFMAN and head.channels in (1, 3) and (library := _simplejpeg()):
            rgb = _turbo(library, data, head, salvage, scale, arena, words=words)
        if rgb is None:
            rgb = _by_pillow(data, head, salvage, scale)
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"too large: no memory for {head.width} × {head.height} pixels") from error
    except Exception as error:  # decoders raise whatever they like on damaged files
        raise DataError(f"undecodable: {_short(error)}") from error
    if rgb.shape != (height, width, 3):
        raise DataError(
            f"undecodable: the header says {width} × {height} pixels, and there are {rgb.shape[1]} × {rgb.shape[0]}"
        )
    return turn(rgb, back)


def _as_stored(head: Header) -> tuple[Header, int]:
    """The header of the picture as it is stored, and the orientation that brings back what Pillow turned."""
    if head.format == "TIFF":  # Pillow turns it by itself
        return head, {6: 8, 8: 6}.get(head.orientation, head.orientation)
    return (head if head.orientation == 1 else head.as_stored()), 1


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"


def _turbo(
    library: Any, data: bytes | memoryview, head: Header, salvage: bool, scale: int, arena: Arena | None, *, words: bool
) -> Pixels | None:
    """None: Pillow is to try."""
    turned = head.orientation != 1
    high, wide = head.stored if turned else (head.height, head.width)
    more: dict[str, Any] = {}
    if (
        scale > 1
    ):  # 1 as a minimum would be "no scaling" for an image of few pixels, so it is asked for only where there is some
        high, wide = -(-high // scale), -(-wide // scale)
        more = {"min_height": high, "min_width": wide}
    try:
        if words and arena is not None and not turned:
            made = four_bytes(high, wide, arena.take)
            pixels = library.decode_jpeg(data, "RGBX", strict=True, buffer=made.memory, **more)
            return made if pixels.shape[:2] == made.shape[:2] else pixels[:, :, :3]
        if arena is not None:
            more["buffer"] = arena.take((high * wide * 3,))
        return turn(library.decode_jpeg(data, "RGB", strict=True, **more), head.orientation)
    except ValueError as error:
        # TurboJPEG's interface has no name for some subsamplings, which libjpeg itself decodes. What is to be salvaged goes to Pillow,
        # too: simplejpeg without `strict` may return memory that nothing was written to.
        if not salvage and not str(error).startswith("tjDecompressHeader"):
            raise
    return None


def _by_pillow(data: bytes | memoryview, head: Header, salvage: bool, scale: int) -> Pixels:
    try:
        return _pillow(data, head, salvage, scale)
    except Warning:
        # somebody made warnings errors; Pillow warns about odd metadata, which are nothing to us
        with _quietly, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _pillow(data, head, salvage, scale)


def _pillow(data: bytes | memoryview, head: Header, salvage: bool, scale: int) -> Pixels:
    # libjpeg fills what is missing with grey when it meets an end where there should be data
    file = BytesIO(b"".join((data, b"\xff\xd9")) if salvage and head.format == "JPEG" else data)
    with _CLASSES[head.format](file) as image:
        if scale > 1:
            height, width = head.stored
            image.draft("RGB" if head.channels == 3 else image.mode, (max(1, width // scale), max(1, height // scale)))
        rgb = to_rgb(image, head)
    # Pillow turns TIFF by itself
    return rgb if head.format == "TIFF" else turn(rgb, head.orientation)

"""PNG by its chunks (W3C PNG, third edition)."""

from __future__ import annotations

import zlib
from struct import Struct

from zephon.errors import DataError
from zephon_vision._headers_types import TRUNCATED, Bytes, Header, damaged, exif_orientation, upright, xmp_orientation

_CHUNK = Struct(">I4s").unpack_from
_SHAPE = Struct(">IIBBBBB").unpack_from
_COUNT = Struct(">I").unpack_from

_KINDS = {
    (1, 0): ("1", 1),
    (2, 0): ("L", 1),
    (4, 0): ("L", 1),
    (8, 0): ("L", 1),
    (16, 0): ("I;16", 1),
    (8, 2): ("RGB", 3),
    (16, 2): ("RGB", 3),
    (1, 3): ("P", 1),
    (2, 3): ("P", 1),
    (4, 3): ("P", 1),
    (8, 3): ("P", 1),
    (8, 4): ("LA", 2),
    (16, 4): ("LA", 2),
    (8, 6): ("RGBA", 4),
    (16, 6): ("RGBA", 4),
}
"""(bits, colour type) to (mode, channels)."""

_XMP = b"XML:com.adobe.xmp\0\0\0"
_RAW_EXIF = b"Raw profile type exif\0"
_LONGEST_PROFILE = 1 << 18


def read_png(data: Bytes) -> Header:
    """The first chunk, and a walk over the others, since EXIF may stand behind the pixels."""
    if len(data) < 33:
        raise DataError(TRUNCATED)
    length, name = _CHUNK(data, 8)
    if name != b"IHDR" or length != 13:
        raise damaged("PNG")
    width, height, bits, colour, *_ = _SHAPE(data, 16)
    kind = _KINDS.get((bits, colour))
    if kind is None or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise damaged("PNG")
    mode, channels = kind
    alpha, frames, orientation = _walk(data)
    height, width = upright(height, width, orientation)
    return Header(height, width, "PNG", mode, orientation, frames, channels, bits, alpha or colour in (4, 6))


def _walk(data: Bytes) -> tuple[bool, int, int]:
    """`(whether there is a tRNS chunk, frames, orientation)`."""
    at, size = 33, len(data)
    alpha, frames = False, 1
    exif = other = None
    while at + 8 <= size:
        length, name = _CHUNK(data, at)
        start, stop = at + 8, min(at + 8 + length, size)
        if name == b"eXIf" and exif is None:
            exif = exif_orientation(data, start, stop)
        elif name == b"tRNS":
            alpha = True
        elif name == b"acTL" and length >= 8 and stop == at + 8 + length:
            frames = max(1, int(_COUNT(data, start)[0]))
        elif name == b"iTXt" and data[start : start + len(_XMP)] == _XMP:
            other = other or xmp_orientation(data, start, stop)
        elif name in (b"zTXt", b"tEXt") and data[start : start + len(_RAW_EXIF)] == _RAW_EXIF:
            other = other or _raw_exif(bytes(data[start + len(_RAW_EXIF) : stop]), packed=name == b"zTXt")
        elif name == b"IEND":
            break
        at = stop + 4
    return alpha, frames, exif or other or 1


def _raw_exif(text: bytes, *, packed: bool) -> int | None:
    """EXIF as older ImageMagick writes it: a few lines of words, then hexadecimal digits."""
    try:
        if packed:
            text = zlib.decompressobj().decompress(text[1:], _LONGEST_PROFILE)
        raw = bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
    except (zlib.error, ValueError):
        return None
    return exif_orientation(raw, 0, len(raw))

"""GIF, WebP and BMP."""

from __future__ import annotations

from struct import Struct

from zephon.errors import DataError
from zephon_vision._headers_types import TRUNCATED, Bytes, Header, damaged, exif_orientation, upright, xmp_orientation

_PAIR = Struct("<HH").unpack_from
_BOX = Struct("<HHHH").unpack_from
_LENGTH = Struct("<I").unpack_from
_BMP = Struct("<iiHHI").unpack_from
_CORE = Struct("<HHHH").unpack_from
_MASKS = Struct("<IIII").unpack_from

_MOST_BLOCKS = 100_000
"""How many blocks of a GIF are looked at to count its pictures; one of more blocks is said to have those found so far."""


def read_gif(data: Bytes) -> Header:
    """GIF89a specification: the screen, made as large as the first picture needs, and the pictures counted."""
    if len(data) < 13:
        raise DataError(TRUNCATED)
    width, height = _PAIR(data, 6)
    frames, alpha, right, bottom = _gif_pictures(data)
    if not frames:
        raise DataError("the GIF has no picture")
    height, width = max(height, bottom), max(width, right)
    if not height or not width:
        raise damaged("GIF")
    return Header(height, width, "GIF", "P", 1, frames, 1, 8, alpha)


def _gif_pictures(data: Bytes) -> tuple[int, bool, int, int]:
    """`(pictures, whether the first has a transparent colour, its right and bottom edge)`."""
    size, flags = len(data), data[10]
    at = 13 + ((3 << ((flags & 7) + 1)) if flags & 0x80 else 0)
    frames, alpha, right, bottom = 0, False, 0, 0
    blocks = 0
    while at < size and blocks < _MOST_BLOCKS:
        kind = data[at]
        if kind == 0x3B:
            break
        if kind == 0x21:
            if not frames and data[at + 1 : at + 3] == b"\xf9\x04" and at + 3 < size:
                alpha = bool(data[at + 3] & 1)
            at += 2
        elif kind == 0x2C:
            if at + 10 > size:
                break
            left, top, wide, high = _BOX(data, at + 1)
            if not frames:
                right, bottom = left + wide, top + high
            frames += 1
            local = data[at + 9]
            at += 11 + ((3 << ((local & 7) + 1)) if local & 0x80 else 0)
        else:
            at += 1  # stray bytes between blocks are skipped by decoders, too
            blocks += 1
            continue
        while at < size and blocks < _MOST_BLOCKS:
            length = data[at]
            at += 1 + length
            blocks += 1
            if not length:
                break
    return frames, alpha, right, bottom


def read_webp(data: Bytes) -> Header:
    """RFC 9649: simple lossy, simple lossless, or extended."""
    if len(data) < 30:
        raise DataError(TRUNCATED)
    kind = bytes(data[12:16])
    if kind == b"VP8 ":
        if bytes(data[23:26]) != b"\x9d\x01\x2a":
            raise damaged("WebP")
        width, height = _PAIR(data, 26)
        return _webp(height & 0x3FFF, width & 0x3FFF)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise damaged("WebP")
        packed = int(_LENGTH(data, 21)[0])
        return _webp(1 + (packed >> 14 & 0x3FFF), 1 + (packed & 0x3FFF), alpha=bool(packed >> 28 & 1))
    if kind != b"VP8X":
        raise damaged("WebP")
    width, height = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    frames, orientation = _webp_chunks(data)
    return _webp(height, width, alpha=bool(data[20] & 0x10), frames=frames, orientation=orientation)


def _webp(height: int, width: int, *, alpha: bool = False, frames: int = 1, orientation: int = 1) -> Header:
    if not height or not width:
        raise damaged("WebP")
    height, width = upright(height, width, orientation)
    return Header(height, width, "WEBP", "RGBA" if alpha else "RGB", orientation, frames, 3 + alpha, 8, alpha)


def _webp_chunks(data: Bytes) -> tuple[int, int]:
    """`(pictures, orientation)` of an extended file."""
    at, size = 30, len(data)
    frames, exif, xmp = 0, None, None
    while at + 8 <= size:
        name, length = bytes(data[at : at + 4]), int(_LENGTH(data, at + 4)[0])
        if name == b"ANMF":
            frames += 1
        elif name == b"EXIF" and exif is None:
            exif = exif_orientation(data, at + 8, min(at + 8 + length, size))
        elif name == b"XMP " and xmp is None:
            xmp = xmp_orientation(data, at + 8, min(at + 8 + length, size))
        at += 8 + length + (length & 1)
    return max(1, frames), exif or xmp or 1


def read_bmp(data: Bytes) -> Header:
    """The Windows and OS/2 headers that Pillow reads. A negative height is a picture stored from the top."""
    if len(data) < 26:
        raise DataError(TRUNCATED)
    size = int(_LENGTH(data, 14)[0])
    if size == 12:
        width, height, _, bits = _CORE(data, 18)
        compression = 0
    elif size in (40, 52, 56, 64, 108, 124):
        if len(data) < 14 + size:
            raise DataError(TRUNCATED)
        width, height, _, bits, compression = _BMP(data, 18)
    else:
        raise damaged("BMP")
    height = abs(height)
    if width <= 0 or not height or bits not in (1, 4, 8, 16, 24, 32):
        raise damaged("BMP")
    alpha = bits == 32 and compression == 3 and _bmp_alpha(data, size)
    mode, channels = ("P", 1) if bits <= 8 else ("RGBA", 4) if alpha else ("RGB", 3)
    return Header(height, width, "BMP", mode, 1, 1, channels, min(bits, 8), alpha)


def _bmp_alpha(data: Bytes, size: int) -> bool:
    if size < 56:
        return False
    masks = _MASKS(data, 54)
    return masks[3] != 0 or masks == (0, 0, 0, 0)

"""JPEG by its markers (ITU T.81, annex B; JFIF, EXIF, Adobe and MPF segments)."""

from __future__ import annotations

from struct import Struct

from zephon.errors import DataError
from zephon_vision._headers_types import (
    TRUNCATED,
    Bytes,
    Header,
    damaged,
    exif_orientation,
    exif_tag,
    upright,
    xmp_orientation,
)

_MARKER = Struct(">HH").unpack_from
_FRAME = Struct(">BHHB").unpack_from
_ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_TABLES = (0xC4, 0xC8, 0xCC)
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


def read_jpeg(data: Bytes) -> Header:
    """Walk the segments up to the frame header."""
    size, at = len(data), 2
    exif = xmp = None
    frames = 1
    while at + 4 <= size:
        marker, length = _MARKER(data, at)
        code = marker & 0xFF
        if marker < 0xFF00:
            at = _next_marker(data, at)
        elif code == 0xFF:
            at += 1
        elif code in _ALONE:
            at += 2
        elif 0xC0 <= code <= 0xCF and code not in _TABLES:
            return _frame(data, at + 4, code, exif or xmp or 1, frames)
        elif code in (0xDA, 0xD9):
            raise DataError("the JPEG has no frame before its data")
        elif length < 2:
            raise damaged("JPEG")
        else:
            stop = min(at + 2 + length, size)
            if code == 0xE1 and exif is None:
                if data[at + 4 : at + 10] == b"Exif\0\0":
                    exif = exif_orientation(data, at + 10, stop)
                elif xmp is None and data[at + 4 : at + 4 + len(_XMP)] == _XMP:
                    xmp = xmp_orientation(data, at + 4, stop)
            elif code == 0xE2 and data[at + 4 : at + 8] == b"MPF\0":
                frames = max(1, exif_tag(data, at + 8, stop, 0xB001) or 1)
            at += 2 + length
    raise DataError(TRUNCATED)


def _frame(data: Bytes, at: int, code: int, orientation: int, frames: int) -> Header:
    if at + 6 > len(data):
        raise DataError(TRUNCATED)
    bits, height, width, channels = _FRAME(data, at)
    if not height or not width:
        raise damaged("JPEG")
    if bits != 8:
        raise DataError(f"a JPEG with {bits} bits per sample, which no decoder here reads")
    mode = _MODES.get(channels)
    if mode is None:
        raise DataError(f"a JPEG with {channels} components")
    height, width = upright(height, width, orientation)
    return Header(height, width, "JPEG", mode, orientation, frames, channels, bits, False, code)


def _next_marker(data: Bytes, at: int) -> int:
    """Skip stray bytes between segments, as libjpeg does."""
    size = len(data)
    while at < size:
        block = bytes(data[at : at + 65536])
        found = block.find(b"\xff")
        if found >= 0:
            return at + found
        at += len(block)
    return size

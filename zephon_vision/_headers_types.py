"""What every header parser gives, and what they share."""

from __future__ import annotations

import re
from struct import Struct
from typing import NamedTuple

from zephon.errors import DataError

Bytes = bytes | memoryview

TRUNCATED = "the header is truncated"


class Header(NamedTuple):
    """What the header of an image file says; nothing is decoded."""

    height: int
    """In pixels, of the upright image: after the EXIF orientation."""
    width: int
    format: str
    """JPEG, PNG, WEBP, GIF, AVIF, TIFF or BMP."""
    mode: str
    """The kind of pixels in Pillow's words: 1, L, P, RGB, RGBA, LA, I;16, CMYK, F, ..."""
    orientation: int = 1
    """1 to 8 as in EXIF; 5 to 8 swap the sides."""
    frames: int = 1
    """Pictures in the file, as far as the header tells; only the first is decoded."""
    channels: int = 3
    """As stored, alpha included; 1 for palettes."""
    bits: int = 8
    """Per channel."""
    alpha: bool = False
    """Whether some pixels may be transparent."""
    coding: int = 0
    """Of a JPEG: the frame marker, 0xC0 baseline, 0xC2 progressive, 0xC9 arithmetic, ...; else 0."""

    @property
    def stored(self) -> tuple[int, int]:
        """(height, width) as stored in the file, before the orientation."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)

    def as_stored(self) -> Header:
        """The header of the same file without an orientation."""
        height, width = self.stored
        return self._replace(height=height, width=width, orientation=1)

    @property
    def pixels(self) -> int:
        """Height times width."""
        return self.height * self.width


def upright(height: int, width: int, orientation: int) -> tuple[int, int]:
    """The size after turning."""
    return (width, height) if orientation >= 5 else (height, width)


def damaged(kind: str) -> DataError:
    """The error for a header that contradicts itself."""
    return DataError(f"the {kind} header is damaged")


_COUNT = {True: Struct("<H").unpack_from, False: Struct(">H").unpack_from}
_ENTRY = {True: Struct("<HHIHH").unpack_from, False: Struct(">HHIHH").unpack_from}
_LONG = {True: Struct("<I").unpack_from, False: Struct(">I").unpack_from}

ORIENTATION = 0x0112
_XMP = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])\b")


def exif_tag(data: Bytes, start: int, stop: int, wanted: int) -> int | None:
    """One short or long number of the first directory of the TIFF structure `data[start:stop]` (EXIF blocks are such); None: not there.

    Whatever is wrong with the structure, the answer is None: metadata never make an image unusable.
    """
    order = bytes(data[start : start + 2])
    if order not in (b"II", b"MM") or start + 10 > stop:
        return None
    little = order == b"II"
    at = start + _LONG[little](data, start + 4)[0]
    if at + 2 > stop:
        return None
    entry = _ENTRY[little]
    last = min(at + 2 + 12 * _COUNT[little](data, at)[0], stop - 11)
    for place in range(at + 2, last, 12):
        tag, kind, _, first, _ = entry(data, place)
        if tag == wanted:
            if kind == 3:
                return int(first)
            return int(_LONG[little](data, place + 8)[0]) if kind == 4 else None
    return None


def exif_orientation(data: Bytes, start: int, stop: int) -> int | None:
    """The orientation 1 to 8 of an EXIF block; 1 where it says nonsense, None where it says nothing."""
    if bytes(data[start : start + 6]) == b"Exif\0\0":
        start += 6
    value = exif_tag(data, start, stop, ORIENTATION)
    return value if value is None or 1 <= value <= 8 else 1


def xmp_orientation(data: Bytes, start: int, stop: int) -> int | None:
    """The same of an XMP packet, which counts where EXIF says nothing (as in Pillow)."""
    found = _XMP.search(data, start, stop) if isinstance(data, bytes) else _XMP.search(bytes(data[start:stop]))
    return int(found[1]) if found else None

"""What the first bytes of an image say: its kind and size, without an image library."""

from __future__ import annotations

import struct
from typing import NamedTuple

_NO_SIZE = {0xC4, 0xC8, 0xCC}  # in the range of frame markers, but tables


class Header(NamedTuple):
    """Kind (`JPEG`, `PNG`, …), and width and height in pixels where the header could be read that far (else 0)."""

    kind: str
    width: int = 0
    height: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.width}×{self.height}" if self.width else self.kind


def read_header(data: bytes) -> Header | None:
    """JPEG, PNG, GIF, BMP, WebP and TIFF by their magic; None: none of these. As stored: EXIF rotation is not applied."""
    try:
        return _read(data)
    except (struct.error, IndexError):
        return None


def _read(data: bytes) -> Header | None:
    if data.startswith(b"\xff\xd8\xff"):
        return Header("JPEG", *_jpeg_size(data))
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Header("PNG", *(struct.unpack(">II", data[16:24]) if len(data) >= 24 else (0, 0)))
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Header("GIF", *struct.unpack("<HH", data[6:10]))
    if data.startswith(b"BM") and len(data) >= 26 and data[6:10] == b"\0\0\0\0":
        return Header("BMP", *(abs(n) for n in struct.unpack("<ii", data[18:26])))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Header("WebP", *_webp_size(data))
    if data.startswith((b"II*\0", b"MM\0*")):
        return Header("TIFF")
    return None


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """From the first start-of-frame marker (ITU T.81, B.2.2)."""
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            return 0, 0
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        elif 0xD0 <= marker <= 0xD8 or marker == 0x01:  # no length follows
            at += 2
        else:
            at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    """From the first chunk (RFC 9649): lossy, lossless or extended."""
    kind = data[12:16]
    if len(data) < 30:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + ((bits >> 14) & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0

"""Raw pixels as Pillow holds them, put into a container that any image library opens, without packing them.

PNG (https://www.w3.org/TR/png-3/) with stored deflate blocks for the modes that it has; for the others TIFF 6.0, one strip
(https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf). Both keep every pixel and the mode.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]

_PNG_MODES = {
    "1": (1, 0, 1),
    "L": (8, 0, 8),
    "P": (8, 3, 8),
    "LA": (8, 4, 16),
    "RGB": (8, 2, 24),
    "RGBA": (8, 6, 32),
    "I;16": (16, 0, 16),
}
"""Mode → bits per sample, PNG colour type, bits per pixel."""
_TIFF_MODES = {"CMYK": (5, 4, 8, 1), "I": (1, 1, 32, 2), "F": (1, 1, 32, 3)}
"""Mode → photometric interpretation, samples per pixel, bits per sample, sample format."""
MODES = (*_PNG_MODES, *_TIFF_MODES)

# MDS doesn't keep palettes; the numbers stay, for masks, and a grey ramp at least shows them
_GREY_RAMP = bytes(np.repeat(np.arange(256, dtype=np.uint8), 3))


def pixel_bytes(width: int, height: int, mode: str) -> int:
    """How many bytes the raw pixels of an image have. Raises `KeyError` for a mode that isn't in `MODES`."""
    if mode in _TIFF_MODES:
        return width * height * _TIFF_MODES[mode][1] * _TIFF_MODES[mode][2] // 8
    return (width * _PNG_MODES[mode][2] + 7) // 8 * height


def image_file(width: int, height: int, mode: str, pixels: U8) -> bytes:
    """An image file of these pixels (`uint8[pixel_bytes(…)]`), which Pillow opens in the same mode with the same pixels."""
    return _tiff(width, height, mode, pixels) if mode in _TIFF_MODES else _png(width, height, mode, pixels)


def _png(width: int, height: int, mode: str, pixels: U8) -> bytes:
    depth, colour, _ = _PNG_MODES[mode]
    lines = np.zeros((height, 1 + len(pixels) // height), dtype=np.uint8)  # in front of each line its filter, 0 = none
    lines[:, 1:] = pixels.reshape(height, -1)
    if depth == 16:  # Pillow's are little endian, PNG's big
        lines[:, 1::2], lines[:, 2::2] = lines[:, 2::2].copy(), lines[:, 1::2].copy()
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    palette = _chunk(b"PLTE", _GREY_RAMP) if mode == "P" else b""
    data = _chunk(b"IDAT", zlib.compress(lines.data, level=0))
    return b"".join([b"\x89PNG\r\n\x1a\n", head, palette, data, _chunk(b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join([struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))])


def _tiff(width: int, height: int, mode: str, pixels: U8) -> bytes:
    photometric, samples, bits, form = _TIFF_MODES[mode]
    short, long = 3, 4
    count = 10
    after = 8 + 2 + 12 * count + 4
    wide_bits = struct.pack(f"<{samples}H", *[bits] * samples) if samples > 2 else b""
    tags = [
        (256, long, 1, width),
        (257, long, 1, height),
        (258, short, samples, after if wide_bits else bits),
        (259, short, 1, 1),
        (262, short, 1, photometric),
        (273, long, 1, after + len(wide_bits)),
        (277, short, 1, samples),
        (278, long, 1, height),
        (279, long, 1, len(pixels)),
        (339, short, 1, form),
    ]
    table = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"".join([b"II*\0", struct.pack("<IH", 8, count), table, b"\0\0\0\0", wide_bits, pixels.tobytes()])

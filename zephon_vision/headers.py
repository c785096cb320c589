"""Image headers by our own walk over the file's markers: size, kind and orientation in microseconds, without an image library.

What is too large, is no image, or is a kind that can't be decoded safely, is found here, before any decoder sees the bytes.
"""

from __future__ import annotations

import struct

from zephon.errors import DataError
from zephon_vision._headers_avif import is_avif, read_avif
from zephon_vision._headers_jpeg import read_jpeg
from zephon_vision._headers_plain import read_bmp, read_gif, read_webp
from zephon_vision._headers_png import read_png
from zephon_vision._headers_tiff import read_tiff
from zephon_vision._headers_types import TRUNCATED, Header

__all__ = ["MAX_PIXELS", "Header", "check_size", "read_header"]

MAX_PIXELS = 178_956_970
"""The default limit on the pixels of an image: where Pillow, too, refuses."""

_LARGEST_SIDE = 2**31 - 1

_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"%!PS", "an EPS file, which is not decoded"),
    (b"\xc5\xd0\xd3\xc6", "an EPS file, which is not decoded"),
    (b"%PDF", "a PDF file, not an image"),
    (b"\xff\x0a", "a JPEG XL image, which is not decoded"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image, which is not decoded"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 image, which is not decoded"),
    (b"8BPS", "a Photoshop file, which is not decoded"),
    (b"PK\x03\x04", "a ZIP file, not an image"),
    (b"\x1f\x8b", "a gzip file, not an image"),
    (b"version https://git-lfs", "a Git LFS pointer, not an image"),
)


def read_header(data: bytes | memoryview) -> Header:
    """What the header of this file says.

    Args:
        data: the file's bytes; all of them, or for JPEG at least up to the frame header. Memory that can be indexed by bytes.

    Raises:
        DataError: it is no image of a kind that is decoded here, or its header is truncated or contradicts itself; the message is short.
    """
    if isinstance(data, memoryview) and data.format != "B":
        data = data.cast("B")
    try:
        return _read(data)
    except (struct.error, IndexError) as error:
        raise DataError(TRUNCATED) from error


def _read(data: bytes | memoryview) -> Header:
    start = bytes(data[:12])
    if start[:3] == b"\xff\xd8\xff":
        return read_jpeg(data)
    if start[:8] == b"\x89PNG\r\n\x1a\n":
        return read_png(data)
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return read_webp(data)
    if start[:6] in (b"GIF87a", b"GIF89a"):
        return read_gif(data)
    if start[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _sane(read_tiff(data))
    if start[4:8] == b"ftyp":
        if is_avif(data):
            return _sane(read_avif(data))
        raise DataError(f"an image or video of kind {start[8:12].decode('latin-1')!r}, which is not decoded")
    if start[:2] == b"BM":
        return _sane(read_bmp(data))
    raise DataError(_what_else(data))


def _sane(header: Header) -> Header:
    if max(header.height, header.width) > _LARGEST_SIDE:
        raise DataError(f"the {header.format} header is damaged")
    return header


def _what_else(data: bytes | memoryview) -> str:
    """In words, what data of no known kind are."""
    if not len(data):
        return "an empty file"
    start = bytes(data[:1024])
    for magic, words in _STRANGERS:
        if start.startswith(magic):
            return words
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml", b"<!--")) and b"<svg" in text:
        return "an SVG drawing, which is not decoded"
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body", b"<script")) or b"<html" in text:
        return "an HTML page, not an image"
    return "not an image of a known kind"


def check_size(
    header: Header, *, max_pixels: int | None = MAX_PIXELS, min_side: int | None = None, max_aspect: float | None = None
) -> None:
    """Refuse what is too large, too small or too long.

    Raises:
        DataError: says which, as `too large: ...`, `too small: ...` or `too long: ...`.
    """
    height, width = header.height, header.width
    if max_pixels is not None and height * width > max_pixels:
        raise DataError(f"too large: {width} × {height} pixels, and the limit is {max_pixels}")
    if min_side is not None and min(height, width) < min_side:
        raise DataError(f"too small: {width} × {height} pixels, and the shorter side must have {min_side}")
    if max_aspect is not None and max(height, width) > max_aspect * min(height, width):
        raise DataError(f"too long: {width} × {height} pixels, and the sides may differ {max_aspect:g} times")

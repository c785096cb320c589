"""TIFF by its first directory (TIFF 6.0, BigTIFF)."""

from __future__ import annotations

from struct import Struct, calcsize

from zephon.errors import DataError
from zephon_vision._headers_types import ORIENTATION, TRUNCATED, Bytes, Header, damaged, upright, xmp_orientation

_WIDTHS = {1: "B", 2: "B", 3: "H", 4: "I", 6: "b", 7: "B", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q", 18: "Q"}
"""Field type to how `struct` calls it; types that no wanted tag has are left out."""

_MOST_VALUES = 64
_MOST_PICTURES = 10_000

_HEIGHT, _WIDTH, _BITS, _PHOTOMETRIC, _SAMPLES, _EXTRA, _FORMAT, _XMP = 257, 256, 258, 262, 277, 338, 339, 700
_WANTED = frozenset({_HEIGHT, _WIDTH, _BITS, _PHOTOMETRIC, ORIENTATION, _SAMPLES, _EXTRA, _FORMAT, _XMP})


def read_tiff(data: Bytes) -> Header:
    """The first picture, and how many there are."""
    order = "<" if bytes(data[:2]) == b"II" else ">"
    big = Struct(order + "H").unpack_from(data, 2)[0] == 43
    if len(data) < (16 if big else 8):
        raise DataError(TRUNCATED)
    first = int(Struct(order + ("Q" if big else "I")).unpack_from(data, 8 if big else 4)[0])
    tags, following = _directory(data, first, order, big)
    width, height = _one(tags, _WIDTH, 0), _one(tags, _HEIGHT, 0)
    if not width or not height:
        raise damaged("TIFF")
    orientation = _orientation(data, tags)
    channels = _one(tags, _SAMPLES, 1)
    bits = _one(tags, _BITS, 1)
    mode, alpha = _mode(tags, channels, bits)
    height, width = upright(height, width, orientation)
    frames = 1 + _others(data, first, following, order, big)
    return Header(height, width, "TIFF", mode, orientation, frames, channels, bits, alpha)


def _one(tags: dict[int, tuple[int, ...]], tag: int, otherwise: int) -> int:
    values = tags.get(tag)
    return int(values[0]) if values else otherwise


def _orientation(data: Bytes, tags: dict[int, tuple[int, ...]]) -> int:
    if ORIENTATION in tags:
        value = _one(tags, ORIENTATION, 1)
        return value if 1 <= value <= 8 else 1
    if _XMP in tags:
        start, length = tags[_XMP]
        return xmp_orientation(data, start, min(start + length, len(data))) or 1
    return 1


def _shape(order: str, big: bool) -> tuple[Struct, Struct, Struct, int]:
    """How a directory's count, an entry's head and the link to the next are packed, and the size of an entry's value."""
    return (
        (Struct(order + "Q"), Struct(order + "HHQ"), Struct(order + "Q"), 8)
        if big
        else (Struct(order + "H"), Struct(order + "HHI"), Struct(order + "I"), 4)
    )


def _directory(data: Bytes, at: int, order: str, big: bool) -> tuple[dict[int, tuple[int, ...]], int]:
    """`(wanted tags, offset of the next directory)`."""
    count_form, head, link, room = _shape(order, big)
    size = len(data)
    if at < 8 or at + count_form.size > size:
        raise DataError(TRUNCATED)
    count = int(count_form.unpack_from(data, at)[0])
    at += count_form.size
    width = head.size + room
    if at + count * width > size:
        raise DataError(TRUNCATED)
    tags: dict[int, tuple[int, ...]] = {}
    for place in range(at, at + count * width, width):
        tag, kind, number = head.unpack_from(data, place)
        if tag not in _WANTED or kind not in _WIDTHS or not number:
            continue
        form = order + f"{min(number, _MOST_VALUES)}{_WIDTHS[kind]}"
        where = place + head.size
        if calcsize(order + _WIDTHS[kind]) * number > room:
            where = int(link.unpack_from(data, where)[0])
        if tag == _XMP:
            tags[tag] = (where, number)
        elif where + calcsize(form) <= size:
            tags[tag] = Struct(form).unpack_from(data, where)
    at += count * width
    following = int(link.unpack_from(data, at)[0]) if at + link.size <= size else 0
    return tags, following


def _others(data: Bytes, first: int, at: int, order: str, big: bool) -> int:
    """How many directories follow; a chain that bites its tail ends there."""
    count_form, head, link, room = _shape(order, big)
    seen = {first}
    while at >= 8 and at + count_form.size <= len(data) and at not in seen and len(seen) < _MOST_PICTURES:
        seen.add(at)
        at += count_form.size + int(count_form.unpack_from(data, at)[0]) * (head.size + room)
        at = int(link.unpack_from(data, at)[0]) if at + link.size <= len(data) else 0
    return len(seen) - 1


def _mode(tags: dict[int, tuple[int, ...]], channels: int, bits: int) -> tuple[str, bool]:
    """`(mode, whether there is alpha)`; a guide only, the decoder decides."""
    photometric = _one(tags, _PHOTOMETRIC, 1)
    alpha = any(e in (1, 2) for e in tags.get(_EXTRA, ()))
    if photometric in (0, 1):
        if alpha:
            return "LA", True
        if bits <= 8:
            return ("1" if bits == 1 else "L"), False
        return ("F" if _one(tags, _FORMAT, 1) == 3 else "I;16" if bits <= 16 else "I"), False
    if photometric == 2:
        return ("RGBA" if alpha else "RGB"), alpha
    if photometric == 3:
        return ("PA" if alpha else "P"), alpha
    return {5: "CMYK", 6: "YCbCr", 8: "LAB"}.get(photometric, "RGB" if channels >= 3 else "L"), alpha

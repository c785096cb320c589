"""AVIF by its boxes (ISO base media file format; HEIF; AV1 Image File Format)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from zephon.errors import DataError
from zephon_vision._headers_types import TRUNCATED, Bytes, Header, damaged, upright

_BOX = Struct(">I4s").unpack_from
_U16 = Struct(">H").unpack_from
_U32 = Struct(">I").unpack_from
_U64 = Struct(">Q").unpack_from

_MOST_BOXES = 100_000
_ALPHA = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1")

_TURNS = {
    # (quarter turns against the clock, mirror axis or None) to EXIF orientation; the turn comes first (MIAF)
    (0, None): 1, (1, None): 8, (2, None): 3, (3, None): 6,
    (0, 0): 4, (1, 0): 5, (2, 0): 2, (3, 0): 7,
    (0, 1): 2, (1, 1): 7, (2, 1): 4, (3, 1): 5,
}  # fmt: skip


class _Box(NamedTuple):
    kind: bytes
    start: int
    stop: int


def is_avif(data: Bytes) -> bool:
    """Whether the file type box names AVIF among its brands."""
    length = int(_U32(data, 0)[0])
    brands = bytes(data[8 : min(max(length, 16), 256)])
    return any(brands[i : i + 4] in (b"avif", b"avis") for i in (0, *range(8, len(brands) - 3, 4)))


def read_avif(data: Bytes) -> Header:
    """The primary item's properties; for a sequence without one, its first track."""
    top = {box.kind: box for box in reversed(list(_boxes(data, 0, len(data))))}
    found = _from_items(data, top[b"meta"]) if b"meta" in top else None
    track = _from_track(data, top[b"moov"]) if b"moov" in top else None
    if found is not None:
        height, width, bits, turn, alpha = found
    elif track is not None:
        height, width, _, alpha = track
        bits, turn = 8, 1
    else:
        raise DataError(TRUNCATED)
    if not height or not width:
        raise damaged("AVIF")
    height, width = upright(height, width, turn)
    frames = max(1, track[2]) if track else 1
    return Header(height, width, "AVIF", "RGBA" if alpha else "RGB", turn, frames, 3 + alpha, bits, alpha)


def _boxes(data: Bytes, at: int, end: int) -> Iterator[_Box]:
    for _ in range(_MOST_BOXES):
        if at + 8 > end:
            return
        length, kind = _BOX(data, at)
        start = at + 8
        if length == 1:
            if at + 16 > end:
                return
            length, start = int(_U64(data, start)[0]), at + 16
        elif length == 0:
            length = end - at
        if length < start - at:
            raise damaged("AVIF")
        yield _Box(kind, start, min(at + length, end))
        at += length


def _from_items(data: Bytes, meta: _Box) -> tuple[int, int, int, int, bool] | None:
    """`(height, width, bits, orientation, alpha)` of the primary item."""
    inner = {box.kind: box for box in _boxes(data, meta.start + 4, meta.stop)}
    if not {b"pitm", b"iprp"} <= set(inner):
        return None
    where = inner[b"pitm"].start
    primary = int((_U32 if data[where] else _U16)(data, where + 4)[0])
    parts = {box.kind: box for box in _boxes(data, inner[b"iprp"].start, inner[b"iprp"].stop)}
    if not {b"ipco", b"ipma"} <= set(parts):
        return None
    properties = list(_boxes(data, parts[b"ipco"].start, parts[b"ipco"].stop))
    links = _links(data, parts[b"ipma"])
    height = width = 0
    bits, turn, mirror = 8, 0, None
    for number in links.get(primary, ()):
        if not 0 < number <= len(properties):
            continue
        kind, start, _ = properties[number - 1]
        if kind == b"ispe":
            width, height = int(_U32(data, start + 4)[0]), int(_U32(data, start + 8)[0])
        elif kind == b"pixi" and data[start + 4]:
            bits = data[start + 5]
        elif kind == b"irot":
            turn = data[start] & 3
        elif kind == b"imir":
            mirror = data[start] & 1
    alpha = b"iref" in inner and _has_alpha(data, inner[b"iref"], primary, links, properties)
    return height, width, bits, _TURNS[turn, mirror], alpha


def _links(data: Bytes, box: _Box) -> dict[int, list[int]]:
    """Item to the numbers of its properties, from 1."""
    version, wide = data[box.start], data[box.start + 3] & 1
    count, at = int(_U32(data, box.start + 4)[0]), box.start + 8
    out: dict[int, list[int]] = {}
    for _ in range(min(count, _MOST_BOXES)):
        if at + 3 > box.stop:
            break
        item = int((_U32 if version else _U16)(data, at)[0])
        at += 4 if version else 2
        number = data[at]
        at += 1
        if wide:
            out[item] = [int(_U16(data, at + 2 * n)[0]) & 0x7FFF for n in range(number)]
        else:
            out[item] = [data[at + n] & 0x7F for n in range(number)]
        at += number * (1 + wide)
    return out


def _has_alpha(data: Bytes, iref: _Box, primary: int, links: dict[int, list[int]], properties: list[_Box]) -> bool:
    """Whether an alpha item is tied to the primary one."""
    read, step = (_U32, 4) if data[iref.start] else (_U16, 2)
    for kind, start, stop in _boxes(data, iref.start + 4, iref.stop):
        if kind != b"auxl":
            continue
        item = int(read(data, start)[0])
        number = int(_U16(data, start + step)[0])
        first = start + step + 2
        if primary not in (int(read(data, first + n * step)[0]) for n in range(min(number, (stop - first) // step))):
            continue
        for link in links.get(item, ()):
            if 0 < link <= len(properties):
                box = properties[link - 1]
                if box.kind == b"auxC" and bytes(data[box.start + 4 : box.stop]).startswith(_ALPHA):
                    return True
    return False


def _from_track(data: Bytes, moov: _Box) -> tuple[int, int, int, bool] | None:
    """`(height, width, pictures, alpha)` of an image sequence; a second track that is auxiliary holds alpha."""
    picture, alpha = None, False
    for trak in _boxes(data, moov.start, moov.stop):
        if trak.kind != b"trak":
            continue
        head, media = _child(data, trak, b"tkhd"), _child(data, trak, b"mdia")
        if head is None or media is None:
            continue
        handler = _child(data, media, b"hdlr")
        kind = bytes(data[handler.start + 8 : handler.start + 12]) if handler else b""
        if kind == b"auxv":
            alpha = True
        elif kind == b"pict" and picture is None:
            at = head.stop - 8
            picture = int(_U32(data, at + 4)[0]) >> 16, int(_U32(data, at)[0]) >> 16, _samples(data, media)
    return (*picture, alpha) if picture else None


def _samples(data: Bytes, media: _Box) -> int:
    info = _child(data, media, b"minf")
    table = _child(data, info, b"stbl") if info else None
    sizes = _child(data, table, b"stsz") if table else None
    return int(_U32(data, sizes.start + 8)[0]) if sizes else 1


def _child(data: Bytes, box: _Box, kind: bytes) -> _Box | None:
    return next((b for b in _boxes(data, box.start, box.stop) if b.kind == kind), None)

"""The members of a tar file (POSIX.1-1988 ustar, POSIX.1-2001 pax, GNU and old v7), found by its 512-byte headers alone.

Sources: POSIX.1-2017, `pax` ("ustar Interchange Format", "pax Extended Header"), and GNU tar's manual ("Basic Tar Format").
Names are bytes here: a tar has no encoding for them before pax.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError
from zephon_formats._bytes import I64

_log = logging.getLogger("zephon.formats.webdataset")

BLOCK = 512
Read = Callable[[int, int], bytes]
"""`(start, stop) -> bytes` of the tar; shorter only at its end."""

_REGULAR = (b"0", b"\0", b"7")
_NO_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, directories, fifos: their size field says nothing
_LEAST, _MOST = 2 << 10, 8 << 20
_LONGEST_HEADER = 1 << 20
_TAIL = 1 << 20


@dataclass(frozen=True)
class Members:
    """The regular, visible members of a tar in file order: names (binary[M]) and where their data is (int64[M] each)."""

    names: pa.BinaryArray
    headers: I64
    """Where the member begins, its extended headers included."""
    begins: I64
    sizes: I64
    complete: bool = True
    """Whether the tar has its end mark."""


@dataclass
class _Next:
    """What extended headers say about the member after them."""

    name: bytes | None = None
    size: int | None = None
    sparse: bool = False


@dataclass
class _Found:
    names: list[bytes] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)


class _Window:
    """Headers read through a window that grows while members are small and shrinks to the header alone while they are large.

    `near`: how many bytes cost as much as one more read; 64 KiB on disk, megabytes in an object store.
    """

    def __init__(self, read: Read, size: int, near: int) -> None:
        self._read, self._size, self._near = read, size, near
        self._data, self._start = b"", 0
        self._mean = float(near)  # of the steps from header to header, as of late

    def step(self, nbytes: int) -> None:
        """Note that the next header is so many bytes on."""
        self._mean += (nbytes - self._mean) / 4

    def get(self, start: int, nbytes: int) -> bytes:
        """The bytes [start, start + nbytes), fewer at the end of the tar."""
        begin = start - self._start
        if begin < 0 or begin + nbytes > len(self._data):
            ahead = min(_MOST, 4 * self._near) if self._mean < self._near else _LEAST
            stop = min(self._size, start + max(nbytes, ahead))
            self._data, self._start, begin = self._read(start, stop), start, 0
            if len(self._data) < stop - start:
                raise DataError(f"the tar ends at byte {start + len(self._data)}; it had {self._size} bytes when it was listed")
        return self._data[begin : begin + nbytes]


def scan(read: Read, size: int, *, near: int, needs_end: bool = True) -> Members:
    """Find the members in a tar of `size` bytes. Directories, links, devices and hidden files are left out.

    Args:
        read: reads a range of it.
        size: of the tar.
        near: see `_Window`.
        needs_end: whether a tar without an end mark (a block of zeros) counts as cut short.

    Raises:
        DataError: not a tar; damaged; cut short (with what is missing, and of which member); sparse or multi-volume members.
    """
    if not size:
        raise DataError("the file is empty (0 bytes), which is not a tar", hint="was it written to its end?")
    window = _Window(read, size, near)
    found, coming, shared, complete = _Found(), _Next(), _Next(), True
    at = begin = 0  # of this header, and of the first of the headers that belong to the member
    while True:
        block = window.get(at, BLOCK)
        if not block and at == begin and not needs_end:
            complete = False
            break
        if len(block) < BLOCK:
            raise _cut_short(at, block, begin, found, coming)
        if not block.strip(b"\0"):
            break
        name, kind, nbytes = parse_header(block, at)
        data = at + BLOCK
        if kind in b"xgXLK":
            text = _extended(window, data, nbytes, size, kind)
            if kind == b"L":
                coming.name = text.split(b"\0", 1)[0]
            elif kind != b"K":
                _pax(text, shared if kind == b"g" else coming, at)
            after = data + _padded(nbytes)
        else:
            for said in (shared, coming):
                name = name if said.name is None else said.name
                nbytes = nbytes if said.size is None else said.size
            _refuse(kind, name, coming.sparse or shared.sparse)
            after = data if kind in _NO_DATA else data + _padded(nbytes)
            if after > size and data + nbytes > size:
                raise DataError(f"the tar is cut short: it ends at byte {size}, {data + nbytes - size} bytes before the end of "
                                f"the member {show(name)} ({nbytes} bytes)")  # fmt: skip
            if kind in _REGULAR and not name.endswith(b"/") and not _hidden(name):
                found.names.append(name)
                found.places.append((begin, data, nbytes))
            coming, begin = _Next(), after
        window.step(after - at)
        at = after
    places = np.array(found.places, dtype=np.int64).reshape(-1, 3)
    if complete:
        _look_behind(read(at, min(size, at + _TAIL)), at, size)
    headers, begins, sizes = np.ascontiguousarray(places.T)
    names: Any = pa.array(found.names, pa.binary())
    return Members(names, headers, begins, sizes, complete)


def _look_behind(tail: bytes, at: int, size: int) -> None:
    """What follows the end mark is padding. Raises `DataError` where it is another tar, whose rows would be lost."""
    rest = tail.lstrip(b"\0")
    if not rest and size - at > len(tail):
        _log.warning(
            "more than %d bytes of zeros follow the end mark at byte %d of %d; was the file copied whole?", len(tail), at, size
        )
    if not rest:
        return
    begin = (len(tail) - len(rest)) // BLOCK * BLOCK
    try:
        parse_header(tail[begin : begin + BLOCK].ljust(BLOCK, b"\0"), at + begin)
    except DataError:
        _log.warning("what follows the end mark at byte %d of %d is no padding; it is left out", at, size)
    else:
        raise DataError(
            f"a second tar follows the end mark at byte {at}",
            hint="tars can't be joined by cat: use `tar --concatenate`, or unpack with `tar --ignore-zeros` and pack again",
        )


def parse_header(block: bytes, at: int) -> tuple[bytes, bytes, int]:
    """`(name, type flag, size)` of one header. Raises `DataError` where its checksum or its size isn't one."""
    try:
        stated = _number(block[148:156])
        nbytes = _number(block[124:136])
    except ValueError:
        stated = nbytes = -1
    if not _is_checksum(stated, block):
        other = {b"BZh": "bzip2", b"\xfd7z": "xz", b"PK\x03": "zip", b"\x1f\x8b\x08": "gzip"}.get(block[:3])
        what = f"it looks like {other} data" if other and not at else "its checksum is wrong"
        raise DataError(f"there is no tar header at byte {at}: {what}", hint="is the file a tar, and was it copied whole?")
    if nbytes < 0:
        raise DataError(f"the tar header at byte {at} states no valid size")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0":  # GNU's magic differs, and keeps times where ustar keeps the prefix
        prefix = block[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return name, block[156:157], nbytes


def show(name: bytes) -> str:
    """A member's name for messages."""
    return repr(name.decode("utf-8", "replace"))


def _is_checksum(stated: int, block: bytes) -> bool:
    """Whether it's the sum of a header's bytes, its own field counted as blanks; old writers added signed bytes."""
    rest = block[:148] + block[156:]
    plain = sum(rest) + 8 * ord(" ")
    return stated == plain or stated == plain - 256 * sum(byte > 127 for byte in rest)


def _number(text: bytes) -> int:
    """Octal digits, or base 256 where the first bit is set. Raises `ValueError`."""
    if text[0] in (0x80, 0xFF):
        return int.from_bytes(text[1:], "big") if text[0] == 0x80 else -1
    digits = text.split(b"\0", 1)[0].strip()
    return int(digits, 8) if digits else 0


def _padded(nbytes: int) -> int:
    return -(-nbytes // BLOCK) * BLOCK


def _extended(window: _Window, data: int, nbytes: int, size: int, kind: bytes) -> bytes:
    if nbytes > _LONGEST_HEADER:
        raise DataError(f"an extended header ({show(kind)}) at byte {data - BLOCK} says that it has {nbytes} bytes")
    if data + nbytes > size:
        raise DataError(
            f"the tar is cut short: it ends at byte {size}, inside an extended header that begins at byte {data - BLOCK}"
        )
    return window.get(data, nbytes)


def _pax(text: bytes, into: _Next, at: int) -> None:
    """Records `LENGTH KEY=VALUE\\n`; the length counts the whole record, digits included."""
    place = 0
    while place < len(text) and text[place] != 0:
        digits, blank, _ = text[place : place + 21].partition(b" ")
        length = int(digits) if blank and digits.isdigit() else 0
        record = text[place + len(digits) + 1 : place + length]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or place + length > len(text) or not record.endswith(b"\n"):
            raise DataError(f"damaged pax header at byte {at}: there is no record at its byte {place}")
        if key == b"path":
            into.name = value
        elif key == b"size":
            if not value.isdigit():
                raise DataError(f"damaged pax header at byte {at}: size={show(value)}")
            into.size = int(value)
        elif key.startswith(b"GNU.sparse"):
            into.sparse = True
        place += length


def _refuse(kind: bytes, name: bytes, sparse: bool) -> None:
    if kind == b"S" or sparse:
        raise DataError(f"the member {show(name)} is a sparse file, whose data a tar holds in pieces",
                        hint="write the tar without --sparse")  # fmt: skip
    if kind == b"M":
        raise DataError(
            f"the member {show(name)} continues from another volume", hint="multi-volume tars can't be read; join them"
        )


def _hidden(name: bytes) -> bool:
    """Whether a name is no data: a part of it begins with a dot, `__MACOSX`, or `__name__` at the top (WebDataset's own files)."""
    parts = name.split(b"/")
    if any(part[:1] == b"." and part not in (b".", b"..") for part in parts) or b"__MACOSX" in parts:
        return True
    return parts[0].startswith(b"__") and parts[0].endswith(b"__") and len(parts[0]) > 3


def _cut_short(at: int, block: bytes, begin: int, found: _Found, coming: _Next) -> DataError:
    last = f"after the member {show(found.names[-1])}" if found.names else "before its first member"
    if coming.name is not None and at != begin:
        last = f"before the header of the member {show(coming.name)}"
    lacks = f"{BLOCK - len(block)} bytes of a header are missing" if block else "there is no end mark (a block of zeros)"
    return DataError(
        f"the tar is cut short: it ends at byte {at + len(block)}, {last}; {lacks}",
        hint=None if block else "if its writer never wrote the mark and nothing is missing, give needs_end=False",
    )

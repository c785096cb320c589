"""Bytes of text files, whatever they are packed in: unpacking, line starts, local files read by range."""

from __future__ import annotations

import contextlib
import os
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from zephon.plugin import DataError, PluginError

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Codec = Literal["plain", "gzip", "zstd"]

BLOCK = 4 << 20
BLANKS = b" \t\r\n"
_PACKED_PIECE = 64 << 10  # a piece of gzip grows to 66 MB at most
_IS_BLANK = np.zeros(256, dtype=bool)
_IS_BLANK[list(BLANKS)] = True
_ROUNDS = 64


class LocalFile:
    """A local file that stays open, read by range from any thread; closed when collected at the latest."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.close = weakref.finalize(self, os.close, fd)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop). Raises `DataError` where the file ends before that, or is closed."""
        if not self.close.alive:
            raise DataError("the shard is closed")
        parts: list[bytes] = []
        while start < stop:
            part = os.pread(self.fd, stop - start, start)
            if not part:
                raise DataError(f"an index or unpacked copy ends at byte {start}, {stop - start} bytes early")
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


# ------------------------------------------------------------------------------------------------ what is it packed in


def codec_of(head: bytes, path: str) -> Codec:
    """How a file is packed, by its first bytes; the name only has to agree.

    Raises:
        DataError: the name says that it's packed, and the bytes say that it isn't; or the text is UTF-16 or UTF-32.
    """
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    for suffix, name in ((".gz", "gzip"), (".zst", "zstd")):
        if path.lower().endswith(suffix):
            if not head:
                raise DataError(f"the file has 0 bytes, which is not {name} data", hint="was it written to its end?")
            raise DataError(f"the file ends in {suffix!r} but does not hold {name} data; it begins with {head[:4]!r}")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError("the file is UTF-16 or UTF-32 text (it begins with that byte-order mark)", hint="convert it to UTF-8")
    if len(head) >= 4 and (head[0] == 0) != (head[1] == 0) and head.count(0) in (2, 3):
        raise DataError("the file looks like UTF-16 or UTF-32 text (every other byte is 0)", hint="convert it to UTF-8")
    return "plain"


def iter_plain(file: BinaryIO, size: int, codec: Codec) -> Iterator[bytes]:
    """The unpacked bytes of a file of `size` bytes, in order, in blocks of a few MB at most.

    Raises:
        DataError: the file is shorter than that, or its packed data is damaged or cut short (with the byte offset).
        PluginError: zstd data, and no `zstandard` package.
    """
    blocks = _iter_file(file, size, BLOCK if codec == "plain" else _PACKED_PIECE)
    if codec == "plain":
        yield from blocks
    elif codec == "gzip":
        yield from _iter_members(blocks, codec, lambda: zlib.decompressobj(wbits=31), zlib.error)
    else:
        zstandard = _zstandard()
        made = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        yield from _iter_members(blocks, codec, made.decompressobj, zstandard.ZstdError)


def _iter_file(file: BinaryIO, size: int, step: int) -> Iterator[bytes]:
    done = 0
    while done < size:
        block = file.read(min(step, size - done))
        if not block:
            raise DataError(f"the file ends at byte {done}; it had {size} bytes when it was listed")
        done += len(block)
        yield block


def _iter_members(blocks: Iterator[bytes], codec: Codec, make: Any, failure: type[Exception]) -> Iterator[bytes]:
    """Unpack members (gzip) or frames (zstd) one after the other; several in a file are one text."""
    member: Any = None
    start = done = 0  # of the current member, and of the current block, in packed bytes
    for block in blocks:
        rest = block
        while rest:
            if member is None:
                start = done + len(block) - len(rest)
                if codec == "gzip" and start and not (rest := rest.lstrip(b"\0")):
                    break  # members may be padded with zeros
                member = make()
            try:
                plain = member.decompress(rest)
            except failure as error:
                raise DataError(
                    f"damaged {codec} data in the member that begins at byte {start}, found before byte {done + len(block)}: {error}"
                ) from error
            if plain:
                yield plain
            rest = member.unused_data if member.eof else b""
            if member.eof:
                member = None
        done += len(block)
    if member is not None:
        raise DataError(
            f"{codec} data is cut short: the file ends at byte {done}, inside the member that begins at byte {start}"
        )


def _zstandard() -> Any:
    try:
        import zstandard  # noqa: PLC0415 - only zstd files need it
    except ImportError as error:
        raise PluginError("a zstd file needs the package 'zstandard'", hint="pip install 'zephon[jsonl]'") from error
    return zstandard


# --------------------------------------------------------------------------------------------------------------- lines


class LineStarts:
    """Finds the starts of the lines that are not blank, in blocks of any size; each byte is looked at once or twice."""

    def __init__(self, base: int = 0) -> None:
        self._base = base
        self._open = base  # start of the line that the last block ended in
        self._open_blank = True
        self._parts: list[I64] = []

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the file."""
        data = np.frombuffer(block, dtype=np.uint8)
        newlines = np.flatnonzero(data == 10)
        if not len(newlines):
            self._open_blank = self._open_blank and not block.strip(BLANKS)
            self._base += len(block)
            return
        first, last = int(newlines[0]), int(newlines[-1])
        if not (self._open_blank and not block[:first].strip(BLANKS)):
            self._parts.append(np.array([self._open], dtype=np.int64))
        starts, stops = newlines[:-1] + 1, newlines[1:]
        kept = starts[~blank_lines(data, starts, stops)]
        if len(kept):
            self._parts.append(kept + self._base)
        self._open = self._base + last + 1
        self._open_blank = not block[last + 1 :].strip(BLANKS)
        self._base += len(block)

    def finish(self) -> I64:
        """The starts, in order, and the end of the file: int64[lines + 1]; row i is in the bytes [i, i + 1) of it."""
        parts = list(self._parts)
        if not self._open_blank:
            parts.append(np.array([self._open], dtype=np.int64))
        return np.concatenate([*parts, np.array([self._base], dtype=np.int64)])


def blank_lines(data: U8, starts: I64, stops: I64) -> npt.NDArray[np.bool_]:
    """Which of the lines [start, stop) hold nothing but blanks: bool[N]. Only lines that begin with a blank cost more than a look."""
    blank = starts >= stops
    live = np.flatnonzero(~blank)
    at = starts[live]
    for _ in range(_ROUNDS):
        still = _IS_BLANK[data[at]]
        live, at = live[still], at[still] + 1
        ended = at >= stops[live]
        blank[live[ended]] = True
        live, at = live[~ended], at[~ended]
        if not len(live):
            return blank
    for line in live.tolist():  # more than 64 blanks at the front
        blank[line] = not data[starts[line] : stops[line]].tobytes().strip(BLANKS)
    return blank


def one_object_each(data: bytes, starts: I64) -> bool:
    """Whether each line begins with `{` and ends with `}`, blanks aside (up to 8 a side; with more the answer is False).

    With it, a parser that ignores line ends and finds as many values as there are lines has found one on each: valid
    JSON has no place where `}`, blanks and `{` follow each other inside a value.
    """
    view = np.frombuffer(data, dtype=np.uint8)
    first, last = starts[:-1].copy(), starts[1:] - 1
    for _ in range(8):
        ahead, behind = _IS_BLANK[view[first]], _IS_BLANK[view[last]]
        if not ahead.any() and not behind.any():
            break
        first += ahead & (first < last)
        last -= behind & (first < last)
    return bool((view[first] == ord("{")).all() and (view[last] == ord("}")).all())


def open_fd(path: str) -> int | None:
    """A descriptor for reading, or None where the file isn't there or can't be opened."""
    with contextlib.suppress(OSError, ValueError):
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    return None

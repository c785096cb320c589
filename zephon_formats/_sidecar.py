"""Sidecars: what one pass over a data file found, kept beside it (or in the cache directory) so that no later open makes the pass again.

A sidecar is a magic line, the length of a JSON header, the header, and a table of numbers (int64, little endian). It counts only
while the data file has the size, the time or version, and the first and last 4 KiB that the header states, and while its own checksum
fits; else it is made again. It is written to a temporary name and renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash

from zephon.atomic import write_whole
from zephon.plugin import DataError, Shard, Store
from zephon_formats._bytes import BLOCK, I64, LocalFile

_EDGE = 4 << 10


@dataclass(frozen=True)
class Stamp:
    """What a data file looked like when it was indexed."""

    size: int
    version: str
    edges: str

    @property
    def name(self) -> str:
        """A short name of this version of the file."""
        return hashlib.blake2b(f"{self.size} {self.version} {self.edges}".encode(), digest_size=8).hexdigest()


@dataclass
class Sidecar:
    """What a sidecar holds. `values` are also the bytes of `file` from `begin` on; who doesn't need `file` closes it."""

    header: dict[str, Any]
    values: I64
    file: LocalFile
    begin: int


def stamp_of(store: Store, shard: Shard) -> Stamp:
    """The present look of a shard; at most 8 KiB are read, nothing where the store has versions."""
    if shard.etag:
        return Stamp(shard.size, shard.etag, "")
    version = ""
    path = store.local(shard.path)
    if path is not None:
        version = local_version(path)
    first = store.read(shard.path, 0, min(_EDGE, shard.size))
    last = store.read(shard.path, max(0, shard.size - _EDGE), shard.size)
    return Stamp(shard.size, version, xxhash.xxh3_128_hexdigest(first + last))


def local_version(path: str) -> str:
    """Size and time of a local file; cheap enough for every read. Raises `DataError` where it is gone."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path!r} can't be read: {error.strerror}") from error
    return f"{found.st_size} {found.st_mtime_ns}"


def read_sidecar(file: LocalFile, magic: bytes, stamp: Stamp) -> Sidecar | None:
    """The sidecar in an open file, or None where it isn't one of this magic line, whole and undamaged, for a file of this look.

    Raises `DataError`, `ValueError`, `KeyError` or `TypeError` where it is none at all.
    """
    fixed = len(magic) + 8
    head = file.read(0, fixed)
    if not head.startswith(magic):
        return None
    begin = fixed + int.from_bytes(head[len(magic) :], "little")
    if begin > file.size:
        return None
    raw = file.read(fixed, begin)
    header: dict[str, Any] = json.loads(raw[16:])
    if Stamp(**header["stamp"]) != stamp:
        return None
    digest = xxhash.xxh3_64(raw[16:])
    parts = []
    for at in range(begin, file.size, BLOCK):
        part = file.read(at, min(at + BLOCK, file.size))
        digest.update(part)
        parts.append(part)
    if digest.hexdigest().encode() != raw[:16]:
        return None
    values = np.frombuffer(b"".join(parts), dtype="<i8").astype(np.int64, copy=False)
    return Sidecar(header, values, file, begin)


def write_sidecar(places: Sequence[str], magic: bytes, stamp: Stamp, header: Mapping[str, Any], values: I64) -> None:
    """Write a sidecar to the first place that takes it; where none does, the index lives in memory."""
    table = np.ascontiguousarray(values, dtype="<i8")
    text = json.dumps({"stamp": asdict(stamp), **header}).encode()
    digest = xxhash.xxh3_64(text)
    digest.update(table.data)
    raw = digest.hexdigest().encode() + text
    for place in places:
        with contextlib.suppress(OSError):
            write_whole(place, [magic, len(raw).to_bytes(8, "little"), raw, table.data])
            return

"""The index of a tar: its members, found in one pass and kept in a sidecar; and its samples, made from the members' names.

The sidecar (`zephon_formats._sidecar`) is `NAME.zidx`; its numbers are four tables of the members (where their headers and data begin,
the sizes, the ends of the names) and the names, their bytes packed into numbers. It holds no setting of the reader, so all share it.

A packed tar is unpacked once into the cache directory, as `zephon_formats._index` does it for text, and read from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon.plugin import DataError, PluginError, Shard, Store
from zephon_formats._bytes import I64, Codec, LocalFile, iter_plain, open_fd
from zephon_formats._sidecar import Stamp, read_sidecar, stamp_of, write_sidecar
from zephon_formats._tar_scan import Members, Read, scan, show
from zephon_formats._unpacked import CopyWriter, exclusive, unpacked_copy

_MAGIC = b"zephon tar index 1\n"
_NEAR_DISK, _NEAR_STORE = 64 << 10, 2 << 20
_MOST_COLUMNS = 256

I32 = npt.NDArray[np.int32]


@dataclass
class TarIndex:
    """The members of a tar, and the unpacked tar where it is packed."""

    stamp: Stamp
    members: Members
    unpacked: LocalFile | None = None
    plain_size: int = 0


def codec_of_tar(head: bytes, path: str) -> Codec:
    """How a tar is packed, by its first bytes. Raises `DataError` for bzip2 and xz, and where the name says packed and the bytes don't."""
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    for suffix, name in ((".gz", "gzip"), (".tgz", "gzip"), (".zst", "zstd")):
        if head and path.lower().endswith(suffix):
            raise DataError(f"the file ends in {suffix!r} but does not hold {name} data; it begins with {head[:4]!r}")
    return "plain"


def load_or_build(store: Store, shard: Shard, *, needs_end: bool) -> TarIndex:
    """The index of a shard: from a sidecar that fits, or made now and kept where that is possible.

    Raises:
        DataError: the file is missing, not a tar, damaged or cut short.
        PluginError: zstd data, and no `zstandard` package.
    """
    stamp = stamp_of(store, shard)
    codec = codec_of_tar(store.read(shard.path, 0, min(4, shard.size)), shard.path)
    places = list(store.sidecar(shard.path, ".zidx"))
    copies = list(store.sidecar(shard.path, f".{stamp.name}.text.zidx"))[::-1] if codec != "plain" else []
    index = _load(places, copies, stamp)
    if index is None or (needs_end and not index.members.complete):
        with exclusive(copies or places):
            index = _load(places, copies, stamp)
            if index is None or (needs_end and not index.members.complete):
                index = _build(store, shard, stamp, codec, copies, needs_end)
                if stamp_of(store, shard) == stamp:  # else it is being written to, and the index is for this run only
                    _save(places, index)
    return index


def _build(store: Store, shard: Shard, stamp: Stamp, codec: Codec, copies: Sequence[str], needs_end: bool) -> TarIndex:
    unpacked = _unpack(store, shard, codec, copies) if codec != "plain" else None
    local = None
    if unpacked is None and (path := store.local(shard.path)) is not None and (fd := open_fd(path)) is not None:
        local = LocalFile(fd)  # one open for all the headers
        if local.size != shard.size:
            raise DataError(f"the file has {local.size} bytes; it had {shard.size} when it was listed",
                            hint="data must not change during a run")  # fmt: skip
    source = unpacked or local
    try:
        read: Read = source.read if source else lambda start, stop: store.read(shard.path, start, stop)
        size = unpacked.size if unpacked else shard.size
        members = scan(read, size, near=_NEAR_DISK if source else _NEAR_STORE, needs_end=needs_end)
    finally:
        if local:
            local.close()
    return TarIndex(stamp, members, unpacked, unpacked.size if unpacked else 0)


def _unpack(store: Store, shard: Shard, codec: Codec, copies: Sequence[str]) -> LocalFile:
    copy = CopyWriter(copies, shard.path)
    try:
        with store.open(shard.path) as file:
            for block in iter_plain(file, shard.size, codec):
                copy.write(block)
        return copy.finish()
    except PluginError as error:
        copy.discard()
        raise PluginError(error.message, hint="pip install 'zephon[webdataset]'", where=error.where) from error
    except BaseException:
        copy.discard()
        raise


# --------------------------------------------------------------------------------------------------------- the sidecar


def _load(places: Sequence[str], copies: Sequence[str], stamp: Stamp) -> TarIndex | None:
    """The index from the first sidecar that fits, with the unpacked tar where there must be one."""
    for place in places:
        fd = open_fd(place)
        if fd is None:
            continue
        file = LocalFile(fd)
        try:
            found = read_sidecar(file, _MAGIC, stamp)
            index = None if found is None else _parse(stamp, found.header, found.values)
        except (DataError, ValueError, KeyError, TypeError, OSError):
            continue  # cut short, damaged, or a file of somebody else's: it is made again
        finally:
            file.close()
        if index is not None and (not copies or _attach(index, copies)):
            return index
    return None


def _parse(stamp: Stamp, header: Mapping[str, Any], values: I64) -> TarIndex:
    count, length = int(header["members"]), int(header["name_bytes"])
    headers, begins, sizes = values[: 3 * count].reshape(3, count)
    ends = np.concatenate([[0], values[3 * count : 4 * count]]).astype(np.int32)
    text: Any = values[4 * count :].astype("<i8", copy=False).view(np.uint8)[:length]
    names: Any = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(text)])  # type: ignore[arg-type]
    return TarIndex(stamp, Members(names, headers, begins, sizes, bool(header["complete"])), None, int(header["plain_size"]))


def _attach(index: TarIndex, copies: Sequence[str]) -> bool:
    index.unpacked = unpacked_copy(copies, index.plain_size)
    return index.unpacked is not None


def _save(places: Sequence[str], index: TarIndex) -> None:
    members = index.members
    names: list[Any] = members.names.to_pylist()
    text = b"".join(names)
    ends = np.cumsum(pc.binary_length(members.names).to_numpy(zero_copy_only=False))
    packed = np.frombuffer(text + bytes(-len(text) % 8), dtype="<i8")
    header = {
        "members": len(names),
        "name_bytes": len(text),
        "complete": members.complete,
        "plain_size": index.plain_size,
    }
    values = np.concatenate([members.headers, members.begins, members.sizes, ends, packed]).astype(np.int64)
    write_sidecar(places, _MAGIC, index.stamp, header, values)


# --------------------------------------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class Samples:
    """Members grouped: adjacent ones with one key are a row."""

    keys: pa.BinaryArray
    """binary[R]."""
    columns: Mapping[str, I32]
    """Name → the member of each row (int32[R]), -1 where it has none; in the order in which they first occur."""
    extensions: Mapping[str, str]
    """Column → the first extension that it is made of, in lower case."""
    starts: I64
    """Where each row's first member begins, and the end of the last one: int64[R + 1]."""


def group(members: Members, *, last_dot: bool, rename: Mapping[str, str]) -> Samples:
    """Split names into keys and extensions, and members into rows.

    Raises:
        DataError: members of one key that aren't adjacent, two members for one column of a row, no member with an extension,
            more than 256 extensions.
    """
    pattern = r"(?s)^(?P<key>(?:.*/)?[^/]+)\.(?P<ext>[^/.]+)$" if last_dot else r"(?s)^(?P<key>(?:.*/)?[^/.]+)\.(?P<ext>[^/]+)$"
    split: Any = pc.extract_regex(members.names, pattern)
    kept = np.flatnonzero(split.is_valid().to_numpy(zero_copy_only=False))
    if not len(kept):
        if len(members.names):
            raise DataError(f"none of the {len(members.names)} files in the tar has an extension, so they are no samples "
                            f"(the first is {show(members.names[0].as_py())})")  # fmt: skip
        return Samples(pa.array([], pa.binary()), {}, {}, np.zeros(1, dtype=np.int64))
    split = split.take(pa.array(kept))
    coded = split.field("ext").dictionary_encode()
    names = [e.decode("utf-8", "replace").lower() for e in coded.dictionary.to_pylist()]
    columns, column_of = _columns(names, rename)
    which = column_of[coded.indices.to_numpy()]
    rows, keys = _rows(split.field("key"), members, kept)
    table = np.full((len(columns), len(keys)), -1, dtype=np.int32)
    # two members for one place: only one of them stays
    table[which, rows] = kept
    lost = np.flatnonzero(table[which, rows] != kept)
    if len(lost):
        first = int(lost[0])
        other = int(table[which[first], rows[first]])
        a, b = (show(members.names[int(i)].as_py()) for i in (kept[first], other))
        raise DataError(f"the members {a} and {b} are both the column {list(columns)[which[first]]!r} of one sample")
    first_of = kept[np.flatnonzero(np.diff(rows, prepend=-1))]
    end = members.begins[kept[-1]] + members.sizes[kept[-1]]
    starts = np.append(members.headers[first_of], end)
    return Samples(keys, dict(zip(columns, table, strict=True)), columns, starts)


def _columns(names: Sequence[str], rename: Mapping[str, str]) -> tuple[dict[str, str], I64]:
    """`{column: its first extension}`, and the column's number for each name: int64[len(names)]."""
    to = {ext: column for many, column in rename.items() for ext in many.lower().split(";")}
    columns: dict[str, str] = {}
    place: dict[str, int] = {}
    for name in names:
        column = to.get(name, name)
        columns.setdefault(column, name)
        place.setdefault(column, len(place))
    if len(columns) > _MOST_COLUMNS:
        raise DataError(f"the names in the tar have {len(columns)} different extensions, such as {', '.join(map(repr, names[:4]))}",
                        hint="do base names hold dots? key='last_dot' splits them at the last one")  # fmt: skip
    return columns, np.array([place[to.get(name, name)] for name in names], dtype=np.int64)


def _rows(key: Any, members: Members, kept: I64) -> tuple[I64, pa.BinaryArray]:
    """The row of each member, int64[M], and the rows' keys."""
    changes = pc.not_equal(key[1:], key[:-1]).to_numpy(zero_copy_only=False)
    rows = np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)
    firsts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    keys = key.take(pa.array(firsts))
    codes = keys.dictionary_encode()
    if len(codes.dictionary) < len(keys):
        numbers = codes.indices.to_numpy()
        again = int(np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1) == 0)[0])
        name = show(members.names[int(kept[firsts[again]])].as_py())
        before = show(members.names[int(kept[firsts[again] - 1])].as_py())
        raise DataError(
            f"the members of the sample {show(keys[again].as_py())} are not adjacent: {name} comes after {before}",
            hint="write all members of a sample one after another, or sort the tar by name (tar --sort=name)",
        )
    return rows, keys

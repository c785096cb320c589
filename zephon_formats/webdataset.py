"""WebDataset (https://github.com/webdataset/webdataset): tar files, plain, gzip or zstd, whose adjacent members with one key are a sample.

A member's key is its directory and its base name up to the first dot; what follows that dot, in lower case, is its extension, and each
extension is a column. Members without an extension, directories, links and hidden files (a name or directory that begins with a dot,
`__MACOSX`, and WebDataset's own `__name__` at the top) are left out. A sample that lacks an extension has null there.

The first time that a tar is opened, one pass over its headers finds the members and keeps an index (`zephon_formats._tar_index`). A
packed tar is unpacked by that pass, once per machine, into the cache directory, since it can't be entered in the middle.
Nothing is decoded: pixels are the vision operators' business, which take the structs of Hugging Face Image features as they are here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon.plugin import DataError, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._asked import check_rows, names_in
from zephon_formats._bytes import I64
from zephon_formats._index import cut_units
from zephon_formats._sidecar import local_version
from zephon_formats._tar_index import I32, Samples, TarIndex, group, load_or_build
from zephon_formats._tar_scan import BLOCK, parse_header, show
from zephon_formats._told import Told
from zephon_formats._write_tar import TarWriter

_log = logging.getLogger("zephon.formats.webdataset")

KEY = "__key__"
TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int64": pa.int64(),
    "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
}
_TYPE_OF = {
    **dict.fromkeys(("txt", "text", "caption", "transcript", "json"), "string"),
    **dict.fromkeys(("cls", "id"), "int64"),
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "ppm"), "image"),
}
_VIEW = np.dtype([("length", "<i4"), ("inline", "<i4", 3)])
"""An element of Arrow's binary_view: up to 12 bytes in place, else (4 bytes that only comparisons look at, buffer number, offset)."""
_LARGEST = 2**31 - 1
_BATCH_BYTES = 1 << 30
_NEAR_DISK, _NEAR_STORE = 32 << 10, 1 << 20
"""Bytes between two members that are read along rather than skipped."""


@dataclass(frozen=True, kw_only=True)
class WebDataset(Reader):
    """Tar files of samples. See the module's docstring for keys and columns.

    Columns are `__key__` (string) and one for each extension: string for txt, text, caption, transcript and json (the JSON text), int64 for
    cls and id, `struct<bytes: binary, path: string>` for images (path is the member's name), binary for everything else. What counts of
    an extension of several parts (`seg.png`) is the last one.
    """

    name: ClassVar[str] = "webdataset"
    suffixes: ClassVar[tuple[str, ...]] = (".tar", ".tar.gz", ".tgz", ".tar.zst")
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ".tar"

    key: Literal["first_dot", "last_dot"] = "first_dot"
    """Where a base name is split: `Track 2.0.mp3` is `Track 2` + `0.mp3`, or `Track 2.0` + `mp3`."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """Extensions → the column that they make together, `{"jpg;jpeg;png;webp": "image"}`; also `{"__key__": "key"}`."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Column → "binary", "string", "int64" or "image", where it should be another than the extension says."""
    bad_text: Literal["replace", "error"] = "replace"
    """What becomes of text that is not UTF-8: U+FFFD for the bad bytes, or a `DataError` that names the member."""
    needs_end: bool = True
    """A tar without its end mark counts as cut short. False: for writers that never write the mark."""
    unit_bytes: int = 8 << 20
    """Size of a read unit in the tar."""

    def __post_init__(self) -> None:
        if self.key not in ("first_dot", "last_dot"):
            raise RecipeError(f"key must be 'first_dot' or 'last_dot', got {self.key!r}")
        if self.bad_text not in ("replace", "error"):
            raise RecipeError(f"bad_text must be 'replace' or 'error', got {self.bad_text!r}")
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")
        seen: set[str] = set()
        for many, column in self.rename.items():
            extensions = many.lower().split(";")
            if twice := seen.intersection(extensions):
                raise RecipeError(f"rename names the extension {min(twice)!r} twice")
            seen.update(extensions)
            found = {_type_of(e) for e in extensions}
            if len(found) > 1 and column not in self.types:
                raise RecipeError(
                    f"rename makes one column of {many!r}, which are of different types: {', '.join(sorted(found))}",
                    hint=f"say which it is: types={{{column!r}: 'binary'}}",
                )
        for column, name in self.types.items():
            if name not in TYPES:
                raise RecipeError(f"types[{column!r}] must be one of {', '.join(map(repr, TYPES))}, got {name!r}")

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """A writer of one plain tar; columns are extensions. What has none of the known ones is read back as bytes: see `types`."""
        return TarWriter(path, schema)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Load the index of one shard, or make it (one pass over the headers) and keep it.

        Raises:
            DataError: the file is missing, no tar, damaged, cut short, or its members are no samples (see `_tar_index.group`).
            PluginError: a zstd file, and no `zstandard` package.
        """
        with at(shard=shard.path):
            index = load_or_build(store, shard, needs_end=self.needs_end)
            samples = group(index.members, last_dot=self.key == "last_dot", rename=self.rename)
            return _OpenWebDataset(self, store, shard, index, samples)


def _type_of(extension: str) -> str:
    return _TYPE_OF.get(extension.rsplit(".", 1)[-1], "binary")


class _OpenWebDataset:
    """One tar and its index. A read fetches the members of the wanted columns in one range (in several where much lies between)."""

    def __init__(self, reader: WebDataset, store: Store, shard: Shard, index: TarIndex, samples: Samples) -> None:
        self._reader, self._store, self._shard, self._index, self._samples = reader, store, shard, index, samples
        self._key = reader.rename.get(KEY, KEY)
        if self._key in samples.columns:
            raise DataError(
                f"an extension in the tar makes a second column {self._key!r}", hint="give it another name with rename="
            )
        self._types = {c: reader.types.get(c, _type_of(e)) for c, e in samples.extensions.items()}
        self.schema: pa.Schema = pa.schema(
            [pa.field(self._key, pa.string()), *(pa.field(c, TYPES[t]) for c, t in self._types.items())]
        )
        self._units, self._unit_bytes = cut_units(samples.starts, reader.unit_bytes)
        self._local = store.local(shard.path) if index.unpacked is None else None
        self._near = _NEAR_DISK if self._local or index.unpacked else _NEAR_STORE
        self._closed = False
        self._told = Told(shard.path)
        odd = next((e for e in samples.extensions.values() if re.match(r"\d[^.]*\.|[^.]*\s", e)), None)
        if odd and reader.key == "first_dot":
            _log.warning(
                "%s has the extension %r: do base names hold dots? key='last_dot' splits them at the last one", shard.path, odd
            )

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size in the tar, headers included."""
        return Units(np.diff(self._units), self._unit_bytes)

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. More than 1 GB comes in several batches; a member over 2 GiB is a `DataError`."""
        with at(shard=self._shard.path):
            first, last = int(self._units[unit]), int(self._units[unit + 1])
            check_rows(unit, start, stop, last - first, closed=self._closed)
            self._check_version()
            return self._batches(names_in(self.schema, columns), first + start, first + stop)

    def _batches(self, wanted: Sequence[str], start: int, stop: int) -> list[pa.RecordBatch]:
        if stop - start > 1 and int(self._samples.starts[stop] - self._samples.starts[start]) > _BATCH_BYTES:
            middle = (start + stop) // 2
            return self._batches(wanted, start, middle) + self._batches(wanted, middle, stop)
        member = {name: self._samples.columns[name][start:stop] for name in wanted if name != self._key}
        bytes_of = self._fetch(member, start)
        arrays = [
            _text(self._samples.keys[start:stop])
            if name == self._key
            else self._column(name, bytes_of[name], member[name], start)
            for name in wanted
        ]
        if not arrays:
            return [pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), type=pa.struct([])))]  # type: ignore[arg-type]
        return [pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(n) for n in wanted]))]

    def _column(self, name: str, data: pa.BinaryArray, member: I32, row: int) -> pa.Array[Any]:
        """The members' bytes as values of the column's type."""
        kind = self._types[name]
        if kind == "binary":
            return data
        if kind == "image":
            return _images(data, self._index.members.names, member)
        convert = _as_text if kind == "string" else _as_ints
        try:
            return convert(data, lenient=self._reader.bad_text == "replace", told=self._told)
        except _BadValue as bad:
            found = show(self._index.members.names[int(member[bad.row])].as_py())
            hint = f"or give types={{{name!r}: 'string'}}" if kind == "int64" else "bad_text='replace' turns it into U+FFFD"
            with at(row=row + bad.row):
                raise DataError(f"the member {found} {bad}", hint=hint) from None

    def _fetch(self, member: Mapping[str, I32], row: int) -> dict[str, pa.BinaryArray]:
        """The bytes of these members, null where there is none."""
        members = self._index.members
        every = np.unique(np.concatenate([*member.values(), np.zeros(0, np.int32)]))
        every = every[every >= 0].astype(np.int64)
        begins, sizes = members.begins[every], members.sizes[every]
        if len(sizes) and int(sizes.max()) > _LARGEST:
            large = int(every[int(sizes.argmax())])
            rows = [int(np.flatnonzero(m == large)[0]) for m in member.values() if (m == large).any()]
            with at(row=row + rows[0]):
                raise DataError(
                    f"the member {show(members.names[large].as_py())} has {int(sizes.max())} bytes; a value may have 2 GiB"
                )
        data, places = self._ranges(begins, sizes)
        out = {}
        for name, numbers in member.items():
            found = np.searchsorted(every, numbers)
            present = numbers >= 0
            found[~present] = 0
            at_bytes, lengths = (a[found] if len(a) else np.zeros(len(found), np.int64) for a in (places, sizes))
            out[name] = gather(data, at_bytes, np.where(present, lengths, 0), present)
        return out

    def _ranges(self, begins: I64, sizes: I64) -> tuple[npt.NDArray[np.uint8], I64]:
        """`(bytes, where in them each of these ranges begins)`; ranges that lie close together are read as one."""
        if not len(begins):
            return np.zeros(0, dtype=np.uint8), begins
        ends = np.maximum.accumulate(begins + sizes)
        cuts = np.flatnonzero(begins[1:] - ends[:-1] > self._near) + 1
        firsts, lasts = np.append(0, cuts), np.append(cuts - 1, len(begins) - 1)
        low, high = begins[firsts], ends[lasts]
        low[0] -= BLOCK  # with a header, which must be the one that was indexed
        parts = [self._bytes(int(a), int(b)) for a, b in zip(low, high, strict=True)]
        self._check_header(parts[0][:BLOCK], int(low[0]), int(sizes[0]))
        run = np.searchsorted(firsts, np.arange(len(begins)), side="right") - 1
        offset = np.concatenate([[0], np.cumsum(high - low)[:-1]])
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return np.frombuffer(data, dtype=np.uint8), begins - low[run] + offset[run]

    def _bytes(self, start: int, stop: int) -> bytes:
        unpacked = self._index.unpacked
        data = self._store.read(self._shard.path, start, stop) if unpacked is None else unpacked.read(start, stop)
        if len(data) != stop - start:
            raise DataError(f"the tar ends at byte {start + len(data)}, before the members that its index promises")
        return data

    def _check_version(self) -> None:
        if self._local is not None and local_version(self._local) != self._index.stamp.version and not self._shard.etag:
            raise DataError("the file was changed after it was indexed", hint="start again; data must not change during a run")

    def _check_header(self, block: bytes, place: int, size: int) -> None:
        """Where a store has no versions, this is what notices a tar that was replaced during the run."""
        with at(shard=self._shard.path):
            _, _, stated = parse_header(block, place)
        if stated != size and size < 8 << 30:  # beyond 8 GiB the size is in an extended header
            raise DataError(f"the member at byte {place} has {stated} bytes where the index says {size}; the tar was replaced",
                            hint="start again; data must not change during a run")  # fmt: skip

    def close(self) -> None:
        """See `OpenShard.close`."""
        self._closed = True
        if self._index.unpacked is not None:
            self._index.unpacked.close()


# ------------------------------------------------------------------------------------------------------ bytes to columns


def gather(data: npt.NDArray[np.uint8], begins: I64, lengths: I64, present: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    """`data[begins[i]:begins[i] + lengths[i]]` as a binary array, null where not `present` (lengths are 0 there).

    The ranges become an Arrow binary_view, whose cast to binary copies them in one call without the interpreter lock.
    """
    low = int(begins[present].min()) if present.any() else 0
    views = np.zeros(len(begins), dtype=_VIEW)
    views["length"] = lengths
    short = np.flatnonzero(lengths <= 12)
    views["inline"][:, 2] = np.where(lengths > 12, begins - low, 0)
    raw = views.view(np.uint8).reshape(-1, 16)
    for place in range(12):
        short = short[lengths[short] > place]
        raw[short, 4 + place] = data[begins[short] + place]
    buffers: list[Any] = [np.packbits(present, bitorder="little"), views, data[low:]]
    array: Any = pa.Array.from_buffers(pa.binary_view(), len(views), [pa.py_buffer(b) for b in buffers])
    made: pa.BinaryArray = array.cast(pa.binary())
    return made


class _BadValue(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def _text(data: pa.BinaryArray) -> pa.Array[Any]:
    return _as_text(data, lenient=True)


def _as_text(data: pa.BinaryArray, *, lenient: bool, told: Told | None = None) -> pa.Array[Any]:
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    if lenient and told is not None:
        told.replaced_text()
    texts: list[str | None] = []
    for row, value in enumerate(data.to_pylist()):
        try:
            texts.append(None if value is None else value.decode("utf-8", "replace" if lenient else "strict"))
        except UnicodeDecodeError as error:
            raise _BadValue(row, f"is not UTF-8 at its byte {error.start}") from None
    return pa.array(texts, pa.string())


def _as_ints(data: pa.BinaryArray, *, lenient: bool, told: Told) -> pa.Array[Any]:  # noqa: ARG001 - a number has no replacement
    """Decimal integers, blanks around them aside."""
    try:
        return pc.ascii_trim_whitespace(data.cast(pa.string())).cast(pa.int64())
    except pa.ArrowInvalid:
        pass
    numbers: list[int | None] = []
    for row, value in enumerate(data.to_pylist()):
        if value is None:
            numbers.append(None)
            continue
        try:
            number = int(value)
        except ValueError:
            raise _BadValue(row, f"is no integer: {value[:40]!r}") from None
        if not -(2**63) <= number < 2**63:
            raise _BadValue(row, f"is beyond int64: {value[:40]!r}")
        numbers.append(number)
    return pa.array(numbers, pa.int64())


def _images(data: pa.BinaryArray, names: pa.BinaryArray, member: I32) -> pa.Array[Any]:
    absent = member < 0
    index: Any = pa.array(member, mask=absent)
    fields: list[Any] = [pa.field("bytes", pa.binary()), pa.field("path", pa.string())]
    mask: Any = pa.array(absent)
    return pa.StructArray.from_arrays([data, _text(names.take(index))], fields=fields, mask=mask)

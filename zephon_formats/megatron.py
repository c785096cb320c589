"""Megatron-LM's IndexedDataset (`megatron/core/datasets/indexed_dataset.py`): tokens in `NAME.bin`, where they begin in `NAME.idx`.

The index is little endian: the magic `MMIDIDX\\0\\0`, uint64 version (1), uint8 code of the tokens' type, uint64 sequences N, uint64
document borders D, then int32[N] lengths, int64[N] byte offsets into the .bin, int64[D] document borders (numbers of sequences, from 0
to N), and int8[N] modes where the set is multimodal. The .bin is nothing but tokens.

A shard is a pair of files. On local disk both are mapped, and int32 tokens are handed on without a copy; elsewhere an index of up to
64 MiB is read into memory, a larger one is kept on disk while the shard is open, and tokens are read by range.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.plugin import DataError, FileInfo, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, Units, at
from zephon_formats._asked import check_rows, names_in
from zephon_formats._bytes import I64
from zephon_formats._sidecar import local_version
from zephon_formats._write_megatron import MegatronWriter

_log = logging.getLogger("zephon.formats.megatron")

MAGIC, _LEGACY = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_HEADER = struct.Struct("<QBQQ")
_BEGIN = len(MAGIC) + _HEADER.size
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
"""Code → numpy type; the floats are there because Megatron has them, and are refused as tokens."""
_IN_MEMORY = 64 << 20
_CHECKED_AT_ONCE = 1 << 20
_BATCH_TOKENS = 1 << 28
_INT32 = 2**31 - 1

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Megatron(Reader):
    """Pairs of `.idx` and `.bin`. The column is `input_ids`, `list<int32>`; and `mode`, int8, for sequences of a multimodal set."""

    name: ClassVar[str] = "megatron"
    suffixes: ClassVar[tuple[str, ...]] = (".idx",)
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ""

    rows: Literal["sequence", "document"] = "sequence"
    """What a row is. A document is its sequences joined; in most text sets each has one."""
    unit_bytes: int = 8 << 20
    """Size of a read unit in the .bin."""

    def __post_init__(self) -> None:
        if self.rows not in ("sequence", "document"):
            raise RecipeError(f"rows must be 'sequence' or 'document', got {self.rows!r}")
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")

    @classmethod
    def claims(cls, store: Store, files: Sequence[FileInfo]) -> bool:
        """By the magic of the first .idx file, or by a .bin of the same name; other programs write .idx files too."""
        paths = {f.path for f in files}
        indices = [f for f in files if f.path.endswith(cls.suffixes)]
        if any(_bin_of(f.path) in paths for f in indices):
            return True
        return any(store.read(f.path, 0, len(MAGIC)).startswith((MAGIC, _LEGACY)) for f in indices[:1])

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """One for each index; also for a .bin that was named by itself. `etag` is of both files, so that a change of either counts."""
        known = {f.path: f for f in files}
        paths = [f.path for f in files if f.path.endswith(".idx")]
        lone = [f.path for f in files if f.path.endswith(".bin") and f.path.removesuffix(".bin") + ".idx" not in known]
        if paths and lone:
            _log.warning("%d .bin files without an .idx are left out, such as %s", len(lone), lone[0])
        found = []
        for path in paths or dict.fromkeys(f.path.removesuffix(".bin") + ".idx" for f in files):
            index = known.get(path) or _look_up(store, path)
            data = known.get(_bin_of(path)) or _look_up(store, _bin_of(path))
            etag = f"{index.etag} {data.size} {data.etag}"
            found.append(Shard(index.path, index.size, etag, {"bin": data.path, "bin_size": data.size}))
        return found

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """A writer of one pair, in a directory of its own. Raises `RecipeError` for anything but a column of token lists."""
        return MegatronWriter(path, schema)

    def paths(self, shard: Shard) -> Sequence[str]:
        """See `Reader.paths`: both files of the pair."""
        return (shard.path, shard.extra["bin"])

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Read and check the index of one pair.

        Raises:
            DataError: a file is missing, empty or cut short; not an index; tokens that are no integers; an index that promises tokens
                beyond the end of the .bin.
        """
        with at(shard=shard.path):
            return _OpenMegatron(self, store, shard)


def _bin_of(path: str) -> str:
    return path.removesuffix(".idx") + ".bin"


def _look_up(store: Store, path: str) -> FileInfo:
    """One file of a pair. Raises `DataError` where it isn't there."""
    try:
        found = store.files(path)
    except DataError as error:
        raise DataError(
            f"{path!r}, which belongs to a Megatron pair of .idx and .bin, can't be found: {error.message}"
        ) from error
    if not found:
        raise DataError(f"{path!r}, which belongs to a Megatron pair of .idx and .bin, does not exist")
    return found[0]


class _File:
    """One file of the pair, read by range: a map where it is on local disk, else reads of the store."""

    def __init__(self, store: Store, path: str, size: int, *, whole: bool) -> None:
        self.path, self.size = path, size
        self._store = store
        self._map: Bytes | None = None
        self._local = store.local(path)
        self._version = ""
        self._held = contextlib.ExitStack()
        if self._local is not None:
            self._version = local_version(self._local)
            self.check()
            self._map = _mapped(self._local)
        elif whole and size <= _IN_MEMORY:
            self._map = np.frombuffer(store.read(path, 0, size), dtype=np.uint8)
        elif whole:
            self._map = _mapped(self._held.enter_context(store.on_disk(path)))
            weakref.finalize(self, self._held.close)
        if self._map is not None and len(self._map) != size:
            raise DataError(
                f"{path!r} has {len(self._map)} bytes; it had {size} when it was listed",
                hint="data must not change during a run",
            )

    def check(self) -> None:
        """Raise `DataError` where a mapped file was changed: touching what was cut off would end the process with SIGBUS."""
        if self._local is None:
            return
        version = local_version(self._local)
        if version != self._version or int(version.split()[0]) != self.size:
            raise DataError(f"{self.path!r} has changed: {version.split()[0]} bytes; it had {self.size} when it was listed",
                            hint="data must not change during a run")  # fmt: skip

    def get(self, start: int, stop: int) -> Bytes:
        """The bytes [start, stop), not copied where the file is mapped."""
        mapped = self._map
        if mapped is not None:
            return mapped[start:stop]
        data = self._store.read(self.path, start, stop)
        if len(data) != stop - start:
            raise DataError(f"{self.path!r} ends at byte {start + len(data)}; it had {self.size} bytes when it was listed")
        return np.frombuffer(data, dtype=np.uint8)

    def close(self) -> None:
        self._map = None
        self._held.close()


def _mapped(path: str) -> Bytes:
    try:
        with open(path, "rb") as file:
            empty = not file.read(1)
        if empty:  # which can't be mapped
            return np.zeros(0, dtype=np.uint8)
        with pa.memory_map(path) as source:
            buffer: Any = source.read_buffer()  # which keeps the map
            mapped: Bytes = np.frombuffer(buffer, dtype=np.uint8)
            return mapped
    except OSError as error:
        raise DataError(f"{path!r} can't be read: {error.strerror or error}") from error


class _Table:
    """The index: views of its arrays, checked against themselves and against the size of the .bin."""

    def __init__(self, index: _File, data: _File) -> None:
        raw = index.get(0, index.size)
        kind, sequences, borders = _header(raw[:_BEGIN].tobytes())
        self.dtype = np.dtype(TYPES[kind])
        sizes = [4 * sequences, 8 * sequences, 8 * borders]
        if len(raw) not in (_BEGIN + sum(sizes), _BEGIN + sum(sizes) + sequences):
            what = "cut short" if len(raw) < _BEGIN + sum(sizes) else "damaged"
            raise DataError(
                f"the index is {what}: it has {len(raw)} bytes, and its {sequences} sequences and {borders} document borders take "
                f"{_BEGIN + sum(sizes)} (with modes {_BEGIN + sum(sizes) + sequences})"
            )
        ends = np.cumsum([_BEGIN, *sizes]).tolist()
        self.lengths, self.pointers, self.documents = (
            raw[a:b].view(t) for a, b, t in zip(ends[:-1], ends[1:], ("<i4", "<i8", "<i8"), strict=True)
        )
        self.modes = raw[ends[-1] :].view(np.int8) if sequences and len(raw) > ends[-1] else None
        self.contiguous, self.end = True, 0
        self._check_sequences(data)
        self._check_documents()

    def _check_sequences(self, data: _File) -> None:
        item, after = self.dtype.itemsize, 0
        for begin in range(0, len(self.lengths), _CHECKED_AT_ONCE):
            part = slice(begin, begin + _CHECKED_AT_ONCE)
            pointers, lengths = self.pointers[part], self.lengths[part].astype(np.int64)
            stops = pointers + lengths * item
            bad = np.flatnonzero((lengths < 0) | (pointers < 0) | (stops > data.size))
            if len(bad):
                row = int(bad[0])
                promise = f"{int(lengths[row])} tokens at byte {int(pointers[row])}"
                with at(row=begin + row):
                    raise DataError(
                        f"the index promises {promise}, and {data.path!r} has {data.size} bytes",
                        hint="are .idx and .bin of the same set, and was the .bin copied whole?",
                    )
            self.contiguous = self.contiguous and after == int(pointers[0]) and bool((pointers[1:] == stops[:-1]).all())
            after = int(stops[-1])
            self.end = max(self.end, int(stops.max()))
        if not self.contiguous:
            _log.warning("the sequences of %s do not lie end to end, as Megatron writes them; is its index damaged?", data.path)
        elif self.end < data.size:
            _log.warning(
                "%s has %d bytes after the last sequence of its index; they are left out", data.path, data.size - self.end
            )

    def _check_documents(self) -> None:
        borders, sequences = self.documents, len(self.lengths)
        if not len(borders):
            return
        if int(borders[0]) != 0 or int(borders[-1]) > sequences or bool((borders[1:] < borders[:-1]).any()):
            raise DataError(f"the document borders of the index are damaged: they must go from 0 to {sequences} and never back")

    def row_starts(self, rows: str) -> I64:
        """Where each row begins, in bytes of all rows laid end to end, and the end: int64[R + 1], or a view of the index without it."""
        if self.contiguous:
            if rows == "sequence":
                return self.pointers
            inside = self.documents < len(self.lengths)
            return np.where(inside, self.pointers[np.where(inside, self.documents, 0)] if len(self.pointers) else 0, self.end)
        ends = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64) * self.dtype.itemsize])
        return ends if rows == "sequence" else ends[self.documents]


def _header(head: bytes) -> tuple[int, int, int]:
    """`(code of the type, sequences, document borders)`."""
    if head.startswith(_LEGACY):
        raise DataError(
            "the index is of Megatron's old layout (TNTIDX)", hint="tokenise again with a Megatron-LM of 2021 or later"
        )
    if not head:
        raise DataError("the index is empty (0 bytes)", hint="was its writer finalised?")
    if not head.startswith(MAGIC):
        raise DataError(f"the file is no Megatron index: it begins with {head[:9]!r} instead of {MAGIC!r}")
    if len(head) < _BEGIN:
        raise DataError(f"the index is cut short: it has {len(head)} bytes, its header alone takes {_BEGIN}")
    version, kind, sequences, borders = _HEADER.unpack_from(head, len(MAGIC))
    if version != 1:
        raise DataError(f"the index has version {version}; version 1 is known")
    if kind not in TYPES:
        raise DataError(f"the index says that tokens are of the type {kind}, which Megatron does not have")
    if np.dtype(TYPES[kind]).kind == "f":
        raise DataError(f"the values are {np.dtype(TYPES[kind])}, not token ids")
    return kind, sequences, borders


def _cut_rows(starts: I64, unit_bytes: int) -> I64:
    """Rows into units, those that begin in the same `unit_bytes`: the units' first rows and the row count, int64[U + 1].

    In pieces: a mapped index is not aligned and may have 10**9 rows, so whole-array operations would copy it.
    """
    borders, before = [np.zeros(1, dtype=np.int64)], 0
    for begin in range(0, len(starts), _CHECKED_AT_ONCE):
        blocks = starts[begin : begin + _CHECKED_AT_ONCE] // unit_bytes
        if not begin:
            before = int(blocks[0])
        borders.append(np.flatnonzero(np.diff(blocks, prepend=before)) + begin)
        before = int(blocks[-1])
    return np.append(np.concatenate(borders), len(starts)) if len(starts) else borders[0]


class _OpenMegatron:
    """One pair. A read takes one range of the .bin."""

    def __init__(self, reader: Megatron, store: Store, shard: Shard) -> None:
        path = str(shard.extra.get("bin") or _bin_of(shard.path))
        size = shard.extra.get("bin_size")
        self._path, self._rows = shard.path, reader.rows
        self._index = _File(store, shard.path, shard.size, whole=True)
        self._data = _File(store, path, int(size) if size is not None else _look_up(store, path).size, whole=False)
        self._table = _Table(self._index, self._data)
        self.shares_file = store.local(path) is not None and self._table.dtype == np.int32
        self._closed = False
        fields: list[Any] = [pa.field("input_ids", pa.list_(pa.int32()))]
        if self._table.modes is not None and reader.rows == "sequence":
            fields.append(pa.field("mode", pa.int8()))
        self.schema: pa.Schema = pa.schema(fields)
        self._cut(reader.unit_bytes)

    def _cut(self, unit_bytes: int) -> None:
        table = self._table
        count = len(table.lengths) if self._rows == "sequence" else max(0, len(table.documents) - 1)
        if self._rows == "document" and (int(table.documents[-1]) if len(table.documents) else 0) != len(table.lengths):
            raise DataError("the last sequences of the index belong to no document", hint="read them with rows='sequence'")
        starts = table.row_starts(self._rows)
        total = table.end if table.contiguous else int(starts[-1])
        self._units = _cut_rows(starts[:count], unit_bytes)
        edges = np.append(starts[self._units[:-1]], total)
        self._tokens = np.diff(edges) // table.dtype.itemsize

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size as int32."""
        return Units(np.diff(self._units), np.maximum(self._tokens * 4, 1))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`. More than 2**28 tokens come in several batches."""
        with at(shard=self._path):
            first, last = int(self._units[unit]), int(self._units[unit + 1])
            check_rows(unit, start, stop, last - first, closed=self._closed)
            self._index.check()
            self._data.check()
            return self._batches(names_in(self.schema, columns), first + start, first + stop)

    def _batches(self, wanted: Sequence[str], start: int, stop: int) -> list[pa.RecordBatch]:
        if not wanted:
            return [pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), type=pa.struct([])))]  # type: ignore[arg-type]
        lengths, low, offsets = self._offsets(start, stop)
        total = int(offsets[-1])
        if total > _BATCH_TOKENS and stop - start > 1:
            middle = (start + stop) // 2
            return self._batches(wanted, start, middle) + self._batches(wanted, middle, stop)
        if total > _INT32:
            with at(row=start):
                raise DataError(
                    f"the document has {total} tokens; a list may have {_INT32}", hint="read it with rows='sequence'"
                )
        arrays: list[Any] = []
        for name in wanted:
            if name == "mode":
                assert self._table.modes is not None
                modes: Any = np.array(self._table.modes[start:stop])
                arrays.append(pa.array(modes))
            else:
                arrays.append(self._lists(lengths, low, offsets, start))
        return [pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(n) for n in wanted]))]

    def _offsets(self, start: int, stop: int) -> tuple[I64, int, I64]:
        """`(lengths of the sequences in these rows, the first sequence, offsets of the rows in their tokens)`."""
        if self._rows == "sequence":
            lengths = self._table.lengths[start:stop].astype(np.int64)
            return lengths, start, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        borders = self._table.documents[start : stop + 1]
        low = int(borders[0])
        lengths = self._table.lengths[low : int(borders[-1])].astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return lengths, low, ends[borders - low]

    def _lists(self, lengths: I64, low: int, offsets: I64, row: int) -> pa.Array[Any]:
        tokens = self._read_tokens(self._table.pointers[low : low + len(lengths)], lengths)
        if self._table.dtype.itemsize == 8 and len(tokens):
            bad = np.flatnonzero((tokens > _INT32) | (tokens < -_INT32 - 1))
            if len(bad):
                with at(row=row + int(np.searchsorted(offsets, bad[0], side="right")) - 1):
                    raise DataError(f"the token {int(tokens[bad[0]])} is beyond int32")
        values: Any = np.require(tokens, dtype=np.int32, requirements="A")
        made: pa.Array[Any] = groups.make_list(offsets, values)
        return made

    def _read_tokens(self, pointers: I64, lengths: I64) -> npt.NDArray[Any]:
        """The tokens of these sequences in order; one range where they lie end to end, as Megatron writes them."""
        real = np.flatnonzero(lengths)
        if not len(real):
            return np.zeros(0, dtype=self._table.dtype)
        begins = pointers[real]
        ends = begins + lengths[real] * self._table.dtype.itemsize
        cuts = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        firsts, lasts = np.append(0, cuts), np.append(cuts - 1, len(real) - 1)
        parts = [
            self._data.get(int(begins[a]), int(ends[b])).view(self._table.dtype) for a, b in zip(firsts, lasts, strict=True)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def close(self) -> None:
        """See `OpenShard.close`; groups that share memory with a map keep it."""
        self._closed = True
        self._index.close()
        self._data.close()

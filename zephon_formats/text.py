"""Plain text in UTF-8, plain, gzip or zstd: one row per line, per paragraph or per file, in the column `text`.

The first time that a file is opened by lines or paragraphs, one pass finds where they begin and keeps an index
(`zephon_formats._index`); a packed file is unpacked by that pass, once per machine, into the cache directory. A byte-order mark is left
out, and so are line ends (LF or CRLF) at the end of a line or paragraph; the text of a file is otherwise as it is. Blank lines are rows
with an empty text, as in Hugging Face's `text` reader; paragraphs are what blank lines (nothing but spaces and tabs) divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zephon.plugin import DataError, OpenShard, Reader, RecipeError, Shard, Store, Units, at
from zephon_formats._asked import names_in, no_columns
from zephon_formats._bytes import I64, codec_of, iter_plain
from zephon_formats._index import Index, Read, load_or_build, local_version
from zephon_formats._json import Columns
from zephon_formats._lines import EveryLine, IndexedText, Paragraphs
from zephon_formats._rows import Rows
from zephon_formats._told import Told

_SCHEMA = pa.schema([("text", pa.string())])
_BOM = b"\xef\xbb\xbf"
_ENDS = {"line": "\r\n", "paragraph": " \t\r\n"}
_MAX_TEXT = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Text(Reader):
    """Text files, plain or packed. See the module's docstring."""

    name: ClassVar[str] = "text"
    suffixes: ClassVar[tuple[str, ...]] = tuple(
        f".{n}{packed}" for n in ("txt", "md", "text") for packed in ("", ".gz", ".zst")
    )
    splittable: ClassVar[bool] = True

    row: Literal["line", "paragraph", "file"] = "line"
    """What a row is."""
    bad_text: Literal["replace", "error"] = "replace"
    """What becomes of bytes that are not UTF-8 and of NUL bytes: U+FFFD, or a `DataError` that names the row."""
    unit_bytes: int = 2 << 20
    """Size of a read unit."""

    def __post_init__(self) -> None:
        if self.row not in ("line", "paragraph", "file"):
            raise RecipeError(f"row must be 'line', 'paragraph' or 'file', got {self.row!r}")
        if self.bad_text not in ("replace", "error"):
            raise RecipeError(f"bad_text must be 'replace' or 'error', got {self.bad_text!r}")
        if self.unit_bytes < 1:
            raise RecipeError(f"unit_bytes must be at least 1, got {self.unit_bytes}")

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Load the index of one shard, or make it (one pass) and keep it; with `row="file"` nothing is read.

        Raises:
            DataError: the file is missing, cut short, damaged, or UTF-16.
            PluginError: a zstd file, and no `zstandard` package.
        """
        with at(shard=shard.path):
            if self.row == "file":
                return _OpenFile(self, store, shard)
            index = load_or_build(
                store, shard, unit_bytes=self.unit_bytes, sampled=0, sample=_columns,
                splitter=EveryLine if self.row == "line" else Paragraphs, kind=f"{self.row}s",
            )  # fmt: skip
            return _OpenText(self, store, shard, index)


def _columns(read: Read, starts: I64) -> Columns:  # noqa: ARG001 - the index's interface
    return Columns(_SCHEMA)


class _OpenText:
    """One shard with its lines or paragraphs."""

    schema: pa.Schema = _SCHEMA

    def __init__(self, reader: Text, store: Store, shard: Shard, index: Index) -> None:
        self._reader, self._path = reader, shard.path
        self._told = Told(shard.path)
        self._text = IndexedText(store, shard, index)

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size of the text."""
        return self._text.units()

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`."""
        with at(shard=self._path):
            runs = self._text.rows(unit, start, stop)
            if not names_in(_SCHEMA, columns):
                return [no_columns(stop - start)]
            arrays = [_text_of(run, _ENDS[self._reader.row], self._reader.bad_text, self._told) for run in runs]
            return [pa.RecordBatch.from_arrays([a], schema=_SCHEMA) for a in arrays or [pa.array([], pa.string())]]

    def close(self) -> None:
        """See `OpenShard.close`."""
        self._text.close()


def _text_of(rows: Rows, ends: str, bad_text: str, told: Told) -> pa.Array[Any]:
    """The texts of these rows without the characters `ends` at their ends."""
    if b"\0" not in rows.data:
        offsets: Any = rows.starts.astype(np.int32)
        raw: Any = pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.data)])
        made = pc.ascii_rtrim(raw, characters=ends)
        try:
            made.validate(full=True)
        except pa.ArrowInvalid:
            pass  # not UTF-8
        else:
            return made  # type: ignore[no-any-return]
    if bad_text == "replace":
        told.replaced_text()
    return pa.array([_clean(rows, i, ends, bad_text) for i in range(len(rows))], pa.string())


def _clean(rows: Rows, number: int, ends: str, bad_text: str) -> str:
    data = rows.one(number).rstrip(ends.encode())
    if bad_text == "error":
        hint = "bad_text='replace' puts U+FFFD there"
        if b"\0" in data:
            raise rows.error(number, "the text holds a NUL byte", hint)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise rows.error(number, f"the text is not UTF-8: {error}", hint) from None
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


class _OpenFile:
    """One file as one row."""

    schema: pa.Schema = _SCHEMA

    def __init__(self, reader: Text, store: Store, shard: Shard) -> None:
        self._reader, self._store, self._shard = reader, store, shard
        self._closed = False

    def units(self) -> Units:
        """See `OpenShard.units`; `nbytes` is the size of the file, packed or not."""
        return Units(np.ones(1, dtype=np.int64), np.array([max(1, self._shard.size)], dtype=np.int64))

    def read(self, unit: int, columns: Sequence[str] | None, start: int, stop: int) -> Sequence[pa.RecordBatch]:
        """See `OpenShard.read`."""
        with at(shard=self._shard.path):
            if self._closed:
                raise DataError("the shard is closed")
            if unit or not 0 <= start <= stop <= 1:
                raise DataError(f"rows [{start}, {stop}) are not in unit {unit}; the file is one row")
            if not names_in(_SCHEMA, columns):
                return [no_columns(stop - start)]
            texts = [self._load()] if start < stop else []
            return [pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=_SCHEMA)]

    def _load(self) -> str:
        store, shard = self._store, self._shard
        path = store.local(shard.path)
        found = shard.size if path is None else int(local_version(path).partition(" ")[0])
        if found != shard.size:
            raise DataError(
                f"the file has {found} bytes; it had {shard.size} when it was listed", hint="data must not change during a run"
            )
        codec = codec_of(store.read(shard.path, 0, min(4, shard.size)), shard.path)
        parts, size = [], 0
        with store.open(shard.path) as file:
            for block in iter_plain(file, shard.size, codec):
                parts.append(block)
                size += len(block)
                if size > _MAX_TEXT:
                    raise DataError("the text has 2 GiB or more, too long for one row", hint="row='line' or 'paragraph'")
        data = b"".join(parts).removeprefix(_BOM)
        if codec != "plain":
            codec_of(data[:4], "")  # packed UTF-16 is no better than plain
        text = _clean(Rows(data, np.array([0, len(data)], dtype=np.int64)), 0, "", self._reader.bad_text)
        if "\ufffd" in text and text.count("\ufffd") != data.count(b"\xef\xbf\xbd"):
            Told(shard.path).replaced_text()
        return text

    def close(self) -> None:
        """See `OpenShard.close`; no file is held open between reads."""
        self._closed = True

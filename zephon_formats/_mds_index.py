"""The `index.json` of MosaicML Streaming: which shards a stream has, and where their files are.

    {"version": 2, "shards": [{"version": 2, "format": "mds", "samples": 100, "compression": "zstd:3" or null, "hashes": ["sha1"],
        "column_names": […], "column_encodings": […], "column_sizes": [8, null, …], "size_limit": 67108864,
        "raw_data": {"basename": "shard.00000.mds", "bytes": 12345, "hashes": {"sha1": "…"}}, "zip_data": the same or null}, …]}

as written by https://github.com/mosaicml/streaming (`streaming/base/format/base/writer.py`), unchanged since its first release. `basename`
is a path below the index where several indices were merged into one.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

from zephon.plugin import DataError, FileInfo, Shard, Store, at
from zephon_formats._compression import codec_of

INDEX = "index.json"
PACKED = (".zstd", ".gz", ".br", ".bz2", ".snappy")
"""What MDSWriter adds to the name of a packed shard."""

_HEAD = 64 << 10
_FORMATS = ("mds", "json", "csv", "tsv", "xsv")
_HAS_SHARDS = re.compile(rb'"shards"\s*:\s*\[')
_HAS_FORMAT = re.compile(rb'"format"\s*:\s*"(mds|json|csv|tsv|xsv)"')
_HINTS = {
    "json": "its *.json files are JSON lines: read them with format='jsonl' and a glob",
    "csv": "read its *.csv files with format='csv' and a glob",
    "tsv": "read its *.tsv files with format='csv', delimiter='\\t' and a glob",
    "xsv": "write the data again as MDS (streaming.MDSWriter)",
}

_log = logging.getLogger("zephon.formats.mds")


def is_streaming_index(store: Store, path: str) -> bool:
    """Whether an `index.json` is MosaicML Streaming's; of a big one only the beginning is looked at."""
    head = store.read(path, 0, _HEAD)
    if len(head) < _HEAD:
        try:
            found = json.loads(head)
        except ValueError:
            return False
        if not isinstance(found, dict) or not isinstance(found.get("shards"), list) or "version" not in found:
            return False
        return all(isinstance(s, dict) and s.get("format") in _FORMATS for s in found["shards"][:1])
    return bool(_HAS_SHARDS.search(head) and _HAS_FORMAT.search(head))


def find_shards(store: Store, files: Sequence[FileInfo], suffixes: tuple[str, ...]) -> list[Shard]:
    """The shards of all streams among `files`: index by index (outer directories first, then by path), in the order of each index.

    A shard that several indices name (one made by `merge_index`, and the parts it was made of) counts once. Where `files` holds
    shards but no index, the index beside them is used, and only these shards are taken. A shard that is there both packed and
    unpacked is read packed: `StreamingDataset` leaves unpacked copies beside the files, and that must not change the recipe.

    Raises:
        DataError: an index is missing, damaged, of another version or format; shards that it names are missing, or it says something
            else of a shard than another index does.
    """
    listing = {file.path: file for file in files}
    named = [path for path in listing if path.endswith(suffixes)]
    indices = [path for path in listing if posixpath.basename(path) == INDEX]
    beside = not indices
    if beside:
        indices = list({path[: path.rfind("/") + 1] + INDEX for path in named})
        if files and not indices:
            raise DataError(
                f"there is no {INDEX}, and {files[0].path!r} is no shard of MDS", hint="give the directory with the index"
            )
    made: dict[str, Shard] = {}
    for index in sorted(indices, key=lambda path: path.split("/")[:-1]):
        with at(shard=index):
            found = _Stream(store, index, listing).shards(only_listed=beside)
            for shard in found:
                known = made.setdefault(shard.path, shard)
                if known.extra["rows"] != shard.extra["rows"]:
                    raise DataError(f"{known.extra['index']!r} says something else of the shard {shard.path!r} than this index")
    strangers = [path for path in named if path not in made and not any(path + suffix in made for suffix in PACKED)]
    if strangers and beside:
        raise DataError(f"no index.json beside it names the shard {strangers[0]!r}", hint="write the index again")
    if strangers:
        _log.warning("%d .mds files are in no index.json and are left out, for example %s", len(strangers), strangers[0])
    return list(made.values())


class _Stream:
    """One index and the files around it."""

    def __init__(self, store: Store, index: str, listing: Mapping[str, FileInfo]) -> None:
        self.store, self.index, self.root = store, index, index[: -len(INDEX)]
        self.listing = listing
        self.columns: dict[str, list[Any]] = {}

    def shards(self, *, only_listed: bool) -> list[Shard]:
        """The shards whose files are there; with `only_listed` the others aren't missed."""
        entries = [_Entry(entry, number) for number, entry in enumerate(self._entries())]
        if not only_listed and any(self._file(entry) is None for entry in entries):
            # the index may have been given by itself; its files are beside it
            self.listing = {**self.listing, **{file.path: file for file in self.store.files(self._directory())}}
        made = [self._shard(entry) for entry in entries if self._file(entry) is not None]
        missing = [entry.name for entry in entries if self._file(entry) is None]
        if missing and not only_listed:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise DataError(
                f"the index names shards that are not there: {', '.join(map(repr, missing[:3]))}{more}",
                hint="copy them; to read only some, give a glob over the shards without the index",
            )
        return made

    def _directory(self) -> str:
        return self.root if self.root.endswith("://") else self.root.rstrip("/") or "/"

    def _entries(self) -> list[Any]:
        data = self.store.read(self.index)
        try:
            found = json.loads(data)
        except ValueError as error:
            raise DataError(f"the index is not JSON ({len(data)} bytes): {error}", hint="was it written to its end?") from error
        if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
            raise DataError("the index is not one of MosaicML Streaming: it has no list of shards")
        _check_version(found, "the index")
        return found["shards"]  # type: ignore[no-any-return]

    def _file(self, entry: _Entry) -> FileInfo | None:
        for info in (entry.packed, entry.raw):
            file = self.listing.get(self.root + info["basename"]) if info else None
            if file is not None:
                return file
        return None

    def _shard(self, entry: _Entry) -> Shard:
        file = self._file(entry)
        assert file is not None
        packed = entry.packed if entry.packed and file.path.endswith(entry.packed["basename"]) else None
        layout = entry.columns()
        extra = {
            "index": self.index,
            "rows": entry.whole("samples"),
            "bytes": (packed or entry.raw)["bytes"],
            "raw_bytes": entry.raw["bytes"],
            "codec": entry.codec() if packed else None,
            "columns": self.columns.setdefault(repr(layout), layout),  # one list for all shards that are alike
            "hashes": (packed or entry.raw)["hashes"],
            "raw_hashes": entry.raw["hashes"] if packed else {},
        }
        return Shard(file.path, file.size, file.etag, extra)


class _Entry:
    """One shard in an index, checked."""

    def __init__(self, entry: Any, number: int) -> None:
        self.what = f"shard {number} of the index"
        if not isinstance(entry, dict):
            raise DataError(f"{self.what} is no JSON object")
        kind = entry.get("format")
        if kind != "mds":
            hint = _HINTS.get(str(kind), "write the data again as MDS (streaming.MDSWriter)")
            raise DataError(f"{self.what} is of MosaicML's format {kind!r}, which this reader does not read", hint=hint)
        _check_version(entry, self.what)
        self.entry = entry
        self.raw: dict[str, Any] = self._info("raw_data")
        self.packed: dict[str, Any] | None = None if entry.get("zip_data") is None else self._info("zip_data")

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return str((self.packed or self.raw)["basename"])

    def whole(self, name: str) -> int:
        """A number that can't be negative."""
        return self._whole(self.entry.get(name), name)

    def columns(self) -> list[list[Any]]:
        """`[[name, encoding, size or None], …]`"""
        names, encodings, sizes = (self.entry.get(f"column_{part}") for part in ("names", "encodings", "sizes"))
        if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
            raise DataError(f"{self.what} has no lists of column names, encodings and sizes")
        if not len(names) == len(encodings) == len(sizes):
            raise DataError(f"{self.what} has {len(names)} column names, {len(encodings)} encodings and {len(sizes)} sizes")
        if not all(isinstance(text, str) for text in (*names, *encodings)):
            raise DataError(f"{self.what} has column names or encodings that are not text")
        if len(set(names)) < len(names):
            raise DataError(f"{self.what} has two columns of one name: {names}")
        return [
            [n, e, None if s is None else self._whole(s, "column_sizes")]
            for n, e, s in zip(names, encodings, sizes, strict=True)
        ]

    def codec(self) -> str:
        """Arrow's name of the codec."""
        said = str(self.entry.get("compression") or "").split(":")[0]
        codec = codec_of(f".{said}") or codec_of(self.name)
        if codec is None:
            raise DataError(f"{self.what} is packed with {said!r}, which is unknown", hint=f"known: {', '.join(PACKED)}")
        return codec

    def _info(self, name: str) -> dict[str, Any]:
        info = self.entry.get(name)
        basename = info.get("basename") if isinstance(info, dict) else None
        if not isinstance(info, dict) or not isinstance(basename, str) or not basename:
            raise DataError(f"{self.what} names no file in {name!r}")
        if basename.startswith("/") or "\\" in basename or ".." in basename.split("/"):
            raise DataError(f"{self.what} names the file {basename!r}, which is not below the index")
        hashes = info.get("hashes") or {}
        if not isinstance(hashes, dict):
            raise DataError(f"{self.what} has hashes that are no JSON object")
        return {
            "basename": posixpath.normpath(basename),
            "bytes": self._whole(info.get("bytes"), f"{name}.bytes"),
            "hashes": {str(k): str(v) for k, v in hashes.items()},
        }

    def _whole(self, value: Any, name: str) -> int:
        most = 2**32 - 1 if name == "samples" else 2**63 - 1
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise DataError(f"{self.what} has {name} = {value!r}, which is no count")
        return value


def _check_version(found: Mapping[str, Any], what: str) -> None:
    if found.get("version") != 2:
        raise DataError(
            f"{what} is of version {found.get('version')!r}; this reader knows version 2",
            hint="write the data again with a newer mosaicml-streaming, or a newer Zephon",
        )

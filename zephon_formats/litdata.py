"""LitData (https://github.com/Lightning-AI/litdata): directories of chunks and an `index.json`, as litdata 0.2 writes them.

Rows come in the order of `index.json`; below a directory, each directory with an `index.json` of its own is a stream, in path order.
A shard is a chunk, a read unit a part of it (a whole one, where the chunk is packed as a whole). Row counts and sizes come from the
index; of a chunk, its table of offsets and the range of the rows asked for are read. All layouts are: items one after the other,
Arrow tables (what litdata makes of rows of plain values), zstd by chunk, by batch and by sample, tokens, temporal arrays, and Parquet
files with an index. Encrypted sets are refused.

Columns:

* An item that is a dict has a column per key; a list or tuple, columns "0", "1", …; a bare value, one column: "text" for strings,
  "image" for images, "value" else. Dicts inside are structs. Lists and tuples that litdata took apart are lists where their
  parts are of one type, else structs with fields "0", "1", ….
* Values of one type keep it (int is int64, float is double). Lists and dicts of plain values have the types that the index states for
  all rows; what has no single type is a string with its JSON text. A key that only some rows have is null in the others.
* Files (jpeg, image, file, video, audio, tifffile, pdf, mesh, nifti) are struct<bytes, path> as in Hugging Face's Image feature, with
  the bytes as they were written and no path; `jpeg_array` is a list of such. The pixels of a raw image (`pil`) are put into an
  uncompressed PNG (modes 1, L, LA, P, RGB, RGBA, I;16) or TIFF (CMYK, I, F); other modes are an error. litdata loses palettes.
* 1-D arrays and tensors are lists of their numbers; arrays of no dimension, numbers; other arrays struct<data: binary, dtype, shape>.
  Complex numbers are pairs. Which it is, the first item of the stream decides, which is looked at when shards are listed.
* Graphs, and values of a serializer of somebody's own, are the bytes that were written.
* Tokens are one column `input_ids`, a list<int32>: the documents as written, or blocks (`block_size`).
* In temporal sets each field is a list over frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from zephon.plugin import DataError, FileInfo, OpenShard, Reader, RecipeError, Shard, ShardWriter, Store, at
from zephon_formats._litdata_index import (
    INDEX,
    PARQUET,
    TOKENS,
    Stream,
    base_name,
    chunks_of,
    config_of,
    find_indexes,
    is_index,
    key_of,
    load_index,
    stream_of,
    type_text,
)
from zephon_formats._litdata_leaves import PICKLE_HINT
from zephon_formats._litdata_open import OpenChunk, look
from zephon_formats._litdata_parquet import OpenParquet
from zephon_formats._write_litdata import LitDataWriter, merge_litdata

_LOOKS = 4


@dataclass(frozen=True, kw_only=True)
class LitData(Reader):
    """LitData chunks. See the module's docstring for columns and types."""

    name: ClassVar[str] = "litdata"
    index_files: ClassVar[tuple[str, ...]] = (INDEX,)
    splittable: ClassVar[bool] = True
    part_suffix: ClassVar[str | None] = ""

    block_size: int | None = None
    """For tokens: rows are blocks of so many of them, across documents, as litdata's `TokensLoader(block_size)` gives them; what is
    left at a chunk's end is no row. None: rows are the documents."""
    allow_pickle: bool = False
    """Load pickled values. To load a pickle is to run code that the file brings."""
    unit_bytes: int = 8 << 20
    """About how large a read unit is."""

    def __post_init__(self) -> None:
        if self.unit_bytes < 1 or (self.block_size is not None and self.block_size < 1):
            raise RecipeError(f"unit_bytes and block_size must be at least 1, got {self.unit_bytes} and {self.block_size}")

    @classmethod
    def claims(cls, store: Store, files: Sequence[FileInfo]) -> bool:
        """Whether one of the `index.json` among `files` is LitData's (it has "chunks" and "config"); MDS has one of that name too."""
        for path, _ in find_indexes(store, files):
            try:
                if is_index(load_index(store, path)):
                    return True
            except DataError:
                continue
        return False

    def shards(self, store: Store, files: Sequence[FileInfo]) -> list[Shard]:
        """The chunks that the index files list, in their order; where `files` has none, those of `files` that an index beside them lists.

        Raises:
            DataError: no index, a damaged or foreign one, encrypted chunks, pickles that aren't allowed, or a chunk that isn't there.
        """
        indexes = find_indexes(store, files)
        if not indexes:
            unmerged = sorted(f.path for f in files if base_name(f.path).endswith(INDEX))
            raise DataError(
                f"there is no {INDEX} for {files[0].path!r}"
                + (f", only {unmerged[0]!r} of a writer that was not merged" if unmerged else ""),
                hint="let litdata finish the set (optimize, or BinaryWriter.merge)" if unmerged else "LitData needs it",
            )
        by_path = {f.path: f for f in files}
        return [shard for path, listed in indexes for shard in self._stream_shards(store, path, by_path, whole=listed)]

    def _stream_shards(self, store: Store, path: str, files: dict[str, FileInfo], *, whole: bool) -> Iterator[Shard]:
        with at(shard=path):
            content = load_index(store, path)
            config = config_of(content, path)
            directory = path[: -len(INDEX)]
            found = []
            chunks = list(chunks_of(content, path))
            if whole and any(directory + chunk["name"] not in files for chunk in chunks):
                # the index may have been given by itself; its chunks are beside it
                files = {**files, **{file.path: file for file in store.files(directory[:-1] or "/")}}
            for chunk in chunks:
                name = chunk.pop("name")
                file = files.get(directory + name)
                if file is not None:
                    found.append((file, chunk))
                elif whole:
                    raise DataError(f"the index lists the chunk {name!r}, which isn't there", hint="was all of it copied?")
            stream = stream_of(json.dumps(config))
            self._check(stream, path)
        text = self._settled(store, config, stream, found)
        for file, chunk in found:
            yield Shard(path=file.path, size=file.size, etag=file.etag, extra={**chunk, "stream": text})

    def _check(self, stream: Stream, path: str) -> None:
        if self.block_size is not None and stream.loader != TOKENS:
            raise DataError(f"{path!r} is not a set of tokens, so it has no blocks", hint="leave block_size out")
        pickled = [c.name for c in stream.columns for leaf in stream.leaves_of(c) if key_of(leaf.format) == "pickle"]
        if pickled and not self.allow_pickle and not stream.in_arrow:
            raise DataError(
                f"the column {pickled[0]!r} holds Python pickles (np.int64(1) and None are such, too), and to load one is to run "
                "code that the file brings",
                hint=PICKLE_HINT,
            )

    def _settled(self, store: Store, config: dict[str, Any], stream: Stream, found: Sequence[tuple[FileInfo, Any]]) -> str:
        """The stream's configuration as text, with the types that only data can tell, from the first chunk that can be read."""
        if stream.in_arrow or not any(leaf.unsure for leaf in stream.leaves()):
            return json.dumps(config)
        text = json.dumps(config)
        for number, (file, chunk) in enumerate(found[:_LOOKS]):
            shard = Shard(path=file.path, size=file.size, etag=file.etag, extra={**chunk, "stream": text})
            try:
                with at(shard=file.path):
                    seen = look(self._open_chunk(store, shard), stream)
            except DataError:
                if number + 1 == min(_LOOKS, len(found)):
                    raise
                continue
            if seen is not None:
                return json.dumps({**config, "seen": {n: type_text(kind) for n, kind in seen.items()}})
        return text

    def writer(self, path: str, schema: pa.Schema) -> ShardWriter:
        """See `Reader.writer`."""
        return LitDataWriter(path, schema)

    def finish(self, directory: str) -> None:
        """See `Reader.finish`."""
        merge_litdata(directory)

    def open(self, store: Store, shard: Shard) -> OpenShard:
        """Make one chunk ready; only of a Parquet file anything is read.

        Raises:
            DataError: the chunk is smaller than its index says, or didn't come from `shards`.
        """
        with at(shard=shard.path):
            if "stream" not in shard.extra:
                raise DataError("a chunk can't be read without what its index says", hint="take it from LitData.shards")
            if stream_of(shard.extra["stream"]).loader == PARQUET:
                return OpenParquet(store, shard)
            return self._open_chunk(store, shard)

    def _open_chunk(self, store: Store, shard: Shard) -> OpenChunk:
        return OpenChunk(
            store,
            shard,
            stream_of(shard.extra["stream"]),
            unit_bytes=self.unit_bytes,
            block_size=self.block_size,
            allow_pickle=self.allow_pickle,
        )

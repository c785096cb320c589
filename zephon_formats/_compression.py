"""Whole files that were packed in one go: unpacked by the suffix of their name.

Arrow's own codecs do the work, so no further package is needed. For text that is read in pieces see `zephon_formats._bytes`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zephon.plugin import DataError, PluginError

SUFFIXES = {
    ".zstd": "zstd",
    ".zst": "zstd",
    ".gz": "gzip",
    ".gzip": "gzip",
    ".br": "brotli",
    ".bz2": "bz2",
    ".snappy": "snappy",
    ".lz4": "lz4",
}
"""Suffix → Arrow's name of the codec. `.snappy` is the bare block that `snappy.compress` makes, `.lz4` the frame format."""

_ANY = 1 << 40


def codec_of(path: str) -> str | None:
    """Arrow's name of the codec that the suffix of a file name stands for, or None."""
    return next((codec for suffix, codec in SUFFIXES.items() if path.endswith(suffix)), None)


def unpack(data: bytes | pa.Buffer, codec: Any, size: int | None = None) -> pa.Buffer:
    """The unpacked bytes of a whole file; several members or frames, one after the other, are one file.

    Args:
        data: the packed file.
        codec: Arrow's name of the codec, see `codec_of`.
        size: how many bytes must come out. No more than one beyond it are made, so a small file can't fill the memory.

    Raises:
        DataError: the data is damaged, cut short, or of another size.
        PluginError: this build of pyarrow does not have the codec.
    """
    if not pa.Codec.is_available(codec):
        raise PluginError(f"this pyarrow was built without {codec}", hint="install pyarrow from PyPI or conda-forge")
    if not len(data):
        raise DataError(f"the file is empty (0 bytes), which is not {codec} data", hint="was it written to its end?")
    try:
        made = _unpack_block(data, codec, size) if codec == "snappy" else _unpack_stream(data, codec, size)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise DataError(f"damaged {codec} data: {error}") from error
    if size is not None and made.size != size:
        found = "more" if made.size > size else str(made.size)
        raise DataError(f"the {codec} data unpacks to {found} bytes where {size} are promised")
    return made


def _unpack_stream(data: bytes | pa.Buffer, codec: Any, size: int | None) -> pa.Buffer:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return stream.read_buffer(_ANY if size is None else size + 1)


def _unpack_block(data: bytes | pa.Buffer, codec: Any, size: int | None) -> pa.Buffer:
    # the block states its size in front, seven bits a byte (https://github.com/google/snappy/blob/main/format_description.txt)
    stated = 0
    for place, byte in enumerate(memoryview(data)[:5].tobytes()):
        stated |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    else:
        raise DataError(f"damaged {codec} data: it does not begin with its size")
    if size is not None and stated != size:
        raise DataError(f"the {codec} data unpacks to {stated} bytes where {size} are promised")
    if stated > 255 * len(data):  # the format can't pack tighter than about 21:1
        raise DataError(f"damaged {codec} data: {len(data)} bytes can't hold {stated}")
    made: pa.Buffer = pa.Codec(codec).decompress(data, stated)
    return made

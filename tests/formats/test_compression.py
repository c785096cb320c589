"""Whole files are unpacked as the usual packers packed them, and what is damaged says so."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable

import brotli
import pyarrow as pa
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from zephon.errors import DataError, PluginError
from zephon_formats import _compression
from zephon_formats._compression import codec_of, unpack


def lz4_frame(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "x.zstd": zstandard.ZstdCompressor().compress,
    "x.tar.zst": zstandard.ZstdCompressor(write_content_size=False).compress,
    "x.gz": gzip.compress,
    "x.br": brotli.compress,
    "x.bz2": bz2.compress,
    "x.snappy": snappy.compress,
    "x.lz4": lz4_frame,
}


@given(data=st.binary(max_size=300) | st.binary(min_size=1, max_size=3).map(lambda b: b * 70_000))
@pytest.mark.parametrize("name", PACKERS)
def test_what_a_packer_packed_is_unpacked(name: str, data: bytes) -> None:
    packed = PACKERS[name](data)
    codec = codec_of(name)
    assert codec is not None
    assert unpack(packed, codec).to_pybytes() == data
    assert unpack(pa.py_buffer(packed), codec, len(data)).to_pybytes() == data
    for size in {max(0, len(data) - 1), len(data) + 1} - {len(data)}:
        with pytest.raises(DataError, match="unpacks to"):
            unpack(packed, codec, size)


@pytest.mark.parametrize("name", [name for name in PACKERS if name not in ("x.snappy", "x.br")])
def test_several_members_are_one_file(name: str) -> None:
    pack = PACKERS[name]
    assert unpack(pack(b"one ") + pack(b"two"), codec_of(name) or "").to_pybytes() == b"one two"


@pytest.mark.parametrize("name", PACKERS)
def test_damage_is_a_data_error(name: str) -> None:
    packed = PACKERS[name](bytes(range(256)) * 50)
    codec = codec_of(name) or ""
    for bad in (b"", packed[: len(packed) // 2], b"\xff" * 50, packed[:4] + b"\xff" * 40 + packed[44:]):
        with pytest.raises(DataError, match=codec):
            unpack(bad, codec, 256 * 50)


def test_a_snappy_block_that_claims_too_much_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(DataError, match="can't hold"):
        unpack(b"\xff\xff\xff\xff\x0f" + bytes(10), "snappy")


def test_a_name_without_a_packing_has_none() -> None:
    assert codec_of("a.mds") is None
    assert codec_of("a.gz/b.bin") is None


def test_a_codec_that_this_pyarrow_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Codec:
        @staticmethod
        def is_available(name: str) -> bool:
            return name != "brotli"

    monkeypatch.setattr(_compression.pa, "Codec", Codec)
    with pytest.raises(PluginError, match="without brotli"):
        unpack(b"x", "brotli")

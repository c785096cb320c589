"""WebDataset tars as `tarfile` and the `webdataset` package write them, and the tars that broke other readers."""

from __future__ import annotations

import gzip
import logging
import tarfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import webdataset
import zstandard
from formats.reading import open_file, read_rows
from formats.tars import add, rows_of, tar_bytes, tar_file
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from webdataset import tariterators

from zephon import Dataset
from zephon.errors import DataError
from zephon.plugin import Shard
from zephon.storage import LocalStore
from zephon.testing import CountingStore, check_format
from zephon_formats import _tar_scan
from zephon_formats import webdataset as module
from zephon_formats.webdataset import WebDataset


def their_rows(path: Path) -> list[dict[str, Any]]:
    """What the format's own library returns, undecoded. (Its `WebDataset` does the same and leaves the file open.)"""
    with path.open("rb") as stream:
        files = tariterators.tar_file_expander([{"url": path.name, "stream": stream}])
        samples = list(tariterators.group_by_keys(files))
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def as_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Our row as that library has it: bytes for everything, absent for null."""
    out = {}
    for name, value in row.items():
        if isinstance(value, dict):
            assert value["path"] == f"{row['__key__']}.{name}"
            value = value["bytes"]
        elif name != "__key__" and value is not None:
            value = value if isinstance(value, bytes) else str(value).encode()
        if value is not None:
            out[name] = value
    return out


SAMPLES: list[dict[str, Any]] = [
    {
        "__key__": f"part/{i:05d}",
        "jpg": None if i % 9 == 4 else {"bytes": bytes([255, i]) * (i * 7 % 90), "path": f"part/{i:05d}.jpg"},
        "txt": None if i % 5 == 2 else ["", "ünï → 日本語 😀", "word " * 300, "twelve bytes"][i % 4],
        "cls": i * 3 - 50,
        "seg.bin": bytes(range(i % 14)),
        "json": '{"a": [1, null]}' if i % 3 else None,
    }
    for i in range(100)
]


def writer(suffix: str, pack: Callable[[bytes], bytes]) -> Callable[[Path, list[dict[str, Any]]], Sequence[Path]]:
    def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
        half = len(rows) // 2
        paths = [folder / f"a{suffix}", folder / f"b{suffix}"]
        for path, part in zip(paths, (rows[:half], rows[half:]), strict=True):
            files = [(f"{row['__key__']}.{n}", v) for row in part for n, v in as_bytes(row).items() if n != "__key__"]
            path.write_bytes(pack(tar_bytes(files)))
        return paths

    return write


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".tar", bytes), (".tgz", gzip.compress), (".tar.zst", zstandard.ZstdCompressor().compress)],
)
def test_it_conforms(suffix: str, pack: Callable[[bytes], bytes]) -> None:
    check_format(WebDataset(unit_bytes=30_000), writer(suffix, pack), rows=SAMPLES)


def test_types_follow_the_extension_and_can_be_said(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [("x/1.TXT", b"a"), ("x/1.seg.png", b"p"), ("x/1.cls", b" 7\n"), ("x/1.npy", b"n")])
    opened = open_file(WebDataset(), path)
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert list(zip(opened.schema.names, opened.schema.types, strict=True)) == [
        ("__key__", pa.string()), ("txt", pa.string()), ("seg.png", image), ("cls", pa.int64()), ("npy", pa.binary()),
    ]  # fmt: skip
    assert read_rows(opened) == [
        {"__key__": "x/1", "txt": "a", "seg.png": {"bytes": b"p", "path": "x/1.seg.png"}, "cls": 7, "npy": b"n"}
    ]
    assert rows_of(path, types={"cls": "string", "npy": "image", "txt": "binary"}) == [
        {
            "__key__": "x/1",
            "txt": b"a",
            "seg.png": {"bytes": b"p", "path": "x/1.seg.png"},
            "cls": " 7\n",
            "npy": {"bytes": b"n", "path": "x/1.npy"},
        }
    ]


def test_several_extensions_make_one_column_when_they_are_renamed(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [("1.jpg", b"j"), ("1.txt", b"a"), ("2.PNG", b"p"), ("3.webp", b"w")])
    rows = rows_of(path, rename={"jpg;jpeg;png;webp": "image", "__key__": "key"})
    assert rows == [
        {"key": "1", "image": {"bytes": b"j", "path": "1.jpg"}, "txt": "a"},
        {"key": "2", "image": {"bytes": b"p", "path": "2.PNG"}, "txt": None},
        {"key": "3", "image": {"bytes": b"w", "path": "3.webp"}, "txt": None},
    ]


CONTENT = st.dictionaries(
    st.sampled_from(["jpg", "txt", "cls", "seg.png", "npy", "json"]),
    st.binary(max_size=40) | st.integers(0, 3000).map(bytes),
    min_size=1,
)


@settings(max_examples=examples(30), deadline=None)
@given(
    samples=st.lists(CONTENT, max_size=15),
    kind=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    unit=st.sampled_from([1, 2000, 1 << 20]),
    long=st.booleans(),
)
def test_rows_are_what_webdataset_returns(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, bytes]], kind: int, unit: int, long: bool
) -> None:
    folder = "ä" * 40 + "/" + "d" * 90 if long else "d.1"
    files = [
        (f"{folder}/{i}.{ext}", b"%d" % len(data) if ext == "cls" else data)
        for i, s in enumerate(samples)
        for ext, data in s.items()
    ]
    path = tar_file(tmp_path_factory.mktemp("t") / "a.tar", files, kind)
    text = {"txt": "binary", "json": "binary"}
    assert [as_bytes(r) for r in rows_of(path, unit_bytes=unit, types=text)] == their_rows(path)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_what_webdatasets_tar_writer_wrote_comes_back(tmp_path: Path, name: str) -> None:
    with webdataset.TarWriter(str(tmp_path / name), mtime=0) as sink:
        for i in range(40):
            sink.write({"__key__": f"s{i}", "cls": i, "txt": f"text {i}", "json": {"i": i}, "jpg": b"\xff\xd8" * i})
    rows = rows_of(tmp_path / name)
    assert rows[3] == {
        "__key__": "s3", "cls": 3, "jpg": {"bytes": b"\xff\xd8" * 3, "path": "s3.jpg"}, "json": '{"i": 3}', "txt": "text 3",
    }  # fmt: skip
    assert [as_bytes(r) for r in rows] == their_rows(tmp_path / name)


def test_shards_of_the_shard_writer_are_one_data_set(tmp_path: Path) -> None:
    with webdataset.ShardWriter(str(tmp_path / "s-%03d.tar"), maxcount=7, verbose=0) as sink:
        for i in range(20):
            sink.write({"__key__": f"{i:04d}", "cls": i, "txt": f"text {i}"})
    shards = sorted(tmp_path.glob("*.tar"))
    found = [row for shard in shards for row in rows_of(shard)]
    assert len(shards) == 3
    assert [r["cls"] for r in found] == list(range(20))
    assert [as_bytes(r) for r in found] == [row for shard in shards for row in their_rows(shard)]


def test_dots_in_directories_do_not_split_the_key_and_those_in_names_do_as_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """83."""
    path = tar_file(tmp_path / "a.tar", [("train.v1/0001.jpg", b"1"), ("train.v1/0002.jpg", b"2"), ("v.2/Track 2.0.mp3", b"m")])
    with caplog.at_level(logging.WARNING):
        assert [r["__key__"] for r in rows_of(path)] == ["train.v1/0001", "train.v1/0002", "v.2/Track 2"]
    assert "'0.mp3'" in caplog.text
    assert "last_dot" in caplog.text
    caplog.clear()
    rows = rows_of(path, ["__key__", "mp3"], key="last_dot")
    assert rows[2] == {"__key__": "v.2/Track 2.0", "mp3": b"m"}
    assert not caplog.text


def test_only_regular_visible_members_with_an_extension_are_data(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "global"}) as tar:
        add(tar, ".", type=tarfile.DIRTYPE)
        add(tar, "./d.x", type=tarfile.DIRTYPE)
        add(tar, "./d.x/1.txt", b"one")
        add(tar, "./d.x/README", b"no extension, between two members of a sample")
        add(tar, "./d.x/._1.txt", b"a Mac's own")
        add(tar, "./__MACOSX/d.x/1.txt", b"a Mac's own")
        add(tar, ".git/config.txt", b"hidden")
        add(tar, "__meta__", b"")
        add(tar, "./d.x/1.cls", b"1")
        add(tar, "./d.x/2.txt", type=tarfile.SYMTYPE, linkname="1.txt")
        add(tar, "./d.x/3.txt", type=tarfile.LNKTYPE, linkname="1.txt")
        add(tar, "./d.x/4.txt", type=tarfile.FIFOTYPE)
        add(tar, "./d.x/5.txt", b"five", mtime=1.5, uname="Zoë")
    assert rows_of(path) == [{"__key__": "./d.x/1", "txt": "one", "cls": 1}, {"__key__": "./d.x/5", "txt": "five", "cls": None}]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_whole(tmp_path: Path, kind: int) -> None:
    names = ["d" * 99 + "/" + "n" * 200 + ".txt", "短い/日本語.txt", "x" * 100 + ".txt", "with\nline.txt"]
    path = tar_file(tmp_path / "a.tar", [(n, b"data") for n in names], kind)
    assert [r["__key__"] for r in rows_of(path)] == [n.removesuffix(".txt") for n in names]


def test_a_name_that_is_not_utf8_is_replaced_and_still_one_sample(tmp_path: Path) -> None:
    data = tar_bytes([("caf@.txt", b"a"), ("caf@.jpg", b"b"), ("caf#.txt", b"c")])
    for place in (0, 1024, 2048):
        header = bytearray(data[place : place + 512])
        header[3] = 0xE9 if header[3] == ord("@") else 0xE8
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 256)
        data = data[:place] + bytes(header) + data[place + 512 :]
    (tmp_path / "a.tar").write_bytes(data)
    rows = rows_of(tmp_path / "a.tar")
    assert [(r["__key__"], r["txt"], r["jpg"]) for r in rows] == [
        ("caf\ufffd", "a", {"bytes": b"b", "path": "caf\ufffd.jpg"}),
        ("caf\ufffd", "c", None),
    ]


# ------------------------------------------------------------------------------------------------- the index and the reads


def test_the_index_is_made_once_and_shared_by_all_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tar_file(tmp_path / "a.tar", [(f"{i}.a.txt", b"x") for i in range(50)])
    first = rows_of(path)
    calls: list[int] = []
    scan = _tar_scan.scan
    monkeypatch.setattr("zephon_formats._tar_index.scan", lambda *a, **k: (calls.append(1), scan(*a, **k))[1])
    assert rows_of(path) == first
    assert rows_of(path, ["txt"], key="last_dot", unit_bytes=700) == [{"txt": "x"}] * 50
    assert not calls
    sidecar = tmp_path / "a.tar.zidx"
    whole = sidecar.read_bytes()
    for damaged in (b"", whole[:100], whole[:-9], whole[:200] + b"!" + whole[201:], b"other" + whole):
        calls.clear()
        sidecar.write_bytes(damaged)
        assert rows_of(path) == first
        assert calls == [1]
        assert sidecar.read_bytes() == whole
    tar_file(path, [("9.txt", b"new")])
    assert rows_of(path) == [{"__key__": "9", "txt": "new"}]


def test_a_packed_tar_is_unpacked_once_and_again_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([("1.txt", b"one")])[:1024]) + gzip.compress(bytes(1024)))
    store = CountingStore(LocalStore(str(tmp_path / "cache")))
    opened = open_file(WebDataset(), path, store=store)
    before = store.total
    assert read_rows(opened) == [{"__key__": "1", "txt": "one"}]
    opened.close()
    again = open_file(WebDataset(), path, store=store)
    assert read_rows(again) == [{"__key__": "1", "txt": "one"}]
    again.close()
    assert store.total - before <= 2 * path.stat().st_size + 4  # a look at its ends, no second pass
    (copy,) = (tmp_path / "cache").glob("*.text.zidx")
    copy.unlink()
    assert rows_of(path) == [{"__key__": "1", "txt": "one"}]
    path.write_bytes(gzip.compress(tar_bytes([("1.txt", b"two"), ("2.txt", b"")])))
    assert [r["txt"] for r in rows_of(path)] == ["two", ""]


def test_only_the_members_asked_for_are_read(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [x for i in range(8) for x in ((f"{i}.txt", b"t%d" % i), (f"{i}.jpg", bytes(9 << 20)))])
    for local in (True, False):
        store = CountingStore(LocalStore(str(tmp_path / "c")), local=local)
        opened = open_file(WebDataset(), path, store=store)
        assert store.total < 4 << 20  # the pass over the headers skips the images
        before = store.total
        assert read_rows(opened, ["txt", "__key__"]) == [{"txt": f"t{i}", "__key__": f"{i}"} for i in range(8)]
        assert store.total - before < 100_000
        before = store.total
        assert [r["__key__"] for r in read_rows(opened, ["__key__"])] == [str(i) for i in range(8)]
        assert [len(b) for b in opened.read(0, [], 0, 1)] == [1]
        assert store.total == before
        opened.read(1, None, 0, 1)
        assert store.total - before < (9 << 20) + 2000  # a part of a unit costs that part


def test_headers_are_found_by_few_reads_where_members_are_small(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [(f"{i}.txt", b"x" * 2000) for i in range(2000)])
    data = path.read_bytes()
    reads: list[int] = []

    def read(start: int, stop: int) -> bytes:
        reads.append(stop - start)
        return data[start:stop]

    members = _tar_scan.scan(read, len(data), near=1 << 20)
    assert len(members.names) == 2000
    assert len(reads) < 5
    reads.clear()
    data = tar_bytes([(f"{i}.txt", b"x" * 50_000) for i in range(100)])
    assert len(_tar_scan.scan(read, len(data), near=10_000).names) == 100
    assert sum(reads) < 300_000


def test_a_unit_over_the_batch_limit_comes_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [x for i in range(40) for x in ((f"{i}.bin", b"b" * i * 50), (f"{i}.txt", b"t%d" % i))]
    path = tar_file(tmp_path / "a.tar", files)
    whole = rows_of(path)
    monkeypatch.setattr(module, "_BATCH_BYTES", 5000)
    opened = open_file(WebDataset(), path)
    assert len(opened.read(0, None, 0, 40)) > 5
    assert read_rows(opened) == whole


def test_a_member_over_two_gigabytes_is_refused_by_row_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    size = 2**31 + 5
    info = tarfile.TarInfo("2.bin")
    info.size = size
    with path.open("wb") as file:
        file.write(tar_bytes([("1.txt", b"one")])[:1024] + info.tobuf(tarfile.GNU_FORMAT))
        file.seek(1024 + 512 + -(-size // 512) * 512)
        file.write(tar_bytes([("3.txt", b"three")]))
    opened = open_file(WebDataset(), path)
    assert [r["txt"] for r in read_rows(opened, ["txt"])] == ["one", None, "three"]
    with pytest.raises(DataError, match="'2.bin' has 2147483653 bytes") as caught:
        read_rows(opened)
    assert caught.value.where.row == 1


def test_eight_threads_that_open_one_tar_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(tar_bytes([(f"{i}.txt", b"%d" % i) for i in range(500)])))
    gate = threading.Barrier(8)

    def one(_: int) -> list[dict[str, Any]]:
        gate.wait()
        return rows_of(path)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert all(rows == found[0] for rows in found)
    assert [r["txt"] for r in found[0]] == [str(i) for i in range(500)]


@settings(max_examples=examples(40), deadline=None)
@given(
    lengths=st.lists(st.none() | st.integers(0, 40), max_size=30),
    seed=st.integers(0, 99),
)
def test_gather_takes_the_ranges_that_it_is_given(lengths: list[int | None], seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, 100, dtype=np.uint8)
    begins = np.random.default_rng(seed).integers(0, 60, len(lengths))
    present = np.array([n is not None for n in lengths], dtype=bool)
    sizes = np.array([n or 0 for n in lengths], dtype=np.int64)
    made = module.gather(data, begins, sizes, present)
    made.validate(full=True)
    assert made.to_pylist() == [
        None if n is None else data[b : b + n].tobytes() for b, n in zip(begins.tolist(), lengths, strict=True)
    ]


def test_a_shard_listed_with_another_size_is_an_error(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [("1.txt", b"one")])
    with pytest.raises(DataError, match="when it was listed"):
        WebDataset().open(LocalStore(str(tmp_path / "c")), Shard(str(path), 50_000))


def test_a_data_set_of_tars_is_found_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "x y#%").mkdir()
    tar_file(tmp_path / "x y#%" / "a.tar", [("1.txt", b"one"), ("2.txt", b"two")])
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(tar_bytes([("3.txt", b"three"), ("3.cls", b"3")])))
    data = Dataset.from_path("d", tmp_path, cache_dir=str(tmp_path / "cache"))
    assert len(data) == 3
    assert data.schema.names == ["__key__", "txt", "cls"]

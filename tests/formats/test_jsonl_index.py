"""The line index is made in one pass, once; packed files are unpacked once; damage is noticed."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from formats.reading import open_file, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, PluginError
from zephon.storage import LocalStore, expand
from zephon.testing import CountingStore
from zephon_formats._bytes import LineStarts, one_object_each
from zephon_formats._index import cut_units
from zephon_formats.jsonl import Jsonl

ROWS = [{"id": i, "text": f"text {i} " * 40} for i in range(3000)]
DATA = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.text(st.sampled_from("a {}\r\t\n"), max_size=60).map(str.encode), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_line_starts_are_those_of_split_however_the_bytes_come(data: bytes, cuts: list[int]) -> None:
    found = LineStarts(7)
    borders = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    for begin, end in itertools.pairwise(borders):
        found.feed(data[begin:end])
    expected, at = [], 7
    for line in data.split(b"\n"):
        if line.strip():
            expected.append(at)
        at += len(line) + 1
    assert found.finish().tolist() == [*expected, 7 + len(data)]


def test_lines_that_begin_with_many_blanks_are_found() -> None:
    found = LineStarts()
    found.feed(b"\n" + b" " * 500 + b"{}\n" + b"\t" * 500 + b"\n{}\n")
    assert found.finish().tolist() == [1, 1005, 1008]


@settings(max_examples=examples(100), deadline=None)
@given(
    lines=st.lists(
        st.text(st.sampled_from(' {}"a'), min_size=1, max_size=8).filter(str.strip).map(str.encode), min_size=1, max_size=8
    )
)
def test_one_object_each_is_true_only_for_lines_in_braces(lines: list[bytes]) -> None:
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    expected = all(line.strip()[:1] == b"{" and line.strip()[-1:] == b"}" for line in lines)
    assert one_object_each(b"\n".join(lines) + b"\n", starts) == expected


@settings(max_examples=examples(50), deadline=None)
@given(lengths=st.lists(st.integers(1, 50), max_size=60), unit=st.integers(1, 100))
def test_units_cover_all_rows_and_bytes_and_none_is_empty(lengths: list[int], unit: int) -> None:
    starts = np.cumsum([3, *lengths])
    units, nbytes = cut_units(starts, unit)
    assert units[0] == 0
    assert units[-1] == len(lengths)
    assert (np.diff(units) > 0).all()
    assert nbytes.tolist() == [starts[b] - starts[a] for a, b in itertools.pairwise(units)]
    assert all(n - length < unit for n, length in zip(nbytes, np.array(lengths, int)[units[1:] - 1], strict=True))


@pytest.mark.parametrize("local", [True, False])
def test_a_file_is_scanned_once_and_a_part_is_read_by_its_bytes(tmp_path: Path, local: bool) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(DATA)
    first, second = (CountingStore(LocalStore(str(tmp_path / ".cache")), local=local) for _ in range(2))
    reader = Jsonl(sample_bytes=10_000, unit_bytes=100_000)
    one = open_file(reader, path, store=first)
    assert len(DATA) <= first.total < 1.4 * len(DATA)  # the pass, and the sample
    two = open_file(reader, path, store=second)
    assert second.total < 10_000
    assert one.schema == two.schema
    assert one.units().rows.tolist() == two.units().rows.tolist()
    before = second.total
    assert two.read(3, None, 5, 6)[0].num_rows == 1
    assert second.total - before < 1000
    assert read_rows(two) == ROWS
    assert second.total - before < len(DATA) + 1000


def index_of(path: Path) -> Path:
    return path.with_name(path.name + ".zidx")


def test_a_changed_file_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    opened = open_file(Jsonl(), path)
    path.write_bytes(b'{"a": 1}\n\n{"a":2}\n')
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed after it was indexed"):
        opened.read(0, None, 0, 2)
    assert read_rows(open_file(Jsonl(), path)) == [{"a": 1}, {"a": 2}]
    path.write_bytes(b'{"b": "xxxxx"}\n\n\n\n\n'[:19])
    os.utime(path, ns=(1, 1))  # size and time as before: the first bytes tell
    assert read_rows(open_file(Jsonl(), path)) == [{"b": "xxxxx"}]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "foreign", "text", "directory", "header"])
def test_a_damaged_or_foreign_sidecar_is_ignored_and_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(DATA)
    open_file(Jsonl(), path)
    index = index_of(path)
    good = index.read_bytes()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    made = {
        "empty": b"",
        "cut": good[:-9],
        "flipped": bytes(flipped),
        "foreign": os.urandom(1000),
        "text": b"hello",
        "header": good[:20] + b"\xff" * 8 + good[28:],
    }
    if damage == "directory":
        index.unlink()
        index.mkdir()
    else:
        index.write_bytes(made[damage])
    assert read_rows(open_file(Jsonl(), path)) == ROWS
    if damage != "directory":
        assert index.read_bytes() == good


def test_other_settings_use_the_same_index(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 100 + b'{"a": 1, "b": 2}\n' + b'{"a": 1}\n' * 5000)
    assert open_file(Jsonl(sample_bytes=50), path).schema.names == ["a"]
    store = CountingStore(LocalStore(str(tmp_path)))
    assert open_file(Jsonl(sample_bytes=None, unit_bytes=500), path, store=store).schema.names == ["a", "b"]
    assert len(open_file(Jsonl(unit_bytes=500), path).units().rows) > 50


def test_nothing_is_lost_where_no_index_can_be_kept(tmp_path: Path) -> None:
    """A directory and a cache that can't be written: here, because files stand where directories should be."""
    (tmp_path / "file").write_bytes(b"")
    for name, data in (("a.jsonl", DATA), ("a.jsonl.gz", gzip.compress(DATA))):
        path = tmp_path / name
        path.write_bytes(data)
        index_of(path).mkdir()
        store = _Nowhere(str(tmp_path / "file"))
        (shard,) = Jsonl().shards(store, expand(store, str(path)))
        assert read_rows(Jsonl().open(store, shard)) == ROWS


class _Nowhere(LocalStore):
    def sidecar(self, path: str, suffix: str) -> list[str]:
        return [f"{self.cache_dir}/x{suffix}", f"{self.cache_dir}/y{suffix}"]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.zst"])
def test_eight_processes_may_open_an_empty_directory_at_once(tmp_path: Path, suffix: str) -> None:
    """29."""
    pack = {".jsonl": bytes, ".jsonl.zst": zst}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack(DATA))
    code = f"""
import sys
from zephon.storage import *
from zephon_formats.jsonl import Jsonl
sys.stdin.readline()
store = LocalStore({str(tmp_path / ".cache")!r})
(shard,) = Jsonl().shards(store, expand(store, {str(path)!r}))
opened = Jsonl().open(store, shard)
print(sum(sum(b.column("id").to_pylist()) for u, n in enumerate(opened.units().rows.tolist()) for b in opened.read(u, ["id"], 0, n)))
"""
    many = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for one in many:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in many:
        out, _ = one.communicate(timeout=60)
        assert out.strip() == str(sum(range(3000)))
    left = sorted(p.name for p in tmp_path.rglob("*") if p.is_file())
    assert len(left) == (2 if suffix == ".jsonl" else 3)
    assert not [name for name in left if name.startswith(".")]  # no lock, no temporary file


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@settings(max_examples=examples(15), deadline=None)
@given(cuts=st.lists(st.integers(0, 40_000), max_size=5))
def test_members_and_frames_are_one_text(tmp_path_factory: pytest.TempPathFactory, suffix: str, cuts: list[int]) -> None:
    """80."""
    data = DATA[:40_000].rsplit(b"\n", 1)[0]
    borders = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    pack = gzip.compress if suffix == ".gz" else zst
    path = tmp_path_factory.mktemp("m") / f"a.jsonl{suffix}"
    path.write_bytes(b"".join(pack(data[a:b]) for a, b in itertools.pairwise(borders)))
    assert read_rows(open_file(Jsonl(), path)) == ROWS[: data.count(b"\n") + 1]


def test_skippable_frames_and_zero_padding_are_skipped(tmp_path: Path) -> None:
    skip = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    (tmp_path / "a.jsonl.zst").write_bytes(skip + zst(b'{"a": 1}\n') + skip + zst(b'{"a": 2}\n') + skip)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n') + bytes(70_000))
    for name in ("a.jsonl.zst", "b.jsonl.gz"):
        assert read_rows(open_file(Jsonl(), tmp_path / name)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "cut in the second", "flipped", "garbage after", "not packed"])
def test_damaged_packed_data_is_an_error_with_the_byte(tmp_path: Path, suffix: str, damage: str) -> None:
    """80: what the whole members hold is not passed off as the file."""
    noise = np.random.default_rng(3).bytes(20_000).hex().encode()
    text = b'{"a": "' + noise + b'"}\n'
    pack = gzip.compress if suffix == ".gz" else lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data)
    one = pack(text)
    flipped = bytearray(one)
    flipped[len(one) // 2] ^= 0x55
    made = {
        "cut": one[:-5],
        "cut in the second": one + one[:-1],
        "flipped": bytes(flipped),
        "garbage after": one + b"garbage",
        "not packed": text,
    }[damage]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(made)
    with pytest.raises(DataError, match=rf"(byte \d+|does not hold).*a\.jsonl\{suffix}"):
        open_file(Jsonl(), path)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [path.name]


def test_a_packed_file_is_unpacked_once_and_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(DATA))
    open_file(Jsonl(), path)
    (copy,) = (tmp_path / ".cache").iterdir()
    assert copy.read_bytes() == DATA
    store = CountingStore(LocalStore(str(tmp_path / ".cache")))
    assert read_rows(open_file(Jsonl(), path, store=store)) == ROWS
    assert store.total < 10_000
    copy.write_bytes(DATA[:1000])
    assert read_rows(open_file(Jsonl(), path)) == ROWS
    path.write_bytes(gzip.compress(b'{"id": 1}'))
    assert read_rows(open_file(Jsonl(), path)) == [{"id": 1}]
    (copy,) = (tmp_path / ".cache").iterdir()  # that of the earlier version is gone
    assert copy.read_bytes() == b'{"id": 1}'


def test_packed_utf_16_and_a_name_without_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"a": 1}'))
    assert read_rows(open_file(Jsonl(), tmp_path / "a.jsonl")) == [{"a": 1}]
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress('{"a": 1}'.encode("utf-16")))
    with pytest.raises(DataError, match="UTF-16"):
        open_file(Jsonl(), tmp_path / "b.jsonl.gz")


def test_an_empty_packed_file_has_zero_rows(tmp_path: Path) -> None:
    for name, data in (
        ("b.jsonl.gz", gzip.compress(b"")),
        ("c.jsonl.zst", zst(b"")),
        ("d.jsonl.gz", zlib.compress(b"\n", wbits=31)),
    ):
        (tmp_path / name).write_bytes(data)
        assert open_file(Jsonl(), tmp_path / name).units().rows.sum() == 0


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_file_of_no_bytes_was_not_written_to_its_end(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.jsonl{suffix}").write_bytes(b"")
    with pytest.raises(DataError, match="the file has 0 bytes, which is not"):
        open_file(Jsonl(), tmp_path / f"a.jsonl{suffix}")


def test_zstd_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.jsonl.zst").write_bytes(zst(DATA))
    with pytest.raises(PluginError, match=r"zephon\[jsonl\]"):
        open_file(Jsonl(), tmp_path / "a.jsonl.zst")


def test_a_file_on_a_remote_store_is_indexed_in_the_cache(tmp_path: Path) -> None:
    import fsspec

    from zephon.storage import open_store

    fsspec.filesystem("memory").pipe("/remote/a.jsonl", DATA)
    fsspec.filesystem("memory").pipe("/remote/b.jsonl.gz", gzip.compress(DATA))
    store, inner = open_store("memory://remote", None, str(tmp_path))
    for _ in range(2):
        for shard in Jsonl().shards(store, expand(store, inner)):
            assert read_rows(Jsonl().open(store, shard)) == ROWS
    assert len(list(tmp_path.iterdir())) == 3


def test_a_large_index_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_formats._index._IN_MEMORY", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(DATA)
    open_file(Jsonl(), path)
    opened = open_file(Jsonl(unit_bytes=10_000), path)
    index_of(path).unlink()
    assert read_rows(opened) == ROWS

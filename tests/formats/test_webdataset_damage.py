"""Tars that broke other readers: what is refused, and how it is said."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any

import pytest
from formats.reading import open_file, read_rows
from formats.tars import add, rows_of, tar_bytes, tar_file

from zephon.errors import DataError, RecipeError
from zephon.storage import LocalStore
from zephon.testing import CountingStore
from zephon_formats.webdataset import WebDataset


def refused(path: Path, says: str, **options: Any) -> str:
    with pytest.raises(DataError, match=says) as caught:
        rows_of(path, **options)
    assert path.name in str(caught.value)
    return str(caught.value)


def test_members_that_are_not_adjacent_name_tar_and_member(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "shard-7.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("c.jpg", b"3"), ("a.txt", b"4")])
    assert "'a.txt' comes after 'c.jpg'" in refused(path, "not adjacent")


def test_a_duplicate_member_names_tar_and_member(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "shard-7.tar", [("a.jpg", b"1"), ("a.txt", b"2"), ("a.JPG", b"3")])
    text = refused(path, "one sample")
    assert "'a.jpg'" in text
    assert "'a.JPG'" in text
    other = tar_file(tmp_path / "shard-8.tar", [("b.txt", b"0"), ("a.jpg", b"1"), ("a.png", b"3")])
    assert "'a.png'" in refused(other, "the column 'image'", rename={"jpg;png": "image"})


def test_a_tar_cut_anywhere_says_what_is_missing(tmp_path: Path) -> None:
    data = tar_bytes([("0001.txt", b"x" * 700), ("0002.txt", b"y" * 700), ("d" * 120 + ".txt", b"z")], tarfile.GNU_FORMAT)
    path = tmp_path / "a.tar"
    for cut, says in [
        (512 + 100, "600 bytes before the end of the member '0001.txt'"),
        (1536, "after the member '0001.txt'; there is no end mark"),
        (1536 + 100, "412 bytes of a header are missing"),
        (3072 + 512 + 50, "inside an extended header"),
        (3072 + 1024, f"before the header of the member '{'d' * 120}"),
    ]:
        path.write_bytes(data[:cut])
        assert "cut short" in refused(path, says)
    for cut in range(0, 3072 + 1536 + 1, 97):
        path.write_bytes(data[:cut])
        refused(path, "empty" if cut == 0 else "cut short")


def test_a_tar_without_its_end_mark_is_read_where_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("1.txt", b"x" * 512), ("2.txt", b"y")])[: 1024 + 512 + 1])
    refused(path, "needs_end=False")
    assert [r["txt"] for r in rows_of(path, needs_end=False)] == ["x" * 512, "y"]
    refused(path, "needs_end=False")  # the index that was kept does not make it whole
    path.write_bytes(tar_bytes([("1.txt", b"x" * 512), ("2.txt", b"y")])[: 1024 + 100])
    refused(path, "412 bytes of a header", needs_end=False)


def test_what_is_no_tar_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for data, says in [
        (b"", "0 bytes"),
        (b"BZh91AY" + bytes(600), "bzip2"),
        (b"plain text\n" * 100, "checksum"),
        (gzip.compress(b"text " * 500), "checksum"),
        (gzip.compress(tar_bytes([("1.txt", bytes(5000))]))[:-20], "cut short"),
    ]:
        path.write_bytes(data)
        refused(path, says)
    packed = tmp_path / "b.tar.gz"
    packed.write_bytes(tar_bytes([("1.txt", b"")]))
    refused(packed, "does not hold gzip")


def test_damage_in_a_header_is_found(tmp_path: Path) -> None:
    data = bytearray(tar_bytes([(f"{i}.txt", b"x" * 600) for i in range(9)]))
    data[1536 * 4 + 20] ^= 4
    (tmp_path / "a.tar").write_bytes(data)
    refused(tmp_path / "a.tar", "no tar header at byte 6144")


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        add(tar, "1.txt", b"x", type=tarfile.GNUTYPE_SPARSE)
    refused(path, "'1.txt' is a sparse file")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "2.txt", b"x", pax_headers={"GNU.sparse.major": "1"})
    refused(path, "'2.txt' is a sparse file")


def test_files_without_extensions_are_no_samples_and_an_empty_tar_is_none(tmp_path: Path) -> None:
    refused(tar_file(tmp_path / "a.tar", [("LICENSE", b""), ("README", b"")]), "none of the 2 files")
    assert rows_of(tar_file(tmp_path / "b.tar", [])) == []


def test_names_that_make_thousands_of_columns_are_refused(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [(f"v1.{i}.jpg", b"") for i in range(300)])
    refused(path, "last_dot")
    assert len(rows_of(path, key="last_dot")) == 300


def test_a_value_that_does_not_fit_names_row_and_member(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [(f"{i}.id", b"%d" % i if i != 5 else b"five") for i in range(9)])
    with pytest.raises(DataError, match=r"'5\.id' is no integer: b'five'") as caught:
        rows_of(path, unit_bytes=2000)
    assert caught.value.where.row == 5
    assert "types={'id': 'string'}" in str(caught.value)
    assert rows_of(path, types={"id": "string"})[5]["id"] == "five"
    wide = tar_file(tmp_path / "b.tar", [("1.id", b"9223372036854775807"), ("2.id", b"9223372036854775808")])
    refused(wide, "beyond int64")
    assert [r["id"] for r in rows_of(tar_file(tmp_path / "c.tar", [("1.id", b"+5"), ("2.id", b" -3\n")]))] == [5, -3]


def test_text_that_is_not_utf8_is_replaced_or_refused(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [("1.txt", b"ok"), ("2.jpg", b""), ("3.txt", b"caf\xe9 au lait")])
    assert [r["txt"] for r in rows_of(path)] == ["ok", None, "caf\ufffd au lait"]
    with pytest.raises(DataError, match=r"'3\.txt' is not UTF-8 at its byte 3") as caught:
        rows_of(path, bad_text="error")
    assert caught.value.where.row == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "dot"}, "first_dot"),
        ({"bad_text": "skip"}, "bad_text"),
        ({"unit_bytes": 0}, "unit_bytes"),
        ({"types": {"a": "int32"}}, "int32"),
        ({"rename": {"jpg;txt": "x"}}, "different types"),
        ({"rename": {"jpg": "x", "JPG;png": "y"}}, "'jpg' twice"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        WebDataset(**options)


def test_a_tar_that_is_replaced_during_the_run_is_noticed(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar", [(f"{i}.txt", b"x" * 100) for i in range(9)])
    opened = open_file(WebDataset(), path)
    remote = open_file(WebDataset(), path, store=CountingStore(LocalStore(str(tmp_path / "c")), local=False))
    tar_file(path, [(f"{i}.txt", b"y" * 200) for i in range(9)])
    with pytest.raises(DataError, match="changed after it was indexed"):
        read_rows(opened)
    with pytest.raises(DataError, match="replaced"):
        read_rows(remote)


def test_what_follows_the_end_mark_is_not_lost_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, path = tar_bytes([("1.txt", b"one")]), tmp_path / "a.tar"
    path.write_bytes(one + one)
    refused(path, "a second tar follows")
    for more, says in ((b"signature", "no padding"), (bytes(2 << 20), "copied whole")):
        caplog.clear()
        path.write_bytes(one + more)
        assert len(rows_of(path)) == 1
        assert says in caplog.text
    caplog.clear()
    path.write_bytes(one + bytes(300_000))  # a large blocking factor
    assert len(rows_of(path)) == 1
    assert not caplog.text

"""Plain text by lines, paragraphs and files, as Python and Hugging Face cut it."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from formats.reading import open_file, read_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, RecipeError
from zephon.plugin import Shard
from zephon.storage import LocalStore
from zephon.testing import CountingStore, check_format
from zephon_formats._lines import EveryLine, Paragraphs
from zephon_formats.text import Text

LINES = ["", "plain", "ünï → 日本語 😀", "\ttab ", "long " * 40]
PACKS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": bytes,
    ".md": bytes,
    ".text.gz": gzip.compress,
    ".txt.zst": zstandard.ZstdCompressor().compress,
}


def texts_of(path: Path, data: bytes, **options: Any) -> list[str]:
    path.write_bytes(data)
    return [row["text"] for row in read_rows(open_file(Text(**options), path))]


def writer(suffix: str, between: str) -> Callable[[Path, list[dict[str, Any]]], Sequence[Path]]:
    def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
        half = len(rows) // 2
        paths = [folder / f"a{suffix}", folder / f"b{suffix}"]
        for path, part in zip(paths, (rows[:half], rows[half:]), strict=True):
            path.write_bytes(PACKS[suffix]("".join(row["text"] + between for row in part).encode()))
        return paths

    return write


@pytest.mark.parametrize("suffix", PACKS)
def test_lines_conform(suffix: str) -> None:
    """Damage can't be noticed in plain text."""
    check_format(Text(unit_bytes=1000), writer(suffix, "\n"), rows=[{"text": LINES[i % 5]} for i in range(150)], damaged=False)


def test_paragraphs_conform() -> None:
    rows = [{"text": f"{i} " + "\n".join(line.rstrip() or "-" for line in LINES[: i % 5])} for i in range(100)]
    rows = [{"text": row["text"].rstrip()} for row in rows]
    check_format(Text(row="paragraph", unit_bytes=1000), writer(".txt", "\n \t\r\n\n"), rows=rows, damaged=False)


@pytest.mark.parametrize("suffix", PACKS)
def test_whole_files_conform(suffix: str) -> None:
    def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
        paths = [folder / f"{i:03d}{suffix}" for i in range(len(rows))]
        for path, row in zip(paths, rows, strict=True):
            path.write_bytes(PACKS[suffix](row["text"].encode()))
        return paths

    rows = [{"text": f"{i}\n\n{LINES[i % 5]}\r\n"} for i in range(20)] + [{"text": ""}]
    check_format(Text(row="file"), write, rows=rows, damaged=False)


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(st.sampled_from("ab ü\t\r\n"), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=6))
@example(text="\n\n", cuts=[1])
@example(text=" \n\t\na\n \nb", cuts=[1, 3])
def test_lines_and_paragraphs_are_those_of_split_however_the_bytes_come(text: str, cuts: list[int]) -> None:
    data = text.encode()
    borders = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    lines, paragraphs = EveryLine(5), Paragraphs(5)
    for begin, end in itertools.pairwise(borders):
        lines.feed(data[begin:end])
        paragraphs.feed(data[begin:end])
    starts, firsts, at, after_blank = [], [], 5, True
    for line in data.splitlines(keepends=True) if b"\r" not in data else _lines(data):
        starts.append(at)
        if line.strip(b" \t\r\n") and after_blank:
            firsts.append(at)
        after_blank = not line.strip(b" \t\r\n")
        at += len(line)
    assert lines.finish().tolist() == [*starts, 5 + len(data)]
    assert paragraphs.finish().tolist() == [*firsts, 5 + len(data)]


def _lines(data: bytes) -> list[bytes]:
    """Lines that end at LF only."""
    parts = data.split(b"\n")
    return [p + b"\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@settings(max_examples=examples(60), deadline=None)
@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=10), max_size=30),
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    unit_bytes=st.integers(1, 100),
)
def test_any_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, last: bool, unit_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.with_name("any.txt.lines.zidx").unlink(missing_ok=True)
    data = end.join(lines) + (end if last and lines else "")
    if not last and lines and not lines[-1]:
        lines = lines[:-1]  # nothing follows the last line end
    expected = [line.removeprefix("\ufeff") if i == 0 else line for i, line in enumerate(lines)]
    assert texts_of(path, data.encode(), unit_bytes=unit_bytes) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lines_paragraphs_and_files_are_those_of_hugging_face(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    text = "first line\nsecond\n\n\nthird ü\n\nfourth\nfifth\n"
    path = tmp_path / "a.txt"
    for row, sample_by in (("line", "line"), ("paragraph", "paragraph"), ("file", "document")):
        path.write_text(text)
        loaded = datasets.load_dataset(
            "text", data_files=str(path), sample_by=sample_by, split="train", cache_dir=str(tmp_path / row)
        )
        expected = [t.strip("\n") for t in loaded["text"]]
        assert [t.strip("\n") for t in texts_of(path, text.encode(), row=row)] == expected


def test_byte_order_marks_and_line_ends_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    data = b"\xef\xbb\xbfa \r\n\r\nb\nc"
    assert texts_of(path, data) == ["a ", "", "b", "c"]
    assert texts_of(path, data, row="paragraph") == ["a", "b\nc"]
    assert texts_of(path, data, row="file") == ["a \r\n\r\nb\nc"]


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_lines_and_is_one_empty_document(tmp_path: Path, data: bytes) -> None:
    for row, expected in (("line", []), ("paragraph", []), ("file", [""])):
        assert texts_of(tmp_path / "a.txt", data, row=row) == expected
    assert texts_of(tmp_path / "a.txt", b"\n") == [""]
    assert texts_of(tmp_path / "a.txt", b"\n \n", row="paragraph") == []


def test_bytes_that_are_not_utf_8_follow_the_policy(tmp_path: Path) -> None:
    """82."""
    path = tmp_path / "a.txt"
    data = b"fine\ncaf\xe9\nnul\0\n\xed\xa0\x80\n"
    assert texts_of(path, data) == ["fine", "caf\ufffd", "nul\ufffd", "\ufffd\ufffd\ufffd"]
    assert texts_of(path, data, row="file") == [data.decode("utf-8", "replace").replace("\0", "\ufffd")]
    opened = open_file(Text(bad_text="error"), path)
    for row, says in ((1, "not UTF-8"), (2, "NUL")):
        with pytest.raises(DataError, match=rf"{says}.*row {row}") as caught:
            opened.read(0, None, row, 4)
        assert caught.value.where.row == row
    for row in ("line", "file"):
        with pytest.raises(DataError, match="UTF-16"):
            texts_of(path, "text\n".encode("utf-16"), row=row)


@pytest.mark.parametrize("local", [True, False])
def test_a_file_is_scanned_once_and_a_part_is_read_by_its_bytes(tmp_path: Path, local: bool) -> None:
    path = tmp_path / "a.txt"
    data = b"".join(b"text %d\n" % i for i in range(50_000))
    path.write_bytes(data)
    first, second = (CountingStore(LocalStore(str(tmp_path / ".cache")), local=local) for _ in range(2))
    open_file(Text(), path, store=first)
    assert first.total < len(data) + 20_000
    opened = open_file(Text(unit_bytes=10_000), path, store=second)
    before = second.total
    assert before < 20_000
    assert opened.read(7, None, 5, 6)[0].num_rows == 1
    assert second.total - before < 100


@pytest.mark.parametrize("row", ["line", "file"])
@pytest.mark.parametrize("damage", ["cut", "not packed", "gone", "grown"])
def test_damaged_files_are_errors_that_name_them(tmp_path: Path, row: Any, damage: str) -> None:
    path = tmp_path / "a.txt.gz"
    good = gzip.compress(b"text\n" * 1000)
    path.write_bytes({"cut": good[:-9], "not packed": b"text\n"}.get(damage, good))
    shard = Shard(str(path), path.stat().st_size - (damage == "grown"))
    if damage == "gone":
        path.unlink()
    with pytest.raises(DataError, match=r"a\.txt\.gz"):
        read_rows(Text(row=row).open(LocalStore(str(tmp_path / ".cache")), shard))


def test_a_row_of_2_gib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_formats.text._MAX_TEXT", 1000)
    monkeypatch.setattr("zephon_formats._lines._MAX_PIECE", 1000)
    for row in ("line", "file"):
        with pytest.raises(DataError, match=r"a\.txt"):
            texts_of(tmp_path / "a.txt", b"x" * 2000 + b"\n", row=row)


def test_settings_that_make_no_sense_are_refused() -> None:
    for options in ({"row": "word"}, {"bad_text": "ignore"}, {"unit_bytes": 0}):
        with pytest.raises(RecipeError):
            Text(**options)  # type: ignore[arg-type]

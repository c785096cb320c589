"""`zephon inspect` says what a data set is, shows rows without letting them harm the terminal, and gives the next step."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from zephon.cli import main
from zephon.cli.columns import recognise
from zephon.cli.image_header import read_header
from zephon.cli.inspect import show_value
from zephon.groups import from_rows

SIZES = [(1, 1), (640, 480), (3, 1000), (2049, 17)]


def image(kind: str, size: tuple[int, int], **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (200, 30, 60)).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}), ("JPEG", {"progressive": True}), ("JPEG", {"comment": b"x" * 5000}), ("PNG", {}), ("GIF", {}), ("BMP", {}),
        ("WebP", {}), ("WebP", {"lossless": True}), ("WebP", {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"}),
    ],
)  # fmt: skip
def test_a_header_tells_kind_and_size(kind: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    assert read_header(image(kind, size, **options)) == (kind, *size)


def test_a_tiff_is_known_by_its_magic() -> None:
    assert str(read_header(image("TIFF", (5, 4)))) == "TIFF"


@given(
    st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFFxxxxWEBPVP8X", b"GIF89a", b"BM"])
)
def test_no_bytes_upset_the_header_reader(data: bytes, magic: bytes) -> None:
    read_header(magic + data)


def test_a_cut_image_is_still_known() -> None:
    for kind in ("JPEG", "PNG", "WebP"):
        assert str(read_header(image(kind, (640, 480))[:20])).startswith(kind)


@given(st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
))  # fmt: skip
def test_any_value_is_one_short_line_of_printable_characters(value: Any) -> None:
    shown = show_value(value)
    assert len(shown) <= 60
    assert shown.isprintable() or not shown


def test_values_are_cut_and_images_are_told_from_bytes() -> None:
    png = image("PNG", (640, 480))
    assert show_value(png) == f"PNG 640×480, {len(png) / 1000:.1f} kB"
    assert show_value({"bytes": png, "path": "a.png"}) == f"PNG 640×480, {len(png) / 1000:.1f} kB (a.png)"
    assert show_value({"bytes": None, "path": "a.png"}) == "path a.png"
    assert show_value(b"\x00" * 34_000) == "bytes, 34 kB"
    assert show_value("a" * 100) == "a" * 59 + "…"
    assert show_value("\x1b[31mred\n") == "\\x1b[31mred\\n"
    assert show_value(list(range(1000))) == "1000 × [0, 1, …]"
    assert show_value(None) == "null"


def roles(rows: list[dict[str, Any]]) -> dict[str, str]:
    group = from_rows(rows)
    return {c.name: c.role for c in recognise(group.schema, rows)}


def test_columns_are_recognised_by_type_and_content() -> None:
    jpeg = image("JPEG", (8, 8))
    row = {
        "text": "x",
        "image": {"bytes": jpeg, "path": None},
        "images": [{"bytes": jpeg, "path": None}],
        "raw": jpeg,
        "raws": [jpeg, jpeg],
        "blob": b"\0\1",
        "messages": [{"role": "user", "content": "hi"}],
        "talk": [{"from": "human", "value": "hi"}],
        "input_ids": [1, 2],
        "numbers": [1, 2],
        "id": 1,
    }
    assert roles([row]) == {
        "text": "text",
        "image": "image",
        "images": "images",
        "raw": "image",
        "raws": "images",
        "blob": "",
        "messages": "chat",
        "talk": "chat",
        "input_ids": "tokens",
        "numbers": "",
        "id": "",
    }


def test_the_longest_text_stands_in_where_no_column_is_called_text() -> None:
    assert roles([{"url": "http://x", "prose": "a longer text than the other one"}]) == {"url": "", "prose": "text"}
    assert roles([{"url": "http://x"}]) == {"url": ""}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 64, 48)
    for i in range(2):
        table = pa.table(
            {
                "id": range(i * 50, i * 50 + 50),
                "text": ["some\ntext"] * 50,
                "image": pa.array([{"bytes": png, "path": "p.png"}] * 50),
                "messages": pa.array([[{"role": "user", "content": "hello"}]] * 50),
            }
        )
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=20)
    (folder / "README.md").write_text("hi")
    return folder


def test_inspect_shows_all_there_is_to_know(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(data), "--rows", "2"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "format   parquet",
        "shards   2,",
        "rows     100,",
        "6 read units",
        "10 / 20 / 20",
        "image: PNG",
        "turns of a conversation",
        "first 2 of 100 rows",
        "PNG 64×48, 24 B (p.png)",
        "some\\ntext",
        ".tokenize(field='text')",
        "tokenize_chat",
        "zephon_vision",
    ):
        assert part in printed, part


def test_without_rich_or_on_a_pipe_the_table_is_aligned_text(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["inspect", str(data)]) == 0
    piped = capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(["inspect", str(data)]) == 0
    assert capsys.readouterr().out == piped
    header, first = piped[piped.index("first 5 of") :].splitlines()[1:3]
    assert header.index("image") == first.index("PNG")


def test_on_a_terminal_rich_draws_the_table(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["inspect", str(data), "--rows", "1"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b[1m" in printed
    assert "PNG 64×48" in printed


def test_an_empty_data_set_and_no_rows_are_shown_too(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    assert main(["inspect", str(tmp_path / "empty.parquet")]) == 0
    assert "rows     0" in capsys.readouterr().out
    assert main(["inspect", str(data), "--rows", "0"]) == 0
    assert "first" not in capsys.readouterr().out


def test_what_can_not_be_read_is_one_message(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["inspect", str(data), "--rows", "-1"]) == 1
    assert "--rows must be 0 or more" in capsys.readouterr().err
    (data / "1.parquet").write_bytes(b"no")
    assert main(["inspect", str(data)]) == 1
    assert "1.parquet" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["txt", "text", "caption", "Transcript"])
def test_text_goes_by_the_names_that_formats_give_it(name: str) -> None:
    assert [c.role for c in recognise(pa.schema([(name, pa.string())]), [{name: "ab"}])] == ["text"]

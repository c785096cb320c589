"""`zephon demo --vlm --quick`: the promise that it shows, where its documents come from, and that it notices a broken promise."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import zephon.cli
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.cli import demo_vlm, demo_vlm_data, main


def png(width: int, height: int, seed: int = 0) -> bytes:
    rgb = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(rgb).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_vlm, "QUICK", replace(demo_vlm.QUICK, pages=24, vocabulary=400, steps=3, max_pixels=32 * 784))


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    """An HTML manual of 12 pages with figures, as DocBook makes them."""
    folder = tmp_path / "share" / "manual" / "en"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "logo.png").write_bytes(png(60, 60))
    (folder / "images" / "icon.png").write_bytes(png(16, 16))
    for number in range(12):
        (folder / "images" / f"figure-{number}.png").write_bytes(png(80 + number, 64, seed=number))
        (folder / f"page{number}.html").write_text(
            f"""<!DOCTYPE html><html><head><title>no text</title><style>p {{}}</style></head><body>
            <div class="navheader"><a href="x">Prev</a><img src="images/logo.png"></div>
            <img src="images/logo.png" alt="logo">
            <h1>Chapter {number}</h1><p>The   tool &amp; its
            <b>options</b> <img src="images/icon.png"/> at a glance.</p>
            <div class="figure"><p class="title">Figure {number}</p><img src="images/figure-{number}.png" alt="x" /></div>
            <p>It fills the selection with a colour.<p>And <img src="https://example.org/far.png"> <img src="../gone.png"> that is all.
            <script>alert(1)</script></body></html>""",
            encoding="utf-8",
        )
    (folder.parent / "de").mkdir()
    (folder.parent / "de" / "page.html").write_text('<p>Deutsch</p><img src="../en/images/figure-1.png">', encoding="utf-8")
    return tmp_path / "share"


@pytest.mark.usefixtures("small")
def test_the_demo_ends_with_all_hashes_in_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With photographs, since there are no manuals where this system has its own."""
    monkeypatch.setattr(demo_vlm_data, "MANUALS", (str(tmp_path),))
    assert main(["demo", "--vlm", "--quick", "--dir", str(tmp_path / "d")]) == 0
    out = capsys.readouterr().out
    assert "all hashes agree" in out.splitlines()[-2]
    for words in (
        "photographs of scikit-image",
        "mixture by tokens",
        "packing efficiency",
        "peak memory",
        "2 → 4 → 1",
        "images/s",
    ):
        assert words in out
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert {"documents.parquet", "chats.parquet", "tokenizer.json", "preview.html"} <= names
    assert 'src="data:image/' in (tmp_path / "d" / "preview.html").read_text(encoding="utf-8")


def test_a_folder_without_manuals_is_no_reason_to_show_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        assert main(["demo", "--vlm", "--quick", "--manuals", str(folder)]) == 1
        assert "has 0 HTML pages with figures, and the demo needs" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--manuals", "."], ["--vlm", "--size", "2"]])
def test_options_of_the_other_demo_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", *words])
    assert caught.value.code == 2
    assert words[-2] in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_the_demo_says_so_and_fails_when_a_hash_differs(
    tmp_path: Path, manual: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = demo_vlm.make_pipeline

    def skewed(source, tokenizer, size, *, rank, world):
        other = size if world == 1 else replace(size, max_pixels=16 * 784)
        return real(source, tokenizer, other, rank=rank, world=world)

    monkeypatch.setattr(demo_vlm, "make_pipeline", skewed)
    monkeypatch.setattr(demo_vlm, "WORLDS", (1, 2))
    monkeypatch.setattr(demo_vlm, "RESUMES", (1,))
    assert main(["demo", "--vlm", "--quick", "--manuals", str(manual)]) == 1
    out = capsys.readouterr().out
    assert "HASHES DIFFER: 2 ranks" in out
    assert "from illustrated manuals" in out


def test_a_page_of_a_manual_is_its_text_and_figures_in_reading_order(manual: Path) -> None:
    pages = demo_vlm_data.manual_pages([str(manual)], 20)
    assert len(pages) == 12  # the translation is left out
    page = next(p for p in pages if p.name.endswith("page3.html"))
    kinds = [part if isinstance(part, str) else (part.name, part.data) for part in page.parts]
    assert kinds == [
        "Chapter 3\n\nThe tool & its options\n\n",  # an icon ends a text, too, but isn't shown
        "at a glance.\n\nFigure 3\n\n",
        ("images/figure-3.png", png(83, 64, seed=3)),
        "It fills the selection with a colour.\n\nAnd\n\n",
        "that is all.\n\n",
    ]


def test_documents_and_chats_say_the_same_after_interleaving(manual: Path, tmp_path: Path) -> None:
    pages = demo_vlm_data.manual_pages([str(manual)], 20)
    rows = [demo_vlm_data.as_document(page) for page in pages]
    rows += [chat for number, page in enumerate(pages) if (chat := demo_vlm_data.as_chat(page, number))]
    assert demo_vlm_data.write_parquet(tmp_path / "rows.parquet", rows) == 24
    assert pq.read_table(tmp_path / "rows.parquet").schema.equals(demo_vlm_data.SCHEMA)
    source = StaticMixtureWorkSource([Dataset.from_path("rows", tmp_path / "rows.parquet")], stop_after_passes=1)
    seen = [
        row
        for batch in Pipeline(source).interleave(keep=("page",)).batch(8).options(runner="inline")
        for row in batch.group.to_pylist()
    ]
    assert len(seen) == 24
    for row in seen:
        page = next(p for p in pages if p.name == row["page"])
        images = [row["images"][s["image"]]["bytes"] for s in row["segments"] if s["kind"] == 1]
        assert images == [picture.data for picture in page.pictures]
        texts = [s["text"] for s in row["segments"] if s["kind"] == 0]
        if row["segments"][0]["role"] is None:
            assert "".join(texts) == "".join(page.texts)
        else:
            assert [s["role"] for s in row["segments"]] == ["user", "user", "assistant"]
            assert texts[-1] in "".join(page.texts)


def test_photographs_are_whole_images_with_the_words_of_their_packages() -> None:
    pages = demo_vlm_data.photograph_pages(40)
    assert len({page.name for page in pages}) == 40
    assert any("astronaut" in text for page in pages for text in page.texts)
    pictures = [picture for page in pages for picture in page.pictures]
    assert len({picture.data for picture in pictures}) == len(pictures)
    for picture in pictures:
        with Image.open(io.BytesIO(picture.data)) as image:
            assert min(image.size) >= 32
    again = demo_vlm_data.photograph_pages(40)
    assert [page.parts for page in again] == [page.parts for page in pages]
    assert all(json.loads(demo_vlm_data.as_document(page)["json"]) for page in pages)


def test_without_its_packages_the_way_out_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "zephon.cli.demo_vlm_data", raising=False)
    monkeypatch.delattr(zephon.cli, "demo_vlm_data", raising=False)
    assert main(["demo", "--vlm", "--quick", "--dir", str(tmp_path)]) == 1
    assert "pip install 'zephon[demo-vlm]'" in capsys.readouterr().err

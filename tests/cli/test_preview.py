"""`zephon preview`: what a person sees of the first batches, in the terminal and as a page."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.cli import main
from zephon.cli.demo_vlm_data import SPECIAL
from zephon.cli.preview import Preview, load_pipeline, preview
from zephon.cli.preview_html import data_url, page
from zephon.cli.preview_text import show
from zephon.cli.preview_tokens import Decoder
from zephon.errors import RecipeError
from zephon.operators.tokenizer_files import load_tokenizer

TEXTS = ("What is this?", "It is a red disc, 日本語 und Größe.", "The quick brown fox", "<script>alert('x')</script> & more")
POLICY = 'qwen2_5_vl{"max_pixels": 12544, "min_pixels": 3136}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def picture(seed: int, kind: str = "JPEG", size: tuple[int, int] = (90, 60)) -> bytes:
    rgb = np.random.default_rng(seed).integers(0, 255, (size[1] // 10, size[0] // 10, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(rgb).resize(size).save(out, kind)
    return out.getvalue()


def chats() -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": "<image>What is this?"},
                {"role": "assistant", "content": f"It is a red disc, 日本語 und Größe. {n}"},
            ],
            "images": [{"bytes": picture(n, "JPEG" if n % 2 else "PNG"), "path": None}],
        }
        for n in range(6)
    ]


def of_chats(tokenizer: Path, rows: list[dict[str, Any]], **packing: Any) -> Pipeline:
    return (
        Pipeline(StaticMixtureWorkSource([Dataset.from_records("chats", rows)], stop_after_passes=1))
        .interleave()
        .probe_images()
        .tokenize_interleaved(tokenizer_id=str(tokenizer), images=POLICY, on_bad_image="drop_sample")
        .pack_multimodal(max_length=256, **packing)
        .decode_images(max_bad_ratio=None)
        .batch(1)
        .options(runner="inline")
    )


def of_texts(tokenizer: Path) -> Pipeline:
    rows = [{"text": text} for text in TEXTS * 3]
    return (
        Pipeline(StaticMixtureWorkSource([Dataset.from_records("texts", rows)], stop_after_passes=1))
        .tokenize(tokenizer_id=str(tokenizer))
        .pack_flat(max_length=65)
        .batch(2)
        .options(runner="inline")
    )


def in_terminal(made: Preview, characters: int = 600) -> str:
    from rich.console import Console

    out = io.StringIO()
    show(made, characters=characters, console=Console(file=out, width=120, highlight=False))
    return out.getvalue()


class Page(HTMLParser):
    """What is on a page: tags with their attributes, and that all that is opened is closed."""

    void = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


# ------------------------------------------------------------------------------------------------ what is in a preview


def test_a_packed_chat_is_shown_with_its_images_where_they_belong(tokenizer: Path) -> None:
    made = preview(of_chats(tokenizer, chats()), batches=10)
    documents = [d for sequence in made.sequences for d in sequence.documents]
    assert sorted(d.source for d in documents) == [f"chats · memory · row {n}" for n in range(6)]
    for document in documents:
        number = int(document.source.rsplit(" ", 1)[1])
        kinds = [part.kind for part in document.parts]
        place = kinds.index("image")
        before = "".join(p.text for p in document.parts[:place])
        after = "".join(p.text for p in document.parts[place:])
        assert before.endswith("<|im_start|>user\n")
        assert after.startswith("What is this?<|im_end|>")
        image = document.parts[place].image
        assert image is not None
        assert image.data == chats()[number]["images"][0]["bytes"]
        assert (image.height, image.width) == (60, 90)
        assert image.tokens == image.grid[1] * image.grid[2] // 4 + 2
        assert image.blocks == image.grid[1] * image.grid[2]
        trained = "".join(p.text for p in document.parts if p.trained)
        assert trained.strip() == f"It is a red disc, 日本語 und Größe. {number}<|im_end|>"
        assert sum(p.tokens for p in document.parts) == document.tokens
    for sequence in made.sequences:
        assert sum(d.tokens for d in sequence.documents) + sequence.padding == sequence.length == 256


def test_the_pipeline_itself_stays_as_it_is(tokenizer: Path) -> None:
    mine = of_chats(tokenizer, chats()).map_batch(lambda batch: batch.to_training())
    recipe = mine.recipe()
    preview(mine, batches=1)
    assert mine.recipe() == recipe
    assert "input_ids" in next(iter(mine))


def test_what_was_dropped_and_what_could_not_be_decoded_is_told(tokenizer: Path) -> None:
    rows = chats()
    rows[1]["images"][0]["bytes"] = b"<html>not found</html>"
    rows[3]["images"][0]["bytes"] = rows[3]["images"][0]["bytes"][:-200]  # the header is fine
    made = preview(of_chats(tokenizer, rows), batches=10)
    assert sum(rows for _, rows, _ in made.drops) == 1
    images = [p.image for s in made.sequences for d in s.documents for p in d.parts if p.image]
    assert [image.blank for image in images].count(True) == 1
    text = in_terminal(made)
    assert "dropped: " in text
    assert "BLANK: can't be decoded" in text
    assert "Dropped" in "".join(Page(page(made)).text)


def test_text_pipelines_are_shown_with_the_documents_of_each_sequence(tokenizer: Path) -> None:
    made = preview(of_texts(tokenizer), batches=20)
    shown: dict[str, str] = {}
    for sequence in made.sequences:
        for document in sequence.documents:
            row = document.source.partition(",")[0].rsplit(" ", 1)[1]
            shown[row] = shown.get(row, "") + "".join(p.text for p in document.parts if p.kind == "text")
    # documents that are cut between two sequences may be cut inside a character
    assert {text for text in shown.values() if "\ufffd" not in text} <= set(TEXTS)
    assert len(shown) == 12
    assert "The quick brown fox" in in_terminal(made)


def test_rows_without_tokens_are_shown_by_their_columns() -> None:
    rows = [{"name": "one", "number": 1}, {"name": "two", "number": 2}]
    pipeline = Pipeline(StaticMixtureWorkSource([Dataset.from_records("rows", rows)], stop_after_passes=1)).batch(2)
    made = preview(pipeline.options(runner="inline"), batches=3)
    text = in_terminal(made)
    assert "name: one" in text
    assert "number: 2" in text
    assert "rows · memory · row 1" in text


def test_text_comes_back_whole_however_training_cuts_it(tokenizer: Path) -> None:
    loaded = load_tokenizer(str(tokenizer))
    assert loaded.fast is not None
    for text in TEXTS:
        ids = [*loaded.fast.encode(text, add_special_tokens=False).ids, loaded.fast.token_to_id("<|im_end|>")]
        for seed in range(20):
            trained = np.random.default_rng(seed).integers(0, 2, len(ids)).astype(bool).tolist()
            runs = list(Decoder(loaded).runs(ids, trained))
            assert "".join(run.text for run in runs) == text + "<|im_end|>"
            assert sum(run.tokens for run in runs) == len(ids)
            assert [run.special for run in runs] == [False] * (len(runs) - 1) + [True]


# --------------------------------------------------------------------------------------------------------- the page


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(tokenizer: Path) -> None:
    rows = chats()
    rows[0]["messages"][0]["content"] = "<image><script>alert('x')</script> & more"
    text = page(preview(of_chats(tokenizer, rows), batches=10, title="<my> run"))
    found = Page(text)
    assert "script" not in [tag for tag, _ in found.tags]
    assert "link" not in [tag for tag, _ in found.tags]
    assert "<script>alert('x')</script> & more" in "".join(found.text)
    sources = [attrs["src"] for tag, attrs in found.tags if tag == "img"]
    assert len(sources) == 6
    for source in sources:
        kind, data = re.fullmatch(r"data:image/(jpeg|png);base64,(.*)", source).groups()  # type: ignore[union-attr]
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            assert image.format == kind.upper()
            assert image.size == (90, 60)
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    trained = [attrs for tag, attrs in found.tags if tag == "span" and "trained" in attrs.get("class", "")]
    assert len(trained) > 6
    articles = [attrs["style"] for tag, attrs in found.tags if tag == "article"]
    assert len(articles) == 6


@pytest.mark.parametrize(("kind", "size"), [("TIFF", (60, 40)), ("AVIF", (60, 40)), ("PNG", (900, 900))])
def test_images_that_browsers_dont_show_or_that_are_large_become_small_jpegs(kind: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, kind)
    url = data_url(out.getvalue())
    assert url is not None
    assert url.startswith("data:image/jpeg;base64,")
    assert len(url) < 250_000
    assert data_url(b"no image") is None


def test_large_pictures_become_small_ones_on_white_and_are_not_clipped() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (600, 600, 3), dtype=np.uint8)
    clear = np.dstack([np.where(noise > 127, 60, 0).astype(np.uint8), np.zeros((600, 600), np.uint8)])
    clear[:300, :, 3] = 255
    clear[:300, :, :3] = noise[:300]
    deep = (noise[..., 0].astype(np.uint16) // 2 + 64) * 257
    for made, check in (
        (Image.fromarray(clear, "RGBA"), lambda rgb: rgb[300:].min() > 240),
        (Image.fromarray(deep), lambda rgb: 100 < rgb.mean() < 150),
    ):
        out = io.BytesIO()
        made.save(out, "PNG")
        assert len(out.getvalue()) > 150_000
        url = data_url(out.getvalue())
        assert url is not None
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as small:
            assert small.size == (480, 480)
            assert check(np.asarray(small.convert("RGB")).astype(int))


def test_pad_tokens_of_aligned_documents_are_not_shown(tokenizer: Path) -> None:
    plain = preview(of_chats(tokenizer, chats()), batches=9)
    aligned = preview(of_chats(tokenizer, chats(), align_to=64), batches=9)
    shown = [{d.source: (d.tokens, d.parts) for s in made.sequences for d in s.documents} for made in (plain, aligned)]
    assert shown[0] == shown[1]
    assert "<bdi>" in page(plain)


def test_a_real_browser_shows_every_image(tokenizer: Path, tmp_path: Path) -> None:
    """The other tests read the page by a parser."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((b for name in names if (b := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser is installed here: none of {', '.join(names)}")
    text = page(preview(of_chats(tokenizer, chats()), batches=10))
    probe = "<script>document.title = [...document.images].map(i => i.naturalWidth).join(' ')</script>"
    (tmp_path / "page.html").write_text(text.replace("</body>", probe + "</body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{tmp_path}/page.html"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.search(r"<title>(.*?)</title>", made).group(1) == " ".join(["90"] * 6)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------ the command


def test_a_pipeline_of_a_users_file_is_found_by_its_name(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "my_training.py").write_text(
        "from zephon import Dataset, Pipeline, StaticMixtureWorkSource\n"
        f"rows = [{{'text': text}} for text in {TEXTS!r}]\n"
        "def make():\n"
        "    source = StaticMixtureWorkSource(Dataset.from_records('mine', rows), stop_after_passes=1)\n"
        f"    return Pipeline(source).tokenize(tokenizer_id={str(tokenizer)!r}).batch(2)\n"
        "pipeline = make()\nnothing = 3\n"
    )
    for target in ("my_training.py:pipeline", "my_training:make", f"{tmp_path}/my_training.py:make"):
        assert main(["preview", target, "--batches", "1"]) == 0
        assert "mine · memory · row" in capsys.readouterr().out
    for target, words in {"my_training.py:nothing": "it is of type int", "my_training.py:x": "nothing of that name"}.items():
        assert main(["preview", target]) == 1
        assert words in capsys.readouterr().err
    assert main(["preview", "no_such.py:pipeline"]) == 1
    assert "there is no file" in capsys.readouterr().err


def test_data_is_shown_through_a_plain_pipeline(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    assert main(["preview", str(tmp_path / "text.jsonl"), "--tokenizer", str(tokenizer), "--max-length", "64"]) == 0
    assert "It is a red disc, 日本語 und Größe." in capsys.readouterr().out
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jpg").write_bytes(picture(1))
    pages = [
        {"texts": ["What is this?", None, "The quick brown fox"], "images": [None, "files/a.jpg", None]},
        {"texts": ["It is a red disc"], "images": [None]},
    ]
    strings: Any = pa.list_(pa.string())
    pq.write_table(
        pa.Table.from_pylist(pages, pa.schema([("texts", strings), ("images", strings)])), tmp_path / "pages.parquet"
    )
    out = tmp_path / "page.html"
    arguments = ["preview", str(tmp_path / "pages.parquet"), "--tokenizer", str(tokenizer), "--html", str(out)]
    assert main([*arguments, "--images", POLICY]) == 0
    found = Page(out.read_text(encoding="utf-8"))
    assert [attrs["src"][:22] for tag, attrs in found.tags if tag == "img"] == ["data:image/jpeg;base64"]
    assert "The quick brown fox" in "".join(found.text)


def test_images_of_data_may_be_in_a_folder_of_their_own(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.jpg").write_bytes(picture(1))
    rows = [{"texts": ["What is this?", None, "The end"], "images": [None, name, None]} for name in ("a.jpg", "b.jpg")]
    (tmp_path / "pages.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["preview", str(tmp_path / "pages.jsonl"), "--tokenizer", str(tokenizer), "--images", POLICY]
    assert main([*arguments, "--media-root", str(tmp_path / "media")]) == 0
    shown = capsys.readouterr().out
    assert "90×60" in shown
    assert "dropped: tokenize_interleaved: bad image: unreadable: 1 images" in shown
    assert main(arguments) == 0
    assert "bad image: unreadable: 2 images" in capsys.readouterr().out
    assert main([*arguments, "--media-root", str(tmp_path / "no such")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_data_without_a_tokenizer_is_refused_with_the_way_out() -> None:
    with pytest.raises(RecipeError, match="--tokenizer"):
        load_pipeline("some/data.parquet", {})

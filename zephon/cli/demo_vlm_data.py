"""Real documents with images for `zephon demo --vlm`: illustrated HTML manuals of this machine, else photographs of PyPI packages.

Nothing is downloaded. What is found is written as Parquet in two layouts of the field, as JSON beside the images: OBELICS (web documents:
parallel lists of texts and images) and chat messages. JSON, since that is looked into row by row, so that one pipeline can mix both.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from zephon.cli import demo_data
from zephon.cli.image_header import read_header
from zephon.errors import DataError

MANUALS = ("/usr/share/gimp/2.0/help", "/usr/share/doc")
"""Where Debian's packages put manuals; `gimp-help-en` and `debian-handbook` are illustrated ones."""
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""The special tokens of Qwen2.5-VL."""

_SMALLEST = 48
"""Pixels along each side; smaller pictures are icons."""
_LARGEST_FILE = 2_000_000
_MOST_IMAGES = 12
_ANSWER = 600
"""Characters of an answer in a chat."""
_LOGO = 3
"""A picture on more pages than this is a logo or an icon."""
_PAGE = re.compile(r"\.x?html?$", re.IGNORECASE)
_PICTURE = re.compile(r"\.(png|jpe?g|gif|webp)$", re.IGNORECASE)
_FOREIGN = re.compile(r"(?!en)[a-z]{2}([-_][A-Za-z]{2,4})?$")
"""A folder that holds a translation."""
_SKIP = {"head", "script", "style", "nav", "footer", "header"}
_SKIP_CLASS = re.compile(r"nav(header|footer|bar|igation)|docnav|sidebar|toc\b|footer", re.IGNORECASE)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_BLOCKS = {
    "p",
    "div",
    "li",
    "tr",
    "dt",
    "dd",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "table",
    "ul",
    "ol",
    "figcaption",
    "br",
}
_SPACE = re.compile(r"\s+")
_QUESTIONS = (
    "What does this picture show?",
    "Please explain the figure.",
    "What is to be seen here?",
    "Describe this image for somebody who can't see it.",
)
_FILES = {
    "checkerboard": "chessboard_GRAY.png", "clock": "clock_motion.png", "colorwheel": "color.png", "immunohistochemistry": "ihc.png",
    "hubble_deep_field": "hubble_deep_field.jpg", "retina": "retina.jpg", "rocket": "rocket.jpg", "shepp_logan_phantom": "phantom.png",
    "stereo_motorcycle": "motorcycle_left.png",
}  # fmt: skip
"""The file of a function of `skimage.data`, where it isn't called as the function is."""

_IMAGES: Any = pa.list_(pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())]))
SCHEMA: Any = pa.schema([("page", pa.string()), ("json", pa.string()), ("images", _IMAGES)])


@dataclass(frozen=True)
class Picture:
    """An image file: its bytes, and what it was called."""

    data: bytes
    name: str


@dataclass
class Page:
    """A document: texts and pictures in reading order."""

    name: str
    parts: list[str | Picture] = field(default_factory=list)

    @property
    def pictures(self) -> list[Picture]:
        """Its pictures."""
        return [part for part in self.parts if isinstance(part, Picture)]

    @property
    def texts(self) -> list[str]:
        """Its texts."""
        return [part for part in self.parts if isinstance(part, str)]


# ------------------------------------------------------------------------------------------------------------- manuals


def manual_pages(roots: Sequence[str], limit: int) -> list[Page]:
    """Up to `limit` pages of the HTML manuals below `roots` that have figures. One in eight is a page without, for text between."""
    pages = [page for path in islice(demo_data._spread(_html_files(roots)), 4 * limit) if (page := read_page(Path(path))).texts]
    shown = Counter(picture.data for page in pages for picture in page.pictures)
    found: list[Page] = []
    plain = 0
    for page in pages:
        page.parts = [p for p in page.parts if isinstance(p, str) or shown[p.data] <= _LOGO]
        if not page.pictures:
            if plain * 8 >= len(found):
                continue
            plain += 1
        found.append(page)
    return found[:limit]


def read_page(path: Path) -> Page:
    """The text of an HTML file, and the pictures beside it that it shows. A page that can't be read has no parts."""
    page = Page("/".join(path.parts[-3:]))
    try:
        reader = _Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        reader.close()
    except (OSError, UnicodeDecodeError):
        return page
    count = 0
    for part in reader.finish():
        if isinstance(part, str):
            page.parts.append(part)
            continue
        picture = _picture(path.parent, part.source) if count < _MOST_IMAGES else None
        if picture is not None:
            count += 1
            page.parts.append(picture)
    return page


def _html_files(roots: Sequence[str]) -> list[str]:
    found: list[str] = []
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not _FOREIGN.match(name))
            pages = [os.path.join(folder, name) for name in names if _PAGE.search(name)]
            if any(_shows_pictures(page) for page in pages[:64]):
                found += pages
    return sorted(found)


def _shows_pictures(path: str) -> bool:
    try:
        return b"<img" in Path(path).read_bytes()
    except OSError:
        return False


def _picture(folder: Path, source: str) -> Picture | None:
    """The picture that a page names; None: it is not there, not a picture, or an icon."""
    source = unquote(source.partition("#")[0].partition("?")[0])
    if "://" in source or not _PICTURE.search(source):
        return None
    path = folder / source
    try:
        data = path.read_bytes() if path.is_file() and path.stat().st_size <= _LARGEST_FILE else b""
    except OSError:
        return None
    header = read_header(data)
    if header is None or min(header.width, header.height) < _SMALLEST or max(header.width, header.height) > 4000:
        return None
    return Picture(data, source)


@dataclass(frozen=True)
class _Shown:
    source: str


class _Reader(HTMLParser):
    """HTML to texts and the pictures between them; what is for navigation is left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, bool]] = []
        self._parts: list[str | _Shown] = []
        self._blocks: list[str] = []
        self._line: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        skip = self._skips or tag in _SKIP or bool(_SKIP_CLASS.search(given.get("class") or ""))
        if tag in _BLOCKS:
            self._end_block()
        if tag not in _VOID:
            self._open.append((tag, skip))
        elif tag == "img" and not skip and given.get("src"):
            self._end_text()
            self._parts.append(_Shown(given["src"] or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_block()
        for place in range(len(self._open) - 1, -1, -1):  # what was left open inside ends with it
            if self._open[place][0] == tag:
                del self._open[place:]
                return

    def handle_data(self, data: str) -> None:
        if not self._skips:
            self._line.append(data)

    def finish(self) -> list[str | _Shown]:
        """All parts, each text with its paragraphs."""
        self._end_text()
        return self._parts

    @property
    def _skips(self) -> bool:
        return bool(self._open) and self._open[-1][1]

    def _end_block(self) -> None:
        text = _SPACE.sub(" ", "".join(self._line)).strip()
        self._line = []
        if text:
            self._blocks.append(text)

    def _end_text(self) -> None:
        self._end_block()
        if self._blocks:
            self._parts.append("\n\n".join(self._blocks) + "\n\n")
        self._blocks = []


# --------------------------------------------------------------------------------------------------------- photographs


def photograph_pages(limit: int) -> list[Page]:
    """Photographs of scikit-image and scikit-learn, whole and in parts, between what these packages say about them and about themselves."""
    photographs = list(_photographs())
    if not photographs:
        return []
    prose = [p for r in demo_data.documents(limit * 2_000) for p in r["text"].split("\n\n") if len(p) > 60] or ["A photograph."]
    pages = []
    for number in range(limit):
        title, data, words = photographs[number % len(photographs)]
        page = Page(f"{title} {number // len(photographs)}", [words[0] + "\n\n"])
        for view in range(0 if number % 8 == 7 else 1 + number * 5 % 4):
            file = data if number < len(photographs) and view == 0 else _part_of(data, number * 31 + view * 7)
            page.parts.append(Picture(file, f"{title}-{view}"))
            said = words[1 + view] if 1 + view < len(words) else prose[(number * 13 + view) % len(prose)]
            page.parts.append(said + "\n\n")
        page.parts.append(prose[number * 17 % len(prose)])
        pages.append(page)
    return pages


def _photographs() -> Iterator[tuple[str, bytes, list[str]]]:
    """`(title, file, paragraphs about it)`."""
    try:
        import skimage
    except ModuleNotFoundError:
        pass
    else:
        folder = Path(skimage.__file__).parent / "data"
        for name in sorted(dir(skimage.data)):
            path = folder / _FILES.get(name, f"{name}.png")
            words = _paragraphs(getattr(skimage.data, name).__doc__)
            if path.is_file() and words:
                yield name, path.read_bytes(), words
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return
    about = inspect.cleandoc(datasets.load_sample_images.__doc__ or "")
    for name in ("china", "flower"):
        path = Path(datasets.__file__).parent / "images" / f"{name}.jpg"
        if path.is_file():
            yield name, path.read_bytes(), [f"Sample image {name!r}.", *_paragraphs(about)]


def _paragraphs(docstring: str | None) -> list[str]:
    """The prose of a docstring: what comes before the sections about parameters and results."""
    text = inspect.cleandoc(docstring or "")
    text = re.split(r"\n(?:Parameters|Returns|Notes|References|Examples)\n-+\n", text)[0]
    return [_SPACE.sub(" ", p).strip() for p in text.split("\n\n") if p.strip()]


def _part_of(data: bytes, number: int) -> bytes:
    """A part of a picture as JPEG, another one for every number."""
    with Image.open(io.BytesIO(data)) as image:
        rgb = image.convert("RGB")
    share = (0.35, 0.5, 0.65, 0.8, 1.0)[number % 5]
    width, height = max(_SMALLEST, int(rgb.width * share)), max(_SMALLEST, int(rgb.height * (1.15 - share / 2) * share))
    left = (number * 37 % 101) * max(0, rgb.width - width) // 100
    top = (number * 53 % 101) * max(0, rgb.height - height) // 100
    out = io.BytesIO()
    rgb.crop((left, top, min(rgb.width, left + width), min(rgb.height, top + height))).save(out, "JPEG", quality=90)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------------------- layouts


def as_document(page: Page) -> dict[str, Any]:
    """A page in the layout of OBELICS: at each place a text or an image."""
    parts = {
        "texts": [part if isinstance(part, str) else None for part in page.parts],
        "images": [part.name if isinstance(part, Picture) else None for part in page.parts],
    }
    files = [_reference(part) if isinstance(part, Picture) else None for part in page.parts]
    return {"page": page.name, "json": json.dumps(parts), "images": files}


def as_chat(page: Page, number: int) -> dict[str, Any] | None:
    """Questions about the pictures of a page, answered with the text that is nearest; None: there is no such text."""
    messages: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    used: set[int] = set()
    for place, part in enumerate(page.parts):
        if not isinstance(part, Picture) or len(images) == 3:
            continue
        near = [i for i in (place + 1, place - 1) if 0 <= i < len(page.parts) and i not in used]
        words = ((i, text) for i in near if isinstance(text := page.parts[i], str) and len(text) > 20)
        which, answer = next(words, (-1, ""))
        if which < 0:
            continue
        used.add(which)  # a text is about one picture
        question = _QUESTIONS[(number + len(images)) % len(_QUESTIONS)]
        content = [{"type": "image"}, {"type": "text", "text": question}]
        messages += [
            {"role": "user", "content": content},
            {"role": "assistant", "content": _beginning(answer.strip())},
        ]
        images.append(_reference(part))
    return {"page": page.name, "json": json.dumps({"messages": messages}), "images": images} if images else None


def _beginning(text: str) -> str:
    """The first characters of a text, cut after a sentence, or else a word."""
    if len(text) <= _ANSWER:
        return text
    short = text[:_ANSWER]
    return short[: short.rfind(". ") + 1] or short[: short.rfind(" ")] if " " in short else short


def _reference(picture: Picture) -> dict[str, Any]:
    return {"bytes": picture.data, "path": picture.name}


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write one Parquet file; its rows. Raises `DataError` where there are none."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    if not len(table):
        raise DataError(f"there are no pictures for {path.name} on this machine", hint="pip install 'zephon[demo-vlm]'")
    pq.write_table(table, path, row_group_size=16)  # images make large rows
    return len(table)

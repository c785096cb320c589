"""A preview as one HTML page that needs nothing else: no script, no other file, images as data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from html import escape
from pathlib import Path

from zephon.atomic import write_whole
from zephon.cli.image_header import read_header
from zephon.cli.preview import Document, Packed, Part, Preview, Shown

_TYPES = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "BMP": "image/bmp", "WebP": "image/webp"}
"""What browsers show; another kind is made a JPEG of."""
_LARGEST = 150_000
"""Bytes of an image file that is put into the page as it is."""
_SIDE = 480

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1a1a1a; --soft: #777; --line: #ddd; --tint: 94%; --deep: 32% }
@media (prefers-color-scheme: dark) { :root { --page: #17181a; --ink: #e8e8e8; --soft: #999; --line: #3a3a3a; --tint: 16%; --deep: 72% } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; background: var(--page); color: var(--ink) }
h1 { font-size: 1.4em } h2 { font-size: 1em; margin: 0 0 .6em } h2 small, .soft { font-weight: normal; color: var(--soft) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; color: var(--soft) } summary { cursor: pointer }
section { border: 1px solid var(--line); border-radius: 8px; padding: 1em; margin: 1.2em 0 }
.bar { display: flex; height: 14px; border-radius: 3px; overflow: hidden; background: var(--line); margin-bottom: 1em }
.bar i { background: hsl(var(--hue) 60% 62%) } .bar i.image { background: hsl(var(--hue) 70% 40%) }
article { background: hsl(var(--hue) 60% var(--tint)); border-left: 5px solid hsl(var(--hue) 60% 50%); padding: .5em .8em; margin: .5em 0 }
article header { font-size: .85em; font-weight: 600; color: hsl(var(--hue) 60% var(--deep)) }
.text { white-space: pre-wrap; overflow-wrap: anywhere; color: var(--soft) }
.text span { unicode-bidi: isolate }
.text .trained { color: var(--ink); box-shadow: inset 0 -2px hsl(var(--hue) 70% 50%) }
.text .special { font: .8em ui-monospace, monospace; opacity: .75; border: 1px solid var(--line); border-radius: 4px; padding: 0 .2em }
figure { margin: .5em 0; width: fit-content; max-width: 100% }
figure img { max-height: 220px; max-width: 100%; display: block; background: #fff }
figcaption { font-size: .78em; color: var(--soft) }
.missing { border: 1px dashed var(--soft); padding: 1.5em } .blank { outline: 3px solid #c33 }
table { border-collapse: collapse } td, th { padding: .15em .8em .15em 0; text-align: left }
"""


def write_html(preview: Preview, path: Path) -> None:
    """Write the page; an older one stays until it is there as a whole."""
    data = page(preview).encode("utf-8")
    if path.exists() and not path.is_file():  # /dev/stdout, say, whose place no file may take
        path.write_bytes(data)
    else:
        write_whole(path.resolve(), [data])


def page(preview: Preview) -> str:
    """The page."""
    return "".join(_page(preview))


def _page(preview: Preview) -> Iterator[str]:
    title = escape(preview.title or "preview")
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title} – zephon preview</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1>\n"
    yield f"<details><summary>{escape(preview.steps)}</summary><pre>{escape(preview.plan)}</pre></details>\n"
    yield (
        '<p class="soft">Each document has a colour. <span class="text" style="--hue: 200"><span class="trained">Underlined text'
        "</span> is trained on, grey text is not.</span> Dark parts of a bar are images.</p>\n"
    )
    for sequence in preview.sequences:
        yield from _sequence(sequence)
    if not preview.sequences:
        yield "<p>no batches</p>\n"
    yield from _losses(preview)
    yield "</body></html>\n"


def _sequence(sequence: Packed) -> Iterator[str]:
    yield f"<section><h2>{escape(sequence.title)} <small>{escape(sequence.summary)}</small></h2>\n"
    if sequence.length:
        yield '<div class="bar">'
        for document in sequence.documents:
            for part in document.parts:
                kind = ' class="image"' if part.kind == "image" else ""
                share = 100 * part.tokens / sequence.length
                yield f'<i{kind} style="--hue: {_hue(document.number)}; width: {share:.3f}%"></i>'
        yield "</div>\n"
    for document in sequence.documents:
        yield from _document(document)
    yield "</section>\n"


def _document(document: Document) -> Iterator[str]:
    told = f" · {document.tokens:,} tokens, {document.trained:,} trained" if document.tokens else ""
    yield f'<article style="--hue: {_hue(document.number)}"><header>{escape(document.source)}{told}</header><div class="text">'
    for part in document.parts:
        yield _figure(part.image) if part.image is not None else _text(part)
    yield "</div></article>\n"


def _text(part: Part) -> str:
    kinds = [name for name, here in (("special", part.kind == "special"), ("trained", part.trained)) if here]
    text = escape(part.text)
    # isolated: a right-to-left override in somebody's text must not turn round what follows it
    return f'<span class="{" ".join(kinds)}">{text}</span>' if kinds else f"<bdi>{text}</bdi>"


def _figure(image: Shown) -> str:
    caption = escape(" · ".join(filter(None, (image.caption, image.path))))
    url = data_url(image.data) if image.data is not None else None
    blank = " blank" if image.blank else ""
    if url is None:
        return f'<figure><div class="missing{blank}">not shown</div><figcaption>{caption}</figcaption></figure>'
    return f'<figure><img class="shown{blank}" src="{url}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'


def _losses(preview: Preview) -> Iterator[str]:
    if not preview.drops and not preview.lost:
        yield '<p class="soft">Nothing was dropped.</p>\n'
        return
    yield "<section><h2>Dropped</h2><table><tr><th>reason</th><th>rows</th><th>tokens</th></tr>"
    for reason, rows, tokens in preview.drops:
        yield f"<tr><td>{escape(reason)}</td><td>{rows:,}</td><td>{tokens:,}</td></tr>"
    for kind, reason, number in preview.lost:
        yield f'<tr><td>{escape(reason)}</td><td colspan="2">{number:,} {escape(kind)}</td></tr>'
    yield "</table></section>\n"


def data_url(data: bytes) -> str | None:
    """An image file as a data URL: as it is where it is small and browsers show it, else a small copy. None: there is no way."""
    header = read_header(data)
    kind = _TYPES.get(header.kind) if header is not None else None
    if kind is None or len(data) > _LARGEST:
        small = _smaller(data)
        if small is None and kind is None:
            return None
        if small is not None:
            kind, data = "image/jpeg", small
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _smaller(data: bytes) -> bytes | None:
    """A small JPEG of an image; None: Pillow isn't installed, or can't read it."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        return None
    out = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF")) as image:
            image.draft("RGB", (_SIDE, _SIDE))
            small = ImageOps.exif_transpose(image)
            if small.mode.startswith("I"):
                small = small.point(lambda value: value / 257).convert("L")  # 16 bits: convert alone would clip
            elif small.has_transparency_data:
                small = Image.alpha_composite(Image.new("RGBA", small.size, "white"), small.convert("RGBA"))
            small = small.convert("RGB")
            small.thumbnail((_SIDE, _SIDE))
            small.save(out, "JPEG", quality=80)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return out.getvalue()


def _hue(number: int) -> int:
    return (200 + number * 137) % 360  # the golden angle: neighbours are far apart

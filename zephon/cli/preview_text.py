"""A preview in the terminal, by rich."""

from __future__ import annotations

from typing import Any

from zephon.cli.preview import Document, Packed, Preview
from zephon.errors import PluginError

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_BAR = 60


def show(preview: Preview, *, characters: int, console: Any = None) -> None:
    """Print it, at most so many characters of each document.

    Raises:
        PluginError: rich isn't installed.
    """
    try:
        from rich.panel import Panel
        from rich.text import Text

        from zephon.cli.terminal import Console
    except ModuleNotFoundError as error:
        raise PluginError(
            "a preview in the terminal needs the package 'rich'", hint="pip install 'zephon[cli]', or use --html FILE"
        ) from error
    console = console or Console(highlight=False)
    console.print(Text(preview.title, style="bold"))
    console.print(Text(preview.steps, style="dim"))
    console.print(Text.assemble("each document has a colour; ", ("trained tokens", "underline"), ", ", ("not trained", "dim")))
    for sequence in preview.sequences:
        body = Text(f"{sequence.summary}\n", style="dim")
        if sequence.length:
            body.append_text(_bar(sequence))
        for document in sequence.documents:
            body.append_text(_document(document, characters))
        console.print(Panel(body, title=Text(sequence.title, style="bold"), title_align="left"))
    if not preview.sequences:
        console.print("no batches")
    for reason, rows, tokens in preview.drops:
        console.print(Text(f"dropped: {reason}: {rows:,} rows, {tokens:,} tokens", style="bold red"))
    for kind, reason, number in preview.lost:
        console.print(Text(f"dropped: {reason}: {number:,} {kind}", style="bold red"))
    if not preview.drops and not preview.lost:
        console.print(Text("nothing was dropped", style="dim"))


def colour(number: int) -> str:
    """The colour of a document."""
    return COLOURS[number % len(COLOURS)]


def _bar(sequence: Packed) -> Any:
    """How the sequence is filled: a stretch per document, images solid; the rest is padding."""
    from rich.text import Text

    bar = Text()
    place, drawn = 0.0, 0
    for document in sequence.documents:
        for part in document.parts:
            place += part.tokens * _BAR / sequence.length
            bar.append(("█" if part.kind == "image" else "▒") * (round(place) - drawn), style=colour(document.number))
            drawn = round(place)
    bar.append("·" * (_BAR - drawn) + "\n", style="dim")
    return bar


def _document(document: Document, characters: int) -> Any:
    from rich.text import Text

    shade = colour(document.number)
    told = f", {document.tokens:,} tokens, {document.trained:,} trained" if document.tokens else ""
    text = Text.assemble((f"■ {document.source}{told}\n", f"bold {shade}"))
    left = characters
    for part in document.parts:
        if part.image is not None:
            where = f" ({part.image.path})" if part.image.path else ""
            text.append(f"\n  ▣ {part.image.caption}{where}\n", style=f"reverse {shade}")
        elif left > 0:
            shown = part.text if len(part.text) <= left else part.text[:left] + " …"
            left -= len(part.text)
            style = f"{shade} underline" if part.trained else f"{shade} dim"
            text.append(_visible(shown), style="dim italic" if part.kind == "special" and not part.trained else style)
    text.append("\n")
    return text


def _visible(text: str) -> str:
    """Without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\u2423" if c == "\t" else "\ufffd" for c in text)

"""The tokenizer's own chat template: Jinja, rendered as transformers does, then taken apart into text, special tokens and images.

What users write is kept apart from what the template writes: special strings in texts are broken by a code point that is never a
character before rendering, and mended afterwards, so that only the template's own become tokens.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from zephon.errors import DataError, RecipeError
from zephon_vision.chat.base import IMAGE, TEXT, Message, Writer

_BREAK, _SELF, _SPLIT, _OPEN, _CLOSE = "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd4", "\ufdd5"
_ASKS_STRING = re.compile(r"\bis\s+(not\s+)?string\b")
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


@dataclass(frozen=True)
class OwnTemplate:
    """A chat template."""

    source: str
    specials: frozenset[str]
    """The tokenizer's special tokens."""
    variables: tuple[tuple[str, str], ...] = ()
    """bos_token, eos_token, .. as the template may name them."""
    placeholder: str = "<image>"
    """What the template writes for an image."""
    generic: str = "<image>"
    """What stands for an image in string contents, for templates that know no parts."""

    def __call__(self, messages: Sequence[Message], out: Writer) -> None:
        """Write a chat.

        Raises:
            DataError: the template refuses the chat, writes another number of images, or it can't be told which text is the answer.
        """
        view = self._view(messages)
        full = view.full
        spans = self._trained(view, full, messages)
        marks = _Escaped(full, spans)
        images = [value for message in messages for kind, value, _ in message.parts if kind == IMAGE]
        pattern = self._pattern
        cursor, number = 0, 0
        for match in pattern.finditer(full):
            marks.write(out, cursor, match.start())
            if match[0] == self.placeholder:
                out.image(images[number])
                number += 1
            else:
                out.special(match[0], marks.covers(match.start()))
            cursor = match.end()
            if any(stop == cursor for _, stop in spans):
                out.end_turn(True)
        marks.write(out, cursor, len(full))

    @property
    def _pattern(self) -> re.Pattern[str]:
        return _one_of(self.specials | {self.placeholder})

    def _view(self, messages: Sequence[Message]) -> _View:
        """The chat in the form in which the template writes all its images: parts, else strings."""
        wanted = sum(kind == IMAGE for message in messages for kind, _, _ in message.parts)
        counts: list[int] = []
        takes_parts = _takes_parts(self.source)
        for parts in (True, False) if takes_parts else (False,):
            view = _View(self, messages, parts)
            counts.append(view.full.count(self.placeholder))
            if counts[-1] == wanted:
                return view
        raise DataError(
            f"the chat template doesn't write each image once: it writes {self.placeholder!r} {counts[0]} times for {wanted} images",
            hint="choose the template of the model's family with template=",
        )

    def _trained(self, view: _View, full: str, messages: Sequence[Message]) -> list[Span]:
        """The parts of the rendered chat that are trained: answers with the token that ends them."""
        wanted = [n for n, message in enumerate(messages) if message.train]
        if not wanted:
            return []
        answers = [n for n, message in enumerate(messages) if message.role == "assistant"]
        if _GENERATION.search(self.source):
            found = view.generated()
            if len(found) == len(answers) and set(wanted) <= set(answers):
                return [found[answers.index(n)] for n in wanted]
        if (
            len(wanted) > 2
        ):  # the others by what the first one shows: a render per answer would take time with the square of their number
            found = self._like_the_first(view, full, wanted)
            if found:
                return found
        return [self._by_prefix(view, full, n) or self._by_marks(view, full, n) for n in wanted]

    def _like_the_first(self, view: _View, full: str, wanted: Sequence[int]) -> list[Span]:
        """The answers as they stand in the chat, each with what ends the first one; empty where they aren't all written alike."""
        first = self._by_prefix(view, full, wanted[0])
        marked = view.render(len(view.messages), mark=frozenset(wanted), edges=True)
        if first is None or marked.replace(_OPEN, "").replace(_CLOSE, "") != full:
            return []
        starts = [found.start() - 2 * n for n, found in enumerate(re.finditer(_OPEN, marked))]
        stops = [found.start() - 2 * n - 1 for n, found in enumerate(re.finditer(_CLOSE, marked))]
        if len(starts) != len(wanted) or len(stops) != len(wanted) or starts[0] != first[0]:
            return []
        end = full[stops[0] : first[1]]
        alike = all(full.startswith(end, stop) for stop in stops)
        return [(start, stop + len(end)) for start, stop in zip(starts, stops, strict=True)] if alike else []

    def _by_prefix(self, view: _View, full: str, number: int) -> Span | None:
        """What is new when a message is rendered after the prompt for it; None where the template rewrites what was before."""
        if view.messages[number].role != "assistant":
            return None
        try:
            before, upto = view.render(number, prompt=True), view.render(number + 1)
        except DataError:
            return None
        if not (upto.startswith(before) and full.startswith(upto)):
            return None
        return self._ends(full, len(before), len(upto))

    def _by_marks(self, view: _View, full: str, number: int) -> Span:
        """The message's text as it stands in the rendered chat, found by code points around it that are never characters."""
        marked = view.render(len(view.messages), mark=frozenset([number]))
        start, stop = marked.find(_OPEN), marked.rfind(_CLOSE)
        if start < 0 or stop < start or marked.replace(_OPEN, "").replace(_CLOSE, "") != full:
            raise DataError(
                "the chat template changes the answers, so that it can't be told which text to train on",
                hint="choose the template of the model's family with template=, or put {% generation %} into the tokenizer's",
            )
        stop -= marked.count(_OPEN, 0, stop) + marked.count(_CLOSE, 0, stop)
        following = re.compile(r"\s*(?:" + _one_of(self.specials).pattern + ")").match(full, stop)
        return start, following.end() if following and following[0].strip() != self.placeholder else stop

    def _ends(self, full: str, start: int, stop: int) -> Span:
        """Without the whitespace after the token that ends the turn."""
        bare = len(full[start:stop].rstrip()) + start
        last = max((m.end() for m in _one_of(self.specials).finditer(full, start, bare)), default=-1)
        return start, bare if last == bare else stop


class _View:
    """A chat as the template's `messages`."""

    def __init__(self, template: OwnTemplate, messages: Sequence[Message], parts: bool) -> None:
        self.messages = messages
        self._template = template
        self._compiled = _compiled(template.source)
        self._parts = parts
        self._strings = bool(_ASKS_STRING.search(template.source))
        self._escape = _one_of(template.specials | {template.placeholder})
        self._plain = [self._message(message, _unmarked) for message in messages]
        self.full = self.render(len(messages))
        """The whole chat."""

    def render(self, count: int, *, prompt: bool = False, mark: frozenset[int] = frozenset(), edges: bool = False) -> str:
        """The first `count` messages; `prompt`: with the beginning of an answer; `mark`: with marks around the texts of these messages,
        inside the whitespace at their `edges` or outside."""
        chat = self._plain[:count]
        for number in mark:
            chat[number] = self._message(self.messages[number], _marked_whole if edges else _marked)
        return self._guarded(lambda: self._compiled.render(**self._names(chat, prompt)))

    def generated(self) -> list[Span]:
        """Where the template's `{% generation %}` blocks are."""
        blocks: list[str] = []
        spans: list[Span] = []
        names = self._names(self._plain, False)

        def run() -> str:
            with self._compiled.environment.track_generation(blocks, spans):
                for block in self._compiled.generate(**names):
                    blocks.append(block)  # noqa: PERF402 - the blocks so far must be there while the next one is made
            return "".join(blocks)

        # `generate` yields piece by piece, so what was yielded when a block begins is what is before it
        self._guarded(run)
        return spans

    def _names(self, chat: list[Any], prompt: bool) -> dict[str, Any]:
        return {
            **dict(self._template.variables),
            "messages": chat,
            "tools": None,
            "documents": None,
            "add_generation_prompt": prompt,
        }

    def _guarded(self, render: Any) -> str:
        import jinja2  # noqa: PLC0415 - only own templates need it

        try:
            made: str = render()
        except jinja2.exceptions.TemplateError as error:
            raise DataError(f"the chat template refuses the chat: {error}") from error
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise DataError(f"the chat template failed: {type(error).__name__}: {error}") from error
        return made

    def _message(self, message: Message, mark: Callable[[str], str]) -> dict[str, Any]:
        texts: list[Any] = []
        for kind, value, _ in _merged(message):
            if kind == IMAGE:
                texts.append({"type": "image"})
            else:
                texts.append({"type": "text", "text": mark(self._safe(value))})
        if self._parts and (message.has_images() or not self._strings):
            return {"role": message.role, "content": texts}
        generic = self._template.placeholder
        return {"role": message.role, "content": "".join(t.get("text", generic) for t in texts)}

    def _safe(self, text: str) -> str:
        if _BREAK in text or _OPEN in text or _CLOSE in text:
            text = text.replace(_BREAK, _BREAK + _SELF).replace(_OPEN, _BREAK + "4").replace(_CLOSE, _BREAK + "5")
        return self._escape.sub(lambda found: found[0][0] + _BREAK + _SPLIT + found[0][1:], text)


class _Escaped:
    """A rendered chat with its trained spans; writes it piece by piece, mended."""

    def __init__(self, full: str, spans: Sequence[Span]) -> None:
        self._full = full
        self._spans = sorted(spans)
        self._borders = sorted({border for span in spans for border in span})

    def covers(self, place: int) -> bool:
        """Whether the character there is trained."""
        return any(start <= place < stop for start, stop in self._spans)

    def write(self, out: Writer, start: int, stop: int) -> None:
        """The text [start, stop)."""
        while start < stop:
            cut = bisect_left(self._borders, start + 1)
            end = min(stop, self._borders[cut]) if cut < len(self._borders) else stop
            out.text(_mended(self._full[start:end]), self.covers(start))
            start = end


_MEND = {_SELF: _BREAK, _SPLIT: "", "4": _OPEN, "5": _CLOSE}


def _mended(text: str) -> str:
    return re.sub(f"{_BREAK}([{_SELF}{_SPLIT}45])", lambda found: _MEND[found[1]], text) if _BREAK in text else text


def _unmarked(text: str) -> str:
    return text


def _marked_whole(text: str) -> str:
    return _OPEN + text + _CLOSE


def _marked(text: str) -> str:
    """Marks inside the text's own whitespace, so that a template may trim it."""
    core = text.strip()
    if not core:
        return text
    lead = text[: len(text) - len(text.lstrip())]
    return lead + _OPEN + core + _CLOSE + text[len(lead) + len(core) :]


def _merged(message: Message) -> Iterator[tuple[int, Any, bool]]:
    """The message's parts, neighbouring texts as one."""
    run: list[str] = []
    for kind, value, train in message.parts:
        if kind == TEXT:
            run.append(value)
            continue
        if run:
            yield TEXT, "".join(run), False
            run = []
        yield kind, value, train
    if run or not message.parts:
        yield TEXT, "".join(run), False


@lru_cache(maxsize=64)
def _one_of(strings: frozenset[str]) -> re.Pattern[str]:
    """The longest of these strings at the leftmost place, as tokenizers find their special tokens."""
    return re.compile("|".join(re.escape(s) for s in sorted(strings, key=lambda s: (-len(s), s)) if s) or r"(?!)")


@lru_cache(maxsize=16)
def _takes_parts(source: str) -> bool:
    """Whether the template goes through a message's content part by part."""
    from jinja2 import nodes  # noqa: PLC0415 - only own templates need it

    tree = _environment().parse(source)
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _names_content(assign.node, names):
            names.add(assign.target.name)
    return any(_names_content(loop.iter, names) for loop in tree.find_all(nodes.For)) or "['type']" in source


def _names_content(node: Any, names: set[str]) -> bool:
    from jinja2 import nodes  # noqa: PLC0415 - only own templates need it

    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name in names


@lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    import jinja2  # noqa: PLC0415 - only own templates need it

    try:
        return _environment().from_string(source)
    except jinja2.exceptions.TemplateError as error:
        raise RecipeError(f"the chat template can't be read: {error}") from error


def check_template(source: str) -> None:
    """Raise `RecipeError` where Jinja isn't installed or can't read the template."""
    _compiled(source)


def _environment() -> Any:
    """As transformers makes it, but without the date: a template that asks for it uses its fixed one, so that runs are equal."""
    try:
        import jinja2  # noqa: PLC0415 - only own templates need it
        import jinja2.ext  # noqa: PLC0415 - only own templates need it
        import jinja2.sandbox  # noqa: PLC0415 - only own templates need it
    except ImportError as error:
        raise RecipeError(
            "the tokenizer's own chat template needs 'jinja2', which isn't installed", hint="pip install 'zephon[vision]'"
        ) from error

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def __init__(self, environment: Any) -> None:
            super().__init__(environment)
            environment.extend(track_generation=self._track)
            self._now = threading.local()  # templates are shared between threads

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

        def _support(self, caller: Any) -> str:
            text: str = caller()
            blocks: list[str] | None = getattr(self._now, "blocks", None)
            if blocks is not None:
                start = sum(map(len, blocks))
                self._now.spans.append((start, start + len(text)))
            return text

        @contextmanager
        def _track(self, blocks: list[str], spans: list[Span]) -> Iterator[None]:
            self._now.blocks, self._now.spans = blocks, spans
            try:
                yield
            finally:
                self._now.blocks = None

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    return made


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    import jinja2  # noqa: PLC0415 - only own templates need it

    raise jinja2.exceptions.TemplateError(message)

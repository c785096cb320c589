"""Rows of segments to scripts: what is said in which order, with which images, before anything is tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from zephon import groups
from zephon.arrays import struct_parts
from zephon.errors import DataError
from zephon_vision import columns
from zephon_vision._bad_images import reason
from zephon_vision._tokens_images import BLANK, GroupImages, Planned, Planner, list_values
from zephon_vision.chat.base import IMAGE, SPECIAL, TEXT, Message, Part, Renderer, Script, Writer
from zephon_vision.policies.base import Plan

OnBadImage = Literal["auto", "drop_sample", "drop_image", "blank", "error"]
TrainOn = Literal["assistant", "all", "none"]

Around = Callable[[int], tuple[str, str]]
"""The text around an image of the sample, by its number."""

MANY_IMAGES, NO_IMAGE = "too many images", "no image left"


@dataclass(frozen=True)
class RowRules:
    """How rows become scripts."""

    render: Renderer
    specials: dict[str, int]
    before: tuple[int, ...]
    """The special tokens that begin a document."""
    after: tuple[int, ...]
    """Those that end one without roles."""
    bos: int | None
    family_bos: int | None
    """The BOS token for templates that begin with it."""
    around: Callable[[Plan], tuple[str, str]]
    """The text that the image policy puts around an image."""
    train_on: TrainOn
    on_bad_image: OnBadImage
    max_images: int | None
    min_image_tokens: int | None
    require_image: bool

    def bad_image(self, *, chat: bool) -> str:
        """What becomes of bad images of a chat, or of a document."""
        return self.on_bad_image if self.on_bad_image != "auto" else "drop_sample" if chat else "drop_image"


@dataclass
class Sample:
    """A row made ready for tokenising."""

    row: int
    script: Script
    places: list[int] = field(default_factory=list)
    """Where in the group's images each image of the sample is; -1: a grey one takes its place."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    chat: bool = False
    blank: bool = False
    """Whether an image was replaced, so that nothing is trained."""
    lost: list[str] = field(default_factory=list)
    """Why images were left out or replaced."""


@dataclass(frozen=True)
class LeftOut:
    """Why a row gives no sample, and why images of it were left out before."""

    reason: str
    lost: Sequence[str] = ()


class Segments:
    """The segments of a group as plain lists."""

    def __init__(self, group: pa.RecordBatch) -> None:
        self.offsets, flat = list_values(groups.column(group, columns.SEGMENTS), columns.SEGMENTS)
        parts = struct_parts(flat)
        self.kind: list[int] = parts["kind"].to_pylist()
        self.text: list[str | None] = parts["text"].to_pylist()
        self.role: list[str | None] = parts["role"].to_pylist()
        self.turn: list[int | None] = parts["turn"].to_pylist()
        self.train: list[bool | None] = parts["train"].to_pylist()
        self.image: list[int | None] = parts["image"].to_pylist()


def read_row(row: int, segments: Segments, images: GroupImages, planner: Planner, rules: RowRules) -> Sample | LeftOut:
    """The row's sample, or why there is none.

    Raises:
        DataError: the row makes no sense, or has an image that can't be used where that is an error.
    """
    here = range(int(segments.offsets[row]), int(segments.offsets[row + 1]))
    asked = [n for n in here if segments.kind[n] == columns.IMAGE]
    if rules.max_images is not None and len(asked) > rules.max_images:
        return LeftOut(MANY_IMAGES)
    sample = Sample(row, Script())
    sample.chat = any(segments.role[n] is not None for n in here)
    left_out = _plan(sample, [_number(segments.image[n]) for n in asked], images, planner, rules)
    if isinstance(left_out, LeftOut):
        return left_out
    if rules.require_image and not sample.places:
        return LeftOut(NO_IMAGE, sample.lost)
    numbers = {n: place for place, n in enumerate([n for i, n in enumerate(asked) if i not in left_out])}
    kept = [n for n in here if segments.kind[n] == columns.TEXT or n in numbers]
    roles = {segments.role[n] for n in here}
    if None in roles and len(roles) > 1:
        raise DataError("some segments of the row have a role and some have none")
    sample.chat = bool(roles) and None not in roles

    def around(number: int) -> tuple[str, str]:
        return rules.around(sample.planned[number].plan)

    if sample.chat:
        sample.script = _chat(kept, numbers, segments, rules, around)
    else:
        sample.script = _document(kept, numbers, segments, rules, around)
    if rules.train_on == "all":
        _train_all(sample.script, len(rules.before) if not sample.chat else 0, rules)
    return sample


def _number(image: int | None) -> int:
    if image is None:
        raise DataError("an image segment has no image number")
    return image


def _plan(sample: Sample, asked: Sequence[int], images: GroupImages, planner: Planner, rules: RowRules) -> set[int] | LeftOut:
    """Fill in sizes and plans; which of the images are left out (by their order), or that the row is."""
    sizes = [images.size(sample.row, image) for image in asked]
    bad = {n: size for n, size in enumerate(sizes) if isinstance(size, str)}
    policy = rules.bad_image(chat=sample.chat)
    while True:
        gone = set(bad) if policy == "drop_image" else set()
        if bad and policy == "error":
            number, error = next(iter(bad.items()))
            raise DataError(f"an image can't be used: image {number} of the row is {error}")
        if bad and policy == "drop_sample":
            return LeftOut(reason(next(iter(bad.values()))))
        kept = [n for n in range(len(asked)) if n not in gone]
        usable = {n: size for n, size in enumerate(sizes) if n not in bad and not isinstance(size, str)}
        used = [usable.get(n, BLANK) for n in kept]
        refused = _refused(kept, used, planner, rules.min_image_tokens)
        if refused is None:
            break
        bad[refused[0]] = refused[1]
    sample.places = [-1 if n in bad else int(images.offsets[sample.row]) + asked[n] for n in kept]
    sample.sizes = used
    sample.planned = [planner.plan(*size, len(used)) for size in used]
    sample.blank = bool(bad) and policy == "blank"
    sample.lost = [reason(bad[n], blank=sample.blank) for n in sorted(bad)]
    return gone


def _refused(
    kept: Sequence[int], used: Sequence[tuple[int, int]], planner: Planner, least: int | None
) -> tuple[int, str] | None:
    """The first image whose size the policy refuses, or that stands for fewer than `least` tokens, and why."""
    for number, size in zip(kept, used, strict=True):
        try:
            tokens = planner.plan(*size, len(used)).plan.tokens
            if least is not None and tokens < least and size != BLANK:
                return number, f"too small: {tokens} tokens, and min_image_tokens is {least}"
        except DataError as error:
            if size == BLANK:
                raise
            return number, f"refused by its policy: {error.message}"
    return None


def _document(kept: Sequence[int], numbers: dict[int, int], segments: Segments, rules: RowRules, around: Around) -> Script:
    """Texts and images between BOS and EOS."""
    out = Writer(rules.specials, around=around)
    for token in rules.before:
        out.token(token)
    out.script.lead = len(rules.before)
    for n in kept:
        if n in numbers:
            out.image(numbers[n])
        else:
            out.text(segments.text[n] or "", bool(segments.train[n]) and rules.train_on == "assistant")
    for token in rules.after:
        out.token(token, rules.train_on == "assistant")
    return out.script


def _chat(kept: Sequence[int], numbers: dict[int, int], segments: Segments, rules: RowRules, around: Around) -> Script:
    """The messages by the template, with one BOS."""
    messages: list[Message] = []
    parts: list[Part] = []
    before: tuple[Any, Any] | None = None
    for n in kept:
        turn = (segments.turn[n], segments.role[n])
        if turn != before:
            parts = []
            messages.append(Message(str(segments.role[n]), parts, False))
            before = turn
        if n in numbers:
            parts.append((IMAGE, numbers[n], False))
            continue
        train = bool(segments.train[n]) and rules.train_on == "assistant"
        if segments.text[n]:
            parts.append((TEXT, segments.text[n], train))
        if train and not messages[-1].train:
            messages[-1] = Message(messages[-1].role, parts, True)
    out = Writer(rules.specials, bos=rules.family_bos, around=around)
    rules.render(messages, out)
    _one_bos(out.script, rules)
    return out.script


def _one_bos(script: Script, rules: RowRules) -> None:
    """The tokenizer's own beginning before a chat whose template doesn't write it."""
    before = list(rules.before)
    start = [script.values[n] for n in range(min(len(before), len(script.kinds))) if script.kinds[n] == SPECIAL]
    if not before or start == before:
        return
    if rules.bos is not None and script.kinds and script.kinds[0] == SPECIAL and script.values[0] == rules.bos:
        return
    script.kinds[:0] = [SPECIAL] * len(before)
    script.values[:0] = before
    script.spans[:0] = [[] for _ in before]
    script.turns = [turn + len(before) for turn in script.turns]
    script.lead = len(before)


def _train_all(script: Script, before: int, rules: RowRules) -> None:
    """Mark everything but images and the tokens that begin the document."""
    for n, kind in enumerate(script.kinds):
        begins = n < before or (n == 0 and kind == SPECIAL and script.values[n] == rules.bos)
        if kind == TEXT:
            script.spans[n] = [(0, len(script.values[n]))]
        elif kind == SPECIAL and not begins:
            script.spans[n] = [(0, 1)]

"""Scripts to token columns: all texts of a group in one encoder call, then arrays; no token is handled by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.arrays import from_values, to_arrow
from zephon.errors import DataError, InternalError
from zephon.keys import I64
from zephon_vision import columns
from zephon_vision._tokens_images import GroupImages, Planned, Planner
from zephon_vision._tokens_rows import Sample
from zephon_vision._tokens_vocabulary import I32, U8, Vocabulary
from zephon_vision.chat.base import IMAGE, SPECIAL, TEXT, Script
from zephon_vision.truncate import Cut


@dataclass
class Pieces:
    """The pieces of all samples, one after the other, and their tokens in `content`."""

    first: I64
    """int64[S+1]: sample s has the pieces [first[s], first[s+1])."""
    kinds: I64
    starts: I64
    """Where in `content` each piece's tokens begin."""
    lengths: I64
    trained: I64
    """How many of a text's tokens are trained; 0 for other pieces."""
    images: I64
    """Of an image: its number in the sample; else -1."""
    content: I32
    mask: U8
    types: U8

    def of(self, sample: int) -> slice:
        """The sample's pieces."""
        return slice(int(self.first[sample]), int(self.first[sample + 1]))

    def totals(self) -> I64:
        """The tokens of each sample."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        return np.diff(ends[self.first])


def make_pieces(samples: Sequence[Sample], vocabulary: Vocabulary, planner: Planner) -> Pieces:
    """Tokenise the samples' texts, and put all tokens into one array.

    Raises:
        DataError: a text turns into the token that images stand on.
    """
    counts = np.array([len(s.script.kinds) for s in samples], dtype=np.int64)
    if vocabulary.strips_left or vocabulary.strips_right:
        for sample in samples:
            _strip(sample.script, vocabulary)
    kinds = np.array([k for s in samples for k in s.script.kinds], dtype=np.int64)
    values = [v for s in samples for v in s.script.values]
    spans = [v for s in samples for v in s.script.spans]
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    begins = np.zeros(len(kinds), dtype=bool)
    leads = np.array([s.script.lead for s in samples], dtype=np.int64)
    begins[(first[:-1] + leads)[counts > leads]] = True

    text = np.flatnonzero(kinds == TEXT)
    encoded = vocabulary.encode([values[n] for n in text.tolist()], [spans[n] for n in text.tolist()], begins[text])
    if len(planner.own) and np.isin(encoded.ids, planner.own).any():
        raise DataError("a text turns into the token that stands for images with this tokenizer")
    special = np.flatnonzero(kinds == SPECIAL)
    runs = [planned for sample in samples for planned in _in_order(sample)]
    image = np.flatnonzero(kinds == IMAGE)
    images = np.full(len(kinds), -1, dtype=np.int64)
    images[image] = [values[n] for n in image.tolist()]

    lengths = np.ones(len(kinds), dtype=np.int64)
    lengths[text] = encoded.lengths
    lengths[image] = [len(r.ids) for r in runs]
    starts = np.zeros(len(kinds), dtype=np.int64)
    starts[text] = np.cumsum(encoded.lengths) - encoded.lengths
    starts[special] = len(encoded.ids) + np.arange(len(special))
    base = len(encoded.ids) + len(special)
    starts[image] = base + np.cumsum(lengths[image]) - lengths[image]

    trained_special = np.array([bool(spans[n]) for n in special.tolist()], dtype=np.uint8)
    nothing = np.zeros(int(lengths[image].sum()), dtype=np.uint8)
    mask = np.concatenate([encoded.trained, trained_special, nothing])
    blank = np.repeat([s.blank for s in samples], counts).astype(bool)
    trained = np.zeros(len(kinds), dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum(encoded.trained, dtype=np.int64)])
    trained[text] = sums[starts[text] + lengths[text]] - sums[starts[text]]
    if blank.any():
        mask = mask * np.repeat(~blank[np.concatenate([text, special, image])], lengths[np.concatenate([text, special, image])])
    return Pieces(
        first,
        kinds,
        starts,
        lengths,
        trained,
        images,
        np.concatenate([encoded.ids, _ints([values[n] for n in special.tolist()]), *(r.ids for r in runs)]),
        mask.astype(np.uint8),
        np.concatenate([np.zeros(base, dtype=np.uint8), *(r.types for r in runs)]),
    )


def _in_order(sample: Sample) -> list[Planned]:
    return [sample.planned[v] for k, v in zip(sample.script.kinds, sample.script.values, strict=True) if k == IMAGE]


def _ints(values: Sequence[int]) -> I32:
    return np.array(values, dtype=np.int32)


def replan(pieces: Pieces, samples: Sequence[Sample]) -> Pieces:
    """The same pieces after some samples were planned anew."""
    runs = [planned for sample in samples for planned in _in_order(sample)]
    image = np.flatnonzero(pieces.kinds == IMAGE)
    base = len(pieces.content) - int(pieces.lengths[image].sum())
    lengths, starts = pieces.lengths.copy(), pieces.starts.copy()
    lengths[image] = [len(r.ids) for r in runs]
    starts[image] = base + np.cumsum(lengths[image]) - lengths[image]
    zeros = np.zeros(int(lengths[image].sum()), dtype=np.uint8)
    return Pieces(
        pieces.first, pieces.kinds, starts, lengths, pieces.trained, pieces.images,
        np.concatenate([pieces.content[:base], *(r.ids for r in runs)]),
        np.concatenate([pieces.mask[:base], zeros]),
        np.concatenate([pieces.types[:base], *(r.types for r in runs)]),
    )  # fmt: skip


def _strip(script: Script, vocabulary: Vocabulary) -> None:
    """Special tokens that swallow the whitespace beside them, as the tokenizer does it."""
    for n, kind in enumerate(script.kinds):
        if kind != TEXT:
            continue
        value, spans = script.values[n], script.spans[n]
        lead = len(value) - len(value.lstrip()) if _is(script, n - 1, vocabulary.strips_right) else 0
        tail = len(value.rstrip()) if _is(script, n + 1, vocabulary.strips_left) else len(value)
        tail = max(lead, tail)
        script.values[n] = value[lead:tail]
        cut = [(max(a, lead) - lead, min(b, tail) - lead) for a, b in spans]
        script.spans[n] = [(a, b) for a, b in cut if a < b]


def _is(script: Script, n: int, tokens: frozenset[int]) -> bool:
    return 0 <= n < len(script.kinds) and script.kinds[n] == SPECIAL and script.values[n] in tokens


@dataclass(frozen=True)
class Output:
    """A document to write: from which sample, and which parts of its pieces."""

    sample: int
    cuts: Sequence[Cut] | None
    """Pieces by their number in the sample; None: all, whole."""


def build(
    group: pa.RecordBatch, samples: Sequence[Sample], pieces: Pieces, outputs: Sequence[Output], images: GroupImages
) -> pa.RecordBatch:
    """The token columns of these documents, with the group's provenance."""
    owner, piece, start, stop = _slices(pieces, outputs)
    lengths = stop - start
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    source = np.repeat(pieces.starts[piece] + start - ends[:-1], lengths) + np.arange(int(ends[-1]))
    per_row = np.searchsorted(owner, np.arange(len(outputs) + 1))
    offsets = ends[per_row]

    spans = np.flatnonzero(pieces.kinds[piece] == IMAGE)
    of_row = owner[spans]
    span_ends = np.searchsorted(of_row, np.arange(len(outputs) + 1))
    position = np.arange(len(spans)) - span_ends[:-1][of_row]
    begin = ends[:-1][spans] - offsets[:-1][of_row]
    whose = [samples[outputs[row].sample] for row in of_row.tolist()]
    numbers = pieces.images[piece[spans]].tolist()
    planned = [sample.planned[number] for sample, number in zip(whose, numbers, strict=True)]
    if int(lengths[spans].sum()) != sum(p.plan.tokens for p in planned):
        raise InternalError("the tokens of images are not those that were planned")

    totals = np.concatenate([[0], np.cumsum(lengths[spans])])
    blocks = np.concatenate([[0], np.cumsum([p.plan.blocks for p in planned])]).astype(np.int64)
    ref = images.gathered([sample.places[number] for sample, number in zip(whose, numbers, strict=True)])
    made = pa.RecordBatch.from_arrays(
        [
            groups.make_list(offsets, pieces.content[source]),
            groups.make_list(offsets, pieces.mask[source]),
            groups.make_list(offsets, pieces.types[source]),
            groups.make_list(span_ends, _structs(columns.SPAN, begin, begin + lengths[spans], position)),
            groups.make_list(span_ends, _plans(planned)),
            groups.make_list(span_ends, ref),
            to_arrow(np.diff(totals[span_ends]).astype(np.int32)),
            to_arrow(np.diff(blocks[span_ends]).astype(np.int32)),
        ],
        schema=SCHEMA if ref.type == columns.IMAGE_REF else _SHOWN_SCHEMA,
    )
    return groups.carry_provenance(group, made, [samples[o.sample].row for o in outputs])


def _slices(pieces: Pieces, outputs: Sequence[Output]) -> tuple[I64, I64, I64, I64]:
    """`(output, piece, start, stop)` of each stretch of tokens that is written, in order."""
    made: list[I64] = []
    for number, output in enumerate(outputs):
        here = pieces.of(output.sample)
        if output.cuts is None:
            rows = np.empty((here.stop - here.start, 4), dtype=np.int64)
            rows[:, 1] = np.arange(here.start, here.stop)
            rows[:, 2] = 0
            rows[:, 3] = pieces.lengths[here]
        else:
            rows = np.array([(0, here.start + p, a, b) for p, a, b in output.cuts], dtype=np.int64).reshape(-1, 4)
        rows[:, 0] = number
        made.append(rows)
    table = np.concatenate(made) if made else np.zeros((0, 4), dtype=np.int64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _structs(kind: Any, *parts: I64) -> Any:
    return pa.StructArray.from_arrays([to_arrow(part.astype(np.int32)) for part in parts], fields=list(kind))


def _plans(planned: Sequence[Planned]) -> Any:
    ends = np.concatenate([[0], np.cumsum([len(p.numbers) for p in planned])])
    numbers = groups.make_list(ends, np.array([n for p in planned for n in p.numbers], dtype=np.int32))
    specs = from_values([p.spec for p in planned], pa.string())
    return pa.StructArray.from_arrays([specs, numbers], fields=list(columns.PLAN))


_FIELDS: list[Any] = [
    pa.field(groups.TOKENS, pa.list_(pa.int32())),
    pa.field(groups.LOSS_MASK, pa.list_(pa.uint8())),
    pa.field(columns.MM_TYPES, pa.list_(pa.uint8())),
    pa.field(columns.IMAGE_SPANS, columns.IMAGE_SPANS_TYPE),
    pa.field(columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE),
    pa.field(columns.IMAGES, columns.IMAGES_TYPE),
    pa.field(columns.IMAGE_TOKENS, pa.int32()),
    pa.field(columns.IMAGE_BLOCKS, pa.int32()),
]
SCHEMA = pa.schema(_FIELDS)
_SHOWN_SCHEMA = SCHEMA.set(SCHEMA.get_field_index(columns.IMAGES), pa.field(columns.IMAGES, columns.SHOWN_IMAGES_TYPE))

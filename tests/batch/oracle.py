"""Packed rows to draw from, and what a trainer should get from them, token by token."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from zephon import groups
from zephon.batch import Batch

PAD = 0
NAMES = ("wiki", "news", "code")


@dataclass
class Piece:
    length: int
    component: int
    shard: int
    row: int
    start: int


@dataclass
class Row:
    tokens: list[int]
    pieces: list[Piece]
    padding: int
    loss_mask: list[int] | None = None
    empty: bool = False

    @property
    def segments(self) -> list[int]:
        """The segment number of each token."""
        lengths = [p.length for p in self.pieces] + ([self.padding] if self.padding else [])
        return [number for number, length in enumerate(lengths) for _ in range(length)]


@dataclass
class Drawn:
    rows: list[Row]
    batch: Batch
    defaults: dict[str, Any] = field(default_factory=dict)


@st.composite
def rows_of(draw: st.DrawFn, width: int, *, masked: bool, empty: bool) -> Row:
    padding = width if empty else draw(st.integers(0, width))
    pieces, left = [], width - padding
    while left:
        length = draw(st.integers(1, left))
        start = draw(st.sampled_from([0, 0, 7]))
        pieces.append(Piece(length, draw(st.integers(0, 2)), draw(st.integers(0, 3)), draw(st.integers(0, 10**12)), start))
        left -= length
    tokens = [draw(st.integers(1, 6)) for _ in range(width - padding)] + [PAD] * padding
    mask = [draw(st.integers(0, 1)) for _ in range(width)] if masked else None
    return Row(tokens, pieces, padding, mask, empty)


def list_array(lists: list[list[int] | None], item: pa.DataType, *, large: bool) -> pa.Array:
    return pa.array(lists, pa.large_list(item) if large else pa.list_(item))


def group_of(rows: list[Row], *, large: bool = False) -> pa.RecordBatch:
    columns = {
        groups.TOKENS: list_array([r.tokens for r in rows], pa.int32(), large=large),
        groups.LENGTHS: list_array([[p.length for p in r.pieces] for r in rows], pa.int32(), large=large),
        groups.PADDING: pa.array([r.padding for r in rows], pa.int32()),
        groups.DOC_COMPONENT: list_array([[p.component for p in r.pieces] for r in rows], pa.int32(), large=large),
        groups.DOC_SHARD: list_array([[p.shard for p in r.pieces] for r in rows], pa.int32(), large=large),
        groups.DOC_ROW: list_array([[p.row for p in r.pieces] for r in rows], pa.int64(), large=large),
        groups.DOC_START: list_array([[p.start for p in r.pieces] for r in rows], pa.int64(), large=large),
    }
    if any(r.loss_mask is not None for r in rows):
        columns[groups.LOSS_MASK] = list_array([r.loss_mask for r in rows], pa.uint8(), large=large)
    return pa.RecordBatch.from_pydict(columns)


@st.composite
def packed(draw: st.DrawFn) -> Drawn:
    """A batch of packed rows, as a slice of a longer group half of the time."""
    width = draw(st.integers(1, 9))
    masked = draw(st.booleans())
    full, empty = draw(st.integers(0, 4)), draw(st.sampled_from([0, 0, 1, 2]))
    rows = [draw(rows_of(width, masked=masked and draw(st.integers(0, 3)) > 0, empty=i >= full)) for i in range(full + empty)]
    around = [draw(rows_of(width, masked=masked, empty=False)) for _ in range(draw(st.sampled_from([0, 2])))]
    group = group_of(around + rows + around, large=draw(st.booleans())).slice(len(around), len(rows))
    return Drawn(rows, Batch(group, lane=3, step=5, index=1, empty=empty, dataset_names=NAMES))


def expected(rows: list[Row], options: dict[str, Any]) -> dict[str, Any]:
    """`to_training` of packed rows, one token after the other, as lists."""
    ignore, eos = options.get("ignore_index", -100), options.get("eos_token_id")
    width = len(rows[0].tokens) if rows else 0
    size = max(width - 1, 0)
    out: dict[str, list[Any]] = {
        n: []
        for n in (
            "input_ids",
            "labels",
            "loss_mask",
            "position_ids",
            "document_ids",
            "padding_mask",
            "cu_seqlens",
            "max_seqlen",
        )
    }
    for row in rows:
        segments = row.segments
        fields: dict[str, list[Any]] = {name: [] for name in out}
        borders = []
        for i in range(size):
            label, real = row.tokens[i + 1], i + 1 < width - row.padding
            keep = (
                real
                and not row.empty
                and (segments[i] == segments[i + 1] or options.get("cross_documents", False))
                and (row.loss_mask is None or row.loss_mask[i + 1] == 1)
                and not (options.get("eos_mask_loss") and row.tokens[i] == eos)
                and label != ignore
            )
            first = segments.index(segments[i])
            fields["input_ids"].append(row.tokens[i])
            fields["labels"].append(label if keep else ignore)
            fields["loss_mask"].append(1.0 if keep else 0.0)
            fields["position_ids"].append(i if options.get("position_mode") == "sequence" else i - first)
            fields["document_ids"].append(segments[i])
            fields["padding_mask"].append(i >= width - row.padding)
            if first == i:
                borders.append(i)
        borders.append(size)
        fields["cu_seqlens"] = borders
        for name, values in fields.items():
            out[name].append(values)
        out["max_seqlen"][-1] = max([b - a for a, b in itertools.pairwise(borders)], default=0)
    labels = sum(sum(mask) for mask in out["loss_mask"])
    if options.get("flatten"):
        _flatten(out, size)
    else:
        longest = max((len(c) for c in out["cu_seqlens"]), default=0)
        out["cu_seqlens"] = [c + [size] * (longest - len(c)) for c in out["cu_seqlens"]]
    return {**out, "positions": out["position_ids"], "num_label_tokens": labels, "num_valid_tokens": labels}


def _flatten(out: dict[str, Any], size: int) -> None:
    running, ends, before = [], [0], 0
    for number, (borders, ids) in enumerate(zip(out["cu_seqlens"], out["document_ids"], strict=True)):
        ends += [b + number * size for b in borders[1:]]
        running += [i + before for i in ids]
        before += len(borders) - 1
    for name in ("input_ids", "labels", "loss_mask", "position_ids", "padding_mask"):
        out[name] = [value for row in out[name] for value in row]
    out["cu_seqlens"], out["document_ids"] = ends, running
    out["max_seqlen"] = max(out["max_seqlen"], default=0)

"""`pack_flat`: documents into sequences of exactly `max_length` tokens, decided from their lengths alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import is_number, to_arrow, to_numpy
from zephon.errors import DataError, InternalError, RecipeError, unknown
from zephon.groups import LOSS_MASK
from zephon.keys import I64
from zephon.operators.pack_gather import PIECE_FIELDS, GatherSequences
from zephon.operators.packing import Algorithm, Packed, Packer, make_packer
from zephon.plugin import Decision, Drops, LaneWindow, StatefulOperator, place_of

OverLong = Literal["split", "truncate", "drop"]
Homogeneity = Literal["none", "group", "full"]

_FIELDS: list[Any] = [
    pa.field(groups.PIECES, pa.binary()),
    pa.field(groups.PADDING, pa.int32()),
]
_LIGHT = pa.schema(_FIELDS)
"""The columns of decision rows."""


@dataclass(frozen=True, kw_only=True)
class PackFlat(StatefulOperator):
    """Pack token lists into sequences of exactly `max_length` tokens, padded at the end where they are not full.

    Every token comes out once or is counted as dropped. Each row lists the lengths of its document pieces (`document_lengths`),
    so that attention and labels can stop at their borders, and where they came from. Positions follow from the lengths.
    """

    name: ClassVar[str] = "pack_flat"
    takes_views: ClassVar[bool] = True
    balances: ClassVar[bool] = True

    max_length: int
    algorithm: Algorithm = "wrap"
    """`wrap`: one document after the other, cut where a sequence is full. `first_fit`, `best_fit`: whole documents, padding
    where none fits. `best_fit_wrap`: whole documents where they fit, cut where none does, no padding."""
    num_bins: int | None = None
    """Sequences that the fit algorithms keep open; required for them, refused for the others."""
    max_documents: int | None = None
    """At most so many document pieces in a sequence; attention kernels have limits."""
    pad_token_id: int | None = None
    """None: the tokenizer's, or where it has none its EOS; the pipeline fills it in."""
    over_long: OverLong = "split"
    """What becomes of documents longer than `max_length`."""
    min_sequence_length: int = 0
    """Sequences with fewer tokens, padding not counted, are dropped and counted."""
    homogeneity: Homogeneity = "none"
    """`full`: a sequence has documents of one data set only; `group`: of one group of data sets."""
    groups: Mapping[str, Sequence[str]] | None = None
    """For `homogeneity="group"`: name of the group → its data sets; one that no group names is a group of its own."""
    component_groups: tuple[int, ...] | None = field(default=None, repr=False)
    """The number of the group of each component, which the pipeline works out from `groups`."""
    emit_positions: bool = True
    """Kept for adapters: positions are made from the document lengths when a batch becomes tensors."""
    token_columns: tuple[str, ...] = (LOSS_MASK,)
    """Further list columns with one number per token; carried along where the data has them, padded with 0."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("algorithm", self.algorithm, get_args(Algorithm)),
            ("over_long", self.over_long, get_args(OverLong)),
            ("homogeneity", self.homogeneity, get_args(Homogeneity)),
        ):
            if value not in known:
                raise RecipeError(f"pack_flat: {unknown(what, str(value), known)}")
        object.__setattr__(self, "token_columns", tuple(self.token_columns))
        if self.component_groups is not None:
            object.__setattr__(self, "component_groups", tuple(self.component_groups))
        self._check_numbers()
        if (self.homogeneity == "group") != (self.groups is not None or self.component_groups is not None):
            raise RecipeError("pack_flat: groups= and homogeneity='group' go together")

    def _check_numbers(self) -> None:
        if not 1 <= self.max_length < 2**31:
            raise RecipeError(f"max_length of pack_flat is {self.max_length}; it must be ≥ 1 and < 2**31")
        fits = self.algorithm in ("first_fit", "best_fit")
        if fits and (self.num_bins is None or self.num_bins < 1):
            raise RecipeError(
                f"pack_flat with {self.algorithm!r} needs num_bins ≥ 1, got {self.num_bins}",
                hint="num_bins is how many sequences are kept open; 64 is a good start",
            )
        if not fits and self.num_bins is not None:
            raise RecipeError(f"pack_flat with {self.algorithm!r} takes no num_bins", hint="only 'first_fit' and 'best_fit' do")
        if self.max_documents is not None and self.max_documents < 1:
            raise RecipeError(f"max_documents of pack_flat is {self.max_documents}; it must be ≥ 1")
        if not 0 <= self.min_sequence_length <= self.max_length:
            raise RecipeError(f"min_sequence_length is {self.min_sequence_length}; it must be from 0 to {self.max_length}")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < 2**31:
            raise RecipeError(f"pad_token_id is {self.pad_token_id}; it must be ≥ 0 and < 2**31")

    def inputs(self) -> tuple[str, ...]:
        """The tokens."""
        return (groups.TOKENS,)

    def optional_inputs(self) -> tuple[str, ...]:
        """`token_columns`, where the data has them."""
        return self.token_columns

    def passes(self) -> bool:
        """Other columns end here: a sequence has many documents."""
        return False

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Tokens, the token columns that are there, and what is known of each document piece."""
        if schema.get_field_index(groups.TOKENS) < 0:
            raise RecipeError(f"pack_flat needs the column {groups.TOKENS!r}", hint="tokenize before packing")
        check_token_columns(schema, self.token_columns)
        return _packed_schema(schema, self.token_columns)

    def accumulator(self, where: LaneWindow) -> PackAccumulator:
        """A fresh packer. Raises `RecipeError` where padding can happen and the pad token isn't known."""
        del where  # packing has no randomness
        self._check_pad()
        if self.homogeneity == "group" and self.component_groups is None:
            raise RecipeError("pack_flat: the groups of data sets were not resolved", hint="give component_groups=")
        return PackAccumulator(self)

    def bind(self) -> GatherSequences:
        """The copying of tokens."""
        self._check_pad()
        return GatherSequences(length=self.max_length, pad=self.pad_token_id or 0, columns=self.token_columns)

    def empty_row(self, schema: pa.Schema | None) -> pa.RecordBatch:
        """One row of padding only; with zeros in those token columns that `schema` has."""
        kinds = _packed_schema(schema or pa.schema([]), self.token_columns)
        arrays: list[Any] = []
        for item in kinds:
            if item.name == groups.PADDING:
                arrays.append(to_arrow(np.array([self.max_length], dtype=np.int32)))
                continue
            size = self.max_length if item.name == groups.TOKENS or item.name in self.token_columns else 0
            fill = self.pad_token_id or 0 if item.name == groups.TOKENS else 0
            values = to_arrow(np.full(size, fill, dtype=np.int32)).cast(item.type.value_type)
            arrays.append(groups.make_list([0, size], values).cast(item.type))
        return pa.RecordBatch.from_arrays(arrays, schema=kinds)

    def class_of(self, components: npt.NDArray[Any]) -> I64:
        """Which documents may share a sequence: those with equal numbers; int64[N]."""
        if self.homogeneity == "full":
            return components.astype(np.int64)
        if self.homogeneity == "group":
            return np.asarray(self.component_groups, dtype=np.int64).take(components)
        return np.zeros(len(components), dtype=np.int64)

    def packer(self) -> Packer:
        """The algorithm, afresh."""
        return make_packer(self.algorithm, self.max_length, bins=self.num_bins, max_documents=self.max_documents)

    def _check_pad(self) -> None:
        # with min_sequence_length == max_length only full sequences are left
        if self.pad_token_id is None and self.min_sequence_length < self.max_length:
            raise RecipeError(
                "pack_flat needs a pad token: the last sequence of a window is rarely full",
                hint="give pad_token_id=; the EOS id is fine, since the padding's length travels with the row",
            )


def check_token_columns(schema: pa.Schema, token_columns: Iterable[str]) -> None:
    """Raise `RecipeError` where the tokens are no lists of integers, or one of the columns beside them (those that are there) is no list
    of numbers."""
    for name in (groups.TOKENS, *token_columns):
        index = schema.get_field_index(name)
        if index < 0:
            continue
        kind: Any = schema.field(index).type
        wanted, fits = ("integers", pa.types.is_integer) if name == groups.TOKENS else ("numbers", is_number)
        if not (_is_list(kind) and (fits(kind.value_type) or pa.types.is_null(kind.value_type))):
            hint = "tokenize before packing" if name == groups.TOKENS else "leave it out of token_columns="
            raise RecipeError(f"column {name!r} is {kind}, not lists of {wanted}", hint=hint)


def _is_list(kind: pa.DataType) -> bool:
    t = pa.types
    return t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind) or t.is_list_view(kind)


def _packed_schema(schema: pa.Schema, token_columns: Sequence[str]) -> pa.Schema:
    carried = [
        pa.field(name, pa.list_(pa.uint8() if name == groups.LOSS_MASK else schema.field(name).type.value_type))
        for name in token_columns
        if schema.get_field_index(name) >= 0
    ]
    return pa.schema([pa.field(groups.TOKENS, pa.list_(pa.int32())), *carried, *PIECE_FIELDS])


class PackAccumulator:
    """The serial half of `pack_flat`: sees lengths, holds the groups that open sequences still need."""

    def __init__(self, settings: PackFlat) -> None:
        self._settings = settings
        self._packers: dict[int, Packer] = {}
        self._documents = _Documents()
        self._held: dict[int, pa.RecordBatch] = {}
        self._held_bytes: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """Tokens of each held group that were not emitted yet."""

    @property
    def nbytes(self) -> int:
        """Bytes of the groups that open sequences refer to, and of the notes on documents."""
        return sum(self._held_bytes.values()) + self._documents.nbytes

    def add(self, group: pa.RecordBatch, number: int) -> Iterable[Decision]:
        """See `Accumulator`.

        Raises:
            DataError: no token column; a token column whose lists have other lengths than the tokens.
            RecipeError: a token column of another type.
        """
        settings = self._settings
        names = [groups.TOKENS, *(n for n in settings.token_columns if group.schema.get_field_index(n) >= 0)]
        payload = groups.select(group, names)
        check_token_columns(payload.schema, settings.token_columns)
        lengths = _lengths(payload, group)
        component = groups.provenance(group, groups.COMPONENT, unknown=0)
        used, lengths, drops = self._within_limits(lengths, component)
        if not len(used):
            return [Decision(groups.empty_group(_LIGHT), {}, drops)] if drops.rows else []
        first = self._documents.append(number, used, group)
        self._held[number], self._held_bytes[number] = payload, groups.nbytes(payload)
        self._left[number] = int(lengths.sum())
        packed = self._pack(np.arange(first, first + len(used), dtype=np.int64), lengths, component[used])
        return [self._decide(packed, drops)]

    def flush(self) -> Iterable[Decision]:
        """See `Accumulator`: what is left of each class of documents, padded."""
        parts = [packer.flush() for packer in self._packers.values()]
        self._packers.clear()
        decision = self._decide(parts, Drops())
        if self._held:
            raise InternalError(f"pack_flat kept {sum(self._left.values())} tokens at the flush")
        return [decision]

    def _within_limits(self, lengths: I64, component: npt.NDArray[Any]) -> tuple[I64, I64, Drops]:
        """`(rows to pack, their lengths, what is left out)`: no empty documents, over-long ones by the policy."""
        limit, policy = self._settings.max_length, self._settings.over_long
        rows: dict[str, I64] = {}
        tokens: dict[str, dict[int, int]] = {}
        if lengths.all() and policy == "split":
            return np.arange(len(lengths)), lengths, Drops()
        empty = lengths == 0
        keep = ~empty
        if empty.any():
            rows["empty"] = np.flatnonzero(empty)
        over = lengths > limit
        if policy != "split" and over.any():
            cut = lengths[over] - (limit if policy == "truncate" else 0)
            tokens["truncated" if policy == "truncate" else "over-long"] = _sums(component[over], cut)
            if policy == "truncate":
                lengths = np.minimum(lengths, limit)
            else:
                rows["over-long"] = np.flatnonzero(over)
                keep &= ~over
        used = np.flatnonzero(keep)
        return used, lengths[used], Drops(rows, tokens)

    def _pack(self, documents: I64, lengths: I64, component: npt.NDArray[Any]) -> list[Packed]:
        if self._settings.homogeneity == "none":
            return [self._packer(0).add(documents, lengths)]
        classes = self._settings.class_of(component)
        parts = []
        for number in dict.fromkeys(classes.tolist()):
            mine = classes == number
            parts.append(self._packer(number).add(documents[mine], lengths[mine]))
        return parts

    def _packer(self, number: int) -> Packer:
        if number not in self._packers:
            self._packers[number] = self._settings.packer()
        return self._packers[number]

    def _decide(self, parts: Sequence[Packed], drops: Drops) -> Decision:
        packed = _merge(parts)
        packed, drops = self._drop_short(packed, drops)
        pieces = self._documents.notes.take(packed.document)  # indexing would copy field by field
        pieces["length"], pieces["start"] = packed.length, packed.start
        source = np.ascontiguousarray(pieces["source"])
        arrays = [
            groups.make_pieces(packed.offsets, pieces),
            to_arrow((self._settings.max_length - _tokens(packed)).astype(np.int32)),
        ]
        emitted = _sums(source, packed.length)
        sources = {n: self._held[n] for n in emitted}
        self._release(emitted)
        return Decision(pa.RecordBatch.from_arrays(arrays, schema=_LIGHT), sources, drops)

    def _drop_short(self, packed: Packed, drops: Drops) -> tuple[Packed, Drops]:
        if not self._settings.min_sequence_length:
            return packed, drops
        real = _tokens(packed)
        short = real < self._settings.min_sequence_length
        if not short.any():
            return packed, drops
        gone = np.repeat(short, np.diff(packed.offsets))
        docs, lengths = packed.document[gone], packed.length[gone]
        notes = self._documents.notes.take(docs)
        component, starts = notes["component"], packed.start[gone] == 0
        lost = {"short sequence": _sums(component, lengths)}
        records = {"short sequence": _sums(component[starts], np.ones(int(starts.sum()), dtype=np.int64))}
        self._release(_sums(np.ascontiguousarray(notes["source"]), lengths))
        kept = _select(packed, np.flatnonzero(~short))
        return kept, Drops(drops.rows, {**drops.tokens, **lost}, records)

    def _release(self, emitted: Mapping[int, int]) -> None:
        """Let go of the groups whose last token was emitted."""
        for number, done in emitted.items():
            self._left[number] -= done
            if not self._left[number]:
                del self._left[number], self._held[number], self._held_bytes[number]


class _Documents:
    """What is noted of each document of the window, by its number: the piece that is all of it, in an array that grows by doubling."""

    def __init__(self) -> None:
        self.notes = np.zeros(0, dtype=groups.PIECE)
        self._size = 0

    @property
    def nbytes(self) -> int:
        return self.notes.nbytes

    def append(self, number: int, rows: I64, group: pa.RecordBatch) -> int:
        """Note these rows of a group; the number of the first of them."""
        begin, self._size = self._size, self._size + len(rows)
        if self._size > len(self.notes):
            grown = np.zeros(2 * max(self._size, 1024), dtype=groups.PIECE)
            whole = np.dtype((np.void, groups.PIECE.itemsize))  # else it is copied field by field
            grown.view(whole)[:begin] = self.notes.view(whole)[:begin]
            self.notes = grown
        here = self.notes[begin : self._size]
        here["source"], here["row"] = number, rows
        for name, column in (("component", groups.COMPONENT), ("shard", groups.SHARD), ("origin", groups.ROW)):
            if group.schema.get_field_index(column) >= 0:
                values = groups.ints(group, column)
                here[name] = values if len(rows) == len(values) else values[rows]
        return begin


def _lengths(payload: pa.RecordBatch, group: pa.RecordBatch) -> I64:
    """int64[N]: tokens per document; all token columns agree on it where they are not null."""
    tokens = groups.list_lengths(groups.column(payload, groups.TOKENS)).astype(np.int64)
    for name in payload.schema.names[1:]:
        array = groups.column(payload, name)
        other = groups.list_lengths(array)
        wrong = np.flatnonzero((other != tokens) & to_numpy(array.is_valid()))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"column {name!r} has {int(other[row])} values for {int(tokens[row])} tokens", where=place_of(group, row)
            )
    return tokens


def _sums(numbers: npt.NDArray[Any], amounts: I64) -> dict[int, int]:
    """number → sum of its amounts. Numbers count from 0, so this needs no sorting; sums below 2**53 are exact."""
    if not len(numbers):
        return {}
    sums = np.bincount(numbers, weights=amounts)
    return {int(n): int(sums[n]) for n in np.flatnonzero(sums)}


def _tokens(packed: Packed) -> I64:
    """int64[S]: tokens per sequence."""
    ends = np.zeros(len(packed.length) + 1, dtype=np.int64)
    np.cumsum(packed.length, out=ends[1:])
    ends = ends[packed.offsets]
    return ends[1:] - ends[:-1]


def _merge(parts: Sequence[Packed]) -> Packed:
    """The sequences of several packers in the order of their completion: it doesn't matter how documents were grouped."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return Packed(np.zeros(1, dtype=np.int64), nothing, nothing, nothing, nothing)
    pieces = np.cumsum([0, *(len(p.document) for p in parts)])
    offsets = np.concatenate([[0], *(p.offsets[1:] + base for p, base in zip(parts, pieces, strict=False))]).astype(np.int64)
    completed = np.concatenate([p.completed for p in parts])
    whole = Packed(
        offsets,
        np.concatenate([p.document for p in parts]),
        np.concatenate([p.start for p in parts]),
        np.concatenate([p.length for p in parts]),
        completed,
    )
    return _select(whole, np.argsort(completed, kind="stable"))


def _select(packed: Packed, sequences: npt.NDArray[Any]) -> Packed:
    """Some of the sequences, in this order."""
    counts = np.diff(packed.offsets)[sequences]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    piece = np.arange(int(offsets[-1])) + np.repeat(packed.offsets[:-1][sequences] - offsets[:-1], counts)
    return Packed(offsets, packed.document[piece], packed.start[piece], packed.length[piece], packed.completed[sequences])

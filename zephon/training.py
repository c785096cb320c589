"""What a trainer gets from token rows: inputs, labels, masks, positions and document borders, as tensors.

For B rows of S+1 tokens the inputs are `tokens[:, :-1]` and the labels `tokens[:, 1:]`; without `shift`, both are the S tokens as they
are. A *segment* is a document piece, or the padding at the end of a row; segments of a row are numbered 0, 1, .. (`document_ids`),
and `cu_seqlens` holds their borders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import filled, to_numpy
from zephon.errors import DataError, RecipeError, unknown
from zephon.plugin import Collates, Collation
from zephon.tensors import Output, once

Array = Any
"""A `pyarrow.Array` of any type."""
Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

PositionMode = Literal["sample", "sequence"]
_POSITION_MODES = get_args(PositionMode)
POSITIONS = ("position_ids", "positions")
"""Columns that hold a position per token; the first that is there counts."""
TOKEN_ALIGNED = ("attention_mask", "token_type_ids", "special_tokens_mask", "mm_token_type_ids")
"""Further columns that hold one value per token, so that they are cut and padded as the inputs are."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The settings of `Batch.to_training`; see there, also for what is raised."""

    tokens_field: str = groups.TOKENS
    return_labels: bool = True
    dtype: Any = "auto"
    ignore_index: int = -100
    rename_fields: Mapping[str, str] | None = None
    exclude_fields: Collection[str] = ("ids", "texts")
    return_padding_mask: bool = False
    return_loss_mask: bool = True
    return_cu_seqlens: bool = True
    return_num_valid_tokens: bool = False
    flatten: bool = False
    eos_mask_loss: bool = False
    eos_token_id: int | Collection[int] | None = None
    pad_token_id: int | None = None
    position_mode: PositionMode = "sample"
    cross_documents: bool = False
    shift: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.exclude_fields, str):
            raise TypeError(
                f"exclude_fields is a list of names, got the string {self.exclude_fields!r}; write [{self.exclude_fields!r}]"
            )
        if self.position_mode not in _POSITION_MODES:
            raise RecipeError(unknown("position_mode", str(self.position_mode), _POSITION_MODES))
        if self.eos_mask_loss and self.eos_token_id is None:
            raise RecipeError("eos_mask_loss needs to know the EOS token", hint="give eos_token_id=")


def collator_options(collators: Sequence[Collates]) -> dict[str, Any]:
    """The keywords of `to_training` that these operators add, with their defaults."""
    options: dict[str, Any] = {}
    for operator in collators:
        options.update({k: v for k, v in operator.training_options().items() if v is not None or k not in options})
    return options


def training_fields(
    group: pa.RecordBatch,
    options: TrainingOptions,
    *,
    empty: int = 0,
    token_columns: Collection[str] = (),
    ids: Callable[[], list[Any]] | None = None,
    collators: Sequence[Collates] = (),
    collator_options: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The fields by name, as what `options.dtype` asks for. The arrays are new, writable, and share nothing with `group`, unless
    a collator says otherwise (pixels as they were rendered are `group`'s own memory).

    `token_columns` are further columns with one number per token, beyond those of `TOKEN_ALIGNED`; `collators` are the operators that
    take part, `collator_options` the values of their keywords. Raises as `Batch.to_training` does.
    """
    output = Output.of(options.dtype)
    rows = TokenRows.of(group, options, empty)
    output.check_fits(rows.tokens, options.ignore_index if options.return_labels else 0)
    fields = _token_fields(rows, options, output)
    for name, make in _other_fields(group, rows, options, output, {*TOKEN_ALIGNED, *token_columns}).items():
        if name in fields:
            raise RecipeError(
                f"the column {name!r} has the name of a field that to_training makes",
                hint="rename the column before batching (`map_batches`)",
            )
        fields[name] = make
    if ids is not None:
        fields.setdefault("ids", ids)
    if collators:
        batch = Collation(
            group=group,
            empty=empty,
            inputs=rows.tokens[:, : rows.shape[1]],
            segments=rows.segment_lengths(),
            shift=options.shift,
            flatten=options.flatten,
            dtype=output.dtype,
            options=collator_options,
            finish=output.finish,
        )
        for operator in collators:
            fields = dict(operator.collate(batch, fields))
    return {name: make() for name, make in _renamed(fields, options).items() if name not in options.exclude_fields}


def _renamed(fields: dict[str, Callable[[], Any]], options: TrainingOptions) -> dict[str, Callable[[], Any]]:
    if not options.rename_fields:
        return fields
    renames = dict(options.rename_fields)
    if options.tokens_field not in fields and options.tokens_field in renames:
        renames.setdefault(groups.TOKENS, renames.pop(options.tokens_field))
    for name in renames:
        if name not in fields:
            raise RecipeError(f"rename_fields: {unknown('field', name, fields)}")
    out: dict[str, Callable[[], Any]] = {}
    for name, make in fields.items():
        new = renames.get(name, name)
        # `positions` and `position_ids` are one tensor under two names: to rename one to the other is no clash
        if new in out and out[new] is not make:
            raise RecipeError(f"rename_fields: two fields would be called {new!r}")
        out[new] = make
    return out


# ------------------------------------------------------------------------------------------------- token rows


@dataclass(frozen=True)
class TokenRows:
    """B token rows of one width L, padded at the end where they were not; L is S+1, without `shift` S."""

    tokens: Ints
    """int[B, L]; may be a view of the group."""
    lengths: Ints
    """int64[B]: tokens in each row as it came, the packer's padding included."""
    padding: Ints
    """int64[B]: trailing pad tokens, those that were added here included."""
    starts: Bools
    """bool[B, L]: a segment starts here; always at 0 and where the padding starts."""
    trained: Bools | None
    """bool[B, L]: the loss mask that came with the tokens."""
    positions: Ints | None
    """int[B, L]: the positions that came with the tokens."""
    shift: bool
    """Whether inputs are the tokens but the last, and labels the tokens but the first."""
    edges: Ints
    """int64[N+1]: where the N segments of the inputs start, in the flattened inputs [B*S], ascending; then B*S."""
    shape: tuple[int, int]
    """(B, S)."""

    @staticmethod
    def of(group: pa.RecordBatch, options: TrainingOptions, empty: int) -> TokenRows:
        """The token rows of a group whose last `empty` rows train on nothing."""
        offsets, values = list_column(group, options.tokens_field)
        lengths = offsets[1:] - offsets[:-1]
        width = int(lengths.max(initial=0))
        fill = options.pad_token_id
        if fill is None and bool((lengths != width).any()):
            raise RecipeError(
                f"rows of {int(lengths.min())} to {width} tokens must be padded to one length, but the pad token is not known",
                hint="give pad_token_id=, or pack the rows (`pack_flat`)",
            )
        if not len(values):
            values = values.astype(np.int32)  # empty lists may be of any type
        tokens = _dense(offsets, values, width, fill or 0)
        padding = width - lengths + padding_column(group)
        padding[len(padding) - empty :] = width
        positions = next((_aligned(group, name, lengths, width) for name in POSITIONS if has_column(group, name)), None)
        if positions is not None:
            # positions restart at the padding, also at the one added here
            added = np.arange(width) - lengths[:, None]
            positions = np.where(added >= 0, added, positions)
        trained = _aligned(group, groups.LOSS_MASK, lengths, width, missing=1) if has_column(group, groups.LOSS_MASK) else None
        starts = _starts(group, padding, width, positions)
        inputs = starts[:, : max(width - options.shift, 0)]
        edges = np.concatenate([inputs.ravel().nonzero()[0], [inputs.size]])
        kept = None if trained is None else trained != 0
        return TokenRows(tokens, lengths, padding, starts, kept, positions, options.shift, edges, inputs.shape)

    def kept(self, options: TrainingOptions) -> Bools:
        """bool[B, S]: the labels that are trained on."""
        keep: Bools = np.ones(self.tokens.shape, dtype=np.bool_) if options.cross_documents else ~self.starts
        if self.trained is not None:
            keep &= self.trained
        if options.eos_mask_loss:
            eos = options.eos_token_id
            inputs = self.tokens[:, :-1]
            keep[:, 1:] &= (inputs != eos) if isinstance(eos, int) else ~np.isin(inputs, list(eos or ()))
        if options.ignore_index >= 0:  # a label of that id is ignored by every loss, so it must not be counted
            keep &= self.tokens != options.ignore_index
        width = keep.shape[1]
        keep &= np.arange(width) < (width - self.padding)[:, None]
        keep[:, :1] = False  # nothing comes before it
        return keep[:, 1:] if self.shift else keep

    def segment_lengths(self) -> Ints:
        """int64[N]: the inputs of each segment; they sum to B*S."""
        lengths: Ints = self.edges[1:] - self.edges[:-1]
        return lengths

    def position_ids(self, mode: PositionMode) -> Ints:
        """int64[B, S]."""
        rows, size = self.shape
        if mode == "sequence":
            return np.broadcast_to(np.arange(size), (rows, size))
        if self.positions is not None:
            return self.positions[:, :size]
        every = np.arange(rows * size)
        every -= self.edges[:-1].repeat(self.segment_lengths())
        return every.reshape(rows, size)

    def document_ids(self, *, flatten: bool) -> Ints:
        """int32[B, S]: the number of the segment in its row, or over all rows with `flatten`."""
        numbers = np.arange(len(self.edges) - 1) if flatten else self._numbers()[1]
        return numbers.astype(np.int32).repeat(self.segment_lengths()).reshape(self.shape)

    def cu_seqlens(self) -> tuple[Ints, Ints]:
        """`(borders int32[B, K] padded with S, longest int32[B])`."""
        rows, size = self.shape
        row_of, numbers = self._numbers()
        out = np.full((rows, int(numbers.max(initial=-1)) + 2), size, dtype=np.int32)
        out[row_of, numbers] = self.edges[:-1] - row_of * size
        return out, (out[:, 1:] - out[:, :-1]).max(axis=1, initial=0)

    def _numbers(self) -> tuple[Ints, Ints]:
        """`(row, number in that row)` of each segment, int64[N] both."""
        rows, size = self.shape
        row_of = self.edges[:-1] // max(size, 1)
        return row_of, np.arange(len(row_of)) - row_of.searchsorted(np.arange(rows))[row_of]


def _starts(group: pa.RecordBatch, padding: Ints, width: int, positions: Ints | None) -> Bools:
    """bool[B, L]: where a segment starts."""
    starts = np.zeros((group.num_rows, width), dtype=np.bool_)
    starts[:, :1] = True
    real = width - padding
    inside = (padding > 0) & (real > 0)
    if has_column(group, groups.LENGTHS):
        rows, begins = _pieces(group, real)
        starts[rows, begins] = True
    elif positions is not None and width:
        # a start is where the count breaks off, not where it is 0: a row may begin in the middle of a document
        starts[:, 1:] |= positions[:, 1:] != positions[:, :-1] + 1
        starts &= np.arange(width) <= np.where(inside, real, width)[:, None]
    starts[inside.nonzero()[0], real[inside]] = True
    return starts


def _pieces(group: pa.RecordBatch, real: Ints) -> tuple[Ints, Ints]:
    """`(row, first token)` of each document piece of the rows that aren't empty."""
    offsets, values = list_column(group, groups.LENGTHS)
    sizes = values[int(offsets[0]) : int(offsets[-1])].astype(np.int64)
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    sizes.cumsum(out=ends[1:])
    counts = offsets[1:] - offsets[:-1]
    at = ends[offsets - offsets[0]]
    sums = at[1:] - at[:-1]
    wrong = ((sums != real) & (counts > 0) & (real > 0)).nonzero()[0]
    if len(wrong) or (sizes < 0).any():
        row = int(wrong[0]) if len(wrong) else 0
        raise DataError(
            f"row {row} of a batch: {groups.LENGTHS} sum to {int(sums[row])}, it has {int(real[row])} tokens without padding",
            hint="an operator after packing changed the tokens and not their document lengths",
        )
    rows = np.arange(len(counts)).repeat(counts)
    used = (sizes > 0) & (real[rows] > 0)
    return rows[used], (ends[:-1] - at[rows])[used]


def padding_column(group: pa.RecordBatch) -> Ints:
    """int64[B]: the trailing pad tokens that each row came with."""
    if not has_column(group, groups.PADDING):
        return np.zeros(group.num_rows, dtype=np.int64)
    column: Array = groups.column(group, groups.PADDING)
    values: Ints = filled(column)
    return values.astype(np.int64)


def has_column(group: pa.RecordBatch, name: str) -> bool:
    """Whether the group has a column `name`."""
    return group.schema.get_field_index(name) >= 0


def list_column(group: pa.RecordBatch, name: str) -> tuple[Ints, Ints]:
    """`groups.list_parts` of a column, with offsets as int64."""
    return _list_parts(groups.column(group, name))


def _list_parts(column: Array) -> tuple[Ints, Ints]:
    """As `list_column`, where the column is at hand."""
    offsets, values = groups.list_parts(column)
    return offsets.astype(np.int64, copy=False), values


def _dense(offsets: Ints, values: Ints, width: int, fill: int) -> Ints:
    """Lists as one array [B, width], shorter ones filled up at the end; a view where no list is shorter."""
    flat = values[int(offsets[0]) : int(offsets[-1])]
    rows = len(offsets) - 1
    if len(flat) == rows * width:
        return flat.reshape(rows, width)
    out = np.full((rows, width), fill, dtype=flat.dtype)
    out[np.arange(width) < (offsets[1:] - offsets[:-1])[:, None]] = flat
    return out


def _aligned(group: pa.RecordBatch, name: str, lengths: Ints, width: int, *, missing: int = 0) -> Ints:
    """A column of one number per token as [B, L]; 0 where padding was added, `missing` in rows where the list is null."""
    column: Array = groups.column(group, name)
    offsets, values = _list_parts(column)
    sizes = offsets[1:] - offsets[:-1]
    null = to_numpy(column.is_null()) if column.null_count else None
    unlike = sizes != lengths
    wrong = (unlike if null is None else unlike & ~null).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"row {row} of a batch has {int(lengths[row])} tokens, but {int(sizes[row])} values in {name!r}")
    out = _dense(offsets, values, width, 0)
    if null is not None:
        out = np.where(null[:, None] & (np.arange(width) < lengths[:, None]), missing, out)
    return out


# --------------------------------------------------------------------------------------------------- the fields


def _token_fields(rows: TokenRows, options: TrainingOptions, output: Output) -> dict[str, Callable[[], Any]]:
    """What is made from the tokens, by name; each is computed only when it is asked for."""
    size = rows.shape[1]
    keep = once(lambda: rows.kept(options))

    def finish(array: Ints) -> Any:
        return output.finish(array.reshape(-1) if options.flatten else array)

    def borders() -> tuple[Any, Any]:
        if not options.flatten:
            borders, longest = rows.cu_seqlens()
            return output.finish(borders), output.finish(longest)
        return output.finish(rows.edges.astype(np.int32)), int(rows.segment_lengths().max(initial=0))

    cu_seqlens = once(borders)
    position_ids = once(lambda: finish(output.integers(rows.position_ids(options.position_mode))))

    def labels() -> Any:
        out = output.integers(rows.tokens[:, 1:] if rows.shift else rows.tokens)
        np.copyto(out, options.ignore_index, where=~keep())
        return finish(out)

    def padding_mask() -> Any:
        return finish(np.arange(size) >= (rows.tokens.shape[1] - rows.padding)[:, None])

    def count() -> int:
        return int(np.count_nonzero(keep()))

    fields: dict[str, Callable[[], Any]] = {
        "input_ids": lambda: finish(output.integers(rows.tokens[:, :size])),
        "labels": labels,
        "loss_mask": lambda: finish(keep().astype(np.float32)),
        "position_ids": position_ids,
        "positions": position_ids,
        "document_ids": lambda: finish(rows.document_ids(flatten=options.flatten)),
        "padding_mask": padding_mask,
        "cu_seqlens": lambda: cu_seqlens()[0],
        "max_seqlen": lambda: cu_seqlens()[1],
        "num_label_tokens": count,
        "num_valid_tokens": count,
    }
    asked = {
        "labels": options.return_labels,
        "loss_mask": options.return_loss_mask,
        "padding_mask": options.return_padding_mask,
        "cu_seqlens": options.return_cu_seqlens,
        "max_seqlen": options.return_cu_seqlens,
        "num_valid_tokens": options.return_num_valid_tokens,
    }
    for name, wanted in asked.items():
        if not wanted:
            del fields[name]
    return fields


def _other_fields(
    group: pa.RecordBatch, rows: TokenRows, options: TrainingOptions, output: Output, per_token: Collection[str]
) -> dict[str, Callable[[], Any]]:
    """The user's other columns."""
    used = {options.tokens_field, groups.LOSS_MASK, groups.LENGTHS, groups.PADDING, *POSITIONS}
    size = rows.shape[1]

    def aligned(name: str) -> Any:
        values = _aligned(group, name, rows.lengths, rows.tokens.shape[1])[:, :size]
        cut = output.integers(values) if values.dtype.kind in "iu" else values.copy()
        return output.finish(cut.reshape(-1) if options.flatten else cut)

    def other(name: str) -> Any:
        return output.column(groups.column(group, name))

    names = [name for name in groups.user_columns(group.schema) if name not in used]
    return {name: partial(aligned if name in per_token else other, name) for name in names}

"""One microbatch: sequences of one lane, as a record group, as records and as tensors."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.digest import Hasher, update_rows
from zephon.errors import DataError, RecipeError, unknown
from zephon.training import (
    Ints,
    PositionMode,
    TrainingOptions,
    collator_options,
    has_column,
    list_column,
    padding_column,
    training_fields,
)
from zephon.views import buffers, plain, plain_group

SampleId = tuple[str, int, int]
"""(dataset, shard, row)."""


@dataclass(frozen=True, kw_only=True)
class RecordMeta:
    """Where a record came from and what is in it."""

    sample_id: SampleId | None
    """Of its first document; None for an empty sequence, and where the provenance is not known."""
    lane_id: int
    component_sample_counts: Mapping[str, int] = field(default_factory=dict)
    """Documents that start in this record, per dataset."""
    component_token_counts: Mapping[str, int] = field(default_factory=dict)
    """Tokens in this record, per dataset."""
    padding_length: int = 0


@dataclass(frozen=True)
class Record:
    """One row of a batch: the user's columns as a dict of Python values, and where they came from."""

    payload: Mapping[str, Any]
    meta: RecordMeta


class Batch:
    """A microbatch: B sequences of one lane, in order. It does not change; `to_training` copies what it gives, but for pixels.

    Attributes:
        lane: the lane that all rows belong to.
        step: the step of the run.
        index: the number of this microbatch in its lane and step.
        empty: how many rows at the end are empty sequences: they train on nothing and are no data (not hashed, not counted).
    """

    def __init__(
        self,
        group: pa.RecordBatch,
        *,
        lane: int,
        step: int,
        index: int,
        empty: int = 0,
        dataset_names: tuple[str, ...] = (),
        defaults: Mapping[str, Any] = MappingProxyType({}),
        kinds: pa.Schema | None = None,
    ) -> None:
        """Wrap a group.

        Args:
            dataset_names: the names of the components, by their number in the mixture.
            defaults: what the recipe knows of `to_training`'s settings: `pad_token_id`, `eos_token_id`, `token_columns`
                (further columns with one number per token), `collators` (its operators that are `plugin.Collates`) and
                `collator_options` (what `collator_options` gives for them, which is the same for all batches); None is not known.
            kinds: the ordinary types of the group's columns, where some are views (`zephon.views`).

        Raises:
            RecipeError: `empty` is more than there are rows.
        """
        if not 0 <= empty <= group.num_rows:
            raise RecipeError(f"a batch of {group.num_rows} rows cannot have {empty} empty ones")
        self._rows = group
        self._kinds = kinds
        self.lane = lane
        self.step = step
        self.index = index
        self.empty = empty
        self.dataset_names = tuple(dataset_names)
        self.defaults = dict(defaults)

    @cached_property
    def group(self) -> pa.RecordBatch:
        """The rows, as a record group of ordinary columns: text and bytes of mapped files are copied at the first use."""
        return self._rows if self._kinds is None else plain_group(self._rows, self._kinds)

    def __len__(self) -> int:
        return self._rows.num_rows

    def __repr__(self) -> str:
        columns = ", ".join(groups.user_columns(self._rows.schema))
        return f"Batch(lane={self.lane}, step={self.step}, index={self.index}, {len(self)} rows, {self.empty} empty: {columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        # as IPC: pickling a slice would send the whole buffers
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.group.schema) as writer:
            writer.write_batch(self.group)
        rest = (self.lane, self.step, self.index, self.empty, self.dataset_names, self.defaults)
        return _unpickle, (sink.getvalue().to_pybytes(), *rest)

    # ---------------------------------------------------------------------------------------- as records

    @property
    def lane_ids(self) -> list[int]:
        """The lane of each record; all the same."""
        return [self.lane] * len(self)

    @property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        """bool[B]: the rows that are empty sequences."""
        return np.arange(len(self)) >= len(self) - self.empty

    def to_pydict(self) -> dict[str, list[Any]]:
        """The user's columns as lists of Python values."""
        return groups.select(self._rows, groups.user_columns(self._rows.schema)).to_pydict()

    def column(self, name: str) -> groups.ArrowArray:
        """One column of the group, of its ordinary type, without making the others."""
        array = groups.column(self._rows, name)
        return array if self._kinds is None else plain(array, self._kinds.field(name).type)

    def buffers(self, name: str) -> list[memoryview | None]:
        """The values of a column of text or bytes (or of such a field: "image.bytes") where they lie, without a copy; None for null.

        Of data that no operator changes, that is the mapped file, or the data set in memory. They stay when the batch goes.

        Raises:
            DataError: there is no such column, or it holds something else.
        """
        array = groups.column(self._rows, name.partition(".")[0])
        for child in name.split(".")[1:]:
            index = array.type.get_field_index(child) if pa.types.is_struct(array.type) else -1
            if index < 0:
                raise DataError(f"column {name!r}: there is no field {child!r} in {array.type}")
            array = array.flatten()[index]
        return buffers(array)

    @cached_property
    def ids(self) -> list[SampleId | None]:
        """The sample id of each record; see `RecordMeta`."""
        pieces = self._pieces
        out: list[SampleId | None] = [None] * len(self)
        if pieces.shard is None or pieces.row is None:
            return out
        first = np.flatnonzero(np.diff(pieces.record, prepend=-1))
        found = (column[first].tolist() for column in (pieces.record, pieces.component, pieces.shard, pieces.row))
        for record, component, shard, row in zip(*found, strict=True):
            out[record] = (self._name(component), shard, row)
        return out

    @cached_property
    def records(self) -> list[Record]:
        """The rows as records; per-record Python, made on first use."""
        pieces, size = self._pieces, len(self)
        tokens = self._named_by_record(pieces.record, pieces.component, pieces.tokens, size)
        samples = self._named_by_record(pieces.record, pieces.component, pieces.starts, size)
        ids, padding = self.ids, self._padding.tolist()
        return [
            Record(
                payload,
                RecordMeta(
                    sample_id=ids[i],
                    lane_id=self.lane,
                    component_sample_counts=samples[i],
                    component_token_counts=tokens[i],
                    padding_length=padding[i],
                ),
            )
            for i, payload in enumerate(groups.iter_rows(self._rows))
        ]

    # ----------------------------------------------------------------------------------------- as counts

    @property
    def num_tokens(self) -> int:
        """Tokens of documents, without padding."""
        return int(self._pieces.tokens.sum())

    @property
    def padding(self) -> int:
        """Pad tokens, those of empty sequences included."""
        return int(self._padding.sum())

    def component_token_counts(self) -> dict[str, int]:
        """Tokens per dataset, without padding; datasets with none are left out."""
        return self._named(self._pieces.component, self._pieces.tokens)

    def component_sample_counts(self) -> dict[str, int]:
        """Documents per dataset; a document that was cut into pieces counts where it starts."""
        return self._named(self._pieces.component, self._pieces.starts)

    @cached_property
    def _padding(self) -> npt.NDArray[np.int64]:
        """int64[B]: pad tokens per row."""
        padding = padding_column(self.group)
        if self.empty and has_column(self.group, groups.TOKENS):
            offsets, _ = list_column(self.group, groups.TOKENS)
            padding[-self.empty :] = np.diff(offsets)[-self.empty :]
        return padding

    @cached_property
    def _pieces(self) -> _Pieces:
        return _packed_pieces(self) if has_column(self.group, groups.LENGTHS) else _row_pieces(self)

    def _name(self, component: int) -> str:
        return self.dataset_names[component] if 0 <= component < len(self.dataset_names) else str(component)

    def _named(self, component: Ints, amounts: Ints) -> dict[str, int]:
        known = component >= 0
        sums = np.bincount(component[known], weights=amounts[known])
        return {self._name(int(c)): int(sums[c]) for c in np.flatnonzero(sums)}

    def _named_by_record(self, record: Ints, component: Ints, amounts: Ints, size: int) -> list[dict[str, int]]:
        ends = np.searchsorted(record, np.arange(size + 1))
        return [self._named(component[a:b], amounts[a:b]) for a, b in itertools.pairwise(ends)]

    # ----------------------------------------------------------------------------------------- as a digest

    def update(self, hasher: Hasher) -> None:
        """Feed the rows to a hasher (`hashlib`, `xxhash`), one after the other: names, types, values of the user's columns.

        The bytes are those of the rows in order, so they don't depend on how rows are cut into batches. Empty sequences
        are left out: how many of them there are may depend on the number of ranks.
        """
        group = self.group.slice(0, len(self) - self.empty) if self.empty else self.group
        update_rows(hasher, group, groups.user_columns(group.schema))

    def sha256(self) -> str:
        """The SHA-256 of the rows, in hexadecimal."""
        return global_sha256([self])

    # ---------------------------------------------------------------------------------------- as tensors

    def to_training(
        self,
        tokens_field: str = groups.TOKENS,
        *,
        return_labels: bool = True,
        dtype: Any = "auto",
        ignore_index: int = -100,
        rename_fields: Mapping[str, str] | None = None,
        exclude_fields: Collection[str] = ("ids", "texts"),
        return_padding_mask: bool = False,
        return_loss_mask: bool = True,
        return_cu_seqlens: bool = True,
        return_num_valid_tokens: bool = False,
        flatten: bool = False,
        eos_mask_loss: bool = False,
        eos_token_id: int | Collection[int] | None = None,
        pad_token_id: int | None = None,
        position_mode: PositionMode = "sample",
        cross_documents: bool = False,
        shift: bool | None = None,
        **further: Any,
    ) -> dict[str, Any]:
        """What a model trains on, from B rows of S+1 tokens (S without `shift`). Rows of different lengths are padded to the longest.

        A *segment* is a piece of a document, or the padding at the end of a row (always one segment).

        * `input_ids` [B, S]: the tokens but the last of each row.
        * `labels` [B, S]: the next token of each input, or without `shift` the input itself; `ignore_index` where that is padding
          or has loss mask 0, where it belongs to another segment (unless `cross_documents`), with `eos_mask_loss` where it
          follows EOS, and in empty sequences.
        * `loss_mask` float32 [B, S]: 1 where there is a label, else 0.
        * `num_label_tokens`: how many labels there are, an int; with `return_num_valid_tokens` also as `num_valid_tokens`.
        * `position_ids` [B, S]: from 0 in each segment, or those that came with the tokens; with `position_mode="sequence"`
          0..S-1. `positions` is the same tensor under the name that existing adapters ask for.
        * `document_ids` int32 [B, S]: the number of the segment in its row. With `flatten` it runs on over all rows, so
          that no two segments of a batch have the same.
        * `cu_seqlens` int32 [B, K]: the borders of the segments in each row, from 0 to S, filled up with S; `max_seqlen`
          int32 [B]: the longest segment. With `flatten` one running list from 0 to B*S, and a Python int.
        * `padding_mask` bool [B, S], with `return_padding_mask`: True on padding.
        * columns with one number per token (`attention_mask`, those that the packer carried) [B, S], cut as the inputs.
        * every other column of the user's: numbers as [B], lists of one length as [B, n], ragged ones as a list of arrays,
          strings as a list. `ids` (sample ids) unless excluded.

        Args:
            dtype: of tokens, labels and positions: a torch dtype, a numpy dtype (numpy arrays), None (lists), or "auto": int64
                of torch where it is installed, else of numpy.
            rename_fields: old name to new name; done before `exclude_fields`.
            exclude_fields: names to leave out.
            flatten: [B*S] in place of [B, S].
            eos_token_id: default: that of the recipe's tokenizer. Several are allowed.
            pad_token_id: default: that of the recipe.
            shift: False: `input_ids` are all tokens of a row, and `labels`, `loss_mask` are aligned with them: the model shifts by
                itself, as those of `transformers` do. Default: True, unless an operator of the recipe wants it otherwise.
            further: keywords of operators that take part (`plugin.Collates`); see their `collate`.

        Raises:
            TypeError: an unknown keyword; `exclude_fields` is a string.
            RecipeError: a setting that doesn't fit (it is a ValueError), such as a rename of a field that isn't there.
            DataError: there are no tokens, or columns contradict each other.
        """
        further = self._collator_options(further)
        options = TrainingOptions(
            tokens_field=tokens_field,
            return_labels=return_labels,
            dtype=dtype,
            ignore_index=ignore_index,
            rename_fields=rename_fields,
            exclude_fields=exclude_fields,
            return_padding_mask=return_padding_mask,
            return_loss_mask=return_loss_mask,
            return_cu_seqlens=return_cu_seqlens,
            return_num_valid_tokens=return_num_valid_tokens,
            flatten=flatten,
            eos_mask_loss=eos_mask_loss,
            eos_token_id=self.defaults.get("eos_token_id") if eos_token_id is None else eos_token_id,
            pad_token_id=self.defaults.get("pad_token_id") if pad_token_id is None else pad_token_id,
            position_mode=position_mode,
            cross_documents=cross_documents,
            shift=bool(further.get("shift", True)) if shift is None else shift,
        )
        columns = self.defaults.get("token_columns") or ()
        return training_fields(
            self.group,
            options,
            empty=self.empty,
            token_columns=columns,
            ids=lambda: self.ids,
            collators=self.defaults.get("collators") or (),
            collator_options=further,
        )

    def _collator_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of the operators that take part, as given or by default. Raises `TypeError` for an unknown one."""
        options: Mapping[str, Any] | None = self.defaults.get("collator_options")
        if options is None:
            options = collator_options(self.defaults.get("collators") or ())
        for name in given:
            if name not in options:
                raise TypeError(unknown("keyword of to_training", name, [*TrainingOptions.__annotations__, *options]))
        return {**options, **given}


SampleBatch = Batch
"""The name that adapters of training frameworks use."""


def global_sha256(batches: Iterable[Batch]) -> str:
    """The SHA-256 of a step's rows, in hexadecimal: `batches` are all ranks' microbatches of the step, in rank order.

    It is the same for every number of ranks and every microbatch size.
    """
    hasher = hashlib.sha256()
    for batch in batches:
        batch.update(hasher)
    return hasher.hexdigest()


@dataclass(frozen=True)
class _Pieces:
    """The P pieces of documents in a batch, in order; empty sequences have none. A row that wasn't packed is one piece."""

    record: Ints
    """int64[P], ascending: the row."""
    tokens: Ints
    """int64[P]"""
    starts: Ints
    """int64[P]: 1 where the document starts here, 0 where the piece continues it."""
    component: Ints
    """int64[P]; -1: not known."""
    shard: Ints | None
    row: Ints | None


def _packed_pieces(batch: Batch) -> _Pieces:
    full = len(batch) - batch.empty
    group = batch.group.slice(0, full)

    def flat(name: str) -> Ints | None:
        if not has_column(group, name):
            return None
        offsets, values = list_column(group, name)
        return values[int(offsets[0]) : int(offsets[-1])].astype(np.int64)

    tokens, component, start = flat(groups.LENGTHS), flat(groups.DOC_COMPONENT), flat(groups.DOC_START)
    assert tokens is not None
    counts = np.diff(list_column(group, groups.LENGTHS)[0])
    return _Pieces(
        record=np.repeat(np.arange(full), counts),
        tokens=tokens,
        starts=np.ones_like(tokens) if start is None else (start == 0).astype(np.int64),
        component=np.full_like(tokens, -1) if component is None else component,
        shard=flat(groups.DOC_SHARD),
        row=flat(groups.DOC_ROW),
    )


def _row_pieces(batch: Batch) -> _Pieces:
    full = len(batch) - batch.empty
    group = batch._rows.slice(0, full)

    def ints(name: str) -> Ints | None:
        return groups.ints(group, name).astype(np.int64) if has_column(group, name) else None

    tokens = np.zeros(full, dtype=np.int64)
    if has_column(group, groups.TOKENS):
        tokens = np.diff(list_column(group, groups.TOKENS)[0]) - padding_column(group)
    component = ints(groups.COMPONENT)
    return _Pieces(
        record=np.arange(full),
        tokens=tokens,
        starts=np.ones(full, dtype=np.int64),
        component=np.full(full, -1) if component is None else component,
        shard=ints(groups.SHARD),
        row=ints(groups.ROW),
    )


def _unpickle(
    data: bytes, lane: int, step: int, index: int, empty: int, dataset_names: tuple[str, ...], defaults: Mapping[str, Any]
) -> Batch:
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        group = reader.read_next_batch()
    return Batch(group, lane=lane, step=step, index=index, empty=empty, dataset_names=dataset_names, defaults=defaults)

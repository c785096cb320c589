"""`pack_multimodal`: documents with images into sequences of exactly `max_length` tokens, within a budget of image patches.

It decides from lengths and costs alone, before any image is decoded: what waits in its bins are the images' file bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.arrays import from_values, to_arrow
from zephon.errors import RecipeError, unknown
from zephon.operators.pack_gather import PIECE_FIELDS
from zephon.plugin import Collation, Fields, LaneWindow, StatefulOperator
from zephon_vision import columns
from zephon_vision._pack_bins import NO_LIMIT, Limits
from zephon_vision._pack_fields import pack_fields
from zephon_vision._pack_gather import ALIGNMENT_FIELD, IMAGE_FIELDS, GatherMultimodal
from zephon_vision._pack_holding import MultimodalAccumulator, check_types
from zephon_vision.collate import CollatesVision

Packing = Literal["best_fit"]
OverLong = Literal["error", "drop"]

_TOKENS_AT_ONCE = 1 << 14


@dataclass(frozen=True, kw_only=True)
class PackMultimodal(CollatesVision, StatefulOperator):
    """Pack interleaved documents into sequences of exactly `max_length` tokens, padded at the end, by streaming best fit.

    A document goes whole, with its images, into the open sequence with the least room among those in which tokens, patches and images
    all fit. Where none has room and `open_bins` are open, the fullest is emitted. Documents are never cut: an image's tokens belong
    together (`tokenize_interleaved` cuts long documents between images).

    Reads `input_ids`, `token_columns`, `images`, `image_plans`, `image_spans` and `image_blocks`; the last is the documents' cost in
    patches or tiles, and is summed from the plans where it isn't there. Each row that it makes has:

    * `input_ids` and the token columns, `list<T>` of `max_length`; `padding_length` int32; `document_lengths` and the documents'
      provenance, one element per document, as `pack_flat` makes them.
    * `images`, `image_plans`: those of its documents, in order; `image_document` `list<int32>`: which document of the row each is of.
    * `image_spans`: where in the row's tokens they stand, with `image` counted in the row.
    * `image_blocks` int32: their patches or tiles in all.
    * `document_alignment` `list<int32>`, only with `align_to`: the pad tokens at the end of each document.
    """

    name: ClassVar[str] = "pack_multimodal"
    slices: ClassVar[bool] = True
    max_length: int
    max_patches: int | None = None
    """The most patches (or tiles: the blocks that the image policy makes) in a sequence; None: no limit."""
    max_images: int | None = None
    """The most images in a sequence; None: no limit."""
    open_bins: int = 32
    """Sequences that are kept open. More fill better and hold more image files in memory."""
    least_room: int = 32
    """A sequence with fewer free tokens than this is emitted at once."""
    max_age: int | None = None
    """Emit a sequence when so many documents came after its first, so that none waits for long; None: no limit."""
    ensure_image: bool = False
    """Every sequence has at least one image, for trainers whose vision tower must run on every rank. Documents without images wait for
    a sequence with an image; those that find none (at most `max_waiting` wait) are dropped and counted. The empty sequences after a
    lane's end have no image all the same."""
    max_waiting: int = 1024
    over_long: OverLong = "error"
    """What becomes of a document that alone is over a budget. `error`: the run stops, whatever `on_error` is: that is for records of
    stateless operators, which can be tried again without one; a packer has taken in what came before. `drop`: it is left out, counted."""
    align_to: int = 1
    """Pad each document with pad tokens that are not trained on, up to a multiple of so many tokens: for context parallelism 2 * cp, so
    that every document (`cu_seqlens`) can be cut into equal parts. `max_length` is then a multiple of it, or one more, for
    `to_training(shift=True)`, which takes the last token away. The pad tokens count as `added` in the accounting."""
    packing: Packing | None = "best_fit"
    """None: one document per sequence."""
    pad_token_id: int | None = None
    """None: the tokenizer's, or where it has none its EOS; the pipeline fills it in."""
    token_columns: tuple[str, ...] = (groups.LOSS_MASK, columns.MM_TYPES)
    """Further list columns with one number per token; carried along where the data has them, padded with 0."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_columns", tuple(self.token_columns))
        if self.over_long not in get_args(OverLong):
            raise RecipeError(f"pack_multimodal: {unknown('over_long', str(self.over_long), get_args(OverLong))}")
        if self.packing is not None and self.packing not in get_args(Packing):
            raise RecipeError(f"pack_multimodal: {unknown('packing', str(self.packing), get_args(Packing))}")
        most = 2**31 - 1
        for name, least, greatest in (
            ("max_length", 1, most),
            ("max_patches", 1, most),
            ("max_images", 1, most),
            ("open_bins", 1, most),
            ("least_room", 0, self.max_length),
            ("max_age", 1, most),
            ("max_waiting", 0, most),
            ("pad_token_id", 0, most),
            ("align_to", 1, self.max_length),
        ):
            value = getattr(self, name)
            if value is None and name not in ("max_length", "open_bins", "least_room", "max_waiting", "align_to"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
                raise RecipeError(
                    f"pack_multimodal: {name} is {value!r}; it must be a whole number from {least} to {greatest}",
                    hint="sequences this short want a smaller least_room=, say 0" if name == "least_room" else None,
                )
        if self.max_length % self.align_to > 1:
            raise RecipeError(
                f"pack_multimodal: max_length {self.max_length} is no multiple of align_to {self.align_to}",
                hint="one more than a multiple is for to_training(shift=True)",
            )
        if self.ensure_image and self.packing is None:
            raise RecipeError(
                "pack_multimodal: ensure_image needs packing",
                hint="without packing, leave documents without images out by a filter",
            )

    @property
    def max_rows(self) -> int | None:  # type: ignore[override]
        """Sequences built at once: of about 16,384 tokens together, since their images may become tens of MB each."""
        return min(16, max(1, _TOKENS_AT_ONCE // self.max_length))

    def inputs(self) -> tuple[str, ...]:
        """The tokens."""
        return (groups.TOKENS,)

    def viewed_inputs(self) -> tuple[str, ...]:
        """The images, which are copied once, into memory of each document's own."""
        return (columns.IMAGES,)

    def optional_inputs(self) -> tuple[str, ...]:
        """Token columns, and what is known of images; text documents may do without."""
        return (
            *self.token_columns,
            columns.IMAGES,
            columns.IMAGE_PLANS,
            columns.IMAGE_SPANS,
            columns.IMAGE_BLOCKS,
        )

    def passes(self) -> bool:
        """Other columns end here: a sequence has many documents."""
        return False

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Tokens, the token columns that are there, what is known of each document, and the images' columns.

        Raises:
            RecipeError: no tokens; images without plans or spans; a column of another type.
        """
        if schema.get_field_index(groups.TOKENS) < 0:
            raise RecipeError(f"pack_multimodal needs the column {groups.TOKENS!r}", hint="tokenize_interleaved makes it")
        check_types(schema, self.token_columns)
        if schema.get_field_index(columns.IMAGES) >= 0:
            for name in (columns.IMAGE_PLANS, columns.IMAGE_SPANS):
                if schema.get_field_index(name) < 0:
                    raise RecipeError(
                        f"pack_multimodal: there are images, but no column {name!r}", hint="tokenize_interleaved makes it"
                    )
        return self._packed(schema)

    def accumulator(self, where: LaneWindow) -> MultimodalAccumulator:
        """A fresh packer. Raises `RecipeError` where the pad token isn't known."""
        del where  # packing has no randomness
        self._check_pad()
        return MultimodalAccumulator(
            self._limits() if self.packing is not None else None,
            within=self._limits(),
            drop=self.over_long == "drop",
            token_columns=self.token_columns,
            align_to=self.align_to,
            pad=self.pad_token_id or 0,
        )

    def bind(self) -> GatherMultimodal:
        """The copying of tokens and images."""
        return self.bind_shown(frozenset())

    def bind_shown(self, names: frozenset[str]) -> GatherMultimodal:
        """The same, which leaves images where they are if the operator after it takes them so."""
        self._check_pad()
        return GatherMultimodal(
            length=self.max_length,
            pad=self.pad_token_id or 0,
            columns=self._columns(),
            aligned=self.align_to > 1,
            shows=columns.IMAGES in names,
        )

    def training_options(self) -> Mapping[str, Any]:
        """See `zephon.plugin.Collates`: those of `CollatesVision`, `loss_weight` and `return_stats`."""
        return {**super().training_options(), "loss_weight": None, "return_stats": False}

    def collate(self, batch: Collation, fields: Fields) -> Fields:
        """See `zephon.plugin.Collates`. To the fields of `CollatesVision` it adds, where they are asked for:

        * `loss_weight` float32, shaped as `loss_mask`, with `loss_weight="token"` (1 for each label that counts), `"sample"` (1 / n, with
          n the labels that count in the document) or `"square"` (1 / sqrt(n)).
        * `seq_lens`, `seq_lens_padded` int32 [B, D], 0 after a row's last document (with `flatten` [D]): the documents' lengths without and
          with their alignment; only with `align_to`.
        * `stats` with `return_stats=True`: a dict of `n_docs`, `n_images`, `n_patches`, `sum_patch_sq` and `fill`, [B] each.
        """
        return pack_fields(batch, super().collate(batch, fields), align_to=self.align_to)

    def empty_row(self, schema: pa.Schema | None) -> pa.RecordBatch:
        """One row of padding only, without images; with zeros in the token columns that `schema` has (None: in all)."""
        kinds = self._packed(schema if schema is not None else _all_columns(self.token_columns))
        whole = {groups.TOKENS: self.pad_token_id or 0, **dict.fromkeys(self._columns(), 0)}
        single = {groups.PADDING: self.max_length, columns.IMAGE_BLOCKS: 0}
        arrays: list[Any] = []
        for kind in kinds:
            if kind.name in single:
                arrays.append(from_values([single[kind.name]], kind.type))
                continue
            item = kind.type.value_type
            filling = [whole[kind.name]] * self.max_length if kind.name in whole else []
            values = from_values(filling, item) if filling else pa.nulls(0, item)
            ends = to_arrow(np.array([0, len(values)], np.int32))
            arrays.append(pa.ListArray.from_arrays(ends, values, type=kind.type))
        return pa.RecordBatch.from_arrays(arrays, schema=kinds)

    def _packed(self, schema: pa.Schema) -> pa.Schema:
        carried = [
            pa.field(name, pa.list_(pa.uint8() if name == groups.LOSS_MASK else schema.field(name).type.value_type))
            for name in self._columns()
            if schema.get_field_index(name) >= 0 or (name == groups.LOSS_MASK and self.align_to > 1)
        ]
        last = [ALIGNMENT_FIELD] if self.align_to > 1 else []
        return pa.schema([pa.field(groups.TOKENS, pa.list_(pa.int32())), *carried, *PIECE_FIELDS, *IMAGE_FIELDS, *last])

    def _columns(self) -> tuple[str, ...]:
        """The token columns; pad tokens between documents need a loss mask."""
        extra = (groups.LOSS_MASK,) if self.align_to > 1 and groups.LOSS_MASK not in self.token_columns else ()
        return (*self.token_columns, *extra)

    def _limits(self) -> Limits:
        return Limits(
            tokens=self.max_length,
            blocks=NO_LIMIT if self.max_patches is None else self.max_patches,
            images=NO_LIMIT if self.max_images is None else self.max_images,
            bins=self.open_bins,
            least_room=self.least_room,
            max_age=self.max_age,
            ensure_image=self.ensure_image,
            waiting=self.max_waiting,
        )

    def _check_pad(self) -> None:
        if self.pad_token_id is None:
            raise RecipeError(
                "pack_multimodal needs a pad token: sequences are rarely full",
                hint="give pad_token_id=; the EOS id is fine, since the padding's length travels with the row",
            )


def _all_columns(names: Iterable[str]) -> pa.Schema:
    kinds: list[Any] = [pa.field(name, pa.list_(pa.uint8())) for name in names]
    return pa.schema(kinds)

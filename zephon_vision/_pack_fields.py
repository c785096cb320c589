"""What `pack_multimodal` adds to `Batch.to_training`: weights of the loss, lengths of aligned documents, figures of each sequence."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from zephon import groups
from zephon.arrays import list_sizes
from zephon.errors import RecipeError, unknown
from zephon.plugin import Collation, Fields
from zephon_vision import columns
from zephon_vision.policies.base import Plan

Ints = npt.NDArray[Any]
LossWeight = Literal["token", "sample", "square"]
_POWERS: dict[str, float] = {"token": 0.0, "sample": 1.0, "square": 0.5}


def pack_fields(batch: Collation, fields: Fields, *, align_to: int) -> Fields:
    """The fields with those of packed documents; see `PackMultimodal.collate`.

    Raises:
        RecipeError: a `loss_weight` that isn't known or has no loss mask; inputs that are no whole number of `align_to`.
    """
    made = dict(fields)
    aligned = made.pop(columns.DOCUMENT_ALIGNMENT, None) is not None
    how = batch.options.get("loss_weight")
    if how is not None:
        if how not in get_args(LossWeight):
            raise RecipeError(unknown("loss_weight", str(how), get_args(LossWeight)))
        if "loss_mask" not in made:
            raise RecipeError(
                "loss_weight needs the loss mask", hint="leave return_loss_mask on; exclude_fields may leave it out"
            )
        mask = made["loss_mask"]
        made["loss_weight"] = lambda: batch.finish(loss_weights(np.asarray(mask()), batch.segments, how))
    if aligned:
        size = batch.inputs.shape[1]
        if size % align_to:
            raise RecipeError(
                f"documents are aligned to {align_to} tokens, and the inputs have {size}",
                hint="with shift=True the last token is no input: give pack_multimodal a max_length that is one more than a "
                f"multiple of {align_to}"
                if batch.shift
                else f"with shift=False max_length must be a multiple of {align_to}",
            )
        made["seq_lens"] = lambda: batch.finish(document_lengths(batch, padded=False))
        made["seq_lens_padded"] = lambda: batch.finish(document_lengths(batch, padded=True))
    if batch.options.get("return_stats"):
        made["stats"] = lambda: {name: batch.finish(values) for name, values in pack_stats(batch).items()}
    return made


def loss_weights(mask: Ints, segments: Ints, how: str) -> Ints:
    """float32, shaped as `mask`: of each label that counts 1, 1 / n or 1 / sqrt(n), with n the labels that count in its document.

    `sample` gives every document the same weight, `square` is between the two (InternVL's "square averaging").
    """
    flat = mask.reshape(-1).astype(np.float64)
    begins = np.cumsum(segments) - segments
    counts = np.add.reduceat(flat, begins) if len(segments) else np.zeros(0)
    each = np.maximum(counts, 1.0) ** -_POWERS[how]
    weights: Ints = (flat * np.repeat(each, segments)).astype(np.float32).reshape(mask.shape)
    return weights


def document_lengths(batch: Collation, *, padded: bool) -> Ints:
    """int32[B, D], 0 after a row's last document; with `flatten` int32[D] of all rows. Without `padded` less the alignment.

    The padding at a row's end is no document.
    """
    counts, lengths = _lists(batch, groups.LENGTHS)
    if not padded:
        lengths = lengths - _lists(batch, columns.DOCUMENT_ALIGNMENT)[1]
    if batch.flatten:
        return lengths.astype(np.int32)
    out = np.zeros((len(counts), int(counts.max(initial=0))), dtype=np.int32)
    out[np.arange(out.shape[1]) < counts[:, None]] = lengths
    return out


def pack_stats(batch: Collation) -> dict[str, Ints]:
    """Of each row of the batch, [B]: `n_docs`, `n_images` int32; `n_patches` (or tiles) and `sum_patch_sq`, the sum of the images'
    squares of that, int64 (what attention within images costs); `fill` float32, the share of tokens that are no padding.
    """
    counts, lengths = _lists(batch, groups.LENGTHS)
    rows = np.repeat(np.arange(len(counts)), counts)
    tokens = np.bincount(rows, weights=lengths, minlength=len(counts))
    if batch.group.schema.get_field_index(columns.DOCUMENT_ALIGNMENT) >= 0:
        tokens -= np.bincount(rows, weights=_lists(batch, columns.DOCUMENT_ALIGNMENT)[1], minlength=len(counts))
    images = groups.column(batch.group, columns.IMAGE_PLANS)
    per_row = list_sizes(images)
    blocks = np.array([Plan.unpack(n).blocks for n in images.flatten().field("numbers").to_pylist()], dtype=np.int64)
    of_row = np.repeat(np.arange(len(per_row)), per_row)
    patches, squares = np.zeros(len(per_row), np.int64), np.zeros(len(per_row), np.int64)
    np.add.at(patches, of_row, blocks)
    np.add.at(squares, of_row, blocks**2)
    width = groups.list_lengths(groups.column(batch.group, groups.TOKENS))
    return {
        "n_docs": counts.astype(np.int32),
        "n_images": per_row.astype(np.int32),
        "n_patches": patches,
        "sum_patch_sq": squares,
        "fill": (tokens / np.maximum(width, 1)).astype(np.float32),
    }


def _lists(batch: Collation, name: str) -> tuple[Ints, Ints]:
    """`(int64[B] elements of each row, int64 all of them)`."""
    offsets, values = groups.list_parts(groups.column(batch.group, name))
    return np.diff(offsets).astype(np.int64), values[int(offsets[0]) : int(offsets[-1])].astype(np.int64)

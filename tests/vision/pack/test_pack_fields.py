"""Documents aligned for context parallelism, weights of the loss, and figures of a pack."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants.test_4_rows_in_equal_rows_out import check
from strategies import Topology, drive, reference
from vision.pack.best_fit_oracle import pack
from vision.pack.interleaved import PAD, Document, documents, group, joined, measure
from vision.pack.test_elastic import RECIPES, VisionRecipe
from vision.pack.test_pack_multimodal import SHOWN, operator, run, split

from zephon import groups
from zephon.errors import RecipeError
from zephon.testing import check_operator
from zephon_vision import columns
from zephon_vision._pack_bins import Limits
from zephon_vision._pack_fields import loss_weights


def aligned(row: Document, step: int) -> Document:
    """The document with pad tokens at its end, by loops."""
    more = -len(row[groups.TOKENS]) % step
    made = dict(row)
    for name, fill in ((groups.TOKENS, PAD), (groups.LOSS_MASK, 0), (columns.MM_TYPES, 0)):
        made[name] = [*row[name], *[fill] * more]
    return made


@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(1, 8), st.sampled_from([2, 4, 8, 25]))
def test_aligned_documents_are_packed_as_if_they_had_come_so(seed: int, count: int, size: int, step: int) -> None:
    rows = [r for r in documents(count, seed=seed) if r[groups.TOKENS]]
    longer = [aligned(r, step) for r in rows]
    found, _ = run(operator(align_to=step), split(rows, size))
    want, _ = pack([measure(r) for r in longer], Limits(tokens=200, bins=3, least_room=4))
    assert [{n: r[n] for n in SHOWN} for r in found] == [joined([longer[n] for n in sequence], 200) for sequence in want]
    for row, sequence in zip(found, want, strict=True):
        assert row[columns.DOCUMENT_ALIGNMENT] == [-len(rows[n][groups.TOKENS]) % step for n in sequence]


def test_text_that_came_without_a_loss_mask_gets_one_that_leaves_the_pad_tokens_out() -> None:
    names = (columns.IMAGES, columns.IMAGE_PLANS, columns.IMAGE_SPANS, groups.LOSS_MASK, columns.MM_TYPES)
    rows = [r for r in documents(20, seed=4, images=0) if r[groups.TOKENS]]
    packer = operator(align_to=8, token_columns=())
    check_operator(packer, split(rows, 6, without=names))
    found, _ = run(packer, split(rows, 6, without=names))
    for row in found:
        assert row[groups.LOSS_MASK] == [int(token != PAD) for token in row[groups.TOKENS]]
    (empty,) = packer.empty_row(None).to_pylist()
    assert empty[groups.LOSS_MASK] == [0] * 200
    assert empty[columns.DOCUMENT_ALIGNMENT] == []


def with_packing(plain: VisionRecipe, **changes: Any) -> VisionRecipe:
    first, *rest = plain.steps
    return replace(plain, steps=(replace(first, **changes), *rest))  # type: ignore[type-var]


def test_aligned_batches_are_the_same_on_two_ranks_and_every_token_is_accounted_for() -> None:
    made = with_packing(RECIPES["to an end"], align_to=4)
    want, _ = reference(made, 3)
    found = drive(made, Topology(world=2, microbatch=1), steps=3, max_steps=3)
    assert [found.steps[s] for s in range(3)] == want
    pipeline = made.pipeline()
    padded = sum(sum(map(sum, b.group.column(columns.DOCUMENT_ALIGNMENT).to_pylist())) for b in pipeline)
    account = pipeline.accounting()["tokens"]
    assert account["in_flight"] == 0
    assert account["added"] == padded > 0


def test_pads_that_align_documents_are_never_less_than_nothing_in_flight() -> None:
    made = replace(with_packing(RECIPES["to an end"], align_to=110), window=50, lanes=1, per_step=1)
    pipeline = made.pipeline(runner="inline")
    for _ in pipeline:
        check(pipeline.accounting()["tokens"])


@pytest.mark.parametrize(("shift", "length"), [(False, 220), (True, 221)])
@pytest.mark.parametrize("flatten", [False, True])
def test_borders_of_aligned_documents_divide_by_what_context_parallelism_asks_for(
    shift: bool, length: int, flatten: bool
) -> None:
    made = with_packing(RECIPES["to an end"], align_to=4, max_length=length)
    for batch in made.pipeline():
        fields = batch.to_training(dtype=np.int64, shift=shift, flatten=flatten)
        assert (fields["cu_seqlens"] % 4 == 0).all()
        assert fields["cu_seqlens"].max() == 220 * (len(batch) if flatten else 1)
        lengths, alignments = (batch.group.column(n).to_pylist() for n in (groups.LENGTHS, columns.DOCUMENT_ALIGNMENT))
        padded = [n for row in lengths for n in row]
        real = [n - more for row, some in zip(lengths, alignments, strict=True) for n, more in zip(row, some, strict=True)]
        assert fields["seq_lens_padded"][fields["seq_lens_padded"] > 0].tolist() == padded
        assert fields["seq_lens"][fields["seq_lens"] > 0].tolist() == real
        assert fields["seq_lens"].ndim == (1 if flatten else 2)
        assert columns.DOCUMENT_ALIGNMENT not in fields
        assert (fields["labels"] == PAD).sum() == 0, "a pad token is trained on"


def test_lengths_that_cannot_be_aligned_are_refused() -> None:
    for settings in ({"max_length": 10, "align_to": 4}, {"align_to": 0}, {"align_to": 400}, {"align_to": None}):
        with pytest.raises(RecipeError, match="align_to"):
            operator(**settings)
    batch = next(iter(with_packing(RECIPES["to an end"], align_to=4).pipeline()))
    with pytest.raises(RecipeError, match="one more than a multiple of 4"):
        batch.to_training(dtype=None, shift=True)
    batch = next(iter(with_packing(RECIPES["to an end"], align_to=4, max_length=221).pipeline()))
    with pytest.raises(RecipeError, match="must be a multiple of 4"):
        batch.to_training(dtype=None)


# ------------------------------------------------------------------------------------------------ weights, figures


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize(("how", "power"), [("token", 0.0), ("sample", 1.0), ("square", 0.5)])
def test_weights_of_a_document_follow_from_the_number_of_its_labels(how: str, power: float, flatten: bool) -> None:
    for batch in RECIPES["to an end"].pipeline():
        fields = batch.to_training(dtype=np.int64, loss_weight=how, flatten=flatten)
        mask, weights, document = fields["loss_mask"], fields["loss_weight"], fields["document_ids"]
        assert weights.dtype == np.float32
        assert weights.shape == mask.shape
        assert (weights[mask == 0] == 0).all()
        rows = [(mask, weights, document)] if flatten else list(zip(mask, weights, document, strict=True))
        for m, w, d in rows:
            for number in range(int(d.max()) + 1):
                count = m[d == number].sum()
                assert w[d == number].sum() == pytest.approx(count ** (1 - power) if count else 0.0, rel=1e-5)


def test_weights_keep_the_shape_of_an_empty_batch() -> None:
    assert loss_weights(np.zeros((2, 0), np.float32), np.zeros(0, np.int64), "sample").shape == (2, 0)


def test_unknown_weights_and_missing_masks_are_refused() -> None:
    batch = next(iter(RECIPES["to an end"].pipeline()))
    with pytest.raises(RecipeError, match="loss_weight"):
        batch.to_training(dtype=None, loss_weight="squared")
    with pytest.raises(RecipeError, match="needs the loss mask"):
        batch.to_training(dtype=None, loss_weight="square", return_loss_mask=False)
    assert "loss_weight" not in batch.to_training(dtype=None)


@pytest.mark.parametrize("align_to", [1, 4])
def test_figures_are_those_of_the_rows(align_to: int) -> None:
    for batch in with_packing(RECIPES["to an end"], align_to=align_to).pipeline():
        fields = batch.to_training(dtype=np.int64, return_stats=True)
        for i, row in enumerate(batch.group.to_pylist()):
            blocks = [p["numbers"][2] for p in row[columns.IMAGE_PLANS]]
            real = sum(row[groups.LENGTHS]) - sum(row.get(columns.DOCUMENT_ALIGNMENT, []))
            want = (len(row[groups.LENGTHS]), len(blocks), sum(blocks), sum(b * b for b in blocks))
            names = ("n_docs", "n_images", "n_patches", "sum_patch_sq")
            assert tuple(int(fields["stats"][n][i]) for n in names) == want
            assert math.isclose(fields["stats"]["fill"][i], real / 220, rel_tol=1e-6)
        assert "stats" not in batch.to_training(dtype=None)


def test_groups_of_one_document_and_of_none_align() -> None:
    rows = [r for r in documents(3, seed=2) if r[groups.TOKENS]]
    check_operator(operator(align_to=8), [group(rows[:1]), group([], first=1), group(rows[1:], first=1)])

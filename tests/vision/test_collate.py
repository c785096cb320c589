"""Vision columns in `to_training`, against loops over documents, images and tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from vision.pack.decoding import MakeUpPixels
from vision.pack.interleaved import IMAGE, KINDS, PAD, POLICY, SPEC, Document, document, documents, joined

from zephon import groups
from zephon.batch import Batch
from zephon.errors import DataError, RecipeError
from zephon_vision import columns
from zephon_vision._batch_images import BLANK
from zephon_vision.pack_multimodal import PackMultimodal
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.qwen import Qwen25VL

LENGTH = 150
PACKER = PackMultimodal(max_length=LENGTH, pad_token_id=PAD)
PACKED_KINDS: dict[str, Any] = {
    **KINDS,
    groups.PADDING: pa.int32(),
    groups.LENGTHS: pa.list_(pa.int32()),
    columns.IMAGE_DOCUMENT: pa.list_(pa.int32()),
    columns.IMAGE_BLOCKS: pa.int32(),
}


Packs = list[list[Document]]


def packs(seed: int, rows: int, **settings: Any) -> Packs:
    """Documents for rows of LENGTH tokens; some rows have none."""
    made: Packs = []
    every = iter(documents(20 * rows, seed=seed, **settings))
    draw = random.Random(seed)
    for _ in range(rows):
        made.append([])
        while draw.random() < 0.8 and len(made[-1]) < 10:
            row = next(every)
            if row[groups.TOKENS] and sum(len(d[groups.TOKENS]) for d in [*made[-1], row]) <= LENGTH:
                made[-1].append(row)
    return made


def batch_of(packed: Packs, *, decoded: bool = True, collators: tuple[Any, ...] = (PACKER,), **columns_given: Any) -> Batch:
    rows = [joined(documents_of, LENGTH) for documents_of in packed]
    group = pa.RecordBatch.from_pydict({n: pa.array([r[n] for r in rows], kind) for n, kind in PACKED_KINDS.items()})
    if decoded:
        group = MakeUpPixels().bind()(group)
    for name, array in columns_given.items():
        group = groups.set_column(group, name, array)
    return Batch(group, lane=0, step=0, index=0, defaults={"pad_token_id": PAD, "collators": collators})


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def mrope_of(row: Document) -> list[list[int]]:
    """[4][tokens] of one document, token by token."""
    out: list[list[int]] = [[], [], [], []]
    position, at = 0, 0
    for i, span in enumerate(row[columns.IMAGE_SPANS]):
        while at < span["stop"]:
            if row[groups.TOKENS][at] != IMAGE:
                values = [at, position, position, position]
                position += 1
                taken = [values]
            else:
                n = row[columns.IMAGE_PLANS][i]["numbers"]
                high, wide = n[-2] // 2, n[-1] // 2
                taken = [[at + y * wide + x, position, position + y, position + x] for y in range(high) for x in range(wide)]
                position += max(high, wide)
            for values in taken:
                for axis in range(4):
                    out[axis].append(values[axis])
            at += len(taken)
    for k in range(at, len(row[groups.TOKENS])):
        for axis in range(4):
            out[axis].append(k if axis == 0 else position)
        position += 1
    return out


def expected(packed: Packs, *, flatten: bool) -> dict[str, Any]:
    """The vision fields, by loops."""
    out: dict[str, Any] = {
        "image_grid_thw": [],
        "cu_patches": [0],
        "image_row": [],
        "image_document": [],
        "image_spans": [],
        "image_blocks": [],
        "mm_token_type_ids": [],
        "position_ids": [[], [], [], []],
    }
    segment = 0
    for number, row in enumerate(packed):
        base = number * LENGTH if flatten else 0
        at, blocks = 0, 0
        positions: list[list[int]] = [[], [], [], []]
        for d, one in enumerate(row):
            for span, plan in zip(one[columns.IMAGE_SPANS], one[columns.IMAGE_PLANS], strict=True):
                out["image_spans"].append([base + at + span["start"], base + at + span["stop"], len(out["image_row"])])
                out["image_row"].append(number)
                out["image_document"].append(d + (segment if flatten else 0))
                out["image_grid_thw"].append(plan["numbers"][-3:])
                out["cu_patches"].append(out["cu_patches"][-1] + plan["numbers"][2])
                blocks += plan["numbers"][2]
            at += len(one[groups.TOKENS])
            for axis, values in enumerate(mrope_of(one)):
                positions[axis] += values
        for axis in range(4):
            positions[axis] += range(LENGTH - at)
            out["position_ids"][axis] += positions[axis] if flatten else [positions[axis]]
        types = joined(row, LENGTH)[columns.MM_TYPES]
        out["mm_token_type_ids"] += types if flatten else [types]
        out["image_blocks"].append(blocks)
        segment += len(row) + (at < LENGTH)
    return out


@settings(max_examples=examples(40))
@given(st.integers(0, 100_000), st.integers(1, 4), st.booleans(), st.sampled_from(["auto", None, np.int64, torch.int32]))
def test_every_field_is_what_loops_give(seed: int, rows: int, flatten: bool, dtype: Any) -> None:
    packed = packs(seed, rows)
    got = batch_of(packed).to_training(dtype=dtype, flatten=flatten, image_policy=SPEC)
    want = expected(packed, flatten=flatten)
    if not want["image_row"]:
        assert "pixel_values" not in got
        assert "image_grid_thw" not in got
        del want["image_grid_thw"]
    for name, value in want.items():
        assert plain(got[name]) == value, name
    assert plain(got["positions"]) == plain(got["position_ids"])
    assert not {columns.IMAGES, columns.IMAGE_PLANS, columns.PIXEL_SHAPES} & set(got)
    ids, documents_of = np.asarray(got["input_ids"]), np.asarray(got["document_ids"])
    for i, (start, _, image) in enumerate(plain(got["image_spans"])):
        row = () if flatten else (plain(got["image_row"])[image],)
        assert documents_of[(*row, start)] == plain(got["image_document"])[image]
        assert ids[(*row, start)] == 1
        assert i == image
    assert int((ids == IMAGE).sum()) * 4 == plain(got["cu_patches"])[-1]


@settings(max_examples=examples(25))
@given(st.integers(0, 100_000), st.integers(1, 3))
def test_pixels_are_the_images_in_order_with_blank_ones_grey(seed: int, rows: int) -> None:
    batch = batch_of(packs(seed, rows, text=4))
    want = []
    for row in batch.group.select([columns.PIXELS, columns.PIXEL_SHAPES]).to_pylist():
        for data, shape in zip(row[columns.PIXELS], row[columns.PIXEL_SHAPES], strict=True):
            blank = np.full(shape, BLANK, np.uint8)
            want.append(blank if data is None else np.frombuffer(data, np.uint8).reshape(shape))
    got = batch.to_training(dtype=np.int64)
    if not want:
        assert "pixel_values" not in got
        return
    assert got["pixel_values"].dtype == np.uint8
    assert np.array_equal(got["pixel_values"], np.concatenate(want))
    assert got["pixel_values"].flags.writeable
    plans = [POLICY.plan(*p["numbers"][:2]) for row in batch.group.column(columns.IMAGE_PLANS).to_pylist() for p in row]
    floats = batch.to_training(pixel_dtype="float32")["pixel_values"]
    assert floats.dtype == torch.float32
    assert np.array_equal(floats.numpy(), POLICY.pixel_values(want, plans))
    assert torch.equal(batch.to_training(pixel_dtype=torch.bfloat16)["pixel_values"], floats.bfloat16())
    assert torch.equal(batch.to_training(pixel_dtype="float16")["pixel_values"], floats.half())


def test_labels_are_aligned_with_the_inputs_and_documents_start_without_one() -> None:
    packed = packs(3, 3)
    got = batch_of(packed).to_training(dtype=np.int64)
    for ids, labels, row in zip(got["input_ids"], got["labels"], packed, strict=True):
        whole = joined(row, LENGTH)
        starts = {sum(whole[groups.LENGTHS][:k]) for k in range(len(row) + 1)}
        assert ids.tolist() == whole[groups.TOKENS]
        want = [t if m and k not in starts else -100 for k, (t, m) in enumerate(zip(ids, whole[groups.LOSS_MASK], strict=True))]
        assert labels.tolist() == want
        assert (labels[(ids > 0) & (ids < 4)] == -100).all()


def test_shifting_cuts_the_last_token_and_refuses_to_cut_an_image() -> None:
    fits = packs(4, 2)
    got = batch_of(fits).to_training(dtype=np.int64, shift=True)
    assert got["position_ids"].shape == (4, 2, LENGTH - 1)
    assert got["position_ids"].tolist() == [[r[:-1] for r in axis] for axis in expected(fits, flatten=False)["position_ids"]]
    draw = random.Random(0)
    while True:
        one = document(1, draw, images=1, text=200)
        if len(one[groups.TOKENS]) == one[columns.IMAGE_SPANS][-1]["stop"] <= LENGTH:
            break
    filler = document(2, draw, images=0, text=2)
    filler = {k: ([9] * (LENGTH - len(one[groups.TOKENS])) if k == groups.TOKENS else v) for k, v in filler.items()}
    size = len(filler[groups.TOKENS])
    filler |= {groups.LOSS_MASK: [1] * size, columns.MM_TYPES: [0] * size}
    batch = batch_of([[filler, one] if size else [one]])
    assert batch.to_training()["image_spans"].tolist()[-1][1] == LENGTH
    with pytest.raises(DataError, match="shift"):
        batch.to_training(shift=True)


def test_text_alone_has_plain_positions_until_the_policy_is_known() -> None:
    batch = batch_of([documents(2, seed=1, images=0), []])
    assert batch.to_training(dtype=np.int64)["position_ids"].shape == (2, LENGTH)
    got = batch.to_training(dtype=np.int64, image_policy=SPEC)
    assert got["position_ids"].shape == (4, 2, LENGTH)
    assert (got["position_ids"] == got["position_ids"][0]).all()
    assert got["cu_patches"].tolist() == [0]
    assert got["image_spans"].shape == (0, 3)


def test_a_batch_without_rows() -> None:
    got = batch_of([]).to_training(dtype=np.int64)
    assert got["input_ids"].shape[0] == 0
    assert got["cu_patches"].tolist() == [0]


def test_two_operators_that_collate_give_the_same_as_one() -> None:
    packed = packs(5, 2)
    one = batch_of(packed).to_training(dtype=None)
    two = batch_of(packed, collators=(PACKER, MakeUpPixels())).to_training(dtype=None)
    assert one == two


def test_images_stay_as_files_until_they_are_decoded() -> None:
    packed = packs(6, 2)
    got = batch_of(packed, decoded=False).to_training()
    assert got["images"] == [joined(row, LENGTH)[columns.IMAGES] for row in packed]
    assert "pixel_values" not in got
    assert got["image_grid_thw"].dtype == torch.int64


def test_tiles_have_their_own_shape_and_plain_positions() -> None:
    policy = InternVL()
    row = document(1, random.Random(2), images=2, text=9, policy=policy)
    length = len(row[groups.TOKENS])
    plans = [plan["numbers"] for plan in row[columns.IMAGE_PLANS]]
    shapes = [[n[2], 3, 448, 448] for n in plans]
    whole = joined([row], length)
    kinds = {n: k for n, k in PACKED_KINDS.items() if n != columns.IMAGE_DOCUMENT}
    group = pa.RecordBatch.from_pydict({n: pa.array([whole[n]], kind) for n, kind in kinds.items()})
    pixels = [bytes([k + 1]) * int(np.prod(shape)) for k, shape in enumerate(shapes)]
    group = group.append_column(columns.PIXELS, pa.array([pixels], columns.PIXELS_TYPE))
    group = group.append_column(columns.PIXEL_SHAPES, pa.array([shapes], columns.PIXEL_SHAPES_TYPE))
    got = Batch(group, lane=0, step=0, index=0, defaults={"collators": (PACKER,)}).to_training()
    assert got["pixel_values"].shape == (sum(n[2] for n in plans), 3, 448, 448)
    assert [int(v) for v in got["pixel_values"][got["cu_patches"][:-1].long(), 0, 0, 0]] == [1, 2]
    assert got["position_ids"].tolist() == [list(range(length))]
    assert got["image_document"].tolist() == [0, 0]
    for name, values in policy.fields([policy.plan(*n[:2], images=2) for n in plans]).items():
        assert got[name].tolist() == values.tolist()


def test_pixels_that_were_rendered_as_floats_stay_as_they_are() -> None:
    packed = [[document(1, random.Random(2), images=2), document(2, random.Random(3), images=1)]]
    batch = batch_of(packed)
    (shapes,) = batch.group.column(columns.PIXEL_SHAPES).to_pylist()
    arrays = [np.random.default_rng(i).random(shape, dtype=np.float32) for i, shape in enumerate(shapes)]
    data = [None if i == 1 else a.tobytes() for i, a in enumerate(arrays)]
    batch = batch_of(packed, pixel_values=pa.array([data], columns.PIXELS_TYPE))
    got = batch.to_training()["pixel_values"]
    arrays[1][:] = 0
    assert np.array_equal(got.numpy(), np.concatenate(arrays))
    assert torch.equal(batch.to_training(pixel_dtype=torch.float16)["pixel_values"], got.half())


def test_images_that_were_planned_smaller_to_fit_go_together() -> None:
    smaller = Qwen25VL(min_pixels=28 * 28, max_pixels=28 * 28 * 2)
    packed = [[document(1, random.Random(2), images=2), document(2, random.Random(3), images=1, policy=smaller)]]
    got = batch_of(packed).to_training(dtype=None)
    want = expected(packed, flatten=False)
    assert {name: got[name] for name in want} == want
    assert len(got["pixel_values"]) == got["cu_patches"][-1]


def test_columns_that_contradict_each_other_are_named() -> None:
    packed = [[document(1, random.Random(2), images=2)]]
    whole = batch_of(packed).group.to_pylist()[0]
    pixels = [b"123", *whole[columns.PIXELS][1:]]
    with pytest.raises(DataError, match="3 bytes of pixels"):
        batch_of(packed, pixel_values=pa.array([pixels], columns.PIXELS_TYPE)).to_training()
    with pytest.raises(DataError, match="not parallel"):
        batch_of(packed, pixel_values=pa.array([pixels[1:]], columns.PIXELS_TYPE)).to_training()
    shapes = [[1, 3], *whole[columns.PIXEL_SHAPES][1:]]
    with pytest.raises(DataError, match="its plan says"):
        batch_of(packed, pixel_shapes=pa.array([shapes], columns.PIXEL_SHAPES_TYPE)).to_training()
    plans = [whole[columns.IMAGE_PLANS][0], {"policy": "internvl", "numbers": whole[columns.IMAGE_PLANS][1]["numbers"]}]
    with pytest.raises(DataError, match="several policies"):
        batch_of(packed, image_plans=pa.array([plans], columns.IMAGE_PLANS_TYPE)).to_training()
    for spans, message in (
        ([{"start": 0, "stop": 3, "image": 2}], "doesn't have"),
        ([{"start": 3, "stop": LENGTH + 1, "image": 0}], "not in its tokens"),
    ):
        with pytest.raises(DataError, match=message):
            batch_of(packed, image_spans=pa.array([spans], columns.IMAGE_SPANS_TYPE)).to_training()
    with pytest.raises(RecipeError, match="pixel_dtype"):
        batch_of(packed).to_training(pixel_dtype="int8")
    with pytest.raises(RecipeError, match="bfloat16"):
        batch_of(packed).to_training(pixel_dtype="bfloat16", dtype=np.int64)

"""From segments to a model: a pack trains like its documents one by one, and a bad image leaves the layout alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene
from vision.policies.kit import qwen_pixels

from zephon import Batch, Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon_vision import columns
from zephon_vision.policies.qwen import Qwen25VL

POLICY = Qwen25VL(min_pixels=56 * 56, max_pixels=56 * 112)
WORDS = ("What", "is", "in", "this", "picture?", "A", "cat", "that", "sits", "on", "the", "mat,", "looking", "at", "you.", "42")


@cache
def tokenizer() -> Any:
    return fast(QWEN)


def text(draw: random.Random) -> dict[str, Any]:
    words = " ".join(draw.choices(WORDS, k=draw.randrange(1, 12)))
    return {"kind": columns.TEXT, "text": words, "role": None, "turn": None, "train": True, "image": None}


def image(number: int) -> dict[str, Any]:
    return {"kind": columns.IMAGE, "text": None, "role": None, "turn": None, "train": False, "image": number}


def rows(count: int, seed: int) -> pa.Table:
    """Interleaved documents with small photographs."""
    draw = random.Random(seed)
    segments: list[list[dict[str, Any]]] = []
    images: list[list[dict[str, Any]]] = []
    for n in range(count):
        number = draw.choice([0, 1, 1, 2])
        segments.append([text(draw)])
        for i in range(number):
            segments[-1] += [image(i), *([text(draw)] if i + 1 < number or draw.random() < 0.5 else [])]
        files = [jpeg(scene(draw.randrange(40, 120), draw.randrange(40, 120), seed=100 * n + i)) for i in range(number)]
        images.append([{"bytes": data, "path": None} for data in files])
    return pa.table(
        {columns.SEGMENTS: pa.array(segments, columns.SEGMENTS_TYPE), columns.IMAGES: pa.array(images, columns.IMAGES_TYPE)}
    )


def batches(
    table: pa.Table, *, packing: Any = "best_fit", length: int = 160, align_to: int = 1, **decoding: Any
) -> list[Batch]:
    source = StaticMixtureWorkSource([Dataset.from_records("a", table)], {"a": 1.0}, chunk_size=5, stop_after_passes=1)
    pipeline = (
        Pipeline(source)
        .tokenize_interleaved(tokenizer=tokenizer(), images=POLICY, bos=False, eos=False, pad_token_id=0)
        .pack_multimodal(max_length=length, max_patches=200, open_bins=3, least_room=8, packing=packing, align_to=align_to)
        .decode_images(backend="torch", **decoding)
        .batch(1)
        .options(lanes=1, runner="inline")
    )
    return list(pipeline)


@cache
def tiny(name: str) -> Any:
    """A model with random weights, in float32."""
    text_config: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "initializer_range": 0.3,  # so that attention, and with it positions, make a difference
        "vocab_size": tokenizer().get_vocab_size(), "pad_token_id": 0, "head_dim": 16,
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "embed_dim": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    ids = {f"{n}_token_id": tokenizer().token_to_id(f"<|{t}|>") for n, t in (
        ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"),
    )}  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=text_config, vision_config={**vision, "fullatt_block_indexes": [1]}, **ids
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config).float().eval()


def loss(fields: dict[str, Any], **other: Any) -> tuple[float, int]:
    """(sum over labels, labels)."""
    fields = {**fields, **other}
    if not fields["num_label_tokens"]:
        return 0.0, 0
    wanted = ("input_ids", "labels", "position_ids", "pixel_values", "image_grid_thw")
    given = {n: fields[n] for n in wanted if n in fields}
    with torch.no_grad():
        mean = float(tiny("Qwen2_5_VL")(**given, use_cache=False).loss)
    return mean * fields["num_label_tokens"], fields["num_label_tokens"]


def fields_of(made: Sequence[Batch]) -> list[dict[str, Any]]:
    return [b.to_training(pixel_dtype="float32", image_policy=POLICY.spec()) for b in made]


def total(sums: list[tuple[float, int]]) -> tuple[float, int]:
    return sum(s for s, _ in sums), sum(n for _, n in sums)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_pack_has_the_loss_of_its_documents_one_by_one() -> None:
    table = rows(12, seed=1)
    packed, single = batches(table), batches(table, packing=None)
    assert len(packed) < len(single)
    assert any(len(b.group.column(groups.LENGTHS)[0]) > 2 for b in packed)
    want, count = total([loss(f) for f in fields_of(single)])
    found, labels = total([loss(f) for f in fields_of(packed)])
    assert labels == count
    assert found / labels == pytest.approx(want / count, abs=1e-5)
    # also where documents are aligned by pad tokens
    found_aligned, same = total([loss(f) for f in fields_of(batches(table, align_to=16))])
    assert same == count
    assert found_aligned / same == pytest.approx(want / count, abs=1e-5)
    # and it would be another one if documents saw each other, or if images had the positions of text
    for change in (lambda p: torch.cat([torch.arange(p.shape[2]).expand(p[:1].shape), p[1:]]), lambda p: p[:1].expand(p.shape)):
        other, _ = total([loss(f, position_ids=change(f["position_ids"])) for f in fields_of(packed)])
        assert abs(other - found) / labels > 1e-3


def test_pixels_and_tokens_are_those_of_the_models_own_processor() -> None:
    from PIL import Image

    table = rows(8, seed=2)
    processor = transformers.Qwen2VLImageProcessorFast(**qwen_pixels(POLICY.min_pixels, POLICY.max_pixels))
    for batch in batches(table, dtype="float32"):
        fields = batch.to_training()
        order = [n for row in batch.group.column(groups.DOC_ROW).to_pylist() for n in row]
        files = [i["bytes"] for n in order for i in table.column(columns.IMAGES)[n].as_py()]
        if not files:
            continue
        pictures = [Image.open(pa.BufferReader(f)) for f in files]
        want = processor(pictures, return_tensors="pt")
        assert torch.equal(fields["image_grid_thw"], want["image_grid_thw"])
        assert torch.equal(fields["pixel_values"], want["pixel_values"])
        pads = int((fields["input_ids"] == tokenizer().token_to_id("<|image_pad|>")).sum())
        assert pads == int(want["image_grid_thw"].prod(dim=1).sum()) // 4 == int(fields["mm_token_type_ids"].sum())


def test_an_image_that_fails_after_packing_leaves_the_layout() -> None:
    table = rows(10, seed=3)
    images = table.column(columns.IMAGES).to_pylist()
    hit = next(n for n, row in enumerate(images) if row)
    whole = images[hit][0]["bytes"]
    images[hit][0]["bytes"] = whole[: len(whole) * 2 // 3]
    broken = table.set_column(1, columns.IMAGES, pa.array(images, columns.IMAGES_TYPE))
    good, bad = batches(table), batches(broken, max_bad_ratio=None)
    assert len(good) == len(bad)
    hits = 0
    for one, other in zip(good, bad, strict=True):
        a, b = one.to_training(dtype=np.int64), other.to_training(dtype=np.int64)
        for name in ("input_ids", "position_ids", "cu_seqlens", "cu_patches", "image_spans", "image_document", "document_ids"):
            assert np.array_equal(a[name], b[name]), name
        order = one.group.column(groups.DOC_ROW)[0].as_py()
        if hit not in order:
            assert np.array_equal(a["labels"], b["labels"])
            continue
        hits += 1
        document = a["document_ids"] == order.index(hit)
        assert (b["labels"][document] == -100).all()
        assert np.array_equal(a["labels"][~document], b["labels"][~document])
        grey = (b["pixel_values"] == 128).all(axis=1)
        patches = np.diff(a["cu_patches"])[list(a["image_document"]).index(order.index(hit))]
        assert int(grey.sum()) >= patches
    assert hits == 1

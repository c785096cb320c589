"""Tokenised documents with images, made up: what `tokenize_interleaved` gives, and plain-Python views of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon_vision import columns
from zephon_vision.policies.base import Policy
from zephon_vision.policies.qwen import Qwen25VL

PAD, START, IMAGE, STOP, TEXT = 0, 1, 2, 3, 10
POLICY = Qwen25VL(min_pixels=28 * 28, max_pixels=28 * 28 * 12)
SPEC = POLICY.spec()

Document = dict[str, Any]


def document(
    number: int, draw: random.Random, *, images: int | None = None, text: int = 12, policy: Policy = POLICY
) -> Document:
    """A document with runs of text between images; every text token of all documents is another one."""
    count = draw.choice([0, 1, 1, 1, 2, 3]) if images is None else images
    tokens: list[int] = []
    mask: list[int] = []
    kinds: list[int] = []
    made: Document = {columns.IMAGES: [], columns.IMAGE_PLANS: [], columns.IMAGE_SPANS: []}
    for i in range(count + 1):
        run = draw.randrange(text)
        tokens += [TEXT + number * 1000 + len(tokens) + k for k in range(run)]
        mask += [draw.randrange(2) for _ in range(run)]
        kinds += [0] * run
        if i == count:
            break
        plan = policy.plan(draw.randrange(20, 200), draw.randrange(20, 200))
        begin = len(tokens)
        tokens += [START, *[IMAGE] * (plan.tokens - 2), STOP]
        mask += [0] * plan.tokens
        kinds += [0, *[1] * (plan.tokens - 2), 0]
        made[columns.IMAGE_SPANS].append({"start": begin, "stop": len(tokens), "image": i})
        made[columns.IMAGE_PLANS].append({"policy": policy.spec(), "numbers": plan.pack()})
        data = draw.randbytes(draw.randrange(40)) if draw.random() < 0.8 else None
        made[columns.IMAGES].append({"bytes": data, "path": f"{number}/{i}.jpg" if draw.random() < 0.5 else None})
    made |= {groups.TOKENS: tokens, groups.LOSS_MASK: mask, columns.MM_TYPES: kinds}
    return made


def documents(count: int, *, seed: int = 0, first: int = 0, **settings: Any) -> list[Document]:
    """Several of them."""
    draw = random.Random(seed)
    return [document(first + i, draw, **settings) for i in range(count)]


KINDS: dict[str, Any] = {
    groups.TOKENS: pa.list_(pa.int32()),
    groups.LOSS_MASK: pa.list_(pa.uint8()),
    columns.MM_TYPES: pa.list_(pa.int8()),
    columns.IMAGES: columns.IMAGES_TYPE,
    columns.IMAGE_PLANS: columns.IMAGE_PLANS_TYPE,
    columns.IMAGE_SPANS: columns.IMAGE_SPANS_TYPE,
}


def table(rows: Sequence[Document], *, without: Sequence[str] = ()) -> pa.Table:
    """The documents as a table; a column that a document lacks is null there."""
    names = [n for n in KINDS if n not in without]
    return pa.table({n: pa.array([row.get(n) for row in rows], KINDS[n]) for n in names})


def group(rows: Sequence[Document], *, first: int = 0, without: Sequence[str] = ()) -> pa.RecordBatch:
    """The documents as a group with provenance: shard 5, rows from `first`, components 0, 1, 2, 0, …"""
    size = len(rows)
    made = table(rows, without=without).combine_chunks().to_batches()
    batch = made[0] if made else groups.empty_group(table(rows, without=without).schema)
    for name, values, kind in (
        (groups.COMPONENT, [(first + i) % 3 for i in range(size)], pa.int32()),
        (groups.PASS, [0] * size, pa.int64()),
        (groups.SHARD, [5] * size, pa.int32()),
        (groups.ROW, list(range(first, first + size)), pa.int64()),
    ):
        batch = batch.append_column(name, pa.array(values, kind))
    return batch


def blocks(row: Document) -> int:
    """Patches of all images of a document."""
    return sum(plan["numbers"][2] for plan in row.get(columns.IMAGE_PLANS) or [])


def measure(row: Document) -> tuple[int, int, int]:
    """(tokens, blocks, images)."""
    return len(row[groups.TOKENS]), blocks(row), len(row.get(columns.IMAGES) or [])


def joined(rows: Sequence[Document], length: int) -> dict[str, Any]:
    """The packed row that these documents make, by loops."""
    made: dict[str, Any] = {n: [] for n in KINDS}
    made |= {groups.LENGTHS: [], columns.IMAGE_DOCUMENT: [], columns.IMAGE_BLOCKS: sum(map(blocks, rows))}
    for number, row in enumerate(rows):
        for span in row[columns.IMAGE_SPANS] or []:
            made[columns.IMAGE_SPANS].append(
                {
                    "start": span["start"] + len(made[groups.TOKENS]),
                    "stop": span["stop"] + len(made[groups.TOKENS]),
                    "image": span["image"] + len(made[columns.IMAGES]),
                }
            )
        made[columns.IMAGE_DOCUMENT] += [number] * len(row[columns.IMAGES] or [])
        for name in (groups.TOKENS, groups.LOSS_MASK, columns.MM_TYPES, columns.IMAGES, columns.IMAGE_PLANS):
            made[name] += row[name] or []
        made[groups.LENGTHS].append(len(row[groups.TOKENS]))
    free = length - len(made[groups.TOKENS])
    for name, fill in ((groups.TOKENS, PAD), (groups.LOSS_MASK, 0), (columns.MM_TYPES, 0)):
        made[name] += [fill] * free
    made[groups.PADDING] = free
    return made


def image_pixels(plan: dict[str, Any], seed: int) -> tuple[bytes, list[int]]:
    """(bytes, shape) of made-up blocks for a plan of POLICY."""
    shape = [plan["numbers"][2], 3 * POLICY.patch_size**2]
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).tobytes(), shape

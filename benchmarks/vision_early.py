"""What late decode is compared with: the same pipeline with images decoded before packing. Bins and shuffles then hold pixels.

The packer carries whatever `images` holds, so pixels travel in place of files; after the shuffle they become the columns that
`decode_images` makes. The batches are the same byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from zephon import groups
from zephon.plugin import Operator
from zephon_vision import columns
from zephon_vision.collate import CollatesVision
from zephon_vision.decode_images import DecodeImages
from zephon_vision.policies.base import Plan, load


@dataclass(frozen=True, kw_only=True)
class DecodeFirst(CollatesVision, Operator):
    """The files in `images` become pixels."""

    name: ClassVar[str] = "decode_first"
    keeps_rows: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 4

    def inputs(self) -> tuple[str, ...]:
        """The images and their plans."""
        return (columns.IMAGES, columns.IMAGE_PLANS)

    def bind(self) -> Callable[..., Any]:
        """By `decode_images` itself."""
        decode: Any = DecodeImages(on_bad_image="error").bind()

        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            pixels: Any = groups.column(decode(group).group, columns.PIXELS)
            flat = pixels.flatten()
            make: Any = pa.StructArray.from_arrays
            held = make([flat, pa.nulls(len(flat), pa.string())], fields=list(columns.IMAGE_REF))
            return groups.set_column(group, columns.IMAGES, groups.make_list(pixels.offsets.to_numpy(), held))

        return apply


@dataclass(frozen=True, kw_only=True)
class Unwrap(CollatesVision, Operator):
    """Pixels that travelled as images become the columns that `decode_images` makes."""

    name: ClassVar[str] = "unwrap"
    keeps_rows: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 4

    def inputs(self) -> tuple[str, ...]:
        """The images and their plans."""
        return (columns.IMAGES, columns.IMAGE_PLANS)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """That of `decode_images`."""
        return DecodeImages().output_schema(schema)

    def bind(self) -> Callable[..., Any]:
        """Nothing is copied."""

        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            images: Any = groups.column(group, columns.IMAGES)
            offsets = images.offsets.to_numpy()
            offsets = offsets - offsets[0]
            plans: Any = groups.column(group, columns.IMAGE_PLANS)
            told = [p for row in plans.to_pylist() for p in row]
            shapes = [list(load(p["policy"]).block_shape(Plan.unpack(p["numbers"]))) for p in told]
            pixels = groups.make_list(offsets, images.flatten().field("bytes"))
            group = groups.set_column(group, columns.PIXELS, pixels)
            shaped = groups.make_list(offsets, pa.array(shapes, pa.list_(pa.int32())))
            group = groups.set_column(group, columns.PIXEL_SHAPES, shaped)
            return groups.select(group, [n for n in group.schema.names if n != columns.IMAGES])

        return apply

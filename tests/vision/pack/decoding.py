"""A stand-in for `decode_images`: pixels made up from each image's plan and file, so that packing is tested without decoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import xxhash
from vision.pack.interleaved import image_pixels

from zephon import groups
from zephon.plugin import Operator
from zephon_vision import columns
from zephon_vision.collate import CollatesVision

DECODED = [0]
"""How many images were made up in this process."""


@dataclass(frozen=True, kw_only=True)
class MakeUpPixels(CollatesVision, Operator):
    """Each image's pixels follow from its bytes; without bytes it is left blank."""

    name: ClassVar[str] = "make_up_pixels"
    keeps_rows: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 1

    def inputs(self) -> tuple[str, ...]:
        return (columns.IMAGES, columns.IMAGE_PLANS)

    def bind(self) -> Callable[..., Any]:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            pixels: list[list[bytes | None]] = []
            shapes: list[list[list[int]]] = []
            for images, plans in zip(
                groups.column(group, columns.IMAGES).to_pylist(),
                groups.column(group, columns.IMAGE_PLANS).to_pylist(),
                strict=True,
            ):
                DECODED[0] += len(images)
                made = [
                    image_pixels(plan, xxhash.xxh32_intdigest(image["bytes"] or b""))
                    for image, plan in zip(images, plans, strict=True)
                ]
                pixels.append(
                    [data if image["bytes"] is not None else None for (data, _), image in zip(made, images, strict=True)]
                )
                shapes.append([shape for _, shape in made])
            group = groups.set_column(group, columns.PIXELS, pa.array(pixels, columns.PIXELS_TYPE))
            return groups.set_column(group, columns.PIXEL_SHAPES, pa.array(shapes, columns.PIXEL_SHAPES_TYPE))

        return apply

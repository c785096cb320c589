"""The columns that vision operators share: one canonical document, from raw layouts to packed rows.

`interleave` makes SEGMENTS and IMAGES; `probe_images` adds IMAGE_INFO; `tokenize_interleaved` turns segments into token ids,
IMAGE_SPANS and IMAGE_PLANS, and keeps the images that are used; `pack_multimodal` joins documents; `decode_images` turns images and
plans into pixels. All columns are found by name, struct fields too.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zephon.errors import RecipeError

SEGMENTS = "segments"
IMAGES = "images"
IMAGE_INFO = "image_info"
IMAGE_PLANS = "image_plans"
IMAGE_SPANS = "image_spans"
PIXELS = "pixel_values"
PIXEL_SHAPES = "pixel_shapes"

TEXT, IMAGE = 0, 1
"""Values of `kind` in a segment."""

SEGMENT: Any = pa.struct(
    [
        pa.field("kind", pa.int8()),
        pa.field("text", pa.string()),
        pa.field("role", pa.string()),
        pa.field("turn", pa.int32()),
        pa.field("train", pa.bool_()),
        pa.field("image", pa.int32()),
    ]
)
"""One piece of a document, in reading order.

`kind` TEXT: `text` is its text, `train` whether it is trained on. `kind` IMAGE: `image` is its index in IMAGES of the same row. `role` is
null in plain documents; in chats it is system, user, assistant or tool, and segments with the same `turn` (0, 1, …) are one message."""

IMAGE_REF: Any = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""An image as Hugging Face's Image feature holds it: the file's bytes, or (bytes null) a path; both null: missing."""

INFO: Any = pa.struct(
    [
        pa.field("height", pa.int32()),
        pa.field("width", pa.int32()),
        pa.field("format", pa.string()),
        pa.field("mode", pa.string()),
        pa.field("orientation", pa.int8()),
        pa.field("frames", pa.int32()),
        pa.field("error", pa.string()),
    ]
)
"""What an image's header says; parallel to IMAGES. Height and width are in pixels *after* the EXIF orientation. `error` is null for a
usable image, else the reason why it can't be used (then the sizes are 0)."""

PLAN: Any = pa.struct([pa.field("policy", pa.string()), pa.field("numbers", pa.list_(pa.int32()))])
"""How one image becomes blocks of pixels: the policy's spec (`zephon_vision.policies.base.load`) and `Plan.pack()`; parallel to IMAGES."""

SPAN: Any = pa.struct([pa.field("start", pa.int32()), pa.field("stop", pa.int32()), pa.field("image", pa.int32())])
"""The tokens [start, stop) of a row that stand for image `image` of the row, wrappers included; in order, not overlapping."""

SEGMENTS_TYPE: Any = pa.list_(SEGMENT)
IMAGES_TYPE: Any = pa.list_(IMAGE_REF)
SHOWN_IMAGES_TYPE: Any = pa.list_(pa.struct([pa.field("bytes", pa.binary_view()), pa.field("path", pa.string())]))
"""IMAGES between the operators of this package, where the files are left where they are."""
IMAGE_INFO_TYPE: Any = pa.list_(INFO)
IMAGE_PLANS_TYPE: Any = pa.list_(PLAN)
IMAGE_SPANS_TYPE: Any = pa.list_(SPAN)
PIXELS_TYPE: Any = pa.list_(pa.binary())
"""PIXELS: per image of the row its blocks, uint8, C order, one block after the other; null for an image that could not be decoded and was
left blank."""
PIXEL_SHAPES_TYPE: Any = pa.list_(pa.list_(pa.int32()))
"""PIXEL_SHAPES: per image the shape of its blocks, e.g. [patches, 1176] or [tiles, 3, 448, 448]."""
IMAGE_BLOCKS = "image_blocks"
"""Optional, int32 per row: the blocks (patches, tiles) of all its images, which is what they cost; else it is summed from IMAGE_PLANS."""
MM_TYPES = "mm_token_type_ids"
"""Optional, beside the tokens: 1 on image tokens, 0 on text (wrappers included, as transformers has it)."""
IMAGE_DOCUMENT = "image_document"
"""In packed rows, `list<int32>` parallel to IMAGES: which document of the row each image belongs to, from 0."""
DOCUMENT_ALIGNMENT = "document_alignment"
"""In packed rows with `align_to`, `list<int32>` parallel to `document_lengths`: how many pad tokens at each document's end are part of
its length."""
IMAGE_TOKENS = "image_tokens"
"""int32 per row: the tokens that stand for images, wrappers included."""


def check_type(schema: pa.Schema, column: str, wanted: Any, hint: str) -> None:
    """Raise `RecipeError` where a column, if it is there, is not as `wanted`, one of the types above or a part of one.

    Struct fields are found by name, and there may be more; numbers, texts and bytes may be of any width; nulls fit everywhere.
    """
    index = schema.get_field_index(column)
    kind = wanted if index < 0 else schema.field(index).type
    if kind != wanted and not _fits(kind, wanted):
        raise RecipeError(f"column {column!r} is {kind}, not {wanted}", hint=hint)


def _fits(kind: Any, wanted: Any) -> bool:
    t = pa.types
    kind = kind.value_type if t.is_dictionary(kind) else kind
    if t.is_null(kind):
        return True
    if t.is_struct(wanted):
        there = {field.name: field.type for field in kind} if t.is_struct(kind) else {}
        return all(field.name in there and _fits(there[field.name], field.type) for field in wanted)
    if t.is_list(wanted):
        return (t.is_list(kind) or t.is_large_list(kind)) and _fits(kind.value_type, wanted.value_type)
    return any(of_wanted(wanted) and fits(kind) for of_wanted, *tests in _FAMILIES for fits in (of_wanted, *tests))


_FAMILIES: Any = (
    (pa.types.is_integer,),
    (pa.types.is_boolean, pa.types.is_integer),
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
"""What a column is, and what else it may be."""

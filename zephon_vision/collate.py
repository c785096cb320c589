"""What becomes of the vision columns in `Batch.to_training`: pixels, grids, borders of images, three-dimensional positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.errors import DataError, RecipeError, unknown
from zephon.plugin import Collation, Fields
from zephon_vision import columns
from zephon_vision.policies.base import Pixels, Plan, Policy, load
from zephon_vision.positions import mrope_positions
from zephon_vision.resize import settle_backend

Ints = npt.NDArray[Any]
Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""

BLANK = 128
"""The value of every pixel of an image that could not be decoded and was left blank."""
PIXEL_DTYPES = ("float32", "float16", "bfloat16")


class CollatesVision:
    """For operators that make vision columns: what `Batch.to_training` makes of these columns.

    `shift` is off by default: a row's `input_ids` are all its tokens, and `labels` are aligned with them (`labels[i]` is `input_ids[i]`
    or -100, with -100 at the first token of every document), as models of `transformers` want them. With `shift=True` the last token of
    a row is no input; an image that ends there is an error, since pixels and tokens would no longer match.

    N images of a batch, row after row, M spans of tokens that stand for images:

    * `pixel_values`: the blocks of all images, one after the other, as the policy renders them: [sum of patches, dim] or
      [sum of tiles, 3, height, width], uint8 (or float32, where `decode_images` was told so). With `pixel_dtype="float32"` (`"float16"`,
      `"bfloat16"`) normalised and padded as the model's own processor does it (`Policy.pixel_values`); the default leaves that to the
      device. An image that could not be decoded is grey. The arithmetic is that of the processor whose resizing `decode_images` used;
      `pixel_backend="pil"` or `"torch"` says otherwise (they differ in the last bits).
    * what the image policy adds, e.g. `image_grid_thw` int64 [N, 3].
    * `cu_patches` int32 [N+1]: where each image's blocks start and end.
    * `image_row` int32 [N]: the row of the batch; `image_document` int32 [N]: the document, by its number in `document_ids`.
    * `image_spans` int32 [M, 3]: first token, end and image (0…N-1) of each span; tokens are counted in the row, with `flatten` in
      the batch.
    * `position_ids` [4, B, S] (with `flatten` [4, B*S]) for models with three-dimensional positions: the plain ones first, as
      `transformers` wants them for packed documents; each document starts at 0.
    * `image_blocks` int32 [B]; `images` (files and paths), as long as they are not decoded.

    Batches without images have no `pixel_values` and nothing of the policy's own, as with the models' own processors. Whether positions
    are three-dimensional is then known from `image_policy`, which comes from the recipe's `tokenize_interleaved`, or may be given.
    """

    def training_options(self) -> Mapping[str, Any]:
        """See `zephon.plugin.Collates`."""
        policy = getattr(self, "policy", None)
        backend = getattr(self, "backend", None)
        return {
            "shift": False,
            "pixel_dtype": getattr(self, "dtype", None),
            "image_policy": policy.spec() if isinstance(policy, Policy) else policy,
            "pixel_backend": None if backend is None else "pil" if settle_backend(backend) == "pil" else "torch",
        }

    def collate(self, batch: Collation, fields: Fields) -> Fields:
        """See `zephon.plugin.Collates`."""
        return vision_fields(batch, fields)


def vision_fields(batch: Collation, fields: Fields) -> Fields:
    """The fields with those of images; see `CollatesVision`. Doing it twice changes nothing.

    Raises:
        DataError: columns that contradict each other, images of several policies, an image that `shift` cuts.
        RecipeError: a `pixel_dtype` that isn't known.
    """
    if batch.group.schema.get_field_index(columns.IMAGE_PLANS) < 0:
        return fields
    images = BatchImages(batch)
    images.check_spans()
    policy = images.policy
    made = dict(fields)
    for name in (columns.IMAGE_PLANS, columns.IMAGE_INFO, columns.PIXELS, columns.PIXEL_SHAPES):
        made.pop(name, None)
    decoded = batch.group.schema.get_field_index(columns.PIXELS) >= 0
    if decoded:
        made.pop(columns.IMAGES, None)
    finish = batch.finish
    if images.plans:
        assert policy is not None
        if decoded:
            kind = _pixel_dtype(batch.options.get("pixel_dtype"))
            made[columns.PIXELS] = lambda: _typed(images, kind, policy, finish)
        for name, values in policy.fields(images.plans).items():
            made[name] = _maker(values, finish)
    made["cu_patches"] = lambda: finish(images.borders())
    made["image_row"] = lambda: finish(images.row.astype(np.int32))
    made["image_document"] = lambda: finish(images.documents())
    made["image_spans"] = lambda: finish(images.spans(flatten=batch.flatten))
    if policy is not None and policy.mrope and "position_ids" in made:
        merge = policy.merge

        @cache
        def positions() -> Any:
            return finish(images.positions(merge))

        made["position_ids"] = positions
        if "positions" in made:
            made["positions"] = positions
    return made


def _maker(values: Ints, finish: Any) -> Any:
    return lambda: finish(np.array(values, order="C"))


@dataclass(frozen=True)
class BatchImages:
    """The images of a batch, row after row."""

    batch: Collation

    @cached_property
    def _planned(self) -> tuple[Ints, Array]:
        """`(int64[B] images of each row, all plans)`."""
        return self._flat(columns.IMAGE_PLANS)

    @cached_property
    def row(self) -> Ints:
        """int64[N]: the row of each image."""
        counts = self._planned[0]
        rows: Ints = np.repeat(np.arange(len(counts)), counts)
        return rows

    @cached_property
    def plans(self) -> list[Plan]:
        """The plan of each image."""
        numbers = self._planned[1].field("numbers")
        return [Plan.unpack(n or ()) for n in numbers.to_pylist()]

    @cached_property
    def policy(self) -> Policy | None:
        """The image policy; None: there is no image, and the recipe doesn't say."""
        specs: list[str] = self._planned[1].field("policy").unique().to_pylist()
        if len(specs) > 1:
            # images that were planned smaller to fit have a policy of the same kind with other limits
            kinds = {type(load(spec)): spec for spec in specs}
            if len(kinds) > 1:
                raise DataError(
                    f"the images of a batch have plans of several policies: {', '.join(map(str, kinds.values()))}",
                    hint="one model takes images in one way: plan all data sets with the same policy",
                )
        spec = specs[0] if specs else self.batch.options.get("image_policy")
        return None if spec is None else load(spec)

    @cached_property
    def _spans(self) -> tuple[Ints, Ints]:
        """`(int64[M] row of each span, int64[M, 3] start, stop and image, counted in the row)`."""
        if self.batch.group.schema.get_field_index(columns.IMAGE_SPANS) < 0:
            return np.zeros(0, np.int64), np.zeros((0, 3), np.int64)
        counts, spans = self._flat(columns.IMAGE_SPANS)
        if spans.null_count:
            raise DataError(f"{columns.IMAGE_SPANS!r} holds nulls")
        values = np.stack([spans.field(name).to_numpy() for name in ("start", "stop", "image")], axis=1)
        return np.repeat(np.arange(len(counts)), counts), values.astype(np.int64)

    def check_spans(self) -> None:
        """Raise `DataError` where a span is not in the inputs, or names an image that its row doesn't have."""
        row, spans = self._spans
        size = self.batch.inputs.shape[1]
        images = self._planned[0]
        for wrong, what in (
            ((spans[:, 2] < 0) | (spans[:, 2] >= images[row]), "names an image that the row doesn't have"),
            (
                (spans[:, 0] < 0) | (spans[:, 1] <= spans[:, 0]) | (spans[:, 1] > size + self.batch.shift),
                "is not in its tokens",
            ),
            (spans[:, 1] > size, "ends with the row's last token, which is no input with shift=True"),
        ):
            if wrong.any():
                i = int(np.argmax(wrong))
                raise DataError(
                    f"row {int(row[i])} of a batch: the image span {spans[i].tolist()} {what}",
                    hint="use to_training(shift=False)"
                    if "shift" in what
                    else "an operator after tokenising changed tokens or images",
                )

    def borders(self) -> Ints:
        """int32[N+1]: where blocks start and end."""
        return np.cumsum([0, *(plan.blocks for plan in self.plans)], dtype=np.int32)

    def documents(self) -> Ints:
        """int32[N]: the document of each image, as `document_ids` numbers them."""
        if self.batch.group.schema.get_field_index(columns.IMAGE_DOCUMENT) < 0:
            inside = np.zeros(len(self.row), dtype=np.int32)
        else:
            counts, values = self._flat(columns.IMAGE_DOCUMENT)
            if not np.array_equal(counts, self._planned[0]):
                raise DataError(f"{columns.IMAGE_DOCUMENT!r} is not parallel to {columns.IMAGE_PLANS!r}")
            inside = values.to_numpy().astype(np.int32)
        if not self.batch.flatten:
            return inside
        rows, size = self.batch.inputs.shape
        first = np.searchsorted(np.cumsum(self.batch.segments), np.arange(rows) * size, side="right")
        running: Ints = (inside + first[self.row]).astype(np.int32)
        return running

    def spans(self, *, flatten: bool) -> Ints:
        """int32[M, 3]."""
        row, spans = self._spans
        first_image = np.cumsum(self._planned[0]) - self._planned[0]
        shift = np.zeros_like(spans)
        shift[:, 2] = first_image[row]
        if flatten:
            shift[:, :2] = (row * self.batch.inputs.shape[1])[:, None]
        return (spans + shift).astype(np.int32)

    def positions(self, merge: int) -> Ints:
        """int[4, B, S] or int[4, B*S]."""
        spans = self.spans(flatten=True)
        grids = np.array([plan.grid for plan in self.plans], dtype=np.int64).reshape(-1, 3)
        made: Ints = mrope_positions(self.batch.segments, spans[:, :2], grids[spans[:, 2]], merge).astype(self.batch.dtype)
        return made.reshape((4, -1) if self.batch.flatten else (4, *self.batch.inputs.shape))

    def pixels(self) -> tuple[Ints, list[Ints]]:
        """`([sum of blocks, ...], the blocks of each image as views of it)`, new memory, uint8 or float32 as they were rendered.

        Where the images have blocks of several shapes there is no such array, it is empty, and the views are of memory of their own.
        """
        counts, files = self._flat(columns.PIXELS)
        shaped, shapes = self._flat(columns.PIXEL_SHAPES)
        if not (np.array_equal(counts, self._planned[0]) and np.array_equal(shaped, counts)):
            raise DataError(f"{columns.PIXELS!r}, {columns.PIXEL_SHAPES!r} and {columns.IMAGE_PLANS!r} are not parallel")
        shape: list[list[int]] = shapes.to_pylist()
        begin, data = _bytes(files)
        valid = files.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.array([math.prod(s) for s in shape], dtype=np.int64)
        kind = np.dtype(np.float32 if len(data) and begin[-1] - begin[0] == 4 * sizes[valid].sum() else np.uint8)
        for i, plan in enumerate(self.plans):
            if not shape[i] or shape[i][0] != plan.blocks:
                raise DataError(f"image {i} of a batch has blocks of shape {shape[i]}, its plan says {plan.blocks} blocks")
            if valid[i] and begin[i + 1] - begin[i] != sizes[i] * kind.itemsize:
                raise DataError(f"image {i} of a batch has {begin[i + 1] - begin[i]} bytes of pixels, its shape is {shape[i]}")
        given = np.array(data[begin[0] : begin[-1]]).view(kind)  # a copy, so that it is aligned, too
        if valid.all():
            whole = given
        else:
            whole = np.full(int(sizes.sum()), BLANK if kind == np.uint8 else 0, dtype=kind)
            whole[np.repeat(valid, sizes)] = given
        ends = np.cumsum(sizes)
        views = [whole[end - size : end].reshape(s) for end, size, s in zip(ends, sizes, shape, strict=True)]
        tails = {tuple(s[1:]) for s in shape}
        return whole.reshape(-1, *tails.pop()) if len(tails) == 1 else whole[:0], views

    def _flat(self, name: str) -> tuple[Ints, Array]:
        """`(int64[B] elements of each row, all of them)` of a list column."""
        array: Array = groups.column(self.batch.group, name)
        lengths = array.value_lengths()
        lengths = lengths.fill_null(0) if lengths.null_count else lengths
        return lengths.to_numpy().astype(np.int64), array.flatten()


def _bytes(files: Array) -> tuple[Ints, Pixels]:
    """`(int64[N+1], uint8[...])`: the bytes of element i are `data[begin[i]:begin[i+1]]`; nothing for nulls."""
    if files.null_count:
        files = files.fill_null(b"")
    offsets: Any
    _, offsets, data = files.buffers()
    kind = np.int64 if pa.types.is_large_binary(files.type) else np.int32
    begin = np.frombuffer(offsets, kind)[files.offset : files.offset + len(files) + 1].astype(np.int64)
    return begin, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def _pixel_dtype(asked: Any) -> str | None:
    if asked is None:
        return None
    name = (asked if isinstance(asked, str) else getattr(asked, "__name__", str(asked))).removeprefix("torch.")
    if name not in PIXEL_DTYPES:
        raise RecipeError(
            unknown("pixel_dtype", name, PIXEL_DTYPES), hint="without pixel_dtype= they stay as they were rendered: uint8"
        )
    return str(name)


def _typed(images: BatchImages, kind: str | None, policy: Policy, finish: Any) -> Any:
    whole, blocks = images.pixels()
    normal = kind is not None and blocks[0].dtype == np.uint8
    if not normal and not len(whole):
        raise DataError(
            f"the images of a batch have blocks of several shapes: {sorted({b.shape[1:] for b in blocks})}",
            hint='use pixel_dtype="float32", where the image policy puts them together',
        )
    backend = images.batch.options.get("pixel_backend") or "torch"
    made: Ints = np.ascontiguousarray(policy.pixel_values(blocks, images.plans, backend=backend)) if normal else whole
    if kind is None:
        return finish(made)
    if kind != "bfloat16":
        return finish(made.astype(kind, copy=False))
    tensor = finish(made)
    if not hasattr(tensor, "bfloat16"):
        raise RecipeError("numpy has no bfloat16", hint='let to_training make torch tensors, or use pixel_dtype="float32"')
    return tensor.bfloat16()

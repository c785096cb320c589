"""What becomes of the vision columns in `Batch.to_training`: pixels, grids, borders of images, three-dimensional positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError, RecipeError, unknown
from zephon.plugin import Collation, Fields
from zephon.tensors import once
from zephon_vision import columns
from zephon_vision._batch_images import BatchImages
from zephon_vision.policies.base import Policy
from zephon_vision.resize import settle_backend

Ints = npt.NDArray[Any]
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
      device. Bytes are the batch's own memory where that can be helped (no copy): who writes into them changes the batch, and nothing
      else. An image that could not be decoded is grey. The arithmetic is that of the processor whose resizing `decode_images` used;
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
    if batch.group.schema.get_field_index(columns.IMAGE_PLANS) < 0 or isinstance(fields.get("cu_patches"), _Borders):
        return fields  # no images, or another operator of the recipe was here
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
    made["cu_patches"] = _Borders(images)
    made["image_row"] = lambda: finish(images.row.astype(np.int32))
    made["image_document"] = lambda: finish(images.documents())
    made["image_spans"] = lambda: finish(images.spans(flatten=batch.flatten))
    if policy is not None and policy.mrope and "position_ids" in made:
        merge = policy.merge
        made["position_ids"] = positions = once(lambda: finish(images.positions(merge)))
        if "positions" in made:
            made["positions"] = positions
    return made


class _Borders:
    """Makes `cu_patches`, and says that the fields are made."""

    def __init__(self, images: BatchImages) -> None:
        self._images = images

    def __call__(self) -> Any:
        return self._images.batch.finish(self._images.borders())


def _maker(values: Ints, finish: Any) -> Any:
    return lambda: finish(np.array(values, order="C"))


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

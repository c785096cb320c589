"""The images of a batch, read from its columns over whole arrays: plans, spans, documents, positions, pixels."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import accumulate, compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from zephon import groups
from zephon.arrays import from_values, list_sizes, to_numpy
from zephon.errors import DataError
from zephon.plugin import Collation
from zephon_vision import columns
from zephon_vision._arena import Pool
from zephon_vision.policies.base import Pixels, Plan, Policy, load
from zephon_vision.positions import mrope_positions

Ints = npt.NDArray[Any]
Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""

BLANK = 128
"""The value of every pixel of an image that could not be decoded and was left blank."""

_COPIES = Pool()
"""What pixels are copied to that can't stay where they are."""


class BatchImages:
    """The images of a batch, row after row."""

    def __init__(self, batch: Collation) -> None:
        self.batch = batch
        self.counts, self._planned = self._flat(columns.IMAGE_PLANS)
        """The images of each row, and all plans."""

    @cached_property
    def row(self) -> Ints:
        """int64[N]: the row of each image."""
        return _rows(self.counts)

    @cached_property
    def plans(self) -> list[Plan]:
        """The plan of each image."""
        return [Plan.unpack(n or ()) for n in self._planned.field("numbers").to_pylist()]

    @cached_property
    def policy(self) -> Policy | None:
        """The image policy; None: there is no image, and the recipe doesn't say."""
        specs = list(dict.fromkeys(self._planned.field("policy").to_pylist()))
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
        values = np.empty((len(spans), 3), dtype=np.int64)
        for place, name in enumerate(("start", "stop", "image")):
            values[:, place] = to_numpy(spans.field(name))
        return _rows(counts), values

    def check_spans(self) -> None:
        """Raise `DataError` where a span is not in the inputs, or names an image that its row doesn't have."""
        row, spans = self._spans
        size = self.batch.inputs.shape[1]
        for (begin, end, number), place in zip(spans.tolist(), row.tolist(), strict=True):
            if not (0 <= begin < end <= size and 0 <= number < self.counts[place]):
                break
        else:
            return
        start, stop, image = spans.T
        for wrong, what in (
            ((image < 0) | (image >= np.array(self.counts)[row]), "names an image that the row doesn't have"),
            ((start < 0) | (stop <= start) | (stop > size + self.batch.shift), "is not in its tokens"),
            (stop > size, "ends with the row's last token, which is no input with shift=True"),
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
        return np.array([0, *accumulate([plan.blocks for plan in self.plans])], dtype=np.int32)

    def documents(self) -> Ints:
        """int32[N]: the document of each image, as `document_ids` numbers them."""
        if self.batch.group.schema.get_field_index(columns.IMAGE_DOCUMENT) < 0:
            inside = np.zeros(len(self.row), dtype=np.int32)
        else:
            counts, values = self._flat(columns.IMAGE_DOCUMENT)
            if counts != self.counts:
                raise DataError(f"{columns.IMAGE_DOCUMENT!r} is not parallel to {columns.IMAGE_PLANS!r}")
            inside = to_numpy(values).astype(np.int32)
        if not self.batch.flatten:
            return inside
        rows, size = self.batch.inputs.shape
        first = self.batch.segments.cumsum().searchsorted(np.arange(rows) * size, side="right")
        running: Ints = (inside + first[self.row]).astype(np.int32)
        return running

    def spans(self, *, flatten: bool) -> Ints:
        """int32[M, 3]."""
        row, spans = self._spans
        first_image = np.array([0, *accumulate(self.counts)], dtype=np.int32)
        moved = spans.astype(np.int32)
        moved[:, 2] += first_image[row]
        if flatten:
            moved[:, :2] += (row * self.batch.inputs.shape[1])[:, None]
        return moved

    def positions(self, merge: int) -> Ints:
        """int[4, B, S] or int[4, B*S]."""
        spans = self.spans(flatten=True)
        grids = np.array([plan.grid for plan in self.plans], dtype=np.int64).reshape(-1, 3)
        made: Ints = mrope_positions(self.batch.segments, spans[:, :2], grids[spans[:, 2]], merge)
        made = made.astype(self.batch.dtype, copy=False)
        return made.reshape((4, -1) if self.batch.flatten else (4, *self.batch.inputs.shape))

    def pixels(self) -> tuple[Ints, list[Ints]]:
        """`([sum of blocks, ...], the blocks of each image as views of it)`, uint8 or float32 as they were rendered; may be written to.

        It is the batch's own memory where that may be written to: it was written once, by the stage that rendered them. Where the images
        have blocks of several shapes there is no such array, it is empty, and the views are of memory of their own.
        """
        counts, files = self._flat(columns.PIXELS)
        shaped, shapes = self._flat(columns.PIXEL_SHAPES)
        if not counts == shaped == self.counts:
            raise DataError(f"{columns.PIXELS!r}, {columns.PIXEL_SHAPES!r} and {columns.IMAGE_PLANS!r} are not parallel")
        shape: list[list[int]] = shapes.to_pylist()
        begin, data = _bytes(files)
        valid: list[bool] = files.is_valid().to_pylist() if files.null_count else [True] * len(files)
        sizes = [math.prod(s) for s in shape]
        floats = 4 * sum(compress(sizes, valid))
        kind = np.dtype(np.float32 if len(data) and begin[-1] - begin[0] == floats else np.uint8)
        for i, (plan, known, size) in enumerate(zip(self.plans, valid, sizes, strict=True)):
            if not shape[i] or shape[i][0] != plan.blocks:
                raise DataError(f"image {i} of a batch has blocks of shape {shape[i]}, its plan says {plan.blocks} blocks")
            if known and begin[i + 1] - begin[i] != size * kind.itemsize:
                raise DataError(f"image {i} of a batch has {begin[i + 1] - begin[i]} bytes of pixels, its shape is {shape[i]}")
        given = data[begin[0] : begin[-1]]
        whole: Ints
        if all(valid):
            whole = (given if _is_free(given, kind) else _copied(given)).view(kind)
        else:
            whole = np.full(sum(sizes), BLANK if kind == np.uint8 else 0, dtype=kind)
            whole[np.repeat(valid, sizes)] = np.array(given).view(kind)
        views = [whole[end - size : end].reshape(s) for end, size, s in zip(accumulate(sizes), sizes, shape, strict=True)]
        tails = {tuple(s[1:]) for s in shape}
        return whole.reshape(-1, *tails.pop()) if len(tails) == 1 else whole[:0], views

    def _flat(self, name: str) -> tuple[list[int], Array]:
        """`(elements of each row, all of them)` of a list column."""
        array: Array = groups.column(self.batch.group, name)
        if array.null_count:
            return list_sizes(array).tolist(), array.flatten()
        ends = to_numpy(array.offsets).tolist() or [0]
        return [end - begin for begin, end in pairwise(ends)], array.values.slice(ends[0], ends[-1] - ends[0])


def _rows(counts: list[int]) -> Ints:
    """int64: the row of each element."""
    rows: Ints = np.arange(len(counts)).repeat(counts)
    return rows


def _bytes(files: Array) -> tuple[list[int], Pixels]:
    """`(N+1 places, uint8[...])`: the bytes of element i are `data[begin[i]:begin[i+1]]`; nothing for nulls."""
    if files.null_count:
        files = pc.coalesce(files, from_values([b""] * len(files), files.type))
    offsets: Any
    _, offsets, data = files.buffers()
    kind = np.int64 if pa.types.is_large_binary(files.type) else np.int32
    begin: list[int] = np.frombuffer(offsets, kind)[files.offset : files.offset + len(files) + 1].tolist()
    return begin, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def _is_free(data: Pixels, kind: np.dtype[Any]) -> bool:
    """Whether these bytes may be written to (those of a file's map, or from another process, may not), and lie as `kind` needs it."""
    return data.flags.writeable and data.__array_interface__["data"][0] % kind.itemsize == 0


def _copied(data: Pixels) -> Pixels:
    copy = _COPIES.lease(len(data))
    copy[:] = data
    return copy

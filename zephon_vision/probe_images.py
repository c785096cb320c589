"""`probe_images`: sizes and kinds of images from their headers, before anything is decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import filled, from_values, list_sizes, struct_parts, to_arrow, to_numpy
from zephon.errors import DataError, RecipeError, unknown
from zephon.plugin import Apply, Drops, Operator, Outcome, place_of
from zephon_vision import columns
from zephon_vision._bad_images import BadImages, LostImages, check_ratio, reason
from zephon_vision._decoders_source import Images, Reference, check_image_type, check_media_root, mapped
from zephon_vision._inherited import Exif, check_exif, exif_parts, inherited, size_of
from zephon_vision.headers import MAX_PIXELS, Header, check_size, read_header

OnBadImage = Literal["keep", "drop_sample", "drop_image", "error"]

Ints = npt.NDArray[np.int64]
ArrowArray = Any


@dataclass(frozen=True, kw_only=True)
class ProbeImages(Operator):
    """Add `image_info`: of each image its size after the EXIF orientation, its kind, or why it can't be used; nothing is decoded.

    An image that is damaged further on looks fine here; `decode_images` finds it.
    """

    name: ClassVar[str] = "probe_images"

    column: str = columns.IMAGES
    """Images: a list or one, of struct<bytes, path>, binary or string (paths); of one image `image_info` is a list of one."""
    max_pixels: int | None = MAX_PIXELS
    """Images with more pixels are bad. None: no limit."""
    min_side: int | None = None
    """Images whose shorter side has fewer pixels are bad."""
    max_aspect: float | None = None
    """Images whose longer side is more than so many times the shorter one are bad."""
    media_root: str | None = field(default=None, metadata={"recipe": False})
    """The local folder that paths are relative to. Files outside of it, and URLs, are bad images. None: as the operators before it."""
    exif: Exif | None = field(default=None, metadata={"recipe": False})
    """`apply` the EXIF orientation, or `ignore` it: sizes are then of the stored image. None: as the operators before it, else `apply`."""
    on_bad_image: OnBadImage = "keep"
    """`keep`: `image_info` says what is wrong, and a later operator decides; `drop_sample`: the row is dropped and counted, by reason;
    `drop_image`: the row stays without the image and without the segments that show it; `error`."""
    max_bad_ratio: float | None = field(default=0.05, metadata={"recipe": False})
    """Where images or samples are dropped: more missing and unreadable images than this are an error, as in `tokenize_interleaved`."""

    def __post_init__(self) -> None:
        if self.on_bad_image not in get_args(OnBadImage):
            raise RecipeError(f"probe_images: {unknown('on_bad_image', str(self.on_bad_image), get_args(OnBadImage))}")
        check_ratio(self.max_bad_ratio, self.name)
        check_exif(self.exif, self.name)
        for name in ("max_pixels", "min_side", "max_aspect"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RecipeError(f"{name} of probe_images is {value}; it must be above 0, or None for no limit")

    def after(self, before: Sequence[Operator]) -> Operator:
        """With the folder and the way with EXIF that operators before it were told."""
        return inherited(self, before, "media_root", "exif")

    def fingerprint_parts(self) -> dict[str, Any]:
        """The way with EXIF."""
        return exif_parts(self.exif)

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]
        """Unless rows are dropped."""
        return self.on_bad_image != "drop_sample"

    def inputs(self) -> tuple[str, ...]:
        """The images."""
        return (self.column,)

    def viewed_inputs(self) -> tuple[str, ...]:
        """The images, unless some are to be taken out."""
        return () if self.on_bad_image == "drop_image" else (self.column,)

    def viewed_outputs(self) -> tuple[str, ...]:
        """The images, which pass."""
        return self.viewed_inputs()

    def optional_inputs(self) -> tuple[str, ...]:
        """The segments, where images may go."""
        return (columns.SEGMENTS,) if self.on_bad_image == "drop_image" else ()

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The same with `image_info`."""
        index = schema.get_field_index(self.column)
        if index < 0:
            raise RecipeError(
                f"probe_images: {unknown('column', self.column, groups.user_columns(schema))}", hint="name it with column="
            )
        self._check_type(schema.field(index).type)
        made = pa.field(columns.IMAGE_INFO, columns.IMAGE_INFO_TYPE)
        place = schema.get_field_index(columns.IMAGE_INFO)
        return schema.append(made) if place < 0 else schema.set(place, made)

    def _check_type(self, kind: pa.DataType) -> None:
        check_image_type(kind, self.column)
        if self.on_bad_image == "drop_image" and not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise RecipeError(
                f"probe_images can't drop the one image of column {self.column!r}", hint="use on_bad_image='drop_sample'"
            )

    def bind(self) -> Apply:
        """The walk over headers. Raises `RecipeError` where `media_root` isn't there."""
        check_media_root(self.media_root, self.name)
        return partial(self._apply, BadImages(self.max_bad_ratio, self.name))

    def _apply(self, seen: BadImages, group: pa.RecordBatch) -> Outcome:
        array = groups.column(group, self.column)
        self._check_type(array.type)
        images = Images(array, self.column)
        found: list[Header | None] = []
        errors: list[str | None] = []
        for index in range(len(images)):
            header, error = self._look(images[index])
            found.append(header)
            errors.append(error)
        bad = np.array([error is not None for error in errors], dtype=bool)
        if self.on_bad_image in ("drop_sample", "drop_image"):
            _count(seen, group, images, errors)
        if bad.any() and self.on_bad_image != "keep":
            return self._without(group, images, found, errors, bad)
        return Outcome(groups.set_column(group, columns.IMAGE_INFO, self._info(images.offsets, found, errors)))

    def _look(self, reference: Reference) -> tuple[Header | None, str | None]:
        try:
            with mapped(reference, self.media_root) as data:
                header = read_header(data)
            check_size(header, max_pixels=self.max_pixels, min_side=self.min_side, max_aspect=self.max_aspect)
        except DataError as error:
            return None, error.message
        return header, None

    def _without(
        self,
        group: pa.RecordBatch,
        images: Images,
        found: list[Header | None],
        errors: list[str | None],
        bad: npt.NDArray[np.bool_],
    ) -> Outcome:
        """The group as `on_bad_image` wants it."""
        row_of = np.repeat(np.arange(group.num_rows), np.diff(images.offsets))
        if self.on_bad_image == "error":
            index = int(np.argmax(bad))
            row = int(row_of[index])
            raise DataError(
                f"an image can't be used: image {index - int(images.offsets[row])} of {self.column!r}: {errors[index]}",
                where=place_of(group, row),
            )
        if self.on_bad_image == "drop_sample":
            reasons: dict[str, list[int]] = defaultdict(list)
            for index in np.flatnonzero(bad).tolist():
                row, error = int(row_of[index]), errors[index]
                if error is not None and not any(row in rows[-1:] for rows in reasons.values()):
                    reasons[reason(error)].append(row)
            kept = np.setdiff1d(np.arange(group.num_rows), row_of[bad])
            info = self._info(images.offsets, found, errors)
            made = groups.set_column(group, columns.IMAGE_INFO, info)
            return Outcome(groups.take(made, kept), Drops(rows={k: np.array(v, dtype=np.int64) for k, v in reasons.items()}))
        keep = np.flatnonzero(~bad)
        offsets = np.concatenate([[0], np.cumsum(~bad)])[images.offsets]
        values: ArrowArray = images.values.take(to_arrow(keep))
        made = groups.set_column(group, self.column, _like(group.schema.field(self.column).type, offsets, values))
        if group.schema.get_field_index(columns.SEGMENTS) >= 0:
            made = groups.set_column(
                made, columns.SEGMENTS, _drop_segments(groups.column(group, columns.SEGMENTS), images.offsets, bad)
            )
        info = self._info(offsets, [found[i] for i in keep.tolist()], [None] * len(keep))
        lost = LostImages(group)
        for index in np.flatnonzero(bad).tolist():
            lost.add(int(row_of[index]), reason(errors[index] or ""))
        return Outcome(groups.set_column(made, columns.IMAGE_INFO, info), Drops(parts=lost.parts))

    def _info(self, offsets: Ints, found: Sequence[Header | None], errors: Sequence[str | None]) -> ArrowArray:
        sizes = [size_of(h, self.exif) if h else (0, 0) for h in found]
        columnar: list[list[Any]] = [[size[i] for size in sizes] for i in (0, 1)]
        columnar += [[h[i] if h else None for h in found] for i in (2, 3)]
        columnar += [[h.orientation if h else 1 for h in found], [h.frames if h else 0 for h in found], list(errors)]
        arrays: list[ArrowArray] = [from_values(v, f.type) for v, f in zip(columnar, columns.INFO, strict=True)]
        make: Any = pa.StructArray.from_arrays
        return groups.make_list(offsets, make(arrays, fields=list(columns.INFO)))


def _count(seen: BadImages, group: pa.RecordBatch, images: Images, errors: Sequence[str | None]) -> None:
    """Watch the share of bad images; the user's own limits make none."""
    lists: dict[int, list[str]] = defaultdict(list)
    row_of = np.repeat(np.arange(group.num_rows), np.diff(images.offsets)).tolist()
    for row, error in zip(row_of, errors, strict=True):
        if error is not None and not error.startswith("too "):
            lists[row].append(error)
    seen.of_rows(group, np.diff(images.offsets).tolist(), lists)


def _like(kind: Any, offsets: Ints, values: ArrowArray) -> ArrowArray:
    """A list array of this type (list or large_list)."""
    make: Any = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    ends: ArrowArray = offsets.astype(np.int64 if pa.types.is_large_list(kind) else np.int32)
    return make.from_arrays(to_arrow(ends), values, type=kind)


def _drop_segments(segments: ArrowArray, image_offsets: Ints, bad: npt.NDArray[np.bool_]) -> ArrowArray:
    """The segments without those that show a bad image, the others' images renumbered."""
    lengths = list_sizes(segments)
    values = segments.flatten()
    children = struct_parts(values)
    row = np.repeat(np.arange(len(segments)), lengths)
    shows = to_numpy(children["kind"]) == columns.IMAGE
    number = filled(children["image"], -1).astype(np.int64)
    known = shows & (number >= 0) & (number < np.diff(image_offsets)[row])
    place = np.where(known, image_offsets[row] + number, 0)
    gone = known & bad[place] if len(bad) else known
    before = np.concatenate([[0], np.cumsum(~bad)])
    renumbered = np.where(known, before[place] - before[image_offsets[row]], number) if len(bad) else number
    children["image"] = to_arrow(renumbered.astype(np.int32), null=to_numpy(children["image"].is_null()))
    make: Any = pa.StructArray.from_arrays
    kept = make(list(children.values()), fields=list(values.type)).filter(to_arrow(~gone))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row[~gone], minlength=len(segments)))])
    return _like(segments.type, offsets, kept)

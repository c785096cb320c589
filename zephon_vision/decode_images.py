"""`decode_images`: planned images to blocks of pixels, after packing, when the buffers have been passed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.arrays import from_values, list_sizes, struct_parts, to_arrow
from zephon.errors import DataError, PluginError, RecipeError, unknown
from zephon.plugin import Apply, Drops, Operator, Outcome
from zephon_vision import columns
from zephon_vision._arena import Arena
from zephon_vision._bad_documents import document_place, without_loss
from zephon_vision._bad_images import BadImages, LostImages, check_ratio, reason
from zephon_vision._decoders_scaled import NotWholeError, ScaledResize, scale_for
from zephon_vision._decoders_source import MISSING, Images, Reference, check_image_type, check_media_root, load_bytes
from zephon_vision._inherited import Exif, check_exif, exif_parts, inherited, size_of
from zephon_vision._pixel_blocks import POOL, Blocks, lists
from zephon_vision.collate import PIXEL_DTYPES, CollatesVision
from zephon_vision.decoders import Decoder, check_decoder, decode, refuses_damaged_jpeg
from zephon_vision.headers import MAX_PIXELS, Header, check_size, read_header
from zephon_vision.policies.base import Pixels, Plan, Policy, Resize, load
from zephon_vision.policies.raw import Raw
from zephon_vision.resize import Backend, make_resize, pooled, resize_parts, settle_backend

OnBadImage = Literal["auto", "blank", "drop_sample", "error"]
ScaledDecode = Literal["off", "gap2"]

ArrowArray = Any

_AT_ONCE = 16 << 20
_PACKS = 8
"""Packs a task, at most; a packer in the same task bounds them, too, for long ones to fewer. With 4 it took 4 % more CPU time per image."""
_TOGETHER = 16 << 20
"""Bytes of pixels that are decoded before the first of them is resized: a share of the processor's last cache."""
_UNKNOWN_SIZE = 448
"""The side that an image without a readable header is planned with, where it is left blank."""


@dataclass(frozen=True, kw_only=True)
class DecodeImages(CollatesVision, Operator):
    """Decode each image and render it as its plan says: adds `pixel_values` and `pixel_shapes`, and takes the files away.

    A row has any number of images with their `image_plans`, as `tokenize_interleaved` makes them, packed or not. With `policy=` images are
    planned here instead, for training on pairs of image and text without packing. Pixels are uint8: `to_training(pixel_dtype=)`, the
    operator `normalize` or the device make floats of them, which take four to eight times the memory.
    """

    name: ClassVar[str] = "decode_images"
    column: str = columns.IMAGES
    """The images; with `policy=` also a column of single ones."""
    policy: str | None = None
    """Plan the images with this policy (`clip`, `siglip{"size": 224}`, `from:PATH`, `raw`: unresized); None: they have plans."""
    backend: Backend = "auto"
    """What resizes: `torch`, `pil` or `cykooz`; `auto`: the first of torch, cykooz and pil that is installed."""
    decoder: Decoder = field(default="auto", metadata={"recipe": False})
    """Who decodes JPEG: `simplejpeg`, `pillow`, or `auto`. Pixels are the same, so it has no part in the recipe but for one thing: only
    simplejpeg refuses a JPEG that is damaged in the middle."""
    scaled_decode: ScaledDecode = "off"
    """`gap2`: decode a JPEG at half, a quarter or an eighth where that is still at least twice as large as what is wanted. Quicker for
    large photographs; against `off` single values differ by up to about 20 of 255 (43 to 51 dB)."""
    max_pixels: int | None = MAX_PIXELS
    """Larger images are bad. None: no limit."""
    salvage: bool = False
    """Show what can be decoded of a damaged JPEG."""
    on_bad_image: OnBadImage = "auto"
    """`blank`: the image's pixels are null (`to_training` makes them grey), the layout stays, and its document is not trained on;
    `drop_sample` (only with `policy=`): the row is dropped and counted; `error`. `auto`: `drop_sample` with `policy=`, else `blank`."""
    max_bad_ratio: float | None = field(default=0.05, metadata={"recipe": False})
    """More bad images than this share of those that a worker has seen (at least 1,000) are an error, whatever `on_error` is. None: any
    number is fine. It is no part of the recipe: a run that it stopped may go on with a higher one."""
    media_root: str | None = field(default=None, metadata={"recipe": False})
    """The local folder that paths are relative to. Files outside of it, and URLs, are bad images. None: as the operators before it."""
    exif: Exif | None = field(default=None, metadata={"recipe": False})
    """`apply` the EXIF orientation, or `ignore` it: pixels are then as they are stored. None: as the operators before it, else `apply`."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = field(default=None, metadata={"recipe": False})
    """What `to_training` gives if it isn't told otherwise (`pixel_dtype=`): normalised pixels of this type, as the model's processor makes
    them. None: the bytes. What travels in batches is bytes in any case, a quarter of float32."""
    keep_images: bool = False
    """Keep the column of files."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("on_bad_image", self.on_bad_image, get_args(OnBadImage)),
            ("scaled_decode", self.scaled_decode, get_args(ScaledDecode)),
            ("backend", self.backend, get_args(Backend)),
            ("decoder", self.decoder, get_args(Decoder)),
            ("dtype", self.dtype or PIXEL_DTYPES[0], PIXEL_DTYPES),
        ):
            if value not in known:
                raise RecipeError(f"decode_images: {unknown(what, str(value), known)}")
        check_ratio(self.max_bad_ratio, self.name)
        check_exif(self.exif, self.name)
        if self.on_bad_image == "drop_sample" and self.policy is None:
            raise RecipeError("decode_images can't drop rows after packing", hint="use on_bad_image='blank' or 'error'")

    def after(self, before: Sequence[Operator]) -> Operator:
        """With the folder and the way with EXIF that operators before it were told."""
        return inherited(self, before, "media_root", "exif")

    @property
    def max_rows(self) -> int | None:  # type: ignore[override]
        """A task costs about a millisecond beside its images, so single images come up to 16 at a time, if a megapixel each makes no more
        than 16 MB: with larger tasks lanes fill `max_bytes` with what isn't wanted yet, and workers wait. Packs of them come by the few, of
        long ones as many as were built at once."""
        if self.policy is None:
            return _PACKS
        policy = _load(self.policy)
        size = int(np.prod(policy.block_shape(policy.plan(1000, 1000)), dtype=np.int64))
        return max(rows for rows in (1, 2, 4, 8, 16) if rows == 1 or rows * size <= _AT_ONCE)

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]
        """Unless rows are dropped."""
        return self._bad != "drop_sample"

    @property
    def _bad(self) -> str:
        return self.on_bad_image if self.on_bad_image != "auto" else "blank" if self.policy is None else "drop_sample"

    def inputs(self) -> tuple[str, ...]:
        """The images and their plans."""
        return (self.column,) if self.policy is not None else (self.column, columns.IMAGE_PLANS)

    def viewed_inputs(self) -> tuple[str, ...]:
        """The files, where they end here."""
        return () if self.keep_images else (self.column,)

    def optional_inputs(self) -> tuple[str, ...]:
        """What says which tokens belong to a bad image."""
        if self.policy is not None:
            return ()
        return (
            groups.TOKENS,
            groups.LOSS_MASK,
            groups.LENGTHS,
            groups.DOC_COMPONENT,
            groups.DOC_SHARD,
            groups.DOC_ROW,
            columns.IMAGE_SPANS,
            columns.IMAGE_DOCUMENT,
        )

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """With pixels, without files."""
        for name in self.inputs():
            if schema.get_field_index(name) < 0:
                raise RecipeError(
                    f"decode_images: {unknown('column', name, groups.user_columns(schema))}",
                    hint="plan images first (tokenize_interleaved), or give policy="
                    if name == columns.IMAGE_PLANS
                    else "name it with column=",
                )
        self._check_types(schema)
        fields: dict[str, Any] = {f.name: f for f in schema if f.name != self.column or self.keep_images}
        made = {columns.PIXELS: columns.PIXELS_TYPE, columns.PIXEL_SHAPES: columns.PIXEL_SHAPES_TYPE}
        if self.policy is not None:
            made[columns.IMAGE_PLANS] = columns.IMAGE_PLANS_TYPE
        elif _lacks_mask(self, schema):
            made[groups.LOSS_MASK] = pa.list_(pa.uint8())
        fields.update({name: pa.field(name, kind) for name, kind in made.items()})
        return pa.schema(list(fields.values()))

    def _check_types(self, schema: pa.Schema) -> None:
        check_image_type(schema.field(self.column).type, self.column)
        if self.policy is None:
            columns.check_type(schema, columns.IMAGE_PLANS, columns.IMAGE_PLANS_TYPE, "tokenize_interleaved() makes them")

    def fingerprint_parts(self) -> dict[str, Any]:
        """What resizes, in which version, whether damaged JPEGs are seen, and the way with EXIF."""
        policy = {} if self.policy is None else {"policy": _load(self.policy).spec()}
        return {
            **policy,
            **resize_parts(self.backend),
            **exif_parts(self.exif),
            "refuses_damaged_jpeg": refuses_damaged_jpeg(self.decoder) and not self.salvage,
        }

    def bind(self) -> Apply:
        """Make the resizer.

        Raises:
            PluginError: a back-end or decoder that was asked for is not installed.
            RecipeError: `media_root` isn't there.
        """
        check_media_root(self.media_root, self.name)
        check_decoder(self.decoder)
        settle_backend(self.backend)
        return BoundDecodeImages(self)


_File = tuple[bytes | memoryview, Header]


class BoundDecodeImages:
    """The operator with its libraries; any number of threads may call it."""

    def __init__(self, settings: DecodeImages) -> None:
        self._settings = settings
        self._resize = make_resize(settings.backend)
        self._policy = None if settings.policy is None else _load(settings.policy)
        self._spec = "" if self._policy is None else self._policy.spec()
        self._specs: ArrowArray = pa.nulls(0, pa.string())
        """As many times as a group had images."""
        self._local = threading.local()
        self._seen = BadImages(settings.max_bad_ratio, settings.name)

    def __call__(self, group: pa.RecordBatch) -> Outcome:
        """Decode the images of a group."""
        settings = self._settings
        array = groups.column(group, settings.column)
        settings._check_types(group.schema)
        images = Images(array, settings.column)
        heads: Sequence[Header | DataError | None]
        if self._policy is None:
            plans, heads = self._given(group, images), [None] * len(images)
        else:
            plans, heads = self._planned(images, self._policy)
        work = Blocks(plans)
        errors: dict[int, str] = {}
        self._fill(work, plans, images, heads, errors)
        self._seen.count(-1, len(images), ((error, document_place(group, *images.place(i))) for i, error in errors.items()))
        if errors and settings._bad == "error":
            index = min(errors)
            row, number = images.place(index)
            raise DataError(
                f"an image can't be used: image {number} of {settings.column!r}: {errors[index]}",
                where=document_place(group, row, number),
            )
        return self._finish(group, images, plans, work, errors)

    def _given(self, group: pa.RecordBatch, images: Images) -> list[tuple[Policy, Plan]]:
        array = groups.column(group, columns.IMAGE_PLANS)
        if list_sizes(array).tolist() != images.counts:
            raise DataError(f"{columns.IMAGE_PLANS!r} is not parallel to {self._settings.column!r}")
        parts = struct_parts(array.flatten())
        specs, numbers = parts["policy"].to_pylist(), parts["numbers"].to_pylist()
        plans: list[tuple[Policy, Plan]] = []
        for spec, n in zip(specs, numbers, strict=True):
            try:
                plans.append((_load(spec or ""), Plan.unpack(n or ())))
            except (DataError, RecipeError, ValueError) as error:  # of one row, which brought its plan along
                where = document_place(group, *images.place(len(plans)))
                why = str(error).splitlines()[0]
                raise DataError(f"{columns.IMAGE_PLANS!r} holds something that is no plan: {why}", where=where) from error
        return plans

    def _planned(self, images: Images, policy: Policy) -> tuple[list[tuple[Policy, Plan]], list[Header | DataError]]:
        root, limit = self._settings.media_root, self._settings.max_pixels
        plans: list[tuple[Policy, Plan]] = []
        heads: list[Header | DataError] = []
        for count in chain.from_iterable(repeat(count, count) for count in images.counts):
            try:
                # a file is read twice, here and for decoding: the blocks' sizes must be known before the first is rendered
                head = read_header(load_bytes(images[len(plans)], root))
                check_size(head, max_pixels=limit)
                plan = policy.plan(*size_of(head, self._settings.exif), images=count)
                heads.append(head)
            except DataError as error:
                heads.append(error)
                plan = policy.plan(_UNKNOWN_SIZE, _UNKNOWN_SIZE, images=count)
            plans.append((policy, plan))
        return plans, heads

    def _tools(self) -> _Tools:
        """This thread's memory and resizer."""
        made: _Tools | None = getattr(self._local, "tools", None)
        if made is None:
            arena = Arena(POOL)
            planar = pooled(self._resize, arena, planar=True)
            made = self._local.tools = _Tools(arena, pooled(self._resize, arena), planar, getattr(planar, "takes_words", False))
        return made

    def _fill(
        self,
        work: Blocks,
        plans: Sequence[tuple[Policy, Plan]],
        images: Images,
        heads: Sequence[Header | DataError | None],
        errors: dict[int, str],
    ) -> None:
        """Decode and render each image into its place, or say what is wrong with it.

        In steps of several images: after the work on a picture other code isn't in the processor's caches any more, and to fetch it again
        takes several times as long as to run it. So headers are read first, and a few pictures are decoded before they are resized.
        """
        tools = self._tools()
        # those of files on a disk when their turn comes, so that few are in memory
        here = (index for index in range(len(images)) if images[index][0] is not None)
        opened = {index: self._opened(images[index], heads[index], plans[index][1]) for index in here}
        decoded: dict[int, Pixels] = {}
        room = 0
        for index, (policy, plan) in enumerate(plans):
            try:
                file = opened.pop(index, None) or self._opened(images[index], heads[index], plan)
                if isinstance(file, DataError):
                    raise file
                size = 4 * file[1].height * file[1].width
                if size > room:
                    self._render(work, plans, decoded, tools, errors)
                    decoded, room = {}, _TOGETHER
                    tools.arena.reset()
                room -= size
                if not self._scaled(work.place(index), file, policy, plan, tools):
                    decoded[index] = self._decoded(*file, policy, tools, 1)
            except DataError as error:
                errors[index] = error.message
        self._render(work, plans, decoded, tools, errors)

    def _opened(self, reference: Reference, head: Header | DataError | None, plan: Plan) -> _File | DataError:
        """An image's file and its header, which must say what was planned; or what is wrong."""
        if isinstance(head, DataError):
            return head
        try:
            data = load_bytes(reference, self._settings.media_root)
            head = head or read_header(data)
        except DataError as error:
            return error
        height, width = size_of(head, self._settings.exif)
        if (height, width) != (plan.height, plan.width):
            return DataError(f"planned: as {plan.width} × {plan.height} pixels, and has {width} × {height}")
        return data, head

    def _render(
        self,
        work: Blocks,
        plans: Sequence[tuple[Policy, Plan]],
        decoded: Mapping[int, Pixels],
        tools: _Tools,
        errors: dict[int, str],
    ) -> None:
        """Render what was decoded into its places."""
        used = tools.arena.used
        for index, rgb in decoded.items():
            policy, plan = plans[index]
            place = work.place(index)
            tools.arena.aim(place)
            try:
                _put(place, policy.render(rgb, plan, tools.planar if policy.planar else tools.resize), policy)
            except DataError as error:
                errors[index] = error.message
            tools.arena.back_to(used)

    def _decoded(self, data: bytes | memoryview, head: Header, policy: Policy, tools: _Tools, scale: int) -> Pixels:
        settings = self._settings
        return decode(
            data,
            head,
            max_pixels=settings.max_pixels,
            salvage=settings.salvage,
            decoder=settings.decoder,
            scale=scale,
            upright=settings.exif != "ignore",
            arena=tools.arena,
            words=policy.planar and tools.takes_words,
        )

    def _scaled(self, place: Pixels, file: _File, policy: Policy, plan: Plan, tools: _Tools) -> bool:
        """From a picture decoded at a part of its size, if that may be; not if the policy does more than to resize the whole image."""
        data, head = file
        if self._settings.scaled_decode == "off" or (scale := scale_for(head, plan)) == 1:
            return False
        used = tools.arena.used
        rgb = self._decoded(data, head, policy, tools, scale)
        resize = ScaledResize(tools.planar if policy.planar else tools.resize, rgb, (head.height / scale, head.width / scale))
        tools.arena.aim(place)
        try:
            blocks = policy.render(rgb, plan, resize)
        except NotWholeError:
            return False
        finally:
            tools.arena.back_to(used)
        if resize.used:
            _put(place, blocks, policy)
        return resize.used

    def _finish(
        self, group: pa.RecordBatch, images: Images, plans: list[tuple[Policy, Plan]], work: Blocks, errors: dict[int, str]
    ) -> Outcome:
        settings = self._settings
        bad = sorted(errors)
        ends = to_arrow(images.offsets.astype(np.int32))
        pixels, shapes = work.arrays(bad)
        made = groups.set_column(group, columns.PIXELS, pa.ListArray.from_arrays(ends, pixels))
        made = groups.set_column(made, columns.PIXEL_SHAPES, pa.ListArray.from_arrays(ends, shapes))
        if not settings.keep_images:  # last: a group without columns would forget how many rows it has
            made = groups.select(made, [n for n in made.schema.names if n != settings.column])
        if self._policy is not None:
            planned = self._plans([plan for _, plan in plans])
            made = groups.set_column(made, columns.IMAGE_PLANS, pa.ListArray.from_arrays(ends, planned))
        else:
            made = without_loss(made, images, bad, make=_lacks_mask(settings, made.schema))
        if settings._bad != "drop_sample" or not errors:
            return Outcome(made, Drops(parts=_blanks(group, images, errors)))
        rows: dict[str, dict[int, None]] = {}
        gone: set[int] = set()
        for index in bad:
            row, _ = images.place(index)
            if row not in gone:
                gone.add(row)
                rows.setdefault(reason(errors[index]), {})[row] = None
        kept = np.setdiff1d(np.arange(group.num_rows), sorted(gone))
        return Outcome(groups.take(made, kept), Drops(rows={k: np.array(list(v), dtype=np.int64) for k, v in rows.items()}))

    def _plans(self, plans: Sequence[Plan]) -> ArrowArray:
        """Of the operator's own policy, as `columns.PLAN`."""
        specs = self._specs
        if len(specs) < len(plans):
            specs = self._specs = from_values([self._spec] * 2 * len(plans), pa.string())
        specs = specs.slice(0, len(plans))
        return pa.StructArray.from_arrays([specs, lists([plan.pack() for plan in plans])], fields=list(columns.PLAN))


def _put(place: Pixels, blocks: Pixels, policy: Policy) -> None:
    """What a policy rendered to its place, where it mostly is already."""
    if blocks is place:
        return
    if blocks.shape != place.shape or blocks.dtype != np.uint8:
        raise PluginError(
            f"image policy {policy.name!r} rendered {blocks.dtype}{list(blocks.shape)} instead of uint8{list(place.shape)}"
        )
    place[...] = blocks


class _Tools(NamedTuple):
    """What a thread works with."""

    arena: Arena
    resize: Resize
    planar: Resize
    """For policies that are `planar`."""
    takes_words: bool


def _blanks(group: pa.RecordBatch, images: Images, errors: Mapping[int, str]) -> dict[tuple[str, str], dict[int, int]]:
    """The images that are left blank, as `Drops.parts`; those that are missing among planned ones were counted where they went."""
    lost = LostImages(group)
    for index, error in sorted(errors.items()):
        if error != MISSING:
            row, number = images.place(index)
            component = document_place(group, row, number).component
            lost.of(-1 if component is None else component, reason(error, blank=True))
    return lost.parts


def _load(spec: str) -> Policy:
    return Raw() if spec == Raw.name else load(spec)


def _lacks_mask(settings: DecodeImages, schema: pa.Schema) -> bool:
    names = schema.names
    return settings._bad == "blank" and groups.TOKENS in names and groups.LOSS_MASK not in names

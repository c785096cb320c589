"""Operators on decoded pixels for contrastive training: resize, crop, flip, colours, normalise; random ones by keys.

They take `pixel_values` whose blocks are uint8 or float32 [..., 3, height, width], as `decode_images` makes them (with `policy="raw"`
in the image's own size). What is drawn for an image depends on `seed`, on where its row came from and on its place in the row, so a run
gives the same however rows are grouped, and another pass gives something else. Pixels that are null (images left blank) stay null.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups, keys
from zephon.arrays import list_sizes, to_numpy
from zephon.errors import DataError, PluginError, RecipeError, unknown
from zephon.plugin import Apply, Operator
from zephon_vision import columns
from zephon_vision._pixel_blocks import lists
from zephon_vision.resize import Backend, make_resize, resize_parts

Blocks = npt.NDArray[Any]
"""uint8 or float32 [..., 3, height, width]."""
ArrowArray = Any
Filter = Literal["bilinear", "bicubic"]
Draw = Callable[[int], list[float]]
"""`draw(n)`: the next n numbers in [0, 1) of an image."""


@dataclass(frozen=True, kw_only=True)
class PixelOperator(Operator):
    """What the operators of this module share."""

    keeps_rows: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = 16

    def inputs(self) -> tuple[str, ...]:
        """Pixels and their shapes."""
        return (columns.PIXELS, columns.PIXEL_SHAPES)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The same."""
        for name in self.inputs():
            if schema.get_field_index(name) < 0:
                raise RecipeError(
                    f"{self.name}: {unknown('column', name, groups.user_columns(schema))}",
                    hint=_FIRST,
                )
        _check_types(schema)
        return schema

    def bind(self) -> Apply:
        """The loop over images."""
        work = self._work()
        seed = getattr(self, "seed", None)

        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            return _apply(group, work, None if seed is None else (self.name, seed))

        return apply

    @abstractmethod
    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        """What is done to an image's blocks."""

    def _size(self) -> tuple[int, int]:
        """The setting `size` as (height, width)."""
        size: Any = getattr(self, "size", 0)
        return (size, size) if isinstance(size, int) else (size[0], size[1])

    def _check_size(self, size: Any) -> None:
        sides = [size] if isinstance(size, int) else list(size)
        if not all(isinstance(s, int) and s >= 1 for s in sides) or len(sides) not in (1, 2):
            raise RecipeError(f"size of {self.name} is {size!r}; it must be one whole number or (height, width)")
        if not isinstance(size, int):
            object.__setattr__(self, "size", tuple(sides))


class _UsesTorchvision(PixelOperator):
    def fingerprint_parts(self) -> dict[str, Any]:
        """Which torchvision does it. Raises `PluginError` where it isn't installed."""
        try:
            return {name: version(name).partition("+")[0] for name in ("torch", "torchvision")}
        except PackageNotFoundError as error:
            raise PluginError(
                f"{self.name} needs {error.name!r}, which isn't installed", hint="pip install 'zephon[augment]'"
            ) from error


@dataclass(frozen=True, kw_only=True)
class ResizeImages(PixelOperator):
    """Resize, antialiased: to (height, width), or with one number so that the shorter side has so many pixels."""

    name: ClassVar[str] = "resize_images"

    size: int | tuple[int, int] = 224
    filter: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        self._check_size(self.size)
        _check_choice(self.name, "filter", self.filter, ("bilinear", "bicubic", "lanczos"))
        _check_choice(self.name, "backend", self.backend, get_args(Backend))

    def fingerprint_parts(self) -> dict[str, Any]:
        """What resizes, in which version."""
        return dict(resize_parts(self.backend))

    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        resize = make_resize(self.backend)

        def work(blocks: Blocks, _: Draw) -> Blocks:
            if blocks.dtype != np.uint8:
                raise DataError("resize_images takes uint8", hint="normalize comes after it")
            size = self._target(blocks.shape[-2], blocks.shape[-1])
            flat = blocks.reshape(-1, *blocks.shape[-3:])
            made = np.empty((len(flat), 3, *size), dtype=np.uint8)
            for place, block in zip(made, flat, strict=True):
                place[...] = resize(block.transpose(1, 2, 0), size, self.filter).transpose(2, 0, 1)
            return made.reshape(*blocks.shape[:-2], *size)

        return work

    def _target(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.size, int):
            return self.size
        # the longer side is cut down to a whole number, as torchvision does
        if height <= width:
            return self.size, int(self.size * width / height)
        return int(self.size * height / width), self.size


@dataclass(frozen=True, kw_only=True)
class CenterCrop(_UsesTorchvision):
    """The middle; an image that is smaller gets a black border."""

    name: ClassVar[str] = "center_crop"

    size: int | tuple[int, int] = 224

    def __post_init__(self) -> None:
        self._check_size(self.size)

    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        functional = _functional()
        size = list(self._size())
        return lambda blocks, _: _through(blocks, lambda t: functional.center_crop(t, size))


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(_UsesTorchvision):
    """A random part of random shape, resized to `size`: as torchvision's, which tries 10 times for a part that fits."""

    name: ClassVar[str] = "random_resized_crop"

    size: int | tuple[int, int] = 224
    scale: tuple[float, float] = (0.08, 1.0)
    """The part's share of the image's area, from–to."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """The part's width over its height, from–to."""
    filter: Filter = "bicubic"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_size(self.size)
        _check_choice(self.name, "filter", self.filter, get_args(Filter))
        for what in ("scale", "ratio"):
            low, high = getattr(self, what)
            if not 0 < low <= high:
                raise RecipeError(f"{what} of {self.name} is ({low}, {high}); it must be 0 < from ≤ to")
            object.__setattr__(self, what, (low, high))

    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        functional = _functional()
        size, mode = list(self._size()), _mode(self.filter)

        def work(blocks: Blocks, draw: Draw) -> Blocks:
            box = crop_box(blocks.shape[-2], blocks.shape[-1], self.scale, self.ratio, draw)
            return _through(blocks, lambda t: functional.resized_crop(t, *box, size, interpolation=mode, antialias=True))

        return work


def crop_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draw: Draw
) -> tuple[int, int, int, int]:
    """`(top, left, height, width)` of a random part, by the algorithm of torchvision's `RandomResizedCrop`."""
    area = height * width
    for _ in range(10):
        size, shape, down, across = draw(4)
        target = area * (scale[0] + (scale[1] - scale[0]) * size)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
        wide, high = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return int(down * (height - high + 1)), int(across * (width - wide + 1)), high, wide
    # the largest part in the middle that has an allowed shape
    wide, high = width, height
    if width / height < ratio[0]:
        high = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        wide = max(1, round(height * ratio[1]))
    return (height - high) // 2, (width - wide) // 2, high, wide


@dataclass(frozen=True, kw_only=True)
class Flip(_UsesTorchvision):
    """Mirror with this probability, left to right, or top to bottom."""

    name: ClassVar[str] = "flip"

    probability: float = 0.5
    vertical: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise RecipeError(f"probability of {self.name} is {self.probability}; it must be from 0 to 1")

    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        functional = _functional()
        mirror = functional.vertical_flip if self.vertical else functional.horizontal_flip

        def work(blocks: Blocks, draw: Draw) -> Blocks:
            return _through(blocks, mirror) if draw(1)[0] < self.probability else blocks

        return work


@dataclass(frozen=True, kw_only=True)
class ColorJitter(_UsesTorchvision):
    """Change brightness, contrast, saturation and hue at random, in random order.

    A number x stands for a factor from max(0, 1 - x) to 1 + x, and for hue for a shift from -x to x (at most 0.5); or give (from, to).
    """

    name: ClassVar[str] = "color_jitter"

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for what in _JITTERS:
            low, high = self._bounds(what)
            least, most = (-0.5, 0.5) if what == "hue" else (0.0, math.inf)
            if not least <= low <= high <= most:
                raise RecipeError(
                    f"{what} of {self.name} is {getattr(self, what)!r}, so from {low} to {high}, which is not possible"
                )
            value = getattr(self, what)
            if not isinstance(value, int | float):
                object.__setattr__(self, what, (low, high))

    def _bounds(self, what: str) -> tuple[float, float]:
        value = getattr(self, what)
        if not isinstance(value, int | float):
            low, high = value
            return float(low), float(high)
        if value < 0:
            raise RecipeError(f"{what} of {self.name} is {value}; it must be ≥ 0")
        return (-value, value) if what == "hue" else (max(0.0, 1.0 - value), 1.0 + value)

    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        functional = _functional()
        bounds = [self._bounds(what) for what in _JITTERS]
        changes = [getattr(functional, f"adjust_{what}") for what in _JITTERS]
        neutral = [(1.0, 1.0)] * 3 + [(0.0, 0.0)]

        def work(blocks: Blocks, draw: Draw) -> Blocks:
            order = np.argsort(draw(len(_JITTERS)), kind="stable").tolist()
            factors = [low + (high - low) * x for (low, high), x in zip(bounds, draw(len(_JITTERS)), strict=True)]
            todo = [which for which in order if bounds[which] != neutral[which]]

            def change(tensor: Any) -> Any:
                for which in todo:
                    tensor = changes[which](tensor, factors[which])
                return tensor

            return _through(blocks, change) if todo else blocks

        return work


_JITTERS = ("brightness", "contrast", "saturation", "hue")


@dataclass(frozen=True, kw_only=True)
class Normalize(_UsesTorchvision):
    """float32: uint8 to 0–1, then minus `mean`, by `std`. Four times the bytes; the device can do it as well."""

    name: ClassVar[str] = "normalize"

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        for what in ("mean", "std"):
            value = tuple(float(x) for x in getattr(self, what))
            if len(value) != 3 or (what == "std" and min(value) <= 0):
                raise RecipeError(f"{what} of {self.name} is {value}; it must be three numbers" + " above 0" * (what == "std"))
            object.__setattr__(self, what, value)

    def _work(self) -> Callable[[Blocks, Draw], Blocks]:
        functional = _functional()
        import torch  # noqa: PLC0415 - optional

        mean, std = list(self.mean), list(self.std)

        def change(tensor: Any) -> Any:
            if tensor.dtype == torch.uint8:
                tensor = functional.to_dtype(tensor, torch.float32, scale=True)
            return functional.normalize(tensor, mean, std)

        return lambda blocks, _: _through(blocks, change)


# --------------------------------------------------------------------------------------------------------- helpers


def _check_choice(operator: str, what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise RecipeError(f"{operator}: {unknown(what, str(value), known)}")


def _functional() -> Any:
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped] # noqa: PLC0415 - optional, and slow to import

    return functional


def _mode(name: str) -> Any:
    from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped] # noqa: PLC0415 - as above

    return InterpolationMode(name)


def _through(blocks: Blocks, change: Callable[[Any], Any]) -> Blocks:
    """By way of a tensor. The blocks are in the group's memory, which is read only, so torch gets a copy."""
    import torch  # noqa: PLC0415 - optional

    return change(torch.from_numpy(blocks.copy())).numpy()  # type: ignore[no-any-return]


def _check_types(schema: pa.Schema) -> None:
    columns.check_type(schema, columns.PIXELS, columns.PIXELS_TYPE, _FIRST)
    columns.check_type(schema, columns.PIXEL_SHAPES, columns.PIXEL_SHAPES_TYPE, _FIRST)


_FIRST = "decode images first: decode_images()"


def _apply(group: pa.RecordBatch, work: Callable[[Blocks, Draw], Blocks], random: tuple[str, int] | None) -> pa.RecordBatch:
    pixels, shapes = groups.column(group, columns.PIXELS), groups.column(group, columns.PIXEL_SHAPES)
    _check_types(group.schema)
    counts = list_sizes(pixels)
    if not np.array_equal(counts, list_sizes(shapes)):
        raise DataError(f"{columns.PIXELS!r} and {columns.PIXEL_SHAPES!r} are not parallel")
    flat = pixels.flatten()
    row_keys = _row_keys(group, random)
    made: list[Blocks] = []
    starts = np.cumsum(counts) - counts
    row_of = np.repeat(np.arange(group.num_rows), counts)
    for index, (value, shape) in enumerate(zip(flat, shapes.flatten().to_pylist(), strict=True)):
        row = int(row_of[index])
        image_key = 0 if row_keys is None else keys.key(int(row_keys[row]), index - int(starts[row]))
        made.append(np.ascontiguousarray(work(_blocks(value, shape), _drawer(image_key))))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    group = groups.set_column(group, columns.PIXELS, groups.make_list(offsets, _binary(made, flat)))
    return groups.set_column(group, columns.PIXEL_SHAPES, groups.make_list(offsets, lists([blocks.shape for blocks in made])))


def _row_keys(group: pa.RecordBatch, random: tuple[str, int] | None) -> Any:
    if random is None:
        return None
    there = [groups.ints(group, n) for n in groups.PROVENANCE if group.schema.get_field_index(n) >= 0]
    if not there:
        raise DataError("random operators need to know where a row came from", hint="use them before packing")
    return keys.row_generator_keys(random[1], random[0], there)


def _drawer(image_key: int) -> Draw:
    drawn = 0

    def draw(count: int) -> list[float]:
        nonlocal drawn
        numbers = keys.hashes(image_key, np.arange(drawn, drawn + count, dtype=np.uint64))
        drawn += count
        out: list[float] = ((numbers >> np.uint64(11)) * 2.0**-53).tolist()
        return out

    return draw


def _blocks(value: Any, shape: list[int]) -> Blocks:
    if len(shape) < 3 or shape[-3] != 3:
        raise DataError(
            f"blocks of shape {shape} are not [..., 3, height, width]", hint='decode with policy="raw" or a policy of tiles'
        )
    if not value.is_valid:
        return np.full(shape, 128, dtype=np.uint8)
    data = memoryview(value.as_buffer())
    count = math.prod(shape)
    if len(data) not in (count, 4 * count):
        raise DataError(f"{len(data)} bytes of pixels for blocks of shape {shape}")
    return np.frombuffer(data, dtype=np.uint8 if len(data) == count else np.float32).reshape(shape)


def _binary(made: Sequence[Blocks], like: ArrowArray) -> ArrowArray:
    """The blocks as one binary array, null where `like` is."""
    ends = np.concatenate([[0], np.cumsum([blocks.nbytes for blocks in made], dtype=np.int64)]).astype(np.int64)
    if int(ends[-1]) >= 2**31:
        raise DataError(f"{int(ends[-1]):,} bytes of pixels in one group")
    buffer: Any = pa.allocate_buffer(int(ends[-1]))
    memory = np.frombuffer(buffer, dtype=np.uint8)
    for start, stop, blocks in zip(ends, ends[1:], made, strict=False):
        memory[start:stop].view(blocks.dtype).reshape(blocks.shape)[...] = blocks
    valid: ArrowArray = None
    if like.null_count:
        flags: Any = np.packbits(to_numpy(like.is_valid()), bitorder="little")
        valid = pa.py_buffer(flags)
    offsets: Any = ends.astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(made), [valid, pa.py_buffer(offsets), buffer])

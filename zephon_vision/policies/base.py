"""What an image policy is: sizes in, a plan of integers out; later pixels in, blocks out.

`plan` needs a height and a width only, so token counts are known from headers, before any decode. `render` needs pixels, and happens
after packing. A policy is its settings (a frozen dataclass): equal settings give equal plans and pixels.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError, PluginError, RecipeError, unknown

GROUP = "zephon.image_policies"
"""The entry-point group; the entry point's name is the class's `name`."""

FILTERS = ("bilinear", "bicubic", "lanczos")

_PART = 1 << 18
"""So many values are normalised at once."""

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """What becomes of one image; integers only."""

    height: int
    """Of the upright image, in pixels."""
    width: int
    sizes: tuple[tuple[int, int], ...] = ()
    """Target (height, width) of each resize, in the policy's own order."""
    grid: tuple[int, ...] = ()
    """The policy's grid: (t, gh, gw) for patch models, (rows, columns) of tiles for tiling ones."""
    blocks: int = 1
    """Rows of the rendered array: patches or tiles."""
    tokens: int = 0
    """Positions in the token sequence, wrappers included."""
    extra: tuple[int, ...] = ()
    """Whatever else the policy needs."""

    def pack(self) -> list[int]:
        """The plan as integers."""
        sizes = [n for size in self.sizes for n in size]
        return [
            self.height, self.width, self.blocks, self.tokens,
            len(self.sizes), *sizes, len(self.grid), *self.grid, *self.extra,
        ]  # fmt: skip

    @classmethod
    def unpack(cls, numbers: Sequence[int]) -> Plan:
        """The inverse of `pack`. Raises `DataError` where the numbers are no plan."""
        try:
            height, width, blocks, tokens, count = numbers[:5]
            flat = tuple(numbers[5 : 5 + 2 * count])
            rest = numbers[5 + 2 * count :]
            grid, extra = tuple(rest[1 : 1 + rest[0]]), tuple(rest[1 + rest[0] :])
        except (ValueError, IndexError) as error:
            raise DataError(f"{list(numbers)!r} is not an image plan") from error
        return cls(height, width, tuple(zip(flat[::2], flat[1::2], strict=True)), grid, blocks, tokens, extra)


@dataclass(frozen=True)
class SpecialIds:
    """The ids that an image's token run needs, by the names that the policy gives in `special_tokens`."""

    ids: Mapping[str, int]
    newline: tuple[int, ...] = ()
    """What the tokenizer makes of "\\n", for the families that put text between tiles."""
    texts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What the tokenizer makes of each of the policy's `texts`."""

    def __getitem__(self, token: str) -> int:
        return self.ids[token]


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """One model family's way with images. Its fields are its settings."""

    name: ClassVar[str]
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Tokens that `token_run` inserts by id; the tokenizer must have them."""
    texts: ClassVar[tuple[str, ...]] = ()
    """Ordinary text that stands between blocks in some families; tokenised once, by the operator."""
    placeholder: ClassVar[str] = "<image>"
    """What stands for an image in the family's own chat templates; replaced by the whole run."""
    mrope: ClassVar[bool] = False
    """Whether positions are three-dimensional (see `zephon_vision.positions`)."""

    planar: ClassVar[bool] = False
    """Whether `render` takes one channel after the other: then pixels may lie in memory in any order (shapes stay [h, w, 3]), and a
    resizer may choose the quickest. Else what it is given, and what resizing gives, is contiguous."""

    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)
    filter: str = "bicubic"
    """Of every resize: bilinear, bicubic or lanczos."""

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise RecipeError(unknown(f"filter of image policy {self.name!r}", str(self.filter), FILTERS))
        if len(self.image_mean) != 3 or len(self.image_std) != 3 or not all(self.image_std):
            raise RecipeError(f"image policy {self.name!r} needs three means and three deviations, none of these 0")

    @property
    def merge(self) -> int:
        """Patches per token along each side, for M-RoPE."""
        return 1

    @abstractmethod
    def plan(self, height: int, width: int, *, images: int = 1) -> Plan:
        """The plan for an upright image of this size, in a sample with `images` images.

        Raises:
            DataError: a size that the model refuses (say, an aspect ratio over 200).
        """

    @abstractmethod
    def render(self, rgb: Pixels, plan: Plan, resize: Resize) -> Pixels:
        """`rgb` uint8[height, width, 3] to uint8 blocks [plan.blocks, ...], not normalised, with the operator's resizer."""

    @abstractmethod
    def block_shape(self, plan: Plan) -> tuple[int, ...]:
        """The shape of `render`'s result."""

    @abstractmethod
    def token_run(self, plan: Plan, ids: SpecialIds) -> list[int]:
        """The ids that stand for the image in the text: exactly `plan.tokens` of them where `newline` and `texts` don't vary."""

    def around(self, plan: Plan) -> tuple[str, str]:  # noqa: ARG002 - the same for any image
        """Ordinary text before and after the run; it is tokenised together with the text beside it, and not trained."""
        return "", ""

    @abstractmethod
    def fields(self, plans: Sequence[Plan]) -> dict[str, npt.NDArray[np.int64]]:
        """What a model wants beside `pixel_values` for these images in order, e.g. `image_grid_thw` int64[n, 3]."""

    def normalize(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`(mean, std)` per channel on the 0–1 scale, for whoever normalises (the device, or `dtype=` here)."""
        return self.image_mean, self.image_std

    def to_float(self, blocks: Pixels, *, backend: str = "torch") -> Floats:
        """Blocks of one or more images, normalised exactly as the model's own processor does it.

        Args:
            blocks: uint8, as `render` gives them: channels are the second axis, or blocks are rows of three equal parts, one per channel.
            backend: `pil` for the arithmetic of the Pillow/NumPy processors (rescale in double precision, then normalise); anything
                else for that of the torchvision ones (both in one step). They differ in the last bits.

        Returns:
            float32 of the same shape.
        """
        mean, std = (np.array(x, dtype=np.float32)[:, None] for x in self.normalize())
        return self._normal(blocks.reshape(len(blocks), 3, -1), mean, std, backend).reshape(blocks.shape)

    def pixel_values(self, images: Sequence[Pixels], plans: Sequence[Plan], *, backend: str = "torch") -> Floats:
        """What the model's own processor returns as `pixel_values` for one sample with these images: padded where it pads."""
        self._match(images, plans)
        return self.to_float(np.concatenate(list(images)), backend=backend)

    def _normal(self, values: Pixels, mean: Floats, std: Floats, backend: str) -> Floats:
        """`values` normalised; mean and deviation have shapes that fit them.

        In parts that stay in the processor's cache from step to step, a third to a half less time.
        """
        made = np.empty(values.shape, dtype=np.float32)
        if backend != "pil":
            mean, std = mean * np.float32(255), std * np.float32(255)
        rows = max(1, _PART // max(1, made[:1].size))
        for begin in range(0, len(values), rows):
            part, out = values[begin : begin + rows], made[begin : begin + rows]
            if backend == "pil":  # in double precision, rounded once
                np.multiply(part, np.float64(1 / 255), out=out, casting="same_kind")
            else:
                np.copyto(out, part)
            out -= mean
            out /= std
        return made

    def _match(self, images: Sequence[Pixels], plans: Sequence[Plan]) -> None:
        if not images or [len(blocks) for blocks in images] != [plan.blocks for plan in plans]:
            raise DataError(f"blocks of {[len(b) for b in images]} for plans of {[plan.blocks for plan in plans]}")

    def _positive(self, *names: str) -> None:
        """Raise `RecipeError` unless these settings are integers above zero."""
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RecipeError(f"{name} of image policy {self.name!r} must be a whole number above 0, not {value!r}")

    def spec(self) -> str:
        """The policy as text: its name, and the settings that are not default as JSON; see `load`."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return self.name + (json.dumps(changed, sort_keys=True, default=list) if changed else "")


class Resize:
    """Antialiased resizing by one back-end; the operator makes it (`zephon_vision.resize`)."""

    backend: str

    def __call__(
        self, rgb: Pixels, size: tuple[int, int], filter: str, box: tuple[float, float, float, float] | None = None
    ) -> Pixels:
        """`rgb` uint8[h, w, 3] to uint8[size[0], size[1], 3]; `filter` is bilinear, bicubic or lanczos; `box` (left, top, right,
        bottom) is the part of the source to use. The result holds until `render` returns: its memory may be used again."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...]) -> Pixels:
        """uint8 memory for a step in between, or for what `render` returns; used again after that."""
        return np.empty(shape, dtype=np.uint8)


def _kind(name: str) -> type[Policy]:
    """The class of an entry point."""
    points = {(p.name, p.value): p for p in entry_points(group=GROUP)}  # an editable install may be listed twice
    named = [point for (known, _), point in points.items() if known == name]
    if not named:
        known = sorted({known for known, _ in points})
        raise RecipeError(unknown("image policy", name, known), hint="or give from:PATH of a model's preprocessor_config.json")
    if len(named) > 1:
        raise PluginError(
            f"image policy {name!r} is claimed by {' and '.join(sorted(map(_whose, named)))}", hint="uninstall one of them"
        )
    try:
        kind = named[0].load()
    except (Exception, SystemExit) as error:  # a script that was meant to be run ends the program
        raise PluginError(
            f"image policy {name!r} of {_whose(named[0])} fails on import: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise PluginError(f"image policy {name!r} of {_whose(named[0])} is no subclass of Policy")
    return kind


def _whose(point: EntryPoint) -> str:
    """The package of an entry point, and where it points."""
    return f"{point.dist.name} {point.dist.version} ({point.value})" if point.dist else point.value


@lru_cache(maxsize=64)
def load(spec: str) -> Policy:
    """The policy for a spec: `name`, `name{"setting": value}`, `none`, or `from:PATH` (a folder or file with `preprocessor_config.json`).

    Raises:
        RecipeError: an unknown policy or setting.
        PluginError: two packages claim the name, or the one that has it doesn't import.
    """
    if not isinstance(spec, str):  # it is what a user gave
        raise RecipeError(
            f"an image policy is named by a text, not by {spec!r}", hint="tokenize_interleaved takes policy objects too"
        )
    if spec.startswith("from:"):
        from zephon_vision.policies.configs import from_config  # noqa: PLC0415 - reads files; it knows all policies

        return from_config(spec.removeprefix("from:"))
    if spec == "none":
        from zephon_vision.policies.none import NoImages  # noqa: PLC0415 - it imports this module

        return NoImages()
    name, brace, rest = spec.partition("{")
    kind = _kind(name)
    try:
        settings: dict[str, Any] = json.loads(brace + rest) if brace else {}
    except ValueError as error:
        raise RecipeError(f"the settings of image policy {spec!r} are not JSON: {error}") from error
    known = [f.name for f in fields(kind)]
    for setting in settings:
        if setting not in known:
            raise RecipeError(unknown(f"setting of image policy {name!r}", setting, known))
    try:
        return kind(**{setting: _frozen(value) for setting, value in settings.items()})
    except TypeError as error:
        raise RecipeError(f"the settings of image policy {spec!r} are of types that it doesn't take: {error}") from error


def _frozen(value: Any) -> Any:
    """JSON's lists as tuples, all the way down: settings are hashable."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value

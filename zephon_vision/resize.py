"""Antialiased resizing by torch, by Pillow or by cykooz.resizer (fast_image_resize), as transformers' image processors do it.

The back-ends differ by a few units of 255 from each other, so the one that is used, with its library's version, belongs to the stream.
"""

from __future__ import annotations

import math
from copy import copy
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from zephon.errors import PluginError, RecipeError, unknown
from zephon_vision._arena import Arena
from zephon_vision.policies.base import Pixels, Resize
from zephon_vision.policies.blocks import four_bytes

__all__ = ["Backend", "make_resize", "resize_parts", "settle_backend"]

Backend = Literal["auto", "torch", "pil", "cykooz"]
Box = tuple[float, float, float, float]

_LIBRARIES = {"torch": ("torch", "torch"), "cykooz": ("cykooz_resizer", "cykooz.resizer"), "pil": ("PIL", "pillow")}
"""Back-end to the module and to the name on the package index."""


def settle_backend(backend: str) -> str:
    """The back-end that `auto` comes down to: torch, else cykooz, else pil. Nothing is imported.

    Raises:
        RecipeError: an unknown back-end.
        PluginError: its library is not installed.
    """
    if backend not in get_args(Backend):
        raise RecipeError(unknown("resize back-end", backend, get_args(Backend)))
    if backend == "auto":
        return next(name for name, (module, _) in _LIBRARIES.items() if find_spec(module) is not None)
    module, package = _LIBRARIES[backend]
    if find_spec(module) is None:
        raise PluginError(f"resize back-end {backend!r} needs the package {package}, which is not installed")
    return backend


def resize_parts(backend: str = "auto") -> dict[str, str]:
    """The back-end and its library's version, for `Operator.fingerprint_parts`. Build tags (`+cpu`) don't count."""
    settled = settle_backend(backend)
    return {"resize": f"{settled} {version(_LIBRARIES[settled][1]).partition('+')[0]}"}


@lru_cache(maxsize=8)
def make_resize(backend: str = "auto") -> Resize:
    """The resizer of a back-end; any number of threads may use it. Raises as `settle_backend`."""
    return {"torch": TorchResize, "pil": PilResize, "cykooz": CykoozResize}[settle_backend(backend)]()


def pooled(resize: Resize, arena: Arena, *, planar: bool = False) -> Resize:
    """The same resizer with results, and memory for steps in between, in the arena: they hold until that is reset. For one thread.

    With `planar` results may lie in memory in any order; see `Policy.planar`.
    """
    if isinstance(resize, TorchResize):
        return resize.pooled(arena, planar=planar)
    made = copy(resize)
    made.empty = arena.take  # type: ignore[method-assign]
    return made


_PIL_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class PilResize(Resize):
    """Pillow's; a trip to an image and back costs more than the resizing of small pictures."""

    backend = "pil"

    def __call__(self, rgb: Pixels, size: tuple[int, int], filter: str, box: Box | None = None) -> Pixels:
        """See `Resize`."""
        _check(rgb, size, filter)
        rgb, box = _cut(rgb, box)
        if box is None and size == rgb.shape[:2]:
            return rgb
        image = Image.fromarray(np.ascontiguousarray(rgb))
        return np.array(image.resize((size[1], size[0]), _PIL_FILTERS[filter], box=box))


class TorchResize(Resize):
    """torch's kernels for uint8, as torchvision calls them; Lanczos too where torch has it (since 2.14), else Pillow's."""

    backend = "torch"

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - optional, and seconds to import

        self._torch = torch
        self._from_numpy = torch.from_numpy
        kernels: Any = torch._C._nn
        # what `torch.nn.functional.interpolate` calls; here with a place for what it makes
        self._kernels: dict[str, Any] = {name: getattr(kernels, f"_upsample_{name}2d_aa", None) for name in _PIL_FILTERS}
        if not _torch_has_lanczos(torch):
            self._kernels["lanczos"] = None
        self._pil = PilResize()
        self._planar = False

    @property
    def takes_words(self) -> bool:
        """Whether four bytes a pixel are quicker than three: the kernel for AVX2 needs a quarter less time."""
        return self._planar and self._torch.backends.cpu.get_cpu_capability() != "DEFAULT"

    def pooled(self, arena: Arena, *, planar: bool = False) -> TorchResize:
        """See `pooled`."""
        made = copy(self)
        made._planar = planar
        made.empty = arena.take  # type: ignore[method-assign]
        return made

    def __call__(self, rgb: Pixels, size: tuple[int, int], filter: str, box: Box | None = None) -> Pixels:
        """See `Resize`. A box must begin at whole pixels."""
        _check(rgb, size, filter)
        rgb, rest = (rgb, None) if box is None else _cut(rgb, box)
        height, width, _ = rgb.shape
        if rest is None and size == (height, width):
            return rgb
        kernel = self._kernels[filter]
        if kernel is None:
            return self._pil(rgb, size, filter, rest)
        scales: tuple[float | None, float | None] = (None, None)
        if rest is not None:
            left, top, right, bottom = rest
            if left or top:
                raise ValueError(f"the torch back-end resizes from whole pixels, not from a box {box}")
            # the exact scale leaves out the part of the last pixels that is outside of the box
            scales = (size[0] / bottom, size[1] / right)
        memory = getattr(rgb, "memory", None) if self._planar else None
        if memory is not None:
            made = four_bytes(*size, self.empty)
            kernel(self._image(memory, height, width, 4), size, False, *scales, out=self._image(made.memory, *size, 4))
            return made
        if not (rgb.flags.c_contiguous and rgb.flags.writeable):  # of what can't be written to, torch warns
            rgb = rgb.copy(order="C")
        plain = self.empty((*size, 3))
        kernel(self._image(rgb, height, width, 3), size, False, *scales, out=self._image(plain, *size, 3))
        return plain

    def _image(self, memory: Any, height: int, width: int, channels: int) -> Any:
        """One picture whose strides say clearly that channels are last, or torch would repack it."""
        shape, strides = (1, channels, height, width), (height * width * channels, 1, width * channels, channels)
        return self._from_numpy(np.ndarray(shape, np.uint8, memory, 0, strides))


@lru_cache(maxsize=1)
def _torch_has_lanczos(torch: Any) -> bool:
    try:
        torch.nn.functional.interpolate(
            torch.zeros((1, 3, 8, 8), dtype=torch.uint8), size=[4, 4], mode="lanczos", antialias=True
        )
    except (NotImplementedError, ValueError, RuntimeError):
        return False
    return True


class CykoozResize(Resize):
    """fast_image_resize by cykooz.resizer: SIMD without torch."""

    backend = "cykooz"

    def __init__(self) -> None:
        import cykooz_resizer as library  # type: ignore[import-untyped] # noqa: PLC0415 - optional

        self._library: Any = library
        kinds = library.FilterType
        self._filters = {
            "bilinear": kinds.bilinear,
            "bicubic": kinds.catmull_rom,  # the same polynomial as Pillow's: a = -0.5
            "lanczos": kinds.lanczos3,
        }

    def __call__(self, rgb: Pixels, size: tuple[int, int], filter: str, box: Box | None = None) -> Pixels:
        """See `Resize`."""
        _check(rgb, size, filter)
        rgb, box = _cut(rgb, box)
        if box is None and size == rgb.shape[:2]:
            return rgb
        lib = self._library
        source = lib.ImageData(rgb.shape[1], rgb.shape[0], lib.PixelType.U8x3, np.ascontiguousarray(rgb).tobytes())
        target = lib.ImageData(size[1], size[0], lib.PixelType.U8x3)
        crop = None if box is None else lib.CropBox(box[0], box[1], box[2] - box[0], box[3] - box[1])
        options = lib.ResizeOptions(resize_alg=lib.ResizeAlg.convolution(self._filters[filter]), crop_box=crop)
        lib.Resizer().resize(source, target, options)
        return np.frombuffer(bytearray(target.get_buffer()), dtype=np.uint8).reshape(*size, 3)


def _cut(rgb: Pixels, box: Box | None) -> tuple[Pixels, Box | None]:
    """The pixels that a box touches, and the box in them where it has broken pixels. Others have no part in what is made."""
    if box is None:
        return rgb, None
    left, top, right, bottom = box
    if not (0 <= left < right <= rgb.shape[1] and 0 <= top < bottom <= rgb.shape[0]):
        raise ValueError(f"box {box} of an image of {rgb.shape[1]} × {rgb.shape[0]}")
    x, y = math.floor(left), math.floor(top)
    part = rgb[y : math.ceil(bottom), x : math.ceil(right)]
    part = rgb if part.shape == rgb.shape else part
    whole = (left, top) == (x, y) and (bottom - top, right - left) == part.shape[:2]
    return part, None if whole else (left - x, top - y, right - x, bottom - y)


def _check(rgb: Pixels, size: tuple[int, int], filter: str) -> None:
    if filter not in _PIL_FILTERS:
        raise ValueError(unknown("filter", filter, _PIL_FILTERS))
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8:
        raise ValueError(f"resizing takes uint8[h, w, 3], not {rgb.dtype}{list(rgb.shape)}")
    if size[0] < 1 or size[1] < 1:
        raise ValueError(f"resizing to {size[0]} × {size[1]}")

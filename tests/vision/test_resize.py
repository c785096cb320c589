"""Resizers equal the libraries that models were trained with, and treat boxes alike."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional
from vision.pictures import Array, scene

from zephon.errors import PluginError, RecipeError
from zephon_vision._arena import Arena
from zephon_vision.policies.blocks import four_bytes
from zephon_vision.resize import make_resize, pooled, resize_parts, settle_backend

BACKENDS = ("torch", "pil", "cykooz")
FILTERS = ("bilinear", "bicubic", "lanczos")
sides = st.integers(1, 120)
CLOSE = {"torch": 3, "pil": 0, "cykooz": 4}
"""Units of 255 that a back-end may be away from Pillow."""


def by_pillow(rgb: Array, size: tuple[int, int], kind: str) -> Array:
    return np.asarray(Image.fromarray(rgb).resize((size[1], size[0]), Image.Resampling[kind.upper()]))


@given(sides, sides, sides, sides, st.sampled_from(FILTERS), st.booleans())
def test_torch_is_bit_equal_to_torchvision(h: int, w: int, high: int, wide: int, kind: str, planes: bool) -> None:
    rgb = scene(h, w)
    tensor = torch.from_numpy(rgb).permute(2, 0, 1)
    expected = functional.resize(tensor, [high, wide], interpolation=InterpolationMode(kind), antialias=True)
    given_rgb = np.ascontiguousarray(rgb.transpose(2, 0, 1)).transpose(1, 2, 0) if planes else rgb
    assert np.array_equal(make_resize("torch")(given_rgb, (high, wide), kind), expected.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("backend", BACKENDS)
@given(sides, sides, sides, sides, st.sampled_from(FILTERS))
def test_every_backend_is_close_to_pillow(backend: str, h: int, w: int, high: int, wide: int, kind: str) -> None:
    rgb = scene(h, w)
    made = make_resize(backend)(rgb, (high, wide), kind)
    assert made.shape == (high, wide, 3)
    assert made.dtype == np.uint8
    assert int(np.abs(made.astype(int) - by_pillow(rgb, (high, wide), kind)).max()) <= CLOSE[backend]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", FILTERS)
def test_a_box_of_whole_pixels_is_a_crop(backend: str, kind: str) -> None:
    rgb, resize = scene(60, 90), make_resize(backend)
    part = resize(rgb, (20, 33), kind, (11, 7, 80, 52))
    assert np.array_equal(part, resize(rgb[7:52, 11:80], (20, 33), kind))
    assert np.array_equal(resize(rgb, (20, 33), kind, (0, 0, 90, 60)), resize(rgb, (20, 33), kind))
    assert np.array_equal(resize(rgb, (45, 69), kind, (11, 7, 80, 52)), rgb[7:52, 11:80])


@pytest.mark.parametrize("backend", BACKENDS)
@given(st.floats(30.0, 60.0), st.floats(30.0, 90.0), st.integers(1, 20), st.integers(1, 20), st.sampled_from(FILTERS))
def test_a_box_that_ends_inside_of_a_pixel_is_as_pillow_has_it(
    backend: str, high: float, wide: float, to_high: int, to_wide: int, kind: str
) -> None:
    rgb = scene(60, 90)
    made = make_resize(backend)(rgb, (to_high, to_wide), kind, (0.0, 0.0, wide, high))
    touched = rgb[: int(np.ceil(high)), : int(np.ceil(wide))]
    image = Image.fromarray(touched).resize((to_wide, to_high), Image.Resampling[kind.upper()], box=(0.0, 0.0, wide, high))
    assert made.shape == (to_high, to_wide, 3)
    assert int(np.abs(made.astype(int) - np.asarray(image)).max()) <= CLOSE[backend]


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_memory_layout_gives_the_same(backend: str) -> None:
    rgb, resize = scene(60, 90), make_resize(backend)
    expected = resize(rgb, (31, 17), "bicubic")
    frozen = rgb.copy()
    frozen.flags.writeable = False
    padded = np.zeros((70, 100, 3), np.uint8)
    padded[5:65, 4:94] = rgb
    for other in (frozen, padded[5:65, 4:94], np.asfortranarray(rgb), rgb[:, ::-1].copy()[:, ::-1]):
        assert np.array_equal(resize(other, (31, 17), "bicubic"), expected)
    assert expected.flags.c_contiguous


@pytest.mark.parametrize("backend", BACKENDS)
@given(sides, sides, sides, sides, st.sampled_from(FILTERS), st.booleans(), st.booleans())
def test_used_memory_and_four_bytes_a_pixel_change_no_pixel(
    backend: str, h: int, w: int, high: int, wide: int, kind: str, words: bool, planar: bool
) -> None:
    rgb, arena = scene(h, w), Arena()
    resize = pooled(make_resize(backend), arena, planar=planar)
    shown = rgb
    if words:
        shown = four_bytes(h, w, arena.take)
        shown[...] = rgb
    assert np.array_equal(resize(shown, (high, wide), kind), make_resize(backend)(rgb, (high, wide), kind))
    box = (0.0, 0.0, w - 0.25, h - 0.5)
    assert np.array_equal(resize(shown, (high, wide), kind, box), make_resize(backend)(rgb, (high, wide), kind, box))
    part = shown[h // 2 :, w // 2 :]
    assert np.array_equal(resize(part, (high, wide), kind), make_resize(backend)(part, (high, wide), kind))


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_share_a_resizer(backend: str) -> None:
    resize = make_resize(backend)
    sizes = [(n, 60 - n) for n in range(5, 50)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda size: resize(scene(), size, "bicubic"), sizes))
    for size, one in zip(sizes, made, strict=True):
        assert np.array_equal(one, resize(scene(), size, "bicubic"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_picture_is_refused(backend: str) -> None:
    resize = make_resize(backend)
    for rgb, size, kind in (
        (scene()[:, :, 0], (3, 3), "bicubic"),
        (scene().astype(np.float32), (3, 3), "bicubic"),
        (scene(), (0, 3), "bicubic"),
        (scene(), (3, 3), "nearest"),
    ):
        with pytest.raises(ValueError, match=r"resizing|filter"):
            resize(rgb, size, kind)
    with pytest.raises(ValueError, match="box"):
        resize(scene(), (3, 3), "bicubic", (0, 0, 1000, 3))


def test_torch_refuses_a_box_that_begins_inside_of_a_pixel() -> None:
    with pytest.raises(ValueError, match="whole pixels"):
        make_resize("torch")(scene(), (3, 3), "bicubic", (0.5, 0, 20, 20))


def test_the_backend_and_its_version_are_said() -> None:
    assert resize_parts("pil") == {"resize": f"pil {version('pillow')}"}
    assert resize_parts("auto") == resize_parts("torch")
    assert "+" not in resize_parts("torch")["resize"]
    assert settle_backend("auto") == "torch"
    with pytest.raises(RecipeError, match="did you mean 'torch'"):
        settle_backend("torsh")


def test_without_torch_and_cykooz_auto_is_pillow() -> None:
    """In a process where they can't be found."""
    program = """
import sys
from importlib.machinery import PathFinder
class Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("torch", "cykooz_resizer", "simplejpeg") else PathFinder.find_spec(name, path, target)
sys.meta_path = [f for f in sys.meta_path if f is not PathFinder] + [Hide]
from zephon.errors import PluginError
from zephon_vision.resize import make_resize, settle_backend
from zephon_vision.decoders import decode, refuses_damaged_jpeg
assert settle_backend("auto") == "pil" and not refuses_damaged_jpeg()
assert make_resize().backend == "pil"
try:
    settle_backend("torch")
except PluginError as error:
    print(error)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "needs the package torch" in done.stdout
    assert PluginError is not None


def test_importing_the_operators_imports_nothing_optional() -> None:
    program = """
import sys
import zephon_vision.augment, zephon_vision.decode_images, zephon_vision.probe_images
print([m for m in ("torch", "torchvision", "simplejpeg", "cykooz_resizer", "transformers") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

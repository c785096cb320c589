"""Pixels against the models' own processors, bit by bit, each back-end with its own resizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from vision.policies.kit import FloatTorchResize, PilResize, TorchResize, photo, processor_class, qwen_pixels

from zephon_vision.policies.base import Pixels, Policy, Resize
from zephon_vision.policies.blocks import chw, four_bytes, from_patches, patches, tiles
from zephon_vision.policies.clip import Clip, Siglip, Siglip2
from zephon_vision.policies.gemma import Gemma3
from zephon_vision.policies.idefics import Idefics3, SmolVLM
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llama4 import Llama4
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.pixtral import Pixtral
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL
from zephon_vision.resize import make_resize

SIZES = ((300, 200), (97, 413), (500, 401), (36, 30))
QWEN = qwen_pixels(56 * 56, 28 * 28 * 200)
MEAN_STD = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

CASES: dict[str, tuple[Policy, str, dict[str, Any]]] = {
    "clip": (Clip(), "CLIPImageProcessor", {}),
    "siglip": (Siglip(), "SiglipImageProcessor", {"size": {"height": 384, "width": 384}}),
    "siglip2": (Siglip2(), "Siglip2ImageProcessor", {}),
    "llava_1_5": (Llava15(), "LlavaImageProcessor", {"do_pad": True, "size": {"shortest_edge": 336}, "crop_size": 336}),
    "llava_1_5 cropping": (Llava15(pad=False), "CLIPImageProcessor", {"size": {"shortest_edge": 336}, "crop_size": 336}),
    "llava_next": (LlavaNext(), "LlavaNextImageProcessor", {"size": {"shortest_edge": 336}, "crop_size": 336}),
    "llava_onevision": (LlavaOnevision(), "LlavaOnevisionImageProcessor", HALF),
    "internvl": (
        InternVL(max_patches=6),
        "GotOcr2ImageProcessor",
        {"size": {"height": 448, "width": 448}, "crop_to_patches": True, "max_patches": 6, **MEAN_STD},
    ),
    "idefics3": (Idefics3(longest_edge=728), "Idefics3ImageProcessor", {"size": {"longest_edge": 728}}),
    "idefics3 in one": (Idefics3(do_image_splitting=False), "Idefics3ImageProcessor", {"do_image_splitting": False}),
    "smolvlm": (
        SmolVLM(longest_edge=1024),
        "SmolVLMImageProcessor",
        {"size": {"longest_edge": 1024}, "max_image_size": {"longest_edge": 512}},
    ),
    "qwen2_vl": (Qwen2VL(max_pixels=28 * 28 * 200), "Qwen2VLImageProcessor", QWEN),
    "qwen3_vl": (
        Qwen3VL(min_pixels=56 * 56, max_pixels=28 * 28 * 200),
        "Qwen2VLImageProcessor",
        {"patch_size": 16, **QWEN, **HALF},
    ),
    "pixtral": (Pixtral(longest_edge=256), "PixtralImageProcessor", {"size": {"longest_edge": 256}}),
    "gemma3": (Gemma3(size=448), "Gemma3ImageProcessor", {"size": {"height": 448, "width": 448}}),
    "gemma3 crops": (
        Gemma3(size=224, pan_and_scan=True, min_crop_size=32),
        "Gemma3ImageProcessor",
        {
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 32,
            "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
    ),
    "llama4": (Llama4(), "Llama4ImageProcessor", {}),
}


def combinations() -> Iterator[Any]:
    for case, (_, kind, _) in CASES.items():
        for backend in ("pil", "torch"):
            if processor_class(kind, backend) is not None:
                yield pytest.param(case, backend, id=f"{case}-{backend}")


def resizer(kind: str, backend: str) -> Resize:
    if backend == "pil":
        return PilResize()
    old = kind in ("Idefics3ImageProcessor", "SmolVLMImageProcessor") and transformers.__version__.startswith("4.")
    return FloatTorchResize() if old else TorchResize()


def ours(policy: Policy, resize: Resize, images: list[Any], backend: str) -> np.ndarray[Any, Any]:
    plans = [policy.plan(*image.shape[:2], images=1) for image in images]
    blocks = [policy.render(image, plan, resize) for image, plan in zip(images, plans, strict=True)]
    for made, plan in zip(blocks, plans, strict=True):
        assert made.dtype == np.uint8
        assert made.shape == policy.block_shape(plan)
        assert made.flags.c_contiguous
    return policy.pixel_values(blocks, plans, backend=backend)


@pytest.mark.parametrize(("case", "backend"), list(combinations()))
def test_pixels_are_the_processors(case: str, backend: str) -> None:
    policy, kind, settings = CASES[case]
    processor = processor_class(kind, backend)(**settings)
    images = [photo(*size) for size in SIZES]
    given: list[Any] = [image.copy() for image in images]
    if isinstance(policy, Idefics3):
        given, images = [given[:2]], images[:2]  # one sample with two images
    expected = processor(given, return_tensors="pt")["pixel_values"].to(torch.float32).numpy()
    made = ours(policy, resizer(kind, backend), images, backend)
    assert made.dtype == np.float32
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made, expected)


def test_several_images_of_onevision_take_one_tile_each() -> None:
    policy = LlavaOnevision()
    images = [photo(*size) for size in SIZES]
    for backend, resize in (("pil", PilResize()), ("torch", TorchResize())):
        processor = processor_class("LlavaOnevisionImageProcessor", backend)(**HALF)
        expected = processor([[image.copy() for image in images]], return_tensors="pt")
        plans = [policy.plan(*image.shape[:2], images=len(images)) for image in images]
        blocks = [policy.render(image, plan, resize) for image, plan in zip(images, plans, strict=True)]
        np.testing.assert_array_equal(policy.pixel_values(blocks, plans, backend=backend), expected["pixel_values"].numpy())
        fields = policy.fields(plans)
        np.testing.assert_array_equal(fields["image_sizes"], np.asarray(expected["image_sizes"]))
        np.testing.assert_array_equal(fields["batch_num_images"], np.asarray(expected["batch_num_images"]))


def test_fields_are_the_processors() -> None:
    images = [photo(*size) for size in ((300, 200), (97, 413), (36, 30))]
    for case in ("siglip2", "llava_next", "internvl", "qwen2_vl", "pixtral", "gemma3 crops", "idefics3", "llama4"):
        policy, kind, settings = CASES[case]
        more = {"return_row_col_info": True} if case == "idefics3" else {}
        processor = processor_class(kind, "torch")(**settings)
        given = [[image.copy()] if more else image.copy() for image in images]
        returned = processor(given, return_tensors=None if more else "pt", **more)
        fields = policy.fields([policy.plan(*image.shape[:2]) for image in images])
        assert all(values.dtype == np.int64 for values in fields.values())
        compared = [name for name in fields if name in returned]
        assert compared or case == "idefics3"
        for name in compared:
            np.testing.assert_array_equal(fields[name], np.asarray(returned[name]).reshape(fields[name].shape))


def test_onevision_counts_images_sample_by_sample() -> None:
    policy = LlavaOnevision()
    one = policy.plan(100, 100)
    two, three = ([policy.plan(100, 100, images=n)] * n for n in (2, 3))
    assert policy.fields([one, *two, *three, one, one])["batch_num_images"].tolist() == [1, 2, 3, 1, 1]
    assert policy.fields([*two, *two])["batch_num_images"].tolist() == [2, 2]
    assert policy.fields([])["batch_num_images"].tolist() == []


def test_every_byte_becomes_what_torch_makes_of_it() -> None:
    """`to_float` is a table of 256 values per channel: each one is compared."""
    bytes_ = np.arange(256, dtype=np.uint8)
    block = np.broadcast_to(bytes_.reshape(1, 1, 16, 16), (1, 3, 16, 16)).copy()
    for policy in (Clip(), InternVL(), Siglip()):
        mean, std = (torch.tensor(x) * (1.0 / (1 / 255)) for x in policy.normalize())
        expected = (torch.from_numpy(block).float() - mean[:, None, None]) / std[:, None, None]
        np.testing.assert_array_equal(policy.to_float(block), expected.numpy())
        assert np.abs(policy.to_float(block) - policy.to_float(block, backend="pil")).max() < 1e-6


def test_patches_can_be_put_together_again() -> None:
    image = photo(48, 64)
    np.testing.assert_array_equal(from_patches(patches(image, 16), 16, (3, 4)), image.transpose(2, 0, 1))
    merged = patches(image[:32], 8, 2)
    np.testing.assert_array_equal(merged[:4].reshape(2, 2, 3, 8, 8)[1, 0], image[8:16, 0:8].transpose(2, 0, 1))
    assert math.prod(merged.shape) == 32 * 64 * 3


def in_four_bytes(image: Pixels) -> Pixels:
    made = four_bytes(*image.shape[:2])
    assert made.memory is not None
    made.memory[:] = 77
    made[...] = image
    return made


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([(14, 2), (16, 1), (3, 3)]), st.integers(0, 9))
def test_blocks_are_the_same_however_the_pixels_lie_in_memory(
    rows: int, columns: int, cut: tuple[int, int], left_out: int
) -> None:
    patch, merge = cut
    side = patch * merge
    image = photo(rows * side, columns * side)
    grid = image.reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    expected = grid.reshape(-1, 3 * patch * patch)
    squares = image.reshape(rows, side, columns, side, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, side, side)
    larger = np.pad(image, ((left_out, 1), (1, left_out), (0, 0)))
    part = slice(left_out, left_out + rows * side), slice(1, 1 + columns * side)
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    rgba = np.concatenate([image, image[:, :, :1]], axis=2)
    for pixels in (image, planes, rgba[:, :, :3], in_four_bytes(image), larger[part], in_four_bytes(larger)[part]):
        assert np.array_equal(pixels, image)
        assert np.array_equal(patches(pixels, patch, merge), expected)
        assert np.array_equal(tiles(pixels, side), squares)
        assert np.array_equal(chw(pixels)[0], image.transpose(2, 0, 1))


@pytest.mark.parametrize("case", ["qwen2_vl", "siglip2", "gemma3 crops", "llama4", "llava_next", "pixtral", "internvl"])
def test_the_operators_resizer_makes_the_same_pixels(case: str) -> None:
    """`zephon_vision.resize` is what renders in a run; it takes views of images too, and images that can't be written."""
    policy, _, _ = CASES[case]
    for mine, reference in ((make_resize("torch"), TorchResize()), (make_resize("pil"), PilResize())):
        for size in SIZES[:2]:
            plan = policy.plan(*size)
            blocks = policy.render(photo(*size), plan, mine)
            np.testing.assert_array_equal(blocks, policy.render(photo(*size), plan, reference))
            assert blocks.flags.writeable or blocks.base is None

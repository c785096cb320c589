"""Plans against the size functions of the models' own processors, on more than a thousand sizes each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs
from transformers import image_processing_utils, image_transforms
from transformers.models.got_ocr2 import image_processing_got_ocr2
from transformers.models.idefics3 import image_processing_idefics3
from transformers.models.llama4 import image_processing_llama4_fast
from transformers.models.pixtral import image_processing_pixtral
from transformers.models.qwen2_vl import image_processing_qwen2_vl
from transformers.models.siglip2 import image_processing_siglip2
from vision.policies.kit import MODERN, processor_class, processor_of, random_sizes

from zephon.errors import DataError
from zephon_vision.policies.base import Plan
from zephon_vision.policies.clip import Clip, Siglip2
from zephon_vision.policies.gemma import Gemma3
from zephon_vision.policies.idefics import Idefics3, SmolVLM
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llama4 import Llama4
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.pixtral import Mistral, Pixtral
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL, Qwen25VL
from zephon_vision.sizing import MAX_BETWEEN

COUNT = 1200


def blank(height: int, width: int) -> np.ndarray[Any, Any]:
    """An image that takes no memory; only its size matters."""
    return np.broadcast_to(np.uint8(0), (height, width, 3))


@pytest.mark.parametrize(
    "policy", [Qwen2VL(), Qwen25VL(min_pixels=4 * 28 * 28, max_pixels=1280 * 28 * 28), Qwen3VL()], ids=lambda p: p.name
)
def test_qwen(policy: Qwen2VL) -> None:
    factor = policy.patch_size * policy.merge_size
    refused = 0
    for height, width in random_sizes(COUNT, 1):
        try:
            expected = image_processing_qwen2_vl.smart_resize(
                height, width, factor=factor, min_pixels=policy.min_pixels, max_pixels=policy.max_pixels
            )
        except ValueError:
            refused += 1
            with pytest.raises(DataError, match="refuses"):
                policy.plan(height, width)
            continue
        plan = policy.plan(height, width)
        assert plan.sizes == (expected,)
        assert plan.tokens == expected[0] * expected[1] // factor**2 + 2
    assert refused < COUNT / 4
    policy.plan(2, 400)
    with pytest.raises(DataError):
        policy.plan(402, 2)


@pytest.mark.parametrize("name", ["Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"])
def test_qwen_counts_as_the_processor_does(name: str) -> None:
    kind = {"Qwen2VLProcessor": Qwen2VL, "Qwen2_5_VLProcessor": Qwen25VL, "Qwen3VLProcessor": Qwen3VL}[name]
    policy = kind(min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    size = {"shortest_edge": policy.min_pixels, "longest_edge": policy.max_pixels}
    images = processor_class("Qwen2VLImageProcessor", "pil")(size=size, patch_size=policy.patch_size)
    processor = processor_of(name, images, policy)
    sizes = [s for s in random_sizes(COUNT, 2) if max(s) / min(s) <= 200]
    counts = processor._get_num_multimodal_tokens(image_sizes=sizes)
    plans = [policy.plan(*s) for s in sizes]
    assert [plan.tokens - 2 for plan in plans] == list(counts["num_image_tokens"])
    assert [plan.blocks for plan in plans] == list(counts["num_image_patches"])


def test_siglip2() -> None:
    for policy in (Siglip2(), Siglip2(patch_size=14, max_patches=729)):
        for height, width in random_sizes(COUNT, 3):
            plan = policy.plan(height, width)
            expected = image_processing_siglip2.get_image_size_for_max_num_patches(
                height, width, policy.patch_size, policy.max_patches
            )
            assert plan.sizes == (expected,)
            assert plan.tokens == plan.blocks == expected[0] * expected[1] // policy.patch_size**2 <= policy.max_patches


def test_clip_and_cropping_llava() -> None:
    for policy in (Clip(), Llava15(pad=False)):
        edge = 224 if isinstance(policy, Clip) else 336
        for height, width in random_sizes(COUNT, 4):
            expected = image_transforms.get_resize_output_image_size(
                blank(height, width), edge, default_to_square=False, input_data_format="channels_last"
            )
            if expected[0] * expected[1] <= MAX_BETWEEN:
                assert policy.plan(height, width).sizes == (expected,)


@pytest.mark.parametrize("backend", ["pil", "torch"])
def test_llava_next(backend: str) -> None:
    policy = LlavaNext()
    images = processor_class("LlavaNextImageProcessor", backend)(size={"shortest_edge": 336}, crop_size=336)
    assert [list(p) for p in policy.image_grid_pinpoints] == images.image_grid_pinpoints
    processor = processor_of(
        "LlavaNextProcessor",
        images,
        policy,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    _any_resolution(policy, processor, seed=5)


def test_llava_onevision() -> None:
    policy = LlavaOnevision()
    images = processor_class("LlavaOnevisionImageProcessor", "pil")()
    assert [list(p) for p in policy.image_grid_pinpoints] == images.image_grid_pinpoints
    processor = processor_of(
        "LlavaOnevisionProcessor", images, policy, num_image_tokens=729, vision_feature_select_strategy="full"
    )
    _any_resolution(policy, processor, seed=6)
    several = policy.plan(480, 640, images=3)
    assert several.tokens == 730
    assert several.blocks == 1


def _any_resolution(policy: LlavaNext, processor: Any, seed: int) -> None:
    sizes = list(random_sizes(COUNT, seed))
    counts = processor._get_num_multimodal_tokens(image_sizes=sizes)["num_image_tokens"]
    pinpoints = processor.image_processor.image_grid_pinpoints
    for (height, width), count in zip(sizes, counts, strict=True):
        plan = policy.plan(height, width)
        best = image_processing_utils.select_best_resolution((height, width), pinpoints)
        inner = image_processing_utils.get_patch_output_size(blank(height, width), best, "channels_last")
        assert (plan.grid[0] * policy.size, plan.grid[1] * policy.size) == best
        assert plan.sizes == (inner, (policy.size, policy.size))
        assert plan.tokens == count
        assert plan.blocks == 1 + plan.grid[0] * plan.grid[1]


@pytest.mark.parametrize(
    "policy", [InternVL(), InternVL(min_patches=2, max_patches=6), InternVL(max_patches=1)], ids=lambda p: p.name
)
def test_internvl(policy: InternVL) -> None:
    images = processor_class("GotOcr2ImageProcessor", "torch")(
        size={"height": 448, "width": 448}, min_patches=policy.min_patches, max_patches=policy.max_patches
    )
    processor = processor_of(
        "InternVLProcessor",
        images,
        policy,
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )
    sizes = list(random_sizes(COUNT, 7))
    counts = processor._get_num_multimodal_tokens(image_sizes=sizes)
    for (height, width), tokens, tiles in zip(sizes, counts["num_image_tokens"], counts["num_image_patches"], strict=True):
        plan = policy.plan(height, width)
        columns, rows = image_processing_got_ocr2.get_optimal_tiled_canvas(
            (height, width), (448, 448), policy.min_patches, policy.max_patches
        )
        assert (plan.grid, plan.tokens, plan.blocks) == ((rows, columns), tokens, tiles)


@pytest.mark.parametrize(
    "policy", [Idefics3(), SmolVLM(), SmolVLM(longest_edge=1536, tile=384, image_seq_len=81)], ids=lambda p: p.name
)
def test_idefics3(policy: Idefics3) -> None:
    kind = "SmolVLMImageProcessor" if isinstance(policy, SmolVLM) else "Idefics3ImageProcessor"
    images = processor_class(kind, "torch")()
    for height, width in random_sizes(COUNT, 8):
        plan = policy.plan(height, width)
        first = image_processing_idefics3._resize_output_size_rescale_to_max_len(height, width, max_len=policy.longest_edge)
        first = image_processing_idefics3._resize_output_size_scale_below_upper_bound(*first, max_len=4096)
        assert plan.sizes[0] == first
        # the rest by the processor's own code, on tensors without memory
        whole = images.resize_for_vision_encoder(torch.empty(1, 3, *first, device="meta"), policy.tile)
        assert plan.sizes[1] == tuple(whole.shape[-2:])
        tiles, rows, columns = images.split_images(whole, {"longest_edge": policy.tile})
        assert plan.grid == (rows[0], columns[0])
        assert plan.blocks == tiles.shape[1]
        tokens = rows[0] * (columns[0] * (policy.image_seq_len + 2) + 1) + policy.image_seq_len + 3
        assert plan.tokens == tokens


@pytest.mark.parametrize(
    "policy", [Pixtral(), Pixtral(patch_size=14, spatial_merge_size=2, longest_edge=1540)], ids=lambda p: p.name
)
def test_pixtral(policy: Pixtral) -> None:
    images = processor_class("PixtralImageProcessor", "pil")(
        patch_size={"height": policy.patch_size, "width": policy.patch_size}, size={"longest_edge": policy.longest_edge}
    )
    processor = processor_of(
        "PixtralProcessor", images, policy, patch_size=policy.patch_size, spatial_merge_size=policy.spatial_merge_size
    )
    sizes = [s for s in random_sizes(COUNT, 9) if max(s) <= policy.longest_edge * min(s)]  # else it divides into nothing
    side = policy.patch_size * policy.spatial_merge_size
    expected = [
        image_processing_pixtral.get_resize_output_image_size(
            blank(*s), (policy.longest_edge, policy.longest_edge), (side, side), "channels_last"
        )
        for s in sizes
    ]
    plans = [policy.plan(*s) for s in sizes]
    assert [plan.sizes[0] for plan in plans] == expected
    few = [s for s in sizes if 3 < min(s) <= max(s) < 2000][:100]  # it makes an image of zeros for each, and guesses its layout
    counts = processor._get_num_multimodal_tokens(image_sizes=few)["num_image_tokens"]
    assert [policy.plan(*s).tokens for s in few] == list(counts)
    assert [plan.tokens for plan in plans] == [h // side * (w // side + 1) for h, w in expected]
    with pytest.raises(DataError, match="no pixel"):
        policy.plan(1, policy.longest_edge + 1)


def test_mistral_is_as_mistrals_own_library() -> None:
    differ = 0
    for patch, merge, longest in ((16, 1, 1024), (14, 2, 1540)):
        policy = Mistral(patch_size=patch, spatial_merge_size=merge, longest_edge=longest)
        encoder = ImageEncoder(ImageConfig(patch, longest, merge), SpecialImageIDs(1, 2, 3))
        for height, width in random_sizes(COUNT, 10):
            columns, rows = encoder._image_to_num_tokens(SimpleNamespace(size=(width, height)))  # type: ignore[arg-type]
            plan = policy.plan(height, width)
            assert plan.sizes == ((rows * patch * merge, columns * patch * merge),)
            assert plan.tokens == rows * (columns + 1)
            if max(height, width) <= longest * min(height, width):
                other = Pixtral(patch_size=patch, spatial_merge_size=merge, longest_edge=longest).plan(height, width)
                differ += other.sizes != plan.sizes
    assert differ, "the two variants round differently"


@pytest.mark.parametrize("backend", ["pil", "torch"])
def test_gemma3_pan_and_scan(backend: str) -> None:
    policy = Gemma3(pan_and_scan=True)
    images = processor_class("Gemma3ImageProcessor", backend)()
    crops_of = images.pan_and_scan if backend == "pil" else images.pan_and_scan_batched
    active = 0
    for height, width in random_sizes(COUNT, 11):
        image: Any = blank(height, width) if backend == "pil" else torch.empty(3, height, width, device="meta")
        settings = (
            {"input_data_format": image_processing_utils.ChannelDimension.LAST} if backend == "pil" and not MODERN else {}
        )
        if backend == "pil" and MODERN:
            image = np.moveaxis(image, -1, 0)
        crops = crops_of(image, 256, 4, 1.2, **settings)
        plan = policy.plan(height, width)
        assert plan.blocks == 1 + len(crops)
        active += bool(crops)
        for crop in crops[:-1]:
            assert plan.extra == tuple(crop.shape[:2] if backend == "pil" and not MODERN else crop.shape[1:])
    assert active > 100
    assert Gemma3().plan(300, 3000).blocks == 1


class _SeenError(Exception):
    """Carries a size out of the processor's own code."""


def _llama4_sizes(images: Any, height: int, width: int, tiles: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """`(canvas, size on it)`, by the processor's own code up to its first resize."""

    def resize(image: Any, size: Any, **_: Any) -> Any:
        raise _SeenError((int(size.height), int(size.width)))

    images.resize = resize
    square = transformers.image_utils.SizeDict(height=336, width=336)
    try:
        images._preprocess(
            images=[torch.empty(1).expand(1, height, width)],
            size=square,
            max_patches=tiles,
            resize_to_max_canvas=False,
            **dict.fromkeys(("interpolation", "resample", "image_mean", "image_std")),
            **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "disable_grouping"), True),
            rescale_factor=1 / 255,
            return_tensors="pt",
        )
    except _SeenError as seen:
        inner = seen.args[0]
    possible = torch.tensor(image_processing_llama4_fast.find_supported_resolutions(tiles, square))
    canvas = image_processing_llama4_fast.get_best_fit((height, width), possible)
    return (int(canvas[0]), int(canvas[1])), inner


def test_llama4() -> None:
    images = processor_class("Llama4ImageProcessor", "torch")()
    for policy in (Llama4(), Llama4(max_patches=5)):
        image_processing_llama4_fast.find_supported_resolutions.cache_clear()
        for height, width in random_sizes(COUNT, 12, largest=2500):
            plan = policy.plan(height, width)
            canvas, inner = _llama4_sizes(images, height, width, policy.max_patches)
            assert plan.grid == (canvas[0] // 336, canvas[1] // 336)
            assert plan.sizes[0] == inner


def test_no_area_is_refused() -> None:
    for plan in (Qwen2VL().plan, Clip().plan, LlavaOnevision().plan):
        for size in ((0, 10), (10, 0), (-1, 5)):
            with pytest.raises(DataError, match="no area"):
                plan(*size)
    assert isinstance(Clip().plan(1, 1), Plan)


def test_sizes_that_would_take_gigabytes_are_refused() -> None:
    for plan in (Clip().plan, Llava15(pad=False).plan, Llava15().plan):
        plan(1, 500)
        with pytest.raises(DataError, match="pixels in between"):
            plan(1, 150_000_000)
    with pytest.raises(DataError, match="pixels in between"):
        LlavaOnevision().plan(1, 20_000, images=2)
    assert LlavaOnevision().plan(1, 20_000).blocks > 1

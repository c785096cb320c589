"""Token runs against the models' whole processors, `processor(text, images)`, with small tokenizers of our own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mistral_common.protocol.instruct.chunk import ImageChunk
from mistral_common.tokens.tokenizers import image
from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs
from PIL import Image
from transformers.models.llama4 import image_processing_llama4_fast
from vision.policies.kit import photo, plain_ids, processor_class, processor_of, qwen_pixels, special_ids

from zephon_vision.policies.base import Policy, SpecialIds
from zephon_vision.policies.clip import Clip, Siglip, Siglip2
from zephon_vision.policies.gemma import Gemma3, Gemma4
from zephon_vision.policies.idefics import Idefics3, SmolVLM
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llama4 import Llama4
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.pixtral import Mistral, Pixtral
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL, Qwen25VL

SIZES = ((300, 200), (97, 413), (640, 480))
QWEN = qwen_pixels(56 * 56, 28 * 28 * 200)
SMALL_QWEN = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 200}
IMAGE = {"image_token": "<image>"}
GEMMA = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
INTERN = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")  # InternVL's processor
Case = tuple[Policy, str, str, dict[str, Any], dict[str, Any], dict[str, str]]
CASES: dict[str, Case] = {
    "qwen2_vl": (Qwen2VL(**SMALL_QWEN), "Qwen2VLProcessor", "Qwen2VLImageProcessor", QWEN, {}, {}),
    "qwen2_5_vl": (Qwen25VL(**SMALL_QWEN), "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", QWEN, {}, {}),
    "qwen3_vl": (Qwen3VL(**SMALL_QWEN), "Qwen3VLProcessor", "Qwen2VLImageProcessor", {**QWEN, "patch_size": 16}, {}, {}),
    "idefics3": (
        Idefics3(longest_edge=1092),
        "Idefics3Processor",
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 1092}},
        {"image_seq_len": 169},
        {},
    ),
    "idefics3 in one": (
        Idefics3(do_image_splitting=False),
        "Idefics3Processor",
        "Idefics3ImageProcessor",
        {"do_image_splitting": False},
        {"image_seq_len": 169},
        {},
    ),
    "smolvlm by idefics3": (
        SmolVLM(longest_edge=1024),
        "Idefics3Processor",
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 1024}, "max_image_size": {"longest_edge": 512}},
        {"image_seq_len": 64},
        {},
    ),
    "pixtral": (
        Pixtral(longest_edge=256),
        "PixtralProcessor",
        "PixtralImageProcessor",
        {"size": {"longest_edge": 256}},
        {"patch_size": 16},
        {},
    ),
    "mistral small": (
        Pixtral(patch_size=14, spatial_merge_size=2, longest_edge=280),
        "PixtralProcessor",
        "PixtralImageProcessor",
        {"size": {"longest_edge": 280}, "patch_size": {"height": 14, "width": 14}},
        {"patch_size": 14, "spatial_merge_size": 2},
        {},
    ),
    "internvl": (
        InternVL(max_patches=4),
        "InternVLProcessor",
        "GotOcr2ImageProcessor",
        {"size": {"height": 448, "width": 448}, "max_patches": 4},
        {},
        INTERN,
    ),
    "llava_next": (
        LlavaNext(),
        "LlavaNextProcessor",
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 336}, "crop_size": 336},
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        IMAGE,
    ),
    "llava_onevision": (
        LlavaOnevision(),
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        {},
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
        IMAGE,
    ),
    "llava_1_5": (
        Llava15(),
        "LlavaProcessor",
        "LlavaImageProcessor",
        {"do_pad": True, "size": {"shortest_edge": 336}, "crop_size": 336},
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        IMAGE,
    ),
    "gemma3": (Gemma3(), "Gemma3Processor", "Gemma3ImageProcessor", {"size": {"height": 896, "width": 896}}, {}, GEMMA),
    "gemma3 crops": (
        Gemma3(size=224, pan_and_scan=True, min_crop_size=32),
        "Gemma3Processor",
        "Gemma3ImageProcessor",
        {"size": {"height": 224, "width": 224}},
        {},
        GEMMA,
    ),
    "llama4": (Llama4(max_patches=9), "Llama4Processor", "Llama4ImageProcessor", {"max_patches": 9}, {}, {}),
}
CROPS = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 32}


@pytest.mark.parametrize("merging", [True, False], ids=["breaks merge", "breaks stay"])
@pytest.mark.parametrize("case", CASES)
def test_the_whole_processor_makes_the_same_ids(case: str, merging: bool) -> None:
    policy, kind, image_kind, image_settings, settings, names = CASES[case]
    backend = "pil" if "Idefics3" in kind else "torch"  # Idefics3's processor of transformers 4 takes no other
    images = processor_class(image_kind, backend)(**image_settings)
    if case == "llama4":
        image_processing_llama4_fast.find_supported_resolutions.cache_clear()
    processor = processor_of(kind, images, policy, names, merging=merging, **settings)
    ids = special_ids(policy, processor.tokenizer)
    pictures = [photo(*size) for size in SIZES]
    pieces = ["a photo\n", "\n of a cat\n", " and a dog"]
    more = CROPS if case == "gemma3 crops" else {}
    for picture in pictures:
        text = policy.placeholder.join(pieces[:2])
        made = processor(text=text, images=[picture.copy()], return_tensors="pt", **more)
        expected = np.asarray(made["input_ids"]).reshape(-1).tolist()
        plan = policy.plan(*picture.shape[:2])
        run = policy.token_run(plan, ids)
        encode = processor.tokenizer.encode
        beside = zip(text.split(policy.placeholder), policy.around(plan), (1, -1), strict=True)
        # what a policy puts around its run is one text with what stands there
        first, last = (encode("".join((t, around)[::order]), add_special_tokens=False) for t, around, order in beside)
        assert [*first, *run, *last] == expected
        if merging and not (isinstance(policy, Gemma3) and plan.blocks > 1):
            assert len(run) == plan.tokens


def test_several_images_in_one_text() -> None:
    for case in ("qwen2_5_vl", "llava_onevision", "internvl", "pixtral", "llama4"):
        policy, kind, image_kind, image_settings, settings, names = CASES[case]
        processor = processor_of(kind, processor_class(image_kind, "torch")(**image_settings), policy, names, **settings)
        ids = special_ids(policy, processor.tokenizer)
        pictures = [photo(*size) for size in SIZES]
        pieces = ["a photo", " of a cat\n", " and a dog", ""]
        given = [picture.copy() for picture in pictures]
        nested = [given] if case == "llava_onevision" else given
        made = processor(text=policy.placeholder.join(pieces), images=nested, return_tensors="pt")
        expected = np.asarray(made["input_ids"]).reshape(-1).tolist()
        ours: list[int] = []
        for number, piece in enumerate(pieces):
            ours += processor.tokenizer.encode(piece, add_special_tokens=False)
            if number < len(pictures):
                ours += policy.token_run(policy.plan(*pictures[number].shape[:2], images=len(pictures)), ids)
        assert ours == expected, case


def test_smolvlm_writes_images_as_idefics3_does() -> None:
    """SmolVLM's own processor needs a package that spells numbers; its text function doesn't."""
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    policy = SmolVLM()
    ids = plain_ids(policy)
    plan = policy.plan(480, 640)
    text = get_image_prompt_string(
        *plan.grid,
        64,
        fake_token_around_image="<fake_token_around_image>",
        image_token="<image>",
        global_image_token="<global-img>",
    )
    for token, number in ids.ids.items():
        text = text.replace(token, f"{number} ")
    text = text.replace("\n\n", f"{ids.texts[chr(10) * 2][0]} ").replace("\n", f"{ids.newline[0]} ")
    assert [int(part) for part in text.split()] == policy.token_run(plan, ids)
    assert plan.tokens == len(text.split())


def test_mistrals_own_library_makes_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Mistral()
    names = dict(zip(("[IMG]", "[IMG_BREAK]", "[IMG_END]"), (10, 12, 13), strict=True))
    encoder = ImageEncoder(ImageConfig(16, 1024, 1), SpecialImageIDs(10, 12, 13))
    # its resizing needs OpenCV, which isn't here, and its pixels aren't compared
    monkeypatch.setattr(image, "transform_image", lambda _, size: np.zeros((3, size[1], size[0]), dtype=np.float32))
    for height, width in (*SIZES, (2000, 1333), (1025, 999)):
        encoded = encoder(ImageChunk(image=Image.new("RGB", (width, height))))
        plan = policy.plan(height, width)
        assert policy.token_run(plan, SpecialIds(names)) == encoded.tokens
        assert encoded.image.shape == (3, *plan.sizes[0])


def test_runs_of_policies_without_a_processor_to_ask() -> None:
    assert Clip().token_run(Clip().plan(10, 20), SpecialIds({})) == []
    for policy, tokens in ((Siglip(), 27 * 27), (Siglip2(), 16 * 16)):
        plan = policy.plan(500, 500)
        assert policy.token_run(plan, SpecialIds({"<image>": 7})) == [7] * tokens
    policy4 = Gemma4()
    plan = policy4.plan(480, 640)
    run = policy4.token_run(plan, SpecialIds({"<|image>": 1, "<|image|>": 2, "<image|>": 3}))
    assert run == [1, *[2] * (plan.blocks // 9), 3]

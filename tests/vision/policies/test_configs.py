"""`from:PATH`: the files that the models' own processors save become the policies that match them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vision.policies.kit import processor_class

from zephon.errors import RecipeError
from zephon_vision.policies.base import Policy, load
from zephon_vision.policies.clip import IMAGENET_MEAN, IMAGENET_STD, OPENAI_MEAN, OPENAI_STD, Clip, Siglip, Siglip2
from zephon_vision.policies.configs import from_config
from zephon_vision.policies.gemma import Gemma3, Gemma4
from zephon_vision.policies.idefics import Idefics3, SmolVLM
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llama4 import Llama4
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.pixtral import Pixtral
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL, Qwen25VL

HALF = (0.5, 0.5, 0.5)

SAVED: dict[str, tuple[Policy, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # policy, image processor, its settings, processor_config.json, config.json
    "clip": (Clip(), "CLIPImageProcessor", {}, {}, {}),
    "clip 336": (
        Clip(shortest_edge=336, crop=336),
        "CLIPImageProcessor",
        {"size": 336, "crop_size": 336},
        {},
        {"model_type": "clip"},
    ),
    "siglip": (
        Siglip(size=224, patch_size=16),
        "SiglipImageProcessor",
        {},
        {},
        {"model_type": "siglip", "vision_config": {"patch_size": 16}},
    ),
    "siglip bilinear": (
        Siglip(size=256, filter="bilinear"),
        "SiglipImageProcessor",
        {"resample": 2, "size": {"height": 256, "width": 256}},
        {},
        {},
    ),
    "siglip2": (Siglip2(max_patches=729), "Siglip2ImageProcessor", {"max_num_patches": 729}, {}, {}),
    "llava hf": (
        Llava15(pad=False),
        "CLIPImageProcessor",
        {"size": 336, "crop_size": 336},
        {"processor_class": "LlavaProcessor", "patch_size": 14, "vision_feature_select_strategy": "default"},
        {},
    ),
    "llava": (Llava15(), "LlavaImageProcessor", {"do_pad": True, "size": {"shortest_edge": 336}, "crop_size": 336}, {}, {}),
    "llava_next": (
        LlavaNext(),
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 336}, "crop_size": 336},
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        {},
    ),
    "llava_onevision": (
        LlavaOnevision(),
        "LlavaOnevisionImageProcessor",
        {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"},
        {},
    ),
    "internvl": (
        InternVL(max_patches=6),
        "GotOcr2ImageProcessor",
        {
            "size": {"height": 448, "width": 448},
            "max_patches": 6,
            "image_mean": list(IMAGENET_MEAN),
            "image_std": list(IMAGENET_STD),
        },
        {"image_seq_length": 256, "processor_class": "InternVLProcessor"},
        {},
    ),
    "internvl, first repositories": (
        InternVL(),
        "CLIPImageProcessor",
        {"size": 448, "crop_size": 448, "image_mean": list(IMAGENET_MEAN), "image_std": list(IMAGENET_STD)},
        {},
        {"model_type": "internvl_chat", "max_dynamic_patch": 12, "min_dynamic_patch": 1, "dynamic_image_size": True},
    ),
    "idefics3": (Idefics3(), "Idefics3ImageProcessor", {}, {"image_seq_len": 169}, {}),
    "smolvlm": (
        SmolVLM(),
        "SmolVLMImageProcessor",
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"image_seq_len": 64},
        {},
    ),
    "smolvlm instruct": (
        Idefics3(longest_edge=1536, tile=384, image_seq_len=81),
        "Idefics3ImageProcessor",
        {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}},
        {"image_seq_len": 81},
        {},
    ),
    "qwen2_vl": (
        Qwen2VL(),
        "Qwen2VLImageProcessor",
        {"min_pixels": 3136, "max_pixels": 12845056, "size": {"shortest_edge": 3136, "longest_edge": 12845056}},
        {},
        {"model_type": "qwen2_vl"},
    ),
    "qwen2_5_vl": (
        Qwen25VL(max_pixels=1003520),
        "Qwen2VLImageProcessor",
        {},
        {"processor_class": "Qwen2_5_VLProcessor"},
        {},
    ),
    "qwen3_vl": (
        Qwen3VL(),
        "Qwen2VLImageProcessor",
        {
            "patch_size": 16,
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "min_pixels": 65536,
            "max_pixels": 16777216,
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
        {},
        {"model_type": "qwen3_vl"},
    ),
    "pixtral": (Pixtral(), "PixtralImageProcessor", {}, {"patch_size": 16}, {}),
    "mistral small": (
        Pixtral(patch_size=14, spatial_merge_size=2, longest_edge=1540),
        "PixtralImageProcessor",
        {"size": {"longest_edge": 1540}, "patch_size": {"height": 14, "width": 14}},
        {"patch_size": 14, "spatial_merge_size": 2},
        {},
    ),
    "mistral small by config.json": (
        Pixtral(patch_size=14, spatial_merge_size=2, longest_edge=1540),
        "PixtralImageProcessor",
        {"size": {"longest_edge": 1540}, "patch_size": {"height": 14, "width": 14}},
        {},
        {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14}},
    ),
    "gemma3": (Gemma3(), "Gemma3ImageProcessor", {"size": {"height": 896, "width": 896}}, {"image_seq_length": 256}, {}),
    "gemma3 crops": (
        Gemma3(pan_and_scan=True, max_num_crops=3),
        "Gemma3ImageProcessor",
        {"size": {"height": 896, "width": 896}, "do_pan_and_scan": True, "pan_and_scan_max_num_crops": 3},
        {},
        {},
    ),
    "llama4": (Llama4(), "Llama4ImageProcessor", {}, {"pixel_shuffle_ratio": 0.5, "patch_size": 14}, {}),
}


def save(folder: Path, name: str, backend: str) -> Policy | None:
    """Save what a case's processor saves; None: it has no such back-end."""
    policy, kind, settings, around, model = SAVED[name]
    found = processor_class(kind, backend)
    if found is None:
        return None
    found(**settings).save_pretrained(folder)
    for file, content in (("processor_config.json", around), ("config.json", model)):
        if content:
            (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return policy


@pytest.mark.parametrize("backend", ["pil", "torch"])
@pytest.mark.parametrize("name", SAVED)
def test_saved_files_make_the_policy(name: str, backend: str, tmp_path: Path) -> None:
    policy = save(tmp_path, name, backend)
    if policy is None:
        assert name == "llama4", "only this family has one back-end"
        return
    made = from_config(str(tmp_path))
    assert made == policy
    assert from_config(str(tmp_path / "preprocessor_config.json")) == policy
    assert load(f"from:{tmp_path}") == policy
    assert load(made.spec()) == policy, "the spec stands on its own, without the files"


def test_files_of_transformers_5_hold_the_image_processor_inside(tmp_path: Path) -> None:
    inside = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 3,
    }
    content = {"image_processor": inside, "processor_class": "Qwen3VLProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert from_config(str(tmp_path)) == Qwen3VL()
    assert from_config(str(tmp_path / "processor_config.json")) == Qwen3VL()


@pytest.mark.parametrize(
    ("content", "policy"),
    [
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}, Clip(image_mean=OPENAI_MEAN)),
        ({"image_processor_type": "CLIPImageProcessorPil", "size": {"shortest_edge": 224}}, Clip(image_std=OPENAI_STD)),
        (
            {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 140, "do_normalize": False, "size": None},
            Gemma4(max_soft_tokens=140),
        ),
        ({"image_processor_type": "Qwen2VLImageProcessorFast", "min_pixels": 784, "max_pixels": 7840}, None),
    ],
)
def test_older_and_newer_names(content: dict[str, Any], policy: Policy | None, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert from_config(str(tmp_path)) == (policy or Qwen25VL(min_pixels=784, max_pixels=7840))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"image_processor_type": "ViTImageProcessor"}', "known: CLIPImageProcessor, Gemma3ImageProcessor"),
        ('{"image_processor_type": "PixtralImageProcesor"}', "did you mean 'PixtralImageProcessor'"),
        ("{}", "image processor"),
        ("[]", "not an object"),
        ("{", "can't be read"),
        ('{"image_processor_type": "CLIPImageProcessor", "do_resize": false}', "do_resize"),
        ('{"image_processor_type": "CLIPImageProcessor", "do_center_crop": false}', "do_center_crop"),
        ('{"image_processor_type": "CLIPImageProcessor", "do_normalize": false}', "do_normalize"),
        ('{"image_processor_type": "CLIPImageProcessor", "rescale_factor": 1.0}', "rescale_factor"),
        ('{"image_processor_type": "CLIPImageProcessor", "resample": 0}', "resample"),
        ('{"image_processor_type": "CLIPImageProcessor", "size": {"height": 3, "width": 4}}', "not understood"),
        ('{"image_processor_type": "CLIPImageProcessor", "size": "large"}', "not understood"),
        ('{"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": [3]}', "not understood|pinpoints"),
        ('{"image_processor_type": "Llama4ImageProcessor", "resize_to_max_canvas": true}', "resize_to_max_canvas"),
    ],
)
def test_files_that_no_policy_stands_for_are_errors(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError, match=words):
        from_config(str(tmp_path))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no preprocessor_config.json"):
        load(f"from:{tmp_path}")
    with pytest.raises(RecipeError, match="has no preprocessor_config.json"):
        from_config(str(tmp_path / "nowhere"))

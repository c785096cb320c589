"""A policy from the files that a model comes with: `preprocessor_config.json`, `processor_config.json`, `config.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zephon.errors import RecipeError, unknown
from zephon_vision.policies.base import Policy
from zephon_vision.policies.clip import Clip, Siglip, Siglip2
from zephon_vision.policies.gemma import Gemma3, Gemma4
from zephon_vision.policies.idefics import Idefics3, SmolVLM
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llama4 import Llama4
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.pixtral import Pixtral
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL, Qwen25VL

PREPROCESSOR, PROCESSOR, MODEL = "preprocessor_config.json", "processor_config.json", "config.json"
FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of the filters, as `resample` gives them."""


@dataclass(frozen=True)
class _Files:
    """What the files say."""

    path: str
    image: dict[str, Any]
    """The image processor's settings."""
    processor: dict[str, Any] = field(default_factory=dict)
    """The settings of the processor around it."""
    model: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The image processor's class, without the names of its back-ends."""
        name = str(self.image.get("image_processor_type") or self.image.get("feature_extractor_type") or "")
        name = name.replace("FeatureExtractor", "ImageProcessor")
        return name.removesuffix("Fast").removesuffix("Pil")

    @property
    def family(self) -> str:
        """The processor's class and the model's type, as far as they are known."""
        about = (self.image.get("processor_class"), self.processor.get("processor_class"), self.model.get("model_type"))
        return " ".join(str(x).lower().replace("_", "") for x in about if x)

    def given(self, **names: str) -> dict[str, Any]:
        """Settings by their names in the image processor's file, those that are there."""
        return {setting: self.image[name] for setting, name in names.items() if self.image.get(name) is not None}

    def around(self, **names: str) -> dict[str, Any]:
        """Settings by their names in the file of the processor around it, those that are there."""
        return {setting: self.processor[name] for setting, name in names.items() if self.processor.get(name) is not None}

    def side(self, name: str = "size", edge: str = "shortest_edge") -> int | None:
        """The one number of a size: of a square, or of the edge; None where the file has no such size."""
        size = self.image.get(name)
        if size is None or isinstance(size, int):
            return size
        if edge in size:
            return int(size[edge])
        if size.get("height") and size.get("height") == size.get("width"):
            return int(size["height"])
        raise RecipeError(f"{self.path}: {name} {size!r} is not understood")

    def patch(self) -> dict[str, int]:
        """The patch size of the vision model, where it is told."""
        vision = self.model.get("vision_config") or {}
        told = self.image.get("patch_size") or self.processor.get("patch_size") or vision.get("patch_size")
        if isinstance(told, dict):
            told = told["height"]
        return {"patch_size": int(told)} if told else {}


def from_config(path: str) -> Policy:
    """The policy that a model's files describe.

    Args:
        path: the model's folder, or its `preprocessor_config.json` (or `processor_config.json` with an image processor inside); files
            beside it are read too where they are there.

    Raises:
        RecipeError: no such file, an image processor that no policy stands for, or settings that the policy does not have.
    """
    files = _read(path)
    if files.kind not in _MAKERS:
        raise RecipeError(
            f"{files.path}: {unknown('image processor', files.kind, _MAKERS)}", hint=f"known: {', '.join(sorted(_MAKERS))}"
        )
    _refuse(files)
    try:
        kind, settings = _MAKERS[files.kind](files)
        common = files.given(image_mean="image_mean", image_std="image_std") if kind is not Gemma4 else {}
        if files.image.get("resample") is not None:
            settings["filter"] = FILTERS[files.image["resample"]]
        return kind(**{name: _frozen(value) for name, value in (common | settings).items() if value is not None})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(f"{files.path} is not understood: {type(error).__name__}: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _read(path: str) -> _Files:
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    first = place if place.is_file() else next((folder / n for n in (PREPROCESSOR, PROCESSOR) if (folder / n).is_file()), None)
    if first is None:
        raise RecipeError(f"{path} has no {PREPROCESSOR}")
    image = _json(first)
    processor = _json(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    model = _json(folder / MODEL) if (folder / MODEL).is_file() else {}
    if "image_processor" in image:  # processor_config.json of transformers 5
        image, processor = image["image_processor"], image
    return _Files(str(first), image, processor, model)


def _json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} can't be read: {error}") from error
    if not isinstance(read, dict):
        raise RecipeError(f"{path} is not an object")
    return read


def _refuse(files: _Files) -> None:
    """Settings that change pixels and that no policy has."""
    image = files.image
    off = [name for name in ("do_resize", "do_rescale") if image.get(name) is False]
    if image.get("do_normalize") is False and files.kind != "Gemma4ImageProcessor":
        off.append("do_normalize")
    if off:
        raise RecipeError(f"{files.path}: {', '.join(off)} false is not supported")
    if not math.isclose(image.get("rescale_factor") or 1 / 255, 1 / 255, rel_tol=1e-6):
        raise RecipeError(f"{files.path}: rescale_factor {image['rescale_factor']} is not supported, only 1/255")
    if image.get("resample") is not None and image["resample"] not in FILTERS:
        raise RecipeError(f"{files.path}: resample {image['resample']} is not supported, only {FILTERS}")


Made = tuple[type[Policy], dict[str, Any]]


def _clip(files: _Files) -> Made:
    if "internvl" in files.family:  # the models' first repositories name CLIP's processor, and cut tiles in code of their own
        return InternVL, {
            "size": files.side(),
            "min_patches": files.model.get("min_dynamic_patch"),
            "max_patches": files.model.get("max_dynamic_patch"),
            "crop_to_patches": files.model.get("dynamic_image_size"),
        }
    if "llava" in files.family and "next" not in files.family and "onevision" not in files.family:
        return Llava15, {"size": files.side(), "pad": False, **files.patch()}
    edge = files.side()
    if files.image.get("do_center_crop") is False:
        raise RecipeError(f"{files.path}: do_center_crop false is not supported for CLIP")
    return Clip, {"shortest_edge": edge, "crop": files.side("crop_size") or edge}


def _siglip(files: _Files) -> Made:
    return Siglip, {"size": files.side(), **files.patch()}


def _siglip2(files: _Files) -> Made:
    return Siglip2, files.given(max_patches="max_num_patches") | files.patch()


def _llava(files: _Files) -> Made:
    return Llava15, {"size": files.side(), "pad": bool(files.image.get("do_pad", False)), **files.patch()}


def _llava_next(files: _Files) -> Made:
    made = {"size": files.side(), **files.given(image_grid_pinpoints="image_grid_pinpoints"), **files.patch()}
    strategy = files.processor.get("vision_feature_select_strategy")
    if strategy is not None:
        made["extra_tokens"] = int(files.processor.get("num_additional_image_tokens") or 0) - (strategy == "default")
    return LlavaNext, made


def _llava_onevision(files: _Files) -> Made:
    made = {"size": files.side(), **files.given(image_grid_pinpoints="image_grid_pinpoints"), **files.patch()}
    if files.processor.get("num_image_tokens"):
        made["patch_size"] = (made["size"] or 384) // math.isqrt(files.processor["num_image_tokens"])
    if files.processor.get("vision_feature_select_strategy") == "default":
        made["extra_tokens"] = -1
    if files.processor.get("vision_aspect_ratio"):
        made["max_tiles"] = int(str(files.processor["vision_aspect_ratio"]).removeprefix("anyres_max_"))
    return LlavaOnevision, made


def _internvl(files: _Files) -> Made:
    # crop_to_patches is false in the published files: the processor around the image processor turns it on
    made = {"size": files.side(), **files.given(min_patches="min_patches", max_patches="max_patches")}
    return InternVL, made | files.around(image_seq_length="image_seq_length")


def _idefics3(files: _Files) -> Made:
    made = {
        "longest_edge": files.side(edge="longest_edge"),
        "tile": files.side("max_image_size", "longest_edge"),
        **files.given(do_image_splitting="do_image_splitting"),
        **files.around(image_seq_len="image_seq_len"),
    }
    return (SmolVLM if files.kind.startswith("SmolVLM") else Idefics3), made


def _qwen(files: _Files) -> Made:
    size = files.image.get("size") or {}
    made = files.given(temporal_patch_size="temporal_patch_size", merge_size="merge_size") | files.patch()
    for name, edge, default in (("min_pixels", "shortest_edge", 56 * 56), ("max_pixels", "longest_edge", 28 * 28 * 1280)):
        made[name] = files.image.get(name) or size.get(edge) or size.get(name) or default
    if "qwen3" in files.family or made.get("patch_size") == 16:
        return Qwen3VL, {"patch_size": 14, **made}
    kind = Qwen2VL if "qwen2vl" in files.family else Qwen25VL
    return kind, made


def _pixtral(files: _Files) -> Made:
    made = {"longest_edge": files.side(edge="longest_edge"), **files.patch()}
    merge = files.processor.get("spatial_merge_size") or files.model.get("spatial_merge_size")
    return Pixtral, made | {"spatial_merge_size": merge}


def _gemma3(files: _Files) -> Made:
    crops = files.given(
        pan_and_scan="do_pan_and_scan",
        min_crop_size="pan_and_scan_min_crop_size",
        max_num_crops="pan_and_scan_max_num_crops",
        min_ratio_to_activate="pan_and_scan_min_ratio_to_activate",
    )
    length = files.image.get("image_seq_length") or files.processor.get("image_seq_length")
    return Gemma3, {"size": files.side(), "image_seq_length": length, **crops}


def _gemma4(files: _Files) -> Made:
    return Gemma4, files.given(pooling_kernel_size="pooling_kernel_size", max_soft_tokens="max_soft_tokens") | files.patch()


def _llama4(files: _Files) -> Made:
    if files.image.get("resize_to_max_canvas"):
        raise RecipeError(f"{files.path}: resize_to_max_canvas is not supported")
    made = {"size": files.side(), **files.given(max_patches="max_patches"), **files.patch()}
    ratio = files.processor.get("pixel_shuffle_ratio")
    return Llama4, made | ({"pixel_shuffle": round(1 / ratio)} if ratio else {})


_MAKERS: dict[str, Callable[[_Files], Made]] = {
    "CLIPImageProcessor": _clip,
    "SiglipImageProcessor": _siglip,
    "Siglip2ImageProcessor": _siglip2,
    "LlavaImageProcessor": _llava,
    "LlavaNextImageProcessor": _llava_next,
    "LlavaOnevisionImageProcessor": _llava_onevision,
    "GotOcr2ImageProcessor": _internvl,
    "Idefics3ImageProcessor": _idefics3,
    "SmolVLMImageProcessor": _idefics3,
    "Qwen2VLImageProcessor": _qwen,
    "PixtralImageProcessor": _pixtral,
    "Gemma3ImageProcessor": _gemma3,
    "Gemma4ImageProcessor": _gemma4,
    "Llama4ImageProcessor": _llama4,
}

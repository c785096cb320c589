"""Models of `transformers`, tiny and with random weights, have the same loss for a pack as for its documents one by one.

Qwen2.5-VL is in `pack/test_models.py`; here the families with other pixels, fields and positions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene

from zephon import Batch, Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon_vision.policies.base import load

TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "initializer_range": 0.3, "pad_token_id": 0,
}  # fmt: skip
TOWER: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14, "image_size": 28,
}  # fmt: skip
PINPOINTS = [[28, 28], [28, 56], [56, 28], [56, 56]]
TILED = '{"tile": 28, "longest_edge": 56, "image_seq_len": 1}'


class Case(NamedTuple):
    model: str
    policy: str
    image_token: str
    takes: tuple[str, ...]
    config: dict[str, Any]


CASES = {
    "qwen3_vl": Case(
        "Qwen3VL",
        'qwen3_vl{"min_pixels": 4096, "max_pixels": 8192}',
        "<|image_pad|>",
        ("pixel_values", "image_grid_thw"),
        {
            "text_config": TEXT | {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
            "vision_config": {
                "depth": 2, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32, "patch_size": 16,
                "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
            },
        },
    ),
    "llava_onevision": Case(
        "LlavaOnevision",
        '{"size": 28, "patch_size": 14, "image_grid_pinpoints": [[28, 28], [28, 56], [56, 28], [56, 56]]}',
        "<image>",
        ("pixel_values", "image_sizes", "batch_num_images"),
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
            "image_grid_pinpoints": PINPOINTS,
            "vision_feature_layer": -1,
        },
    ),
    **{
        name: Case(
            model,
            TILED,
            "<image>",
            ("pixel_values",),
            {"text_config": {"model_type": "llama", **TEXT}, "vision_config": TOWER, "scale_factor": 2},
        )
        for name, model in (("idefics3", "Idefics3"), ("smolvlm", "SmolVLM"))
    },
}  # fmt: skip


def spec(name: str) -> str:
    given = CASES[name].policy
    return given if given.startswith(name) else name + given


@cache
def tokenizer(name: str) -> Tokenizer:
    made = fast(QWEN)
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in load(spec(name)).special_tokens])
    return made


@cache
def tiny(name: str) -> Any:
    case, vocabulary = CASES[name], tokenizer(name)
    config = getattr(transformers, f"{case.model}Config")(**case.config)
    config.text_config.vocab_size = vocabulary.get_vocab_size()
    for key in ("image_token_id", "image_token_index"):
        if hasattr(config, key):
            setattr(config, key, vocabulary.token_to_id(case.image_token))
    torch.manual_seed(0)
    return getattr(transformers, f"{case.model}ForConditionalGeneration")(config).float().eval()


def batches(name: str, *, packing: str | None) -> list[Batch]:
    """Chats with one or two images, and some without."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "<image>" * (number % 3) + "What is in this picture?"},
                {"role": "assistant", "content": "A cat that sits on the mat " * (1 + number % 4)},
            ],
            "images": [{"bytes": jpeg(scene(40 + 9 * number, 90 - 7 * i, seed=10 * number + i))} for i in range(number % 3)],
        }
        for number in range(6)
    ]
    source = StaticMixtureWorkSource([Dataset.from_records("chats", rows)], stop_after_passes=1)
    return list(
        Pipeline(source)
        .interleave()
        .tokenize_interleaved(tokenizer=tokenizer(name), images=spec(name), template="chatml", system="")
        .pack_multimodal(max_length=224, open_bins=3, pad_token_id=0, packing=packing)
        .decode_images()
        .batch(1)
        .options(lanes=1, runner="inline")
    )


def loss(name: str, batch: Batch, **other: Any) -> tuple[float, int]:
    """(sum over the labels, labels)."""
    fields = batch.to_training(pixel_dtype="float32") | other
    given = {n: fields[n] for n in ("input_ids", "labels", "position_ids", *CASES[name].takes) if n in fields}
    with torch.no_grad():
        mean = float(tiny(name)(**given, use_cache=False).loss)
    return mean * fields["num_label_tokens"], fields["num_label_tokens"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_pack_has_the_loss_of_its_documents_one_by_one(name: str) -> None:
    packed, single = batches(name, packing="best_fit"), batches(name, packing=None)
    assert len(packed) < len(single) == 6
    assert max(len(b.group.column(groups.LENGTHS)[0]) for b in packed) > 1
    one_by_one = [loss(name, batch) for batch in single]
    together = [loss(name, batch) for batch in packed]
    labels = sum(n for _, n in one_by_one)
    assert sum(n for _, n in together) == labels
    assert sum(s for s, _ in together) / labels == pytest.approx(sum(s for s, _ in one_by_one) / labels, abs=1e-5)
    # and it would be another one if documents saw each other
    running = [torch.arange(224).expand(b.to_training()["position_ids"].shape) for b in packed]
    leaking = [loss(name, batch, position_ids=p) for batch, p in zip(packed, running, strict=True)]
    assert abs(sum(s for s, _ in leaking) - sum(s for s, _ in together)) / labels > 1e-3
    # the images do count
    fields = packed[0].to_training(pixel_dtype="float32")
    grey, _ = loss(name, packed[0], pixel_values=fields["pixel_values"] * 0 + 0.5)
    assert abs(grey - together[0][0]) > 1e-3

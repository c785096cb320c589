"""Gemma 4 against transformers' own processor: itself where it is installed, and everywhere what it gave (`gemma4_processor.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers
from vision.policies.gemma4_processor import EVERY, GOLDEN, NAMES, PICTURES, SIZES, SOFT, TEXT, observe, picture
from vision.policies.kit import TorchResize, special_ids, tokenizer_for

from zephon.errors import DataError
from zephon_vision.policies.gemma import Gemma4


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray[Any, Any]]:
    with np.load(GOLDEN) as file:
        return dict(file)


@pytest.mark.skipif(not hasattr(transformers, "Gemma4Processor"), reason="the installed transformers has no Gemma 4")
def test_the_processor_still_gives_what_is_written(golden: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, values in observe().items():
        np.testing.assert_array_equal(values, golden[name])


def test_sizes_are_the_processors(golden: dict[str, np.ndarray[Any, Any]]) -> None:
    refused = 0
    for soft, expected in zip(SOFT, golden["sizes"].tolist(), strict=True):
        policy = Gemma4(max_soft_tokens=soft)
        for (height, width), size in zip(SIZES, expected, strict=True):
            if size == [0, 0]:
                refused += 1
                with pytest.raises(DataError):
                    policy.plan(height, width)
                continue
            plan = policy.plan(height, width)
            assert plan.sizes == (tuple(size),), (soft, height, width)
            assert plan.tokens - 2 == size[0] * size[1] // 48**2 <= soft
    assert refused < len(SIZES)


def test_patches_positions_and_counts_are_the_processors(golden: dict[str, np.ndarray[Any, Any]]) -> None:
    policy = Gemma4(max_soft_tokens=70)
    plans = [policy.plan(*size) for size in PICTURES]
    blocks = [policy.render(picture(n), plan, TorchResize()) for n, plan in enumerate(plans)]
    values = policy.pixel_values(blocks, plans)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values[:, ::EVERY], golden["patches"] * np.float32(1 / 255))
    np.testing.assert_array_equal(policy.fields(plans)["image_position_ids"], golden["positions"])
    assert [plan.tokens - 2 for plan in plans] == golden["soft"].tolist()


def test_ids_are_the_processors(golden: dict[str, np.ndarray[Any, Any]]) -> None:
    policy = Gemma4(max_soft_tokens=70)
    tokenizer = tokenizer_for(policy, **NAMES)
    ids = special_ids(policy, tokenizer)
    made: list[int] = []
    for number, piece in enumerate(TEXT.split(policy.placeholder)):
        made += policy.token_run(policy.plan(*PICTURES[number - 1]), ids) if number else []
        made += tokenizer.encode(piece, add_special_tokens=False)
    assert [made] == golden["ids"].tolist()

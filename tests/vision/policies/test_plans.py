"""What every policy promises, whatever the image: plans, blocks and runs fit each other; a policy is its settings."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from vision.policies.kit import ALL, SMALL, PilResize, photo, plain_ids

from zephon.errors import DataError, PluginError, RecipeError
from zephon_vision.policies.base import Plan, Policy, load
from zephon_vision.policies.clip import Clip
from zephon_vision.policies.gemma import Gemma3, Gemma4
from zephon_vision.policies.idefics import Idefics3
from zephon_vision.policies.llava import Llava15, LlavaNext, LlavaOnevision
from zephon_vision.policies.qwen import Qwen2VL, Qwen3VL

POLICIES = [kind(**SMALL.get(kind.name, {})) for kind in ALL]
policies = pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)


@policies
@settings(max_examples=examples(6))
@given(height=st.integers(1, 160), width=st.integers(1, 160), images=st.integers(1, 3))
def test_plan_blocks_and_run_fit_each_other(policy: Policy, height: int, width: int, images: int) -> None:
    plan = policy.plan(height, width, images=images)
    assert plan == policy.plan(height, width, images=images)
    assert (plan.height, plan.width) == (height, width)
    image = photo(height, width)
    blocks = policy.render(image, plan, PilResize())
    assert blocks.dtype == np.uint8
    assert blocks.shape == policy.block_shape(plan)
    assert len(blocks) == plan.blocks
    np.testing.assert_array_equal(blocks, policy.render(image, plan, PilResize()))
    ids = plain_ids(policy)
    run = policy.token_run(plan, ids)
    assert len(run) == plan.tokens
    assert set(run) <= {*ids.ids.values(), *ids.newline, *(i for text in ids.texts.values() for i in text)}
    numbers = plan.pack()
    assert all(isinstance(number, int) and 0 <= number < 2**31 for number in numbers)
    assert Plan.unpack(numbers) == plan
    floats = policy.to_float(blocks)
    assert floats.dtype == np.float32
    assert len(floats) == len(blocks)
    assert np.isfinite(floats).all()


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.name)
@given(height=st.integers(1, 5000), width=st.integers(1, 5000), images=st.integers(1, 3))
def test_plans_of_large_images(kind: type[Policy], height: int, width: int, images: int) -> None:
    policy = kind()
    try:
        plan = policy.plan(height, width, images=images)
    except DataError:
        assert max(height, width) / min(height, width) > 48
        return
    assert len(policy.token_run(plan, plain_ids(policy))) == plan.tokens
    assert policy.block_shape(plan)[0] == plan.blocks
    assert Plan.unpack(plan.pack()) == plan
    assert all(height > 0 and width > 0 for height, width in plan.sizes)


def test_policies_import_no_heavy_library() -> None:
    code = "import sys, zephon_vision.policies.configs as _; print(sorted({'torch', 'transformers', 'PIL', 'pyarrow'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@policies
def test_fields_of_several_and_of_no_images(policy: Policy) -> None:
    plans = [policy.plan(*size) for size in ((100, 80), (33, 120), (64, 64))]
    for name, values in policy.fields(plans).items():
        assert values.dtype == np.int64, name
        assert len(values) == 3, name
    for name, values in policy.fields([]).items():
        assert len(values) == 0, name
        assert values.ndim == policy.fields(plans)[name].ndim


@policies
def test_a_policy_is_its_settings(policy: Policy) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(type(policy)(**SMALL.get(policy.name, {})))
    mean, std = policy.normalize()
    assert len(mean) == len(std) == 3
    assert all(type(token) is str for token in policy.special_tokens)


@policies
def test_a_spec_makes_the_same_policy(policy: Policy) -> None:
    spec = policy.spec()
    assert spec.startswith(policy.name)
    assert load(spec) == policy
    assert load(policy.name) == type(policy)()
    assert load(policy.name).spec() == policy.name
    if SMALL.get(policy.name):
        assert json.loads(spec.removeprefix(policy.name)).keys() <= SMALL[policy.name].keys()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("qwen2_5", "did you mean 'qwen2_5_vl'"),
        ('qwen2_vl{"max_pixel": 3}', "did you mean 'max_pixels'"),
        ("qwen2_vl{max_pixels: 3}", "not JSON"),
        ('qwen2_vl{"max_pixels": 0}', "max_pixels"),
        ('qwen2_vl{"max_pixels": "many"}', "max_pixels"),
        ('llava_next{"image_grid_pinpoints": "many"}', "types that it doesn't take"),
        (5, "named by a text, not by 5"),
    ],
)
def test_specs_that_say_nothing_are_errors(spec: Any, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        load(spec)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Qwen2VL, {"min_pixels": 10_000, "max_pixels": 5_000}),
        (Qwen3VL, {"patch_size": 0}),
        (Clip, {"crop": 300}),
        (LlavaNext, {"image_grid_pinpoints": ((336, 300),)}),
        (LlavaOnevision, {"image_grid_pinpoints": ()}),
        (LlavaOnevision, {"max_tiles": -1}),
        (Idefics3, {"longest_edge": 4000}),
        (Gemma4, {"max_soft_tokens": 100}),
        (Gemma3, {"size": 8.5}),
        (Clip, {"filter": "cubic"}),
        (Clip, {"image_mean": (0.5,)}),
        (Clip, {"image_std": (0.5, 0.0, 0.5)}),
    ],
)
def test_settings_that_can_not_work_are_errors(kind: type[Policy], wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        kind(**wrong)


def test_plans_that_are_none_are_errors() -> None:
    for numbers in ([], [1, 2, 3], [1, 2, 3, 4, 1, 9]):
        with pytest.raises(DataError, match="is not an image plan"):
            Plan.unpack(numbers)


def test_blocks_of_other_plans_are_errors() -> None:
    policy = Llava15()
    plan = policy.plan(20, 20)
    blocks = policy.render(photo(20, 20), plan, PilResize())
    with pytest.raises(DataError):
        policy.pixel_values([blocks, blocks], [plan])
    with pytest.raises(DataError):
        policy.pixel_values([], [])


def test_a_policy_of_ones_own_needs_only_the_methods() -> None:
    """The float helpers come with the base class."""

    class Halves(Clip):
        name = "halves"

    policy = Halves(image_mean=(0.0, 0.0, 0.0), image_std=(1.0, 1.0, 1.0))
    plan = policy.plan(30, 40)
    blocks = policy.render(photo(30, 40), plan, PilResize())
    np.testing.assert_allclose(policy.pixel_values([blocks], [plan]), blocks / 255, rtol=1e-6)


def test_a_policy_that_can_not_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "strange-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    (tmp_path / "strange_script.py").write_text("raise SystemExit(2)")
    lines = ["broken = not_there:Policy", "no_policy = json:loads", "script = strange_script:Policy", "clip = json:other"]
    (folder / "entry_points.txt").write_text("\n".join(["[zephon.image_policies]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    named = r"of strange 1\.0 \(.*"
    for name, words in (
        ("broken", f"{named} fails on import: .*not_there"),
        ("script", f"{named} fails on import: SystemExit: 2"),
        ("no_policy", f"{named}no subclass of Policy"),
        ("clip", r"is claimed by strange 1\.0 \(json:other\) and zephon"),
    ):
        with pytest.raises(PluginError, match=words):
            load(f'{name}{{"unknown": 1}}')

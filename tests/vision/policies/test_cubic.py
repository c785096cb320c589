"""Mistral's own library interpolates without antialiasing; what is made here is what it makes, as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vision.pictures import scene
from vision.policies.mistral_pixels import CASES, GOLDEN, picture

from zephon.errors import RecipeError
from zephon_vision.policies.cubic import cubic, cubic_bytes
from zephon_vision.policies.pixtral import Mistral
from zephon_vision.resize import make_resize


@pytest.mark.parametrize("backend", ["pil", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_mistrals_own_library_within_half_a_unit(name: str, backend: str) -> None:
    height, width, patch, merge, longest = CASES[name]
    with np.load(GOLDEN) as golden:
        source, want = golden[f"{name}: source"], golden[f"{name}: pixels"]
    assert np.array_equal(source, picture(height, width))
    policy = Mistral(patch_size=patch, spatial_merge_size=merge, longest_edge=longest)
    plan = policy.plan(height, width)
    blocks = policy.render(source, plan, make_resize(backend))  # type: ignore[arg-type]
    (found,) = policy.pixel_values([blocks], [plan])
    assert found.shape == want.shape
    mean, std = (np.array(v, dtype=np.float64)[:, None, None] for v in (policy.image_mean, policy.image_std))
    units = [(values * std + mean) * 255 for values in (found, want)]
    assert np.abs(units[0] - np.clip(units[1], 0, 255)).max() < 0.501
    # the same floats, to what float32 can tell
    floats = cubic(source, plan.sizes[0]).transpose(2, 0, 1)
    assert np.abs(floats - units[1]).max() < 2e-3
    if name == "shrunk":
        assert (units[1] > 255).any(), "the case has nothing beyond 0-255"


@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_it_is_what_the_formula_gives_value_by_value(source: tuple[int, int], size: tuple[int, int]) -> None:
    rgb = scene(*source, seed=3)
    made = cubic(rgb, size)

    def weight(x: float) -> float:
        x = abs(x)
        a = -0.75
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0

    for y, x in {(0, 0), (size[0] - 1, size[1] - 1), (size[0] // 2, size[1] // 3)}:
        at = [(place + 0.5) * s / t - 0.5 for place, s, t in zip((y, x), source, size, strict=True)]
        near = [range(int(np.floor(v)) - 1, int(np.floor(v)) + 3) for v in at]
        total = np.zeros(3)
        for i in near[0]:
            for j in near[1]:
                pixel = rgb[min(max(i, 0), source[0] - 1), min(max(j, 0), source[1] - 1)].astype(float)
                total += weight(at[0] - i) * weight(at[1] - j) * pixel
        assert made[y, x] == pytest.approx(total, abs=2e-3)


def test_large_pictures_are_made_strip_by_strip_and_any_memory_layout_will_do() -> None:
    rgb = scene(900, 1300)
    whole = cubic_bytes(rgb, (640, 700))
    planes = np.ascontiguousarray(rgb.transpose(2, 0, 1)).transpose(1, 2, 0)
    assert np.array_equal(cubic_bytes(planes, (640, 700)), whole)
    assert np.array_equal(cubic_bytes(np.broadcast_to(rgb[:1, :1], (5, 5, 3)), (3, 9)), np.broadcast_to(rgb[:1, :1], (3, 9, 3)))


def test_another_filter_is_refused() -> None:
    with pytest.raises(RecipeError, match="INTER_CUBIC"):
        Mistral(filter="bilinear")

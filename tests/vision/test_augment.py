"""Operators on pixels do what torchvision does, with numbers that depend on keys alone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode
from torchvision.transforms import RandomResizedCrop as TorchCrop
from torchvision.transforms.v2 import functional
from vision.pictures import Array, scene

from zephon import groups
from zephon.errors import DataError, PluginError, RecipeError
from zephon.recipe import operator_fingerprint
from zephon.testing import check_operator
from zephon_vision import augment, columns
from zephon_vision.augment import CenterCrop, ColorJitter, Flip, Normalize, RandomResizedCrop, ResizeImages, crop_box
from zephon_vision.resize import make_resize

SIZES = [(20, 30), (31, 17), (8, 8), (40, 40), (5, 60)]


def rows(
    counts: tuple[int, ...] = (1, 2, 0, 1, 1), *, null: int | None = None, first_row: int = 0, a_pass: int = 0
) -> pa.RecordBatch:
    """Rows of blocks [1, 3, h, w]; block number `null` is blank."""
    pixels: list[list[bytes | None]] = []
    shapes: list[list[list[int]]] = []
    number = 0
    for count in counts:
        pixels.append([])
        shapes.append([])
        for _ in range(count):
            block = scene(*SIZES[number % len(SIZES)], seed=number).transpose(2, 0, 1)[None]
            pixels[-1].append(None if number == null else block.tobytes())
            shapes[-1].append(list(block.shape))
            number += 1
    size = len(counts)
    return pa.RecordBatch.from_pydict(
        {
            columns.PIXELS: pa.array(pixels, type=columns.PIXELS_TYPE),
            columns.PIXEL_SHAPES: pa.array(shapes, type=columns.PIXEL_SHAPES_TYPE),
            groups.COMPONENT: pa.array([0] * size, type=pa.int32()),
            groups.PASS: pa.array([a_pass] * size, type=pa.int64()),
            groups.SHARD: pa.array([0] * size, type=pa.int32()),
            groups.ROW: pa.array(range(first_row, first_row + size), type=pa.int64()),
        }
    )


def blocks(group: pa.RecordBatch, dtype: Any = np.uint8) -> list[list[Array | None]]:
    return [
        [None if d is None else np.frombuffer(d, dtype).reshape(s) for d, s in zip(*row, strict=True)]
        for row in zip(group.column(columns.PIXELS).to_pylist(), group.column(columns.PIXEL_SHAPES).to_pylist(), strict=True)
    ]


OPERATORS = [
    ResizeImages(size=16),
    ResizeImages(size=(9, 11), backend="pil"),
    CenterCrop(size=12),
    RandomResizedCrop(size=(10, 14), seed=3),
    Flip(seed=1),
    Flip(vertical=True),
    ColorJitter(brightness=0.4, contrast=0.4, saturation=0.3, hue=0.1),
    Normalize(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)),
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda op: op.name)
def test_operators_keep_their_promises(operator: augment.PixelOperator) -> None:
    made = check_operator(operator, [rows(), rows((2, 1), first_row=5), rows((1, 1, 1), null=1, first_row=7)])
    assert [[b is None for b in row] for row in blocks(made[2], np.uint8 if operator.name != "normalize" else np.float32)] == [
        [False],
        [True],
        [False],
    ]


@pytest.mark.parametrize("operator", OPERATORS[3:7], ids=lambda op: op.name)
def test_random_operators_depend_on_seed_pass_and_place_alone(operator: Any) -> None:
    apply = operator.bind()
    base = apply(rows((1,) * 12))
    assert apply(rows((1,) * 12)).equals(base)
    assert not apply(rows((1,) * 12, a_pass=1)).column(0).equals(base.column(0))
    assert not apply(rows((1,) * 12, first_row=1)).column(0).equals(base.column(0))
    other = type(operator)(**{**operator.__dict__, "seed": operator.seed + 1})
    assert not other.bind()(rows((1,) * 12)).column(0).equals(base.column(0))


def test_images_of_a_row_get_numbers_of_their_own() -> None:
    same = scene(30, 30).transpose(2, 0, 1)[None]
    group = rows((1,)).slice(0, 1)
    group = groups.set_column(group, columns.PIXELS, pa.array([[same.tobytes()] * 4], type=columns.PIXELS_TYPE))
    group = groups.set_column(group, columns.PIXEL_SHAPES, pa.array([[list(same.shape)] * 4], type=columns.PIXEL_SHAPES_TYPE))
    made = RandomResizedCrop(size=8).bind()(group).column(columns.PIXELS)[0].as_py()  # type: ignore[union-attr]
    assert len(set(made)) == 4


def test_resizing_is_the_resizers() -> None:
    made = blocks(ResizeImages(size=16).bind()(rows((1,))))[0][0]  # type: ignore[arg-type]
    assert made is not None
    assert np.array_equal(made[0].transpose(1, 2, 0), make_resize("auto")(scene(20, 30, seed=0), (16, 24), "bicubic"))


def _tensor(size: tuple[int, int] = SIZES[0], seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(scene(*size, seed=seed).transpose(2, 0, 1)[None].copy())


@pytest.mark.parametrize("size", [4, 12, (7, 25), 50])
def test_the_middle_is_torchvisions(size: Any) -> None:
    made = blocks(CenterCrop(size=size).bind()(rows((1,))))[0][0]  # type: ignore[arg-type]
    assert made is not None
    assert np.array_equal(
        made, functional.center_crop(_tensor(), [size, size] if isinstance(size, int) else list(size)).numpy()
    )


@given(st.integers(1, 200), st.integers(1, 200), st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40))
def test_a_random_part_lies_in_the_image(height: int, width: int, numbers: list[float]) -> None:
    draws = iter(numbers)
    top, left, high, wide = crop_box(height, width, (0.08, 1.0), (0.75, 4 / 3), lambda n: [next(draws) for _ in range(n)])
    assert top >= 0
    assert left >= 0
    assert 0 < high <= height - top
    assert 0 < wide <= width - left


def test_random_parts_are_spread_as_torchvisions() -> None:
    """Not the same numbers, but the same law: means of area, shape and place over many draws."""
    torch.manual_seed(0)
    image = torch.zeros((3, 120, 160))
    theirs = np.array([TorchCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)], dtype=float)
    draw = np.random.default_rng(0).random
    ours = np.array(
        [crop_box(120, 160, (0.08, 1.0), (3 / 4, 4 / 3), lambda n: draw(n).tolist()) for _ in range(4000)], dtype=float
    )
    assert np.abs(theirs.mean(axis=0) - ours.mean(axis=0)).max() < 2.5
    assert np.abs(theirs.std(axis=0) - ours.std(axis=0)).max() < 2.5


def test_a_part_is_cut_and_resized_as_torchvision_does() -> None:
    operator = RandomResizedCrop(size=8, scale=(1.0, 1.0), ratio=(1.5, 1.5))
    made = blocks(operator.bind()(rows((1,))))[0][0]  # type: ignore[arg-type]
    assert made is not None
    expected = functional.resized_crop(_tensor(), 0, 0, 20, 30, [8, 8], interpolation=InterpolationMode.BICUBIC, antialias=True)
    assert np.array_equal(made, expected.numpy())


def test_mirrors_are_mirrors() -> None:
    for vertical, axis in ((False, 3), (True, 2)):
        made = blocks(Flip(probability=1, vertical=vertical).bind()(rows()))  # type: ignore[arg-type]
        for row, before in zip(made, blocks(rows()), strict=True):
            for one, two in zip(row, before, strict=True):
                assert one is not None
                assert two is not None
                assert np.array_equal(one, np.flip(two, axis))
    assert Flip(probability=0).bind()(rows()).equals(rows())  # type: ignore[union-attr]
    many = rows((1,) * 1000)
    turned = sum(a != b for a, b in zip(Flip().bind()(many).column(0).to_pylist(), many.column(0).to_pylist(), strict=True))  # type: ignore[union-attr]
    assert 430 < turned < 570


def test_colours_are_torchvisions() -> None:
    operator = ColorJitter(brightness=(1.3, 1.3))
    made = blocks(operator.bind()(rows((1,))))[0][0]  # type: ignore[arg-type]
    assert made is not None
    assert np.array_equal(made, functional.adjust_brightness(_tensor(), 1.3).numpy())
    hue = blocks(ColorJitter(hue=(0.2, 0.2)).bind()(rows((1,))))[0][0]  # type: ignore[arg-type]
    assert hue is not None
    assert np.array_equal(hue, functional.adjust_hue(_tensor(), 0.2).numpy())
    assert ColorJitter().bind()(rows()).equals(rows())  # type: ignore[union-attr]


def test_normalising_is_torchvisions_once() -> None:
    mean, std = (0.48, 0.45, 0.4), (0.27, 0.26, 0.28)
    operator = Normalize(mean=mean, std=std)
    made = blocks(operator.bind()(rows((1,))), np.float32)[0][0]  # type: ignore[arg-type]
    assert made is not None
    expected = functional.normalize(functional.to_dtype(_tensor(), torch.float32, scale=True), list(mean), list(std))
    assert np.array_equal(made, expected.numpy())
    for after in (CenterCrop(size=9), Flip(probability=1)):
        group = after.bind()(operator.bind()(rows()))  # type: ignore[arg-type]
        assert all(b is not None and b.dtype == np.float32 for row in blocks(group, np.float32) for b in row)  # type: ignore[arg-type]


def test_pixels_that_are_no_pictures_are_refused() -> None:
    group = rows((1,))
    patches = groups.set_column(group, columns.PIXEL_SHAPES, pa.array([[[20, 90]]], type=columns.PIXEL_SHAPES_TYPE))
    with pytest.raises(DataError, match='policy="raw"'):
        CenterCrop().bind()(patches)
    short = groups.set_column(group, columns.PIXEL_SHAPES, pa.array([[[1, 3, 20, 31]]], type=columns.PIXEL_SHAPES_TYPE))
    with pytest.raises(DataError, match="bytes of pixels"):
        CenterCrop().bind()(short)
    plain = groups.select(group, [columns.PIXELS, columns.PIXEL_SHAPES])
    with pytest.raises(DataError, match="where a row came from"):
        Flip().bind()(plain)
    CenterCrop(size=5).bind()(plain)
    with pytest.raises(RecipeError, match="decode images first"):
        CenterCrop().output_schema(pa.schema([("images", pa.binary())]))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (CenterCrop, {"size": 0}, "size"),
        (CenterCrop, {"size": (3, 4, 5)}, "size"),
        (ResizeImages, {"filter": "nearest"}, "filter"),
        (ResizeImages, {"backend": "cv2"}, "backend"),
        (RandomResizedCrop, {"scale": (0.5, 0.1)}, "scale"),
        (RandomResizedCrop, {"filter": "lanczos"}, "filter"),
        (Flip, {"probability": 1.5}, "probability"),
        (ColorJitter, {"hue": 0.6}, "hue"),
        (ColorJitter, {"brightness": -1}, "brightness"),
        (Normalize, {"std": (1, 1, 0)}, "std"),
        (Normalize, {"mean": (1, 1)}, "mean"),
    ],
)
def test_wrong_settings_are_said_at_once(kind: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        kind(**settings)


def test_lists_and_tuples_are_the_same_setting() -> None:
    for one, two in (
        (CenterCrop(size=[3, 4]), CenterCrop(size=(3, 4))),  # type: ignore[arg-type]
        (ColorJitter(hue=[-0.1, 0.1]), ColorJitter(hue=(-0.1, 0.1))),  # type: ignore[arg-type]
        (Normalize(mean=[0, 0, 0]), Normalize(mean=(0.0, 0.0, 0.0))),  # type: ignore[arg-type]
    ):
        assert operator_fingerprint(one) == operator_fingerprint(two)
        assert hash(one) == hash(two)


def test_without_torchvision_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torchvision":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(augment, "version", version)
    with pytest.raises(PluginError, match=r"flip needs 'torchvision'(.|\n)*zephon\[augment\]"):
        operator_fingerprint(Flip())

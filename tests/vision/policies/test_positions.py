"""Three-dimensional positions against the model classes' own function, document by document."""

from __future__ import annotations

import inspect
import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from zephon.errors import DataError, RecipeError
from zephon_vision.positions import mrope_positions

START, PAD, END, VIDEO = 1, 2, 3, 4
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "pad_token_id": 0,
    "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]},
}
VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 32, "embed_dim": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32, "mlp_ratio": 1,
    "num_position_embeddings": 16, "deepstack_visual_indexes": [],
}  # fmt: skip
MODELS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")


def tiny(name: str) -> Any:
    """A model with random weights."""
    text = {**TEXT, "head_dim": 16} if name == "Qwen3VL" else TEXT
    config = getattr(transformers, f"{name}Config")(
        text_config=text,
        vision_config={**VISION, "hidden_size": 32},
        image_token_id=PAD,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    with torch.device("meta"):
        return getattr(transformers, f"{name}Model")(config)


def document(draw: random.Random) -> tuple[list[int], list[tuple[int, int]], list[list[int]]]:
    """`(ids, image spans with their wrappers, grids)`: text and images, mixed."""
    ids: list[int] = []
    spans, grids = [], []
    for _ in range(draw.randint(0, 5)):
        ids += [draw.randint(10, 60) for _ in range(draw.choice([0, 0, 1, 3, 17]))]
        if draw.random() < 0.8:
            grid = [1, 2 * draw.randint(1, 9), 2 * draw.randint(1, 9)]
            begin = len(ids)
            ids += [START, *[PAD] * (grid[1] * grid[2] // 4), END]
            spans.append((begin, len(ids)))
            grids.append(grid)
    ids += [draw.randint(10, 60) for _ in range(draw.choice([0, 1, 5]))]
    return (ids or [11]), spans, grids


def theirs(model: Any, ids: list[int], grids: list[list[int]], *, what: str = "image") -> np.ndarray[Any, Any]:
    """The model's own; `what` the grids are of. Releases from 5 on also want to be told which tokens are what."""
    given_ids = torch.tensor([ids])
    more: dict[str, Any] = {}
    if "mm_token_type_ids" in inspect.signature(model.get_rope_index).parameters:
        more["mm_token_type_ids"] = (given_ids == PAD).long() + 2 * (given_ids == VIDEO)
    if grids:
        more[f"{what}_grid_thw"] = torch.tensor(grids)
    positions, _ = model.get_rope_index(given_ids, **more)
    return positions[:, 0].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_positions_are_the_models_own(name: str) -> None:
    model = tiny(name)
    draw = random.Random(name)
    for _ in range(120):
        documents = [document(draw) for _ in range(draw.randint(1, 4))]
        lengths = [len(ids) for ids, _, _ in documents]
        begins = np.cumsum([0, *lengths])
        spans = [(a + int(b), z + int(b)) for (_, own, _), b in zip(documents, begins[:-1], strict=True) for a, z in own]
        grids = [grid for _, _, own in documents for grid in own]
        made = mrope_positions(lengths, spans, grids, 2)
        assert made.dtype == np.int64
        assert made.shape == (4, sum(lengths))
        for number, (ids, _, own) in enumerate(documents):
            part = made[:, begins[number] : begins[number + 1]]
            assert part[0].tolist() == list(range(len(ids)))
            np.testing.assert_array_equal(part[1:], theirs(model, ids, own))
        bare = [(a + 1, z - 1) for a, z in spans]
        np.testing.assert_array_equal(mrope_positions(lengths, bare, grids, 2), made)
        np.testing.assert_array_equal(mrope_positions(lengths, spans, grids, 2, text_row=False), made[1:])


def test_frames_of_a_film_follow_each_other() -> None:
    model = tiny("Qwen2VL")
    ids = [20, START, *[VIDEO] * (3 * 2 * 4), END, 21]
    expected = theirs(model, ids, [[3, 4, 8]], what="video")
    made = mrope_positions([len(ids)], [(1, len(ids) - 1)], [[3, 4, 8]], 2)
    np.testing.assert_array_equal(made[1:], expected)


@pytest.mark.parametrize("merge", [0, -2])
def test_a_merge_that_makes_no_sense_is_refused(merge: int) -> None:
    with pytest.raises(RecipeError, match="merge of mrope_positions"):
        mrope_positions([10], [(0, 4)], [[1, 4, 4]], merge)


def test_nothing_and_text_alone() -> None:
    assert mrope_positions([], [], []).shape == (4, 0)
    assert mrope_positions([0, 0], [], []).shape == (4, 0)
    assert mrope_positions([2, 0, 3], [], []).tolist() == [[0, 1, 0, 1, 2]] * 4


@pytest.mark.parametrize(
    ("lengths", "spans", "grids"),
    [
        ([10], [(0, 4)], []),  # no grid
        ([10], [(0, 5)], [[1, 4, 4]]),  # five for four
        ([10], [(0, 3)], [[1, 4, 4]]),
        ([10], [(8, 12)], [[1, 4, 4]]),  # behind the end
        ([10], [(-1, 3)], [[1, 4, 4]]),
        ([2, 8], [(0, 4)], [[1, 4, 4]]),  # in two documents
        ([10], [(4, 8), (0, 4)], [[1, 4, 4], [1, 4, 4]]),  # in the wrong order
        ([10], [(0, 4), (2, 6)], [[1, 4, 4], [1, 4, 4]]),  # one in the other
        ([10], [(3, 3)], [[1, 1, 1]]),  # no token at all
    ],
)
def test_spans_that_do_not_fit_are_errors(lengths: list[int], spans: list[tuple[int, int]], grids: list[list[int]]) -> None:
    with pytest.raises(DataError):
        mrope_positions(lengths, spans, grids, 2)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_the_counter_never_goes_back(texts: list[int], rows: int, columns: int, merge: int) -> None:
    """Each image starts behind everything before it, and the text after it behind the image."""
    count = rows * columns
    spans, at = [], 0
    for text in texts:
        at += text
        spans.append((at, at + count))
        at += count
    made = mrope_positions([at], spans, [[1, rows * merge, columns * merge]] * len(texts), merge, text_row=False)
    for begin, end in spans:
        image = made[:, begin:end]
        assert (image[0] == image[0, 0]).all()
        assert (image.min(axis=1) == image[0, 0]).all()
        assert (image.max(axis=1) - image[0, 0]).tolist() == [0, rows - 1, columns - 1]
        if begin:
            assert made[:, :begin].max() < image.min()

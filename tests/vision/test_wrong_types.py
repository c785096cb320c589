"""A column of a type that a vision operator doesn't take stops the run, whatever `on_error` is; a value without sense is its row's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.errors import DataError, RecipeError
from zephon.plugin import LaneWindow
from zephon_vision.pack_multimodal import PackMultimodal

WORDS = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
WORDS.add_special_tokens(["</s>"])

SEGMENT = {"kind": 0, "text": "a", "role": None, "turn": 0, "train": True, "image": None}
PLAN = {"policy": "raw", "numbers": [1, 1, 1, 1, 0, 0]}
SPAN = {"start": 0, "stop": 1, "image": 0}
PACKED = {"input_ids": [1, 2], "images": [{"bytes": b"x"}], "image_plans": [PLAN], "image_spans": [SPAN]}
SEGMENTS = {"segments": [SEGMENT], "images": [b"x"]}

Steps = Callable[[Pipeline], Pipeline]


def tokenized(pipeline: Pipeline) -> Pipeline:
    return pipeline.tokenize_interleaved(tokenizer=WORDS, images=None, template="plain")


def packed(pipeline: Pipeline) -> Pipeline:
    return pipeline.pack_multimodal(max_length=8, least_room=0, pad_token_id=0)


CASES: list[tuple[dict[str, Any], Steps, str, str]] = [
    ({"images": [7]}, lambda p: p.probe_images(), "probe_images", "column 'images' is list<item: int64>, not images"),
    ({"images": [{"bytes": 7}]}, lambda p: p.probe_images(), "probe_images", "'images' is list<.*bytes: int64>>, not images"),
    ({"images": [7]}, lambda p: p.decode_images(policy="raw"), "decode_images", "'images' is list<item: int64>, not images"),
    (
        PACKED | {"image_plans": [7]},
        lambda p: p.decode_images(),
        "decode_images",
        "'image_plans' is list<item: int64>, not list<",
    ),
    ({"images": [7], "text": "a"}, lambda p: p.interleave(), "interleave", "column 'images' is list<item: int64>, not images"),
    ({"images": [{"a": 7}], "text": "a"}, lambda p: p.interleave(), "interleave", "'images' is list<.*a: int64>>, not images"),
    ({"messages": [7]}, lambda p: p.interleave(layout="messages"), "interleave", "messages: list<item: int64>"),
    (SEGMENTS | {"segments": 7}, tokenized, "tokenize_interleaved", "column 'segments' is int64, not list<"),
    (SEGMENTS | {"segments": [7]}, tokenized, "tokenize_interleaved", "column 'segments' is list<item: int64>, not list<"),
    (SEGMENTS | {"segments": [SEGMENT | {"text": 7}]}, tokenized, "tokenize_interleaved", "'segments' is .*text: int64.*, not"),
    (SEGMENTS | {"images": b"x"}, tokenized, "tokenize_interleaved", "column 'images' is binary, not lists of images"),
    (SEGMENTS | {"images": [7]}, tokenized, "tokenize_interleaved", "column 'images' is list<item: int64>, not images"),
    (SEGMENTS | {"image_info": [7]}, tokenized, "tokenize_interleaved", "column 'image_info' is list<item: int64>, not list<"),
    ({"pixel_values": 7, "pixel_shapes": [[1]]}, lambda p: p.resize_images(), "resize_images", "'pixel_values' is int64, not"),
    ({"cost": "a"}, lambda p: p.balance_cost(column="cost"), "balance_cost", "column 'cost' is string, not numbers"),
    (PACKED | {"images": [7]}, packed, "pack_multimodal", "column 'images' is list<item: int64>, not images"),
    (PACKED | {"images": ["a.jpg"]}, packed, "pack_multimodal", "column 'images' is list<item: string>, not list<item: struct"),
    (PACKED | {"images": b"x"}, packed, "pack_multimodal", "column 'images' is binary, not lists of images"),
    (PACKED | {"image_plans": [7]}, packed, "pack_multimodal", "column 'image_plans' is list<item: int64>, not list<"),
    (PACKED | {"image_spans": [{"start": "a"}]}, packed, "pack_multimodal", "column 'image_spans' is .*start: string>>, not"),
    (PACKED | {"image_blocks": "a"}, packed, "pack_multimodal", "column 'image_blocks' is string, not int32"),
    (PACKED | {"loss_mask": 1}, packed, "pack_multimodal", "column 'loss_mask' is int64, not lists of numbers"),
]
"""A record, what is done to it, and the operator and the error that come of it."""
NAMES = [f"{operator}-{number}" for number, (_, _, operator, _) in enumerate(CASES)]


def refused(data: Dataset, then: Steps, policy: Any, message: str) -> tuple[str | None, str | None]:
    pipeline = Pipeline(StaticMixtureWorkSource(data, stop_after_passes=1)).options(runner="inline", on_error=policy)
    with pytest.raises(RecipeError, match=message) as caught:
        list(then(pipeline).batch(2))
    return caught.value.where.dataset, caught.value.where.operator


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_type_that_a_function_gave_stops_the_run_under_every_policy(case: Any, policy: str) -> None:
    record, then, operator, message = case
    data = Dataset.from_records("d", [{"id": i} for i in range(12)])
    assert refused(data, lambda p: then(p.map(lambda _: dict(record))), policy, message) == ("d", operator)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_type_that_the_data_has_is_refused_before_the_run(case: Any) -> None:
    record, then, operator, message = case
    assert refused(Dataset.from_records("d", [record] * 12), then, "skip", message) == ("d", operator)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"image_plans": [{"policy": "raw", "numbers": [1, 1]}]}, "'image_plans' holds something that is no plan"),
        ({"image_plans": [{"policy": "raw", "numbers": None}]}, "'image_plans' holds something that is no plan"),
        ({"image_spans": [SPAN | {"stop": None}]}, "'image_spans' holds nulls"),
        ({"image_spans": [SPAN | {"stop": 2**31}]}, "expected .*int32"),
    ],
)
def test_a_value_that_cannot_be_packed_is_named_with_its_row(wrong: dict[str, Any], message: str) -> None:
    rows = [PACKED, PACKED | {"images": [], "image_plans": [], "image_spans": []}, PACKED | wrong, PACKED | wrong]
    group = groups.from_rows(rows).append_column(groups.ROW, pa.array([10, 11, 12, 13]))
    packer = PackMultimodal(max_length=8, least_room=0, pad_token_id=0).accumulator(LaneWindow(seed=0, lane=0, window=0))
    with pytest.raises(DataError, match=message) as caught:
        packer.add(group, 0)
    assert caught.value.where.row == 12


def test_a_plan_of_a_policy_that_nobody_knows_is_a_bad_record() -> None:
    records = [{"images": [b"x"], "image_plans": [PLAN | {"policy": "nobody's" if i == 3 else "raw"}]} for i in range(6)]
    source = StaticMixtureWorkSource(Dataset.from_records("d", records), stop_after_passes=1)
    with pytest.raises(DataError, match="no plan: unknown image policy") as caught:
        list(Pipeline(source).decode_images().batch(1).options(runner="inline"))
    assert (caught.value.where.dataset, caught.value.where.row) == ("d", 3)


def test_records_without_a_value_do_not_say_what_the_column_is() -> None:
    records = [{"id": i} for i in range(12)]
    source = StaticMixtureWorkSource(Dataset.from_records("d", records), stop_after_passes=1, chunk_size=1)
    pipeline = Pipeline(source).map(lambda r: {"image": b"x", "text": None if r["id"] % 2 else "a"})
    pipeline.interleave().batch(1).options(runner="inline", on_error="skip")
    assert sum(len(batch) for batch in pipeline) == 6
    assert sum(pipeline.accounting()["rows"]["dropped"].values()) == 6

"""Records in memory whose values have no common Arrow type."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError, RecipeError


def chats() -> list[dict[str, Any]]:
    url = "data:image/jpeg;base64," + base64.b64encode(jpeg(scene(30, 30))).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is “this”?"}]
    one = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A scene."}]
    other = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}]
    return [{"id": 1, "messages": one}, {"id": 2, "messages": other}, {"id": 3, "messages": None}]


def test_chats_of_texts_and_lists_of_parts_are_read_as_from_jsonl() -> None:
    dataset = Dataset.from_records("chats", chats()[:2])
    assert [str(field.type) for field in dataset.schema] == ["int64", "string"]
    pipeline = (
        Pipeline(StaticMixtureWorkSource(dataset, stop_after_passes=1))
        .interleave()
        .tokenize_interleaved(tokenizer=fast(QWEN), images='qwen2_5_vl{"max_pixels": 3136}', pad_token_id=0)
        .pack_multimodal(max_length=128)
        .batch(1)
        .options(lanes=1, runner="inline")
    )
    (batch,) = pipeline
    assert [len(images) for images in batch.group.column("images").to_pylist()] == [1]
    assert [len(lengths) for lengths in batch.group.column("document_lengths").to_pylist()] == [2]


def test_nulls_stay_nulls_and_every_shard_is_looked_at() -> None:
    dataset = Dataset.from_dict("chats", {"a": chats()})
    (group,) = dataset.read(0, None)
    assert group.column("messages").null_count == 1


@pytest.mark.parametrize("values", [[1, "a"], [[1, "a"], [b"\xff", 1]], [{"a": [1, "x"]}, {"a": {1, 2}}]])
def test_what_json_cannot_hold_is_an_error_that_names_the_column(values: list[Any]) -> None:
    with pytest.raises(DataError, match="column 'x' don't go together") as caught:
        Dataset.from_records("mine", [{"x": value, "y": 1} for value in values])
    assert caught.value.where.dataset == "mine"


@pytest.mark.parametrize("odd", [7, "text", None, {1: 2}])
def test_a_record_that_is_no_dict_of_named_values_is_pointed_out(odd: Any) -> None:
    with pytest.raises(DataError) as caught:
        Dataset.from_dict("mine", {"part": [{"x": 1}, odd]})
    assert (caught.value.where.dataset, caught.value.where.shard, caught.value.where.row) == ("mine", "part", 1)
    assert repr(odd) in str(caught.value) or "the names of columns are text: [1]" in str(caught.value)


def test_shards_may_be_named_by_numbers_and_no_two_have_one_name() -> None:
    numbers = Dataset.from_dict("mine", {0: [{"x": 1}], 1: [{"x": 2}]})
    texts = Dataset.from_dict("mine", {"0": [{"x": 1}], "1": [{"x": 2}]})
    assert numbers.fingerprint() == texts.fingerprint()
    with pytest.raises(RecipeError, match="two shards named '1'"):
        Dataset.from_dict("mine", {1: [{"x": 1}], "1": [{"x": 2}]})  # type: ignore[dict-item]

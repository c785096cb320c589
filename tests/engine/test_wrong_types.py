"""A column of a type that an operator doesn't take is a mistake of the recipe, not of its rows: no policy leaves these out for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from tokenizers import Tokenizer, models

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon.errors import RecipeError

WORDS = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))

Steps = Callable[[Pipeline], Pipeline]
CASES: dict[str, tuple[dict[str, Any], Steps, str, str]] = {
    "tokenize": ({"x": 7}, lambda p: p.tokenize(tokenizer=WORDS, field="x"), "tokenize", "column 'x' is int64, not text"),
    "tokenize, bytes": ({"x": b"a"}, lambda p: p.tokenize(tokenizer=WORDS, field="x"), "tokenize", "'x' holds bytes, not text"),
    "decode_text": ({"x": 7}, lambda p: p.decode_text(field="x"), "decode_text", "column 'x' is int64, not bytes"),
    "filter": ({"x": "a"}, lambda p: p.filter(pc.field("x") > 3), "filter", "(x > 3).* doesn't go with the columns: .*string"),
    "pack_flat": (
        {"input_ids": 7},
        lambda p: p.pack_flat(max_length=4, pad_token_id=0),
        "pack_flat",
        "column 'input_ids' is int64, not lists of integers",
    ),
    "pack_flat, floats": (
        {"input_ids": [0.5]},
        lambda p: p.pack_flat(max_length=4, pad_token_id=0),
        "pack_flat",
        "column 'input_ids' is list<item: double>, not lists of integers",
    ),
    "pack_flat, a token column": (
        {"input_ids": [7], "loss_mask": 1},
        lambda p: p.pack_flat(max_length=4, pad_token_id=0),
        "pack_flat",
        "column 'loss_mask' is int64, not lists of numbers",
    ),
}
"""By name: a record, what is done to it, and the operator and the error that come of it."""


def source(*data: Dataset, **settings: Any) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource(list(data), {d.name: 1 / len(data) for d in data}, stop_after_passes=1, **settings)


def numbered(name: str, first: int = 0) -> Dataset:
    return Dataset.from_records(name, [{"id": first + i} for i in range(24)])


def refused(pipeline: Pipeline, message: str) -> RecipeError:
    with pytest.raises(RecipeError, match=message) as caught:
        list(pipeline.batch(2))
    return caught.value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
def test_a_type_that_a_function_gave_stops_the_run_at_the_first_chunk_under_every_policy(
    case: str, policy: str, tmp_path: Path
) -> None:
    record, then, operator, message = CASES[case]
    pipeline = Pipeline(source(numbered("d"))).map(lambda _: dict(record))
    pipeline.options(runner="inline", on_error=policy, quarantine=str(tmp_path / "bad.jsonl"))
    error = refused(then(pipeline), message)
    assert (error.where.dataset, error.where.operator) == ("d", operator)
    assert pipeline.accounting()["failures"] == 0


@pytest.mark.parametrize("case", CASES)
def test_a_type_that_the_data_has_is_refused_before_anything_is_read(case: str) -> None:
    record, then, operator, message = CASES[case]
    wrong = Dataset.from_records("wrong", [record] * 24)
    error = refused(then(Pipeline(source(wrong)).options(on_error="skip")), message)
    assert (error.where.dataset, error.where.operator, error.where.lane) == ("wrong", operator, None)


def test_the_data_set_that_has_the_wrong_type_is_named_in_a_mixture() -> None:
    texts, blobs = (Dataset.from_records(name, [{"text": text}] * 9) for name, text in (("texts", "a"), ("blobs", b"a")))
    error = refused(Pipeline(source(texts, blobs)).tokenize(tokenizer=WORDS).options(on_error="skip"), "holds bytes, not text")
    assert (error.where.dataset, error.where.operator) == ("blobs", "tokenize")


def test_a_function_that_gives_another_type_for_one_data_set_stops_the_run() -> None:
    pipeline = Pipeline(source(numbered("texts"), numbered("numbers", 100), chunk_size=1))
    pipeline.map(lambda r: {"text": "a" if r["id"] < 100 else r["id"]}).tokenize(tokenizer=WORDS)
    error = refused(pipeline.options(runner="inline", on_error="skip"), "column 'text' is int64, not text")
    assert (error.where.dataset, error.where.operator) == ("numbers", "tokenize")


def number_for_text(record: dict[str, Any]) -> dict[str, Any]:
    return {"text": record["id"]}


def test_the_error_is_the_same_on_every_runner(runner: str) -> None:
    pipeline = Pipeline(source(numbered("d"))).map(number_for_text).tokenize(tokenizer=WORDS)
    error = refused(pipeline.options(runner=runner, workers=2, on_error="skip"), "column 'text' is int64, not text")
    assert (error.where.dataset, error.where.operator, error.where.lane) == ("d", "tokenize", 0)


def test_a_value_of_another_type_among_others_is_still_a_bad_record() -> None:
    pipeline = Pipeline(source(numbered("d"), chunk_size=24, shuffle_within_shard=False)).options(
        runner="inline", on_error="skip"
    )
    pipeline.map(lambda r: {"text": r["id"] if r["id"] == 5 else "a"}).tokenize(tokenizer=WORDS).batch(2)
    assert sum(len(batch) for batch in pipeline) == 23
    assert pipeline.accounting()["rows"]["dropped"] == {"map: failed: types that don't go together": 1}


def test_a_sample_for_token_weights_stops_the_run_in_the_same_words() -> None:
    data = [numbered("a"), numbered("b")]
    by_tokens = StaticMixtureWorkSource(data, {"a": 0.5, "b": 0.5}, token_estimation=TokenEstimation())
    pipeline = Pipeline(by_tokens).map(number_for_text).tokenize(tokenizer=WORDS).options(on_error="skip")
    where = refused(pipeline, "column 'text' is int64, not text").where
    assert (where.dataset, where.shard, where.operator, where.component) == ("a", "memory", "tokenize", None)

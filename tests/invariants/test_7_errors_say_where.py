"""Invariant 7: an error says where (data set, shard, row, operator), in the same words on every runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from conftest import RUNNERS
from operators_for_tests import BadAccumulator, BadSelector, Encode, Fragile, Raises, Suffix
from strategies import PAD, Recipe

from zephon import Dataset
from zephon.dataset import MemoryShards
from zephon.errors import RecipeError, ZephonError
from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Operator

PLAIN = Recipe(
    data=(("wiki", (9,) * 30), ("news", (7,) * 20)), weights=(2, 1), shards=3, lanes=2, per_step=2, chunk=5, window=3
)


class Torn(MemoryShards):
    """Row 4 of the second shard can't be read."""

    def open(self, shard: Any) -> Any:
        inner = super().open(shard)
        if shard.path != "part-1":
            return inner
        read = inner.read

        def torn(unit: int, columns: Any, start: int, stop: int) -> Any:
            if start <= 4 < stop:
                raise OSError("checksum")
            return read(unit, columns, start, stop)

        inner.read = torn  # type: ignore[method-assign]
        return inner


def outcome(
    recipe: Recipe, runner: str, datasets: Callable[[], list[Dataset]] | None = None, **options: Any
) -> tuple[Any, ...]:
    """How many batches came, and what was raised."""
    pipeline = recipe.pipeline(runner=runner, workers=2, max_steps=30, datasets=datasets() if datasets else None, **options)
    count = 0
    with pytest.raises(ZephonError) as caught:
        for _ in pipeline:
            count += 1
    return count, type(caught.value), str(caught.value), caught.value


KINDS: dict[str, tuple[tuple[Operator, ...], dict[str, Any], str]] = {
    "zero division": ((Raises(bad=7, how="zero"),), {"operator": "raises", "row": 7}, "ZeroDivisionError"),
    "behind others": (
        (Suffix(text="!"), Encode(), Raises(bad=7, how="zero")),
        {"operator": "raises", "row": 7},
        "ZeroDivisionError",
    ),
    "behind a shuffle": ((Shuffle(buffer_size=3), Fragile(bad=(7,))), {"operator": "fragile", "row": 7}, "record 7 is bad"),
    "several lines": ((Raises(bad=7, how="lines"),), {"operator": "raises", "row": 7}, "second line"),
    "an exception that can't be pickled": ((Raises(bad=7, how="odd"),), {"operator": "raises", "row": 7}, "Odd: odd"),
    "one of ours": ((Raises(bad=7, how="ours"),), {"operator": "raises", "row": 7}, "→ leave it out"),
    "a wrong result": ((Raises(bad=7, how="result"),), {"operator": "raises", "row": 7}, "returned dict; it must return"),
    "a system error": ((Raises(bad=7, how="exit"),), {"operator": "raises", "row": 7}, "SystemError: deep"),
    "in bind": ((Raises(bad=7, how="in bind"),), {"operator": "raises"}, "KeyError: 'vocabulary'"),
    "in an accumulator's add": ((BadAccumulator(when="add"),), {"operator": "bad_accumulator", "lane": 0}, "can't add"),
    "in an accumulator's flush": ((BadAccumulator(when="flush"),), {"operator": "bad_accumulator", "lane": 0}, "can't flush"),
    "in a gather": ((BadAccumulator(when="gather"),), {"operator": "bad_accumulator", "lane": 0}, "can't gather"),
    "a selector that chooses twice": ((BadSelector(),), {"operator": "bad_selector", "lane": 0}, "chose a row twice"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_the_error_is_the_same_on_every_runner(kind: tuple[tuple[Operator, ...], dict[str, Any], str]) -> None:
    steps, place, text = kind
    outcomes = {runner: outcome(replace(PLAIN, steps=steps), runner) for runner in RUNNERS}
    error = outcomes["inline"][3]
    assert text in str(error)
    if "row" in place:
        name, part = str(error.where.shard).split("-")
        assert name == error.where.dataset
        number = int(part) * {"wiki": 10, "news": 7}[name] + (error.where.row or 0)
        assert place == {"operator": error.where.operator, "row": number}
    else:
        assert {name: getattr(error.where, name) for name in place} == place
    for runner, found in outcomes.items():
        assert found[:3] == outcomes["inline"][:3], runner


def test_the_original_traceback_comes_along_as_text(runner: str) -> None:
    error = outcome(replace(PLAIN, steps=(Raises(bad=7, how="zero"),)), runner)[3]
    assert "return 1 // 0" in error.trace
    assert "ZeroDivisionError" in error.trace


def torn() -> list[Dataset]:
    parts = {f"part-{i}": pa.table({"id": list(range(i * 10, i * 10 + 10)), "text": ["x" * 5] * 10}) for i in range(3)}
    return [Dataset("wiki", Torn(parts))]


def test_a_row_that_can_not_be_read_is_named_on_every_runner() -> None:
    recipe = replace(PLAIN, data=(("wiki", (1,)),), weights=(1,), steps=(Suffix(text="!"),), passes=1)
    outcomes = [outcome(recipe, runner, torn) for runner in RUNNERS]
    where = outcomes[0][3].where
    assert (where.dataset, where.shard, where.row) == ("wiki", "part-1", 4)
    assert "checksum" in outcomes[0][2]
    assert len({found[:3] for found in outcomes}) == 1


def test_a_row_that_can_not_be_read_is_left_out_alone(runner: str) -> None:
    recipe = replace(PLAIN, data=(("wiki", (1,)),), weights=(1,), steps=(Suffix(text="!"),), passes=2, exhausted="redistribute")
    pipeline = recipe.pipeline(runner=runner, workers=2, datasets=torn(), on_error="skip")
    ids = sorted(row["id"] for batch in pipeline for row in batch.group.to_pylist())
    assert ids == sorted([i for i in range(30) if i != 14] * 2)
    assert pipeline.accounting()["rows"]["dropped"] == {"source: unreadable": 2}


REFUSED: dict[str, tuple[tuple[Operator, ...], str]] = {
    "packing text": ((PackFlat(max_length=8, pad_token_id=PAD),), r"needs .*'input_ids'"),
    "no pad token": ((Encode(), PackFlat(max_length=8)), "pad"),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_before_anything_runs(refused: tuple[tuple[Operator, ...], str]) -> None:
    pipeline = replace(PLAIN, steps=refused[0]).pipeline(runner="inline", max_steps=1)
    with pytest.raises(RecipeError, match=refused[1]):
        list(pipeline)


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    datasets = [Dataset.from_records("wiki", [{"title": "a", "body": "b"}]), Dataset.from_records("news", [{"title": "a"}])]
    pipeline = replace(PLAIN, steps=(Suffix(text="!"),)).pipeline(runner="inline", datasets=datasets, max_steps=1)
    with pytest.raises(RecipeError, match=r"operator 'suffix' needs a column 'text'; at that point there are .*(title|body)"):
        list(pipeline)


def test_columns_that_do_not_go_together_name_the_data_set() -> None:
    datasets = [Dataset.from_records("wiki", [{"text": "a"}]), Dataset.from_records("news", [{"text": [1, 2]}])]
    pipeline = replace(PLAIN).pipeline(runner="inline", datasets=datasets, max_steps=1)
    with pytest.raises(RecipeError, match="'news' has a column whose type does not go with"):
        list(pipeline)


def test_unknown_names_come_with_the_nearest_one() -> None:
    pipeline = PLAIN.pipeline()
    with pytest.raises(RecipeError, match="did you mean 'lanes'"):
        pipeline.options(lane=3)
    with pytest.raises(AttributeError, match="did you mean 'shuffle'"):
        pipeline.shufle()
    with pytest.raises(RecipeError, match="did you mean 'threads'"):
        pipeline.options(runner="thread_s")
    with pytest.raises(RecipeError, match="did you mean 'skip'"):
        pipeline.options(on_error="skipp")

"""`map`, `filter`, `map_batches` and `decode_text`."""

from __future__ import annotations

import random
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from zephon.errors import DataError, RecipeError
from zephon.operators.basic import DecodeText, Filter, Map, MapBatches, arrow_type
from zephon.plugin import Outcome
from zephon.testing import check_operator


def numbers(size: int = 6, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "n": pa.array(range(size), type=pa.int32()),
            "text": pa.array([f"row {i}" for i in range(size)], type=pa.large_string()),
            **columns,
            "_component": pa.array([0] * size, type=pa.int32()),
            "_pass": pa.array([0] * size, type=pa.int64()),
            "_shard": pa.array([0] * size, type=pa.int32()),
            "_row": pa.array(range(size), type=pa.int64()),
        }
    )


def outcome(operator: Any, group: pa.RecordBatch) -> Outcome:
    made = operator.bind()(group)
    return made if isinstance(made, Outcome) else Outcome(made)


# ------------------------------------------------------------------------------------------------------------- map


def test_map_gives_one_record_none_or_several() -> None:
    made = outcome(Map(fn=lambda r: None if r["n"] == 0 else [{"m": r["n"]}] * r["n"] if r["n"] > 1 else {"m": -1}), numbers(4))
    assert made.group.column("m").to_pylist() == [-1, 2, 2, 3, 3, 3]
    assert made.group.column("_row").to_pylist() == [1, 2, 2, 3, 3, 3]
    assert made.drops.rows["returned None"].tolist() == [0]


def test_the_record_is_fresh_and_may_be_changed() -> None:
    group = numbers(3, tags=[["a"], ["b"], []])

    def change(record: dict[str, Any]) -> dict[str, Any]:
        record["tags"].append("x")
        return record

    assert outcome(Map(fn=change), group).group.column("tags").to_pylist() == [["a", "x"], ["b", "x"], ["x"]]
    assert group.column("tags").to_pylist() == [["a"], ["b"], []]


def test_columns_that_can_keep_their_type_do() -> None:
    made = outcome(Map(fn=lambda r: r | {"new": 1.5}), numbers()).group
    assert [str(made.schema.field(n).type) for n in ("n", "text", "new")] == ["int32", "large_string", "double"]
    wider = outcome(Map(fn=lambda r: {"n": r["n"] + 2**40}), numbers()).group
    assert wider.schema.field("n").type == pa.int64()


def test_declared_types_are_used_also_where_nothing_says_them() -> None:
    operator = Map(fn=lambda r: {"ids": None}, output={"ids": "list<int32>", "score": "float32"})
    made = outcome(operator, numbers(2)).group
    assert [str(f.type) for f in made.schema][:2] == ["list<item: int32>", "float"]
    check_operator(operator, [numbers(5)])


def test_a_column_that_was_not_declared_is_an_error() -> None:
    with pytest.raises(DataError, match="'b'"):
        outcome(Map(fn=lambda r: {"a": 1, "b": 2}, output={"a": "int64"}), numbers(1))


def test_random_numbers_depend_on_the_record_and_the_seed_alone() -> None:
    def draw(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"n": record["n"], "x": float(rng.random())}

    group = numbers(8)
    state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    whole = outcome(Map(fn=draw, seed=2**70), group).group.column("x").to_pylist()
    backwards = outcome(Map(fn=draw, seed=2**70), group.take(pa.array(range(7, -1, -1)))).group.column("x").to_pylist()
    assert whole == backwards[::-1]
    assert len(set(whole)) == 8
    assert whole != outcome(Map(fn=draw, seed=1), group).group.column("x").to_pylist()
    assert state == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index,union-attr]
    check_operator(Map(fn=draw), [group, numbers(0), numbers(3)])


def test_further_arguments_are_passed_by_name() -> None:
    made = outcome(Map(fn=lambda r, *, by: {"n": r["n"] * by}, fn_kwargs={"by": 10}), numbers(3)).group
    assert made.column("n").to_pylist() == [0, 10, 20]


def test_named_columns_are_all_that_the_function_sees() -> None:
    operator = Map(fn=lambda r: {"seen": sorted(r)}, columns=["n"])  # type: ignore[arg-type]
    assert operator.inputs() == ("n",)
    assert outcome(operator, numbers(1)).group.column("seen").to_pylist() == [["n"]]
    check_operator(operator, [numbers(4)])


def test_a_function_that_returns_nonsense_is_an_error() -> None:
    for nonsense in (3, "text", [1]):
        with pytest.raises(TypeError, match="must return a dict"):
            outcome(Map(fn=lambda r, what=nonsense: what), numbers(1))  # type: ignore[misc]


def test_what_the_function_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(Map(fn=lambda r: {"x": 1 // r["n"]}), numbers())


def test_map_that_drops_everything_gives_an_empty_group_with_provenance() -> None:
    made = outcome(Map(fn=lambda r: None), numbers(3))
    assert made.group.num_rows == 0
    assert "_row" in made.group.schema.names
    check_operator(Map(fn=lambda r: None), [numbers(3)])


def test_map_to_records_without_columns_keeps_their_number() -> None:
    assert outcome(Map(fn=lambda r: {}), numbers(3)).group.num_rows == 3


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"x": object()}, "returned a value that no column can hold"),
        ({1: 2}, "returned a column named 1; a name must be text"),
    ],
)
def test_what_can_be_no_column_is_refused_in_words_that_fit_a_first_record(made: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        Map(fn=lambda record: made if record["n"] == 0 else record).bind()(numbers())
    assert caught.value.where.row == 0


@pytest.mark.parametrize(
    "fn", [lambda r: r, lambda r: [r, r], lambda r: None if r["n"] % 2 else {"t": r["text"]}], ids=["same", "double", "half"]
)
def test_map_conforms(fn: Any) -> None:
    check_operator(Map(fn=fn), [numbers(7), numbers(1), numbers(20).slice(3, 9)])


# ---------------------------------------------------------------------------------------------------------- filter


@pytest.mark.parametrize(
    "settings", [{"fn": lambda r: r["n"] % 3}, {"expression": pc.field("n") > 2}, {"fn": lambda r: None, "columns": ["text"]}]
)
def test_filter_conforms_and_counts_what_it_leaves_out(settings: dict[str, Any]) -> None:
    operator = Filter(**settings)
    group = numbers(9)
    made = outcome(operator, group)
    kept = made.group.column("_row").to_pylist()
    assert made.drops.rows["filtered"].tolist() == [i for i in range(9) if i not in kept]
    check_operator(operator, [group, numbers(0), numbers(30).slice(5, 7)])


def test_filter_keeps_all_without_a_copy() -> None:
    group = numbers()
    made = outcome(Filter(fn=lambda r: np.True_), group)
    assert made.group is group
    assert not made.drops.rows


@pytest.mark.parametrize("expression", [pc.field("m") > 2, pc.field("n") + 1, pc.field("text") > 2], ids=str)
def test_an_expression_that_does_not_go_with_the_columns_is_refused_before_the_run(expression: Any) -> None:
    with pytest.raises(
        RecipeError, match=r"(?s)filter's expression .* doesn't go with the columns: .*there are n: \w+, text: \w+"
    ):
        Filter(expression=expression).output_schema(numbers().schema)


def test_an_expression_may_look_at_the_provenance() -> None:
    operator = Filter(expression=pc.field("_row") > 2)
    assert operator.output_schema(numbers().schema) == numbers().schema
    assert outcome(operator, numbers()).group.column("n").to_pylist() == [3, 4, 5]


def test_filter_takes_a_function_or_an_expression() -> None:
    for settings in ({}, {"fn": bool, "expression": pc.field("n") > 2}, {"fn": 3}):
        with pytest.raises(RecipeError, match=r"filter (takes either|needs a function)"):
            Filter(**settings)


# ----------------------------------------------------------------------------------------------------- map_batches


@pytest.mark.parametrize(
    "fn",
    [
        lambda b: b.append_column("m", pc.add(b.column("n"), 1)),
        lambda b: pa.Table.from_batches([b]),
        lambda b: {"m": b.column("n"), "k": np.arange(b.num_rows) * 0},
    ],
    ids=["batch", "table", "dict"],
)
def test_map_batches_takes_what_arrow_gives(fn: Any) -> None:
    check_operator(MapBatches(fn=fn), [numbers(7), numbers(0), numbers(20).slice(3, 9)])


def test_map_batches_must_say_where_rows_come_from_when_their_number_changes() -> None:
    def some(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.greater(batch.column("n"), 2))

    with pytest.raises(DataError, match="with_provenance"):
        outcome(MapBatches(fn=some), numbers())
    made = outcome(MapBatches(fn=some, with_provenance=True), numbers()).group
    assert made.column("_row").to_pylist() == [3, 4, 5]
    with pytest.raises(DataError, match="_component"):
        outcome(MapBatches(fn=lambda b: {"x": [1]}, with_provenance=True), numbers())


def test_map_batches_sees_the_users_columns_only() -> None:
    made = outcome(MapBatches(fn=lambda b: {"names": [b.schema.names] * b.num_rows}), numbers(1)).group
    assert made.column("names").to_pylist() == [["n", "text"]]


def test_map_batches_that_returns_nonsense_is_an_error() -> None:
    with pytest.raises(TypeError, match="RecordBatch"):
        outcome(MapBatches(fn=lambda b: 3), numbers())


# ----------------------------------------------------------------------------------------------------- decode_text


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_decode_text_conforms(kind: pa.DataType, encoding: str) -> None:
    texts = ["plain", "ünï", "", None, "a\x00b"]
    group = numbers(5, raw=pa.array([None if t is None else t.encode(encoding) for t in texts], type=kind))
    made = check_operator(DecodeText(field="raw", encoding=encoding), [group])
    assert made[0].column("raw").to_pylist() == texts


def test_bytes_that_are_not_text_are_an_error_unless_they_may_be_replaced() -> None:
    group = numbers(1, raw=[b"a\xff"])
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        outcome(DecodeText(field="raw"), group)
    assert outcome(DecodeText(field="raw", errors="replace"), group).group.column("raw").to_pylist() == ["a\ufffd"]


def test_text_stays_text() -> None:
    group = numbers(2)
    assert outcome(DecodeText(field="text"), group).group is group


def test_decode_text_refuses_what_it_cannot_do() -> None:
    with pytest.raises(RecipeError, match="unknown encoding"):
        DecodeText(encoding="utf-99")
    with pytest.raises(RecipeError, match="errors"):
        DecodeText(errors="explode")
    with pytest.raises(RecipeError, match="not bytes"):
        DecodeText(field="n").output_schema(numbers().schema)


# ------------------------------------------------------------------------------------------------------- settings


def test_types_have_names() -> None:
    assert arrow_type("list<large_list<int16>>") == pa.list_(pa.large_list(pa.int16()))
    assert arrow_type(pa.float64()) == pa.float64()
    with pytest.raises(RecipeError, match="int33"):
        Map(fn=dict, output={"a": "int33"})


@pytest.mark.parametrize("kind", [Map, Filter, MapBatches])
def test_a_single_string_for_columns_is_refused(kind: Any) -> None:
    with pytest.raises(RecipeError, match=r"write \['text'\]"):
        kind(fn=dict, columns="text")


def test_an_unknown_column_is_refused_before_the_run() -> None:
    for operator in (Map(fn=dict, columns=("txt",)), Filter(fn=bool, columns=("txt",)), MapBatches(fn=dict, columns=("txt",))):
        with pytest.raises(RecipeError, match="did you mean 'text'"):
            operator.output_schema(numbers().schema)


def test_lambdas_survive_pickling() -> None:
    operator = cloudpickle.loads(cloudpickle.dumps(Map(fn=lambda r: {"m": r["n"] + 1})))
    assert outcome(operator, numbers(2)).group.column("m").to_pylist() == [1, 2]

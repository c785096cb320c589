"""`pack_flat`: decisions and gathering together, against what the documents say (cases 107, 113, 115, 116, 118, 119)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.errors import DataError, RecipeError
from zephon.operators.pack import PackFlat
from zephon.plugin import Drops, LaneWindow
from zephon.testing import check_operator

WINDOW = LaneWindow(seed=0, lane=0, window=0)
PAD = 999_999
ALGORITHMS = ("wrap", "first_fit", "best_fit", "best_fit_wrap")


def pack_flat(algorithm: str = "wrap", **settings: Any) -> PackFlat:
    bins = {"num_bins": 4} if algorithm in ("first_fit", "best_fit") else {}
    return PackFlat(**{"algorithm": algorithm, "pad_token_id": PAD, **bins, **settings})


def documents(
    lengths: Sequence[int], *, first: int = 0, mask: bool = False, components: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Documents whose tokens are all different: document d has d*1000, d*1000+1, .."""
    tokens = [[(first + i) * 1000 + t for t in range(n)] for i, n in enumerate(lengths)]
    size = len(lengths)
    columns: dict[str, Any] = {groups.TOKENS: pa.array(tokens, type=pa.list_(pa.int32()))}
    if mask:
        columns[groups.LOSS_MASK] = pa.array([[t % 2 for t in doc] for doc in tokens], type=pa.list_(pa.uint8()))
    columns[groups.COMPONENT] = pa.array(components or [i % 3 for i in range(size)], type=pa.int32())
    columns[groups.PASS] = pa.array([0] * size, type=pa.int64())
    columns[groups.SHARD] = pa.array([5] * size, type=pa.int32())
    columns[groups.ROW] = pa.array(range(first, first + size), type=pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def run(operator: PackFlat, given: Sequence[pa.RecordBatch]) -> tuple[list[dict[str, Any]], list[Drops]]:
    """(packed rows, drops)."""
    accumulator, gather = operator.accumulator(WINDOW), operator.bind()
    decisions = [d for number, g in enumerate(given) for d in accumulator.add(g, number)] + list(accumulator.flush())
    return [row for d in decisions for row in gather(d.rows, d.sources).to_pylist()], [d.drops for d in decisions]


def split_groups(lengths: Sequence[int], size: int, **settings: Any) -> list[pa.RecordBatch]:
    return [documents(lengths[i : i + size], first=i, **settings) for i in range(0, len(lengths), size)]


def lost(drops: Sequence[Drops]) -> dict[str, int]:
    """Tokens by reason."""
    sums: dict[str, int] = {}
    for one in drops:
        for reason, tokens in one.tokens.items():
            sums[reason] = sums.get(reason, 0) + sum(tokens.values())
    return sums


LENGTHS = st.integers(1, 20).flatmap(
    lambda capacity: st.tuples(
        st.just(capacity),
        st.lists(
            st.sampled_from([0, 1, capacity - 1, capacity, capacity + 1, 2 * capacity + 1, 9 * capacity, 3, 7]), max_size=60
        ),
    )
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=LENGTHS, size=st.integers(1, 20), mask=st.booleans(), limit=st.one_of(st.none(), st.integers(1, 4)))
def test_every_token_and_its_mask_come_out_once_where_the_row_says(
    algorithm: str, case: tuple[int, list[int]], size: int, mask: bool, limit: int | None
) -> None:
    capacity, lengths = case
    rows, drops = run(pack_flat(algorithm, max_length=capacity, max_documents=limit), split_groups(lengths, size, mask=mask))
    seen = []
    for row in rows:
        assert len(row["input_ids"]) == capacity == sum(row["document_lengths"]) + row["padding_length"]
        assert row["input_ids"][capacity - row["padding_length"] :] == [PAD] * row["padding_length"]
        at = 0
        for length, document, start, component in zip(
            row["document_lengths"], row["_document_row"], row["_document_start"], row["_document_component"], strict=True
        ):
            piece = row["input_ids"][at : at + length]
            assert piece == [document * 1000 + start + t for t in range(length)]
            assert component == (document % size) % 3
            seen += piece
            at += length
        if mask:
            assert row["loss_mask"] == [0 if t == PAD else t % 2 for t in row["input_ids"]]
    assert sorted(seen) == [d * 1000 + t for d, n in enumerate(lengths) for t in range(n)]
    assert sum(len(d.rows.get("empty", ())) for d in drops) == lengths.count(0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("homogeneity", ["none", "full"])
@given(case=LENGTHS, size=st.integers(1, 20))
def test_it_does_not_matter_how_documents_come_in_groups(
    algorithm: str, homogeneity: Any, case: tuple[int, list[int]], size: int
) -> None:
    capacity, lengths = case
    operator = pack_flat(algorithm, max_length=capacity, homogeneity=homogeneity)
    whole = documents(lengths)
    parts = [whole.slice(i, size) for i in range(0, len(lengths), size)]
    assert run(operator, [whole])[0] == run(operator, parts)[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=LENGTHS, policy=st.sampled_from(["truncate", "drop"]))
def test_over_long_documents_are_cut_or_dropped_and_counted(algorithm: str, case: tuple[int, list[int]], policy: Any) -> None:
    capacity, lengths = case
    rows, drops = run(pack_flat(algorithm, max_length=capacity, over_long=policy), split_groups(lengths, 7))
    kept = sum(sum(row["document_lengths"]) for row in rows)
    over = [n for n in lengths if n > capacity]
    expected = sum(over) - (capacity * len(over) if policy == "truncate" else 0)
    assert lost(drops) == ({"truncated" if policy == "truncate" else "over-long": expected} if expected else {})
    assert kept + expected == sum(lengths)
    assert sum(len(d.rows.get("over-long", ())) for d in drops) == (len(over) if policy == "drop" else 0)


@given(case=LENGTHS, shortest=st.integers(0, 20))
def test_short_sequences_are_dropped_and_their_tokens_counted(case: tuple[int, list[int]], shortest: int) -> None:
    capacity, lengths = case
    shortest = min(shortest, capacity)
    rows, drops = run(pack_flat(max_length=capacity, min_sequence_length=shortest), split_groups(lengths, 7))
    assert all(sum(row["document_lengths"]) >= shortest for row in rows)
    assert sum(sum(row["document_lengths"]) for row in rows) + lost(drops).get("short sequence", 0) == sum(lengths)


def test_full_homogeneity_keeps_data_sets_apart() -> None:
    rows, _ = run(pack_flat("best_fit_wrap", max_length=10, homogeneity="full"), split_groups([4, 7, 3, 12, 5, 1] * 5, 4))
    assert all(len(set(row["_document_component"])) == 1 for row in rows)


def test_group_homogeneity_keeps_groups_of_data_sets_apart() -> None:
    operator = pack_flat(max_length=10, homogeneity="group", groups={"a": ["x", "z"], "b": ["y"]}, component_groups=(0, 1, 0))
    rows, _ = run(operator, split_groups([4, 7, 3, 12, 5, 1] * 5, 6))
    kinds = {frozenset(row["_document_component"]) for row in rows}
    assert frozenset({0, 2}) in kinds
    assert all(kind in ({1}, {0}, {2}, {0, 2}) for kind in kinds)


def test_a_row_may_go_on_with_a_document_and_says_so() -> None:
    """Case 119: a continued document, a padded tail, a document exactly as long as the sequence."""
    rows, _ = run(pack_flat(max_length=6), [documents([6, 8, 2])])
    assert [row["document_lengths"] for row in rows] == [[6], [6], [2, 2]]
    assert [row["_document_start"] for row in rows] == [[0], [0], [6, 0]]
    assert [row["padding_length"] for row in rows] == [0, 0, 2]


def test_documents_without_tokens_make_no_sequence() -> None:
    """Case 107: alone, in a row, all of them."""
    rows, drops = run(pack_flat(max_length=6), [documents([0]), documents([0, 0, 0])])
    assert rows == []
    assert [d.rows["empty"].tolist() for d in drops if d.rows] == [[0], [0, 1, 2]]


def test_documents_of_which_none_has_a_token_have_no_type_of_tokens() -> None:
    """A file of JSON in which every list is empty doesn't say what they are lists of."""
    table = pa.table({"input_ids": pa.array([[], []], pa.list_(pa.null()))})
    source = StaticMixtureWorkSource(Dataset.from_records("d", table), stop_after_passes=1)
    pipeline = Pipeline(source).then(pack_flat(max_length=4)).batch(1).options(lanes=1, runner="inline")
    assert list(pipeline) == []
    assert pipeline.accounting()["rows"]["dropped"] == {"pack_flat: empty": 2}


def test_a_document_without_a_loss_mask_trains_on_all_its_tokens() -> None:
    masked, bare = documents([3], mask=True), documents([3], first=1)
    rows, _ = run(pack_flat(max_length=6), [masked, bare])
    assert rows[0]["loss_mask"] == [0, 1, 0, 1, 1, 1]


def test_a_row_whose_documents_have_no_loss_mask_has_none() -> None:
    rows, _ = run(pack_flat(max_length=3), [documents([3], mask=True), documents([3], first=1)])
    assert [row.get("loss_mask") for row in rows] == [[0, 1, 0], None]


def test_a_null_loss_mask_is_one_that_is_missing() -> None:
    group = documents([3, 3])
    group = group.append_column("loss_mask", pa.array([[0, 0, 1], None], type=pa.list_(pa.uint8())))
    rows, _ = run(pack_flat(max_length=6), [group])
    assert rows[0]["loss_mask"] == [0, 0, 1, 1, 1, 1]


def test_other_token_columns_come_along() -> None:
    group = documents([3, 2]).append_column("token_type_ids", pa.array([[1, 2, 3], [4, 5]], type=pa.list_(pa.int16())))
    rows, _ = run(pack_flat(max_length=6, token_columns=("token_type_ids",)), [group])
    assert rows[0]["token_type_ids"] == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.uint16()), pa.large_list(pa.int32()), pa.list_(pa.int8())]
)
def test_any_integer_lists_become_int32(kind: pa.DataType) -> None:
    group = groups.set_column(documents([3, 2]), groups.TOKENS, pa.array([[1, 2, 3], [4, 5]], type=kind))
    operator = pack_flat(max_length=6)
    made = check_operator(operator, [group])
    assert made[0].schema.field("input_ids").type == pa.list_(pa.int32())
    assert made[0].to_pydict()["input_ids"] == [[1, 2, 3, 4, 5, PAD]]


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**40])
def test_an_id_that_int32_cannot_hold_is_an_error(token: int) -> None:
    group = groups.set_column(documents([1]), groups.TOKENS, pa.array([[token]], type=pa.list_(pa.int64())))
    with pytest.raises(DataError, match=str(token)):
        run(pack_flat(max_length=1), [group])


def test_a_loss_mask_of_another_length_is_an_error_that_names_the_row() -> None:
    group = documents([3, 2], first=40).append_column("loss_mask", pa.array([[1, 1, 1], [1]], type=pa.list_(pa.uint8())))
    with pytest.raises(DataError, match="1 values for 2 tokens") as failure:
        run(pack_flat(max_length=6), [group])
    assert failure.value.where.row == 41


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_groups_are_let_go_when_nothing_of_them_is_left(algorithm: str) -> None:
    accumulator = pack_flat(algorithm, max_length=100).accumulator(WINDOW)
    for number in range(300):
        list(accumulator.add(documents([100, 50, 50], first=number), number))
    # 300 groups of 200 tokens were 240 kB; notes on documents grow with the window (28 bytes each), not with the tokens
    assert accumulator.nbytes < 120_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, "max_length"),
        ({"max_length": 8, "algorithm": "warp"}, "did you mean 'wrap'"),
        ({"max_length": 8, "algorithm": "best_fit"}, "num_bins"),
        ({"max_length": 8, "num_bins": 3}, "takes no num_bins"),
        ({"max_length": 8, "max_documents": 0}, "max_documents"),
        ({"max_length": 8, "min_sequence_length": 9}, "min_sequence_length"),
        ({"max_length": 8, "homogeneity": "group"}, "groups"),
        ({"max_length": 8, "groups": {"a": ["x"]}}, "groups"),
        ({"max_length": 8, "pad_token_id": -1}, "pad_token_id"),
    ],
)
def test_wrong_settings_are_refused_when_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        PackFlat(**settings)


def test_the_pad_token_must_be_known_where_padding_can_happen() -> None:
    with pytest.raises(RecipeError, match="pad token"):
        PackFlat(max_length=8).accumulator(WINDOW)
    PackFlat(max_length=8, min_sequence_length=8).accumulator(WINDOW)


def test_tokens_are_needed_and_must_be_lists_of_integers() -> None:
    with pytest.raises(RecipeError, match="tokenize before packing"):
        pack_flat(max_length=8).output_schema(pa.schema([pa.field("text", pa.string())]))
    with pytest.raises(RecipeError, match="lists of integers"):
        pack_flat(max_length=8).output_schema(pa.schema([pa.field("input_ids", pa.list_(pa.float32()))]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("homogeneity", ["none", "full"])
def test_pack_flat_conforms(algorithm: str, homogeneity: Any) -> None:
    lengths = [0, 1, 15, 16, 17, 33, 160, 3, 7, 0, 0, 9, 4, 4, 12, 40, 2, 2]
    given = [documents(lengths[i : i + 5], first=i, mask=True) for i in range(0, 20, 5)]
    given.insert(2, given[0].slice(0, 0))
    given.append(
        documents([5] * 50).append_column("loss_mask", pa.array([[1] * 5] * 50, type=pa.list_(pa.uint8()))).slice(7, 30)
    )
    given = [groups.select(g, given[0].schema.names) for g in given]
    check_operator(pack_flat(algorithm, max_length=16, homogeneity=homogeneity, max_documents=3), given)


@pytest.mark.parametrize("microbatch", [1, 4])
def test_an_empty_sequence_has_the_token_columns_of_the_others(microbatch: int) -> None:
    """Also where it is alone in its batch: which batch it falls into is a matter of ranks."""
    kinds = {"input_ids": pa.list_(pa.int32()), "loss_mask": pa.list_(pa.uint8()), "weight": pa.list_(pa.float32())}
    lists = ([5, 6, 7], [8, 9], [1, 2, 3, 4])
    table = pa.table(
        {name: pa.array([[1] * len(ids) if name != "input_ids" else ids for ids in lists], k) for name, k in kinds.items()}
    )
    source = StaticMixtureWorkSource(Dataset.from_records("d", table), chunk_size=1, stop_after_passes=1)
    pipeline = Pipeline(source).pack_flat(max_length=4, pad_token_id=0, token_columns=("loss_mask", "weight"))
    batches = list(pipeline.batch(microbatch, 4).options(lanes=1, runner="inline"))
    assert sum(batch.empty for batch in batches) == 1
    assert batches[-1].to_pydict()["weight"][-1] == [0.0] * 4
    assert batches[-1].to_pydict()["loss_mask"][-1] == [0] * 4
    assert all(set(batch.to_training()) == set(batches[0].to_training()) for batch in batches)


def test_an_operator_that_makes_two_rows_of_one_makes_no_batch_too_large_of_an_empty_sequence() -> None:
    table = pa.table({"input_ids": pa.array([[5, 6, 7], [8, 9], [1, 2, 3, 4]], pa.list_(pa.int32()))})
    source = StaticMixtureWorkSource(Dataset.from_records("d", table), stop_after_passes=1)
    pipeline = Pipeline(source).pack_flat(max_length=4, pad_token_id=0).map(lambda record: [record, dict(record)])
    batches = list(pipeline.batch(4, 4).options(lanes=1, runner="inline"))
    assert [(len(batch), batch.empty) for batch in batches] == [(4, 0), (4, 2)]
    assert batches[1].to_pydict()["padding_length"] == [3, 3, 4, 4]


def test_the_empty_row_is_padding_only() -> None:
    row = pack_flat(max_length=4).empty_row(None).to_pylist()[0]
    assert row["input_ids"] == [PAD] * 4
    assert row["padding_length"] == 4
    assert row["document_lengths"] == []

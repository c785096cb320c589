"""`to_training` against an oracle that goes token by token, and what it promises besides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from batch.oracle import Drawn, expected, packed
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import groups
from zephon.batch import Batch
from zephon.errors import DataError, RecipeError

OURS = {"input_ids", "labels", "loss_mask", "position_ids", "document_ids", "cu_seqlens", "max_seqlen", "num_label_tokens"}
EXTRA = {"padding_mask", "num_valid_tokens"}
DTYPES = {
    "input_ids": "int64",
    "labels": "int64",
    "position_ids": "int64",
    "positions": "int64",
    "loss_mask": "float32",
    "document_ids": "int32",
    "cu_seqlens": "int32",
    "max_seqlen": "int32",
    "padding_mask": "bool",
}


def batch_of(**columns: Any) -> Batch:
    return Batch(pa.RecordBatch.from_pydict(columns), lane=0, step=0, index=0)


def tokens(*rows: list[int] | None) -> pa.Array:
    return pa.array(rows, pa.list_(pa.int32()))


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


keywords = st.fixed_dictionaries(
    {},
    optional={
        "flatten": st.booleans(),
        "cross_documents": st.booleans(),
        "ignore_index": st.sampled_from([-100, -1, 0, 3]),
        "position_mode": st.sampled_from(["sample", "sequence"]),
        "eos_mask_loss": st.booleans(),
    },
)


@settings(max_examples=examples(250), deadline=None)
@given(packed(), keywords, st.sampled_from(["auto", np.int64, torch.int64, None, torch.int32]))
def test_every_field_is_what_a_loop_over_the_tokens_gives(drawn: Drawn, options: dict[str, Any], dtype: Any) -> None:
    options["eos_token_id"] = 2
    got = drawn.batch.to_training(dtype=dtype, return_padding_mask=True, return_num_valid_tokens=True, **options)

    want = expected(drawn.rows, options)
    assert set(got) == OURS | EXTRA | {"positions"} == set(want)
    for name, value in want.items():
        shape = np.shape(got[name])
        assert plain(got[name]) == value, name
        if dtype is not None and name not in ("num_label_tokens", "num_valid_tokens") and shape:
            kind = "int32" if dtype is torch.int32 and DTYPES[name] == "int64" else DTYPES[name]
            assert str(got[name].dtype).removeprefix("torch.") == kind
            assert isinstance(got[name], np.ndarray if dtype is np.int64 else torch.Tensor)
    assert type(got["num_label_tokens"]) is int
    assert isinstance(got["max_seqlen"], int) == bool(options.get("flatten"))


@settings(max_examples=examples(100), deadline=None)
@given(packed(), st.booleans())
def test_segments_fill_each_row_and_document_ids_are_their_numbers(drawn: Drawn, flatten: bool) -> None:
    got = drawn.batch.to_training(dtype=np.int64, flatten=flatten)
    borders, ids = np.atleast_2d(got["cu_seqlens"]), np.atleast_2d(got["document_ids"])
    for cu, row in zip(borders, ids, strict=True):
        lengths = np.diff(cu)
        assert lengths.sum() == len(row)  # case 119
        assert np.repeat(np.arange(len(lengths)), lengths).tolist() == row.tolist()


def test_the_worked_example_of_two_rows_with_documents_of_3_3_and_4_2_tokens() -> None:
    batch = batch_of(
        input_ids=tokens([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]),
        document_lengths=tokens([3, 3], [4, 2]),
        padding_length=pa.array([0, 0], pa.int32()),
    )
    got = batch.to_training()
    assert got["cu_seqlens"].tolist() == [[0, 3, 5], [0, 4, 5]]
    assert got["max_seqlen"].tolist() == [3, 4]
    assert got["labels"].tolist() == [[2, 3, -100, 5, 6], [8, 9, 10, -100, 12]]
    flat = batch.to_training(flatten=True)
    assert flat["cu_seqlens"].tolist() == [0, 3, 5, 9, 10]
    assert flat["max_seqlen"] == 4


@pytest.mark.parametrize("name", ["positions", "position_ids"])
def test_borders_come_from_positions_where_there_are_no_lengths(name: str) -> None:
    """Case 119: a row that begins inside a document, and documents of one token."""
    batch = batch_of(
        input_ids=tokens([1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]), **{name: tokens([5, 6, 0, 0, 1, 2], [0, 1, 2, 0, 1, 2])}
    )
    got = batch.to_training()
    assert got["position_ids"].tolist() == got["positions"].tolist() == [[5, 6, 0, 0, 1], [0, 1, 2, 0, 1]]
    assert got["document_ids"].tolist() == [[0, 0, 1, 2, 2], [0, 0, 0, 1, 1]]
    assert got["cu_seqlens"].tolist() == [[0, 2, 3, 5], [0, 3, 5, 5]]
    assert batch.to_training(position_mode="sequence")["positions"].tolist() == [[0, 1, 2, 3, 4]] * 2


def test_padding_is_one_segment_even_if_its_positions_look_like_new_documents() -> None:
    batch = batch_of(
        input_ids=tokens([1, 2, 3, 0, 0, 0]), positions=tokens([0, 1, 2, 0, 0, 0]), padding_length=pa.array([3], pa.int32())
    )
    assert batch.to_training()["cu_seqlens"].tolist() == [[0, 3, 5]]


def test_ragged_rows_are_padded_to_the_longest() -> None:
    batch = batch_of(
        input_ids=tokens([1, 2, 3, 4], [5, 6], []), loss_mask=pa.array([[1, 1, 0, 1], None, []], pa.list_(pa.uint8()))
    )
    got = batch.to_training(pad_token_id=9, return_padding_mask=True)
    assert got["input_ids"].tolist() == [[1, 2, 3], [5, 6, 9], [9, 9, 9]]
    assert got["labels"].tolist() == [[2, -100, 4], [6, -100, -100], [-100] * 3]
    assert got["position_ids"].tolist() == [[0, 1, 2], [0, 1, 0], [0, 1, 2]]
    assert got["padding_mask"].tolist() == [[False] * 3, [False, False, True], [True] * 3]
    assert got["cu_seqlens"].tolist() == [[0, 3, 3], [0, 2, 3], [0, 3, 3]]
    assert got["num_label_tokens"] == 3


def test_ragged_rows_with_positions_go_on_counting_from_0_in_the_padding() -> None:
    got = batch_of(input_ids=tokens([1, 2, 3, 4], [5]), positions=tokens([3, 4, 0, 1], [6])).to_training(pad_token_id=0)
    assert got["positions"].tolist() == [[3, 4, 0], [6, 0, 1]]
    assert got["cu_seqlens"].tolist() == [[0, 2, 3], [0, 1, 3]]


def test_ragged_rows_without_a_pad_token_are_refused_with_a_hint() -> None:
    batch = batch_of(input_ids=tokens([1, 2, 3], [4]))
    with pytest.raises(RecipeError, match=r"rows of 1 to 3 tokens(.|\n)*pad_token_id"):
        batch.to_training()
    known = Batch(batch.group, lane=0, step=0, index=0, defaults={"pad_token_id": 7})
    assert known.to_training()["input_ids"].tolist() == [[1, 2], [4, 7]]


def test_eos_comes_from_the_recipe_or_the_call_and_there_may_be_several() -> None:
    group = batch_of(input_ids=tokens([1, 2, 3, 4, 5])).group
    batch = Batch(group, lane=0, step=0, index=0, defaults={"eos_token_id": 2, "pad_token_id": None})
    assert batch.to_training(eos_mask_loss=True)["labels"].tolist() == [[2, -100, 4, 5]]
    assert batch.to_training(eos_mask_loss=True, eos_token_id=[1, 4])["labels"].tolist() == [[-100, 3, 4, -100]]
    with pytest.raises(ValueError, match="eos_token_id"):
        Batch(group, lane=0, step=0, index=0).to_training(eos_mask_loss=True)


@settings(max_examples=examples(60), deadline=None)
@given(packed(), st.sampled_from(["auto", np.int32, np.int64]))
def test_arrays_are_writable_and_share_no_memory_with_the_batch(drawn: Drawn, dtype: Any) -> None:
    """Case 77; int32 is the type that the tokens are stored in."""
    before = drawn.batch.sha256(), drawn.batch.to_pydict()
    names = set()
    for name, value in drawn.batch.to_training(dtype=dtype, return_padding_mask=True).items():
        if not isinstance(value, int):
            value[...] = 1
            names.add(name)
    assert names == (OURS | {"positions", "padding_mask"}) - {"num_label_tokens"}
    assert (drawn.batch.sha256(), drawn.batch.to_pydict()) == before


def test_fields_are_left_out_on_request() -> None:
    batch = batch_of(input_ids=tokens([1, 2, 3]), name=["a"])
    assert set(batch.to_training()) == OURS | {"positions", "name"}
    got = batch.to_training(
        return_labels=False,
        return_loss_mask=False,
        return_cu_seqlens=False,
        exclude_fields=("positions", "name", "ids", "nothing"),
    )
    assert set(got) == {"input_ids", "position_ids", "document_ids", "num_label_tokens"}


def test_rename_happens_before_exclude() -> None:
    batch = batch_of(input_ids=tokens([1, 2, 3]), other=[1])
    got = batch.to_training(rename_fields={"input_ids": "input", "other": "gone"}, exclude_fields=["gone", "input_ids"])
    assert got["input"].tolist() == [[1, 2]]
    assert {"gone", "other", "input_ids"}.isdisjoint(got)


def test_positions_may_be_renamed_to_position_ids_and_back() -> None:
    batch = batch_of(input_ids=tokens([1, 2, 3]))
    assert batch.to_training(rename_fields={"positions": "position_ids"})["position_ids"].tolist() == [[0, 1]]
    assert batch.to_training(rename_fields={"position_ids": "positions"})["positions"].tolist() == [[0, 1]]
    assert batch.to_training(rename_fields={"labels": "input_ids", "input_ids": "labels"})["labels"].tolist() == [[1, 2]]


@pytest.mark.parametrize("renames", [{"lables": "x"}, {"padding_mask": "x"}, {"labels": "input_ids"}])
def test_a_rename_that_makes_no_sense_is_a_value_error(renames: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="rename_fields"):
        batch_of(input_ids=tokens([1, 2, 3])).to_training(rename_fields=renames)


def test_a_bare_string_to_exclude_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"\['labels'\]"):
        batch_of(input_ids=tokens([1, 2])).to_training(exclude_fields="labels")


def test_an_unknown_keyword_suggests_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'ignore_index'"):
        batch_of(input_ids=tokens([1, 2])).to_training(ignore_idx=-1)
    with pytest.raises(ValueError, match="did you mean 'sequence'"):
        batch_of(input_ids=tokens([1, 2])).to_training(position_mode="sequences")


def test_tokens_may_be_in_another_column() -> None:
    batch = batch_of(ids_of_tokens=tokens([1, 2, 3]))
    assert batch.to_training(tokens_field="ids_of_tokens")["input_ids"].tolist() == [[1, 2]]
    renamed = batch.to_training("ids_of_tokens", rename_fields={"ids_of_tokens": "input"})
    assert renamed["input"].tolist() == [[1, 2]]
    with pytest.raises(DataError, match="ids_of_tokens"):
        batch.to_training()


def test_sample_ids_come_when_they_are_not_excluded() -> None:
    group = batch_of(input_ids=tokens([1, 2]), _component=pa.array([0], pa.int32()), _shard=[2], _row=[5]).group
    batch = Batch(group, lane=0, step=0, index=0, dataset_names=("wiki",))
    assert "ids" not in batch.to_training()
    assert batch.to_training(exclude_fields=())["ids"] == [("wiki", 2, 5)]


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (np.uint16, "-100 does not fit"),
        (np.int8, "300 does not fit"),
        (torch.float32, "integer"),
        ("int46", "not known"),
        (float, "integer"),
    ],
)
def test_a_dtype_that_cannot_hold_the_tokens_is_refused(dtype: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        batch_of(input_ids=tokens([1, 300, 3])).to_training(dtype=dtype)


def test_narrow_dtypes_are_fine_where_everything_fits() -> None:
    got = batch_of(input_ids=tokens([1, 300, 3])).to_training(dtype=np.uint16, ignore_index=65535)
    assert got["labels"].dtype == np.uint16
    assert batch_of(input_ids=tokens([1, 100, 3])).to_training(dtype=torch.int8)["labels"].tolist() == [[100, 3]]


def test_other_columns_become_tensors_where_they_are_regular_and_lists_where_not() -> None:
    batch = batch_of(
        input_ids=tokens([1, 2, 3], [4, 5, 6]),
        score=pa.array([0.5, 1.5], pa.float32()),
        flag=[True, False],
        half=pa.array([1, None]),
        text=["a", "b"],
        box=pa.array([[1, 2], [3, 4]], pa.list_(pa.int16())),
        ragged=pa.array([[1.0], [2.0, 3.0]]),
        grid=pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int64(), 2), 1)),
        words=[["x"], ["y", "z"]],
        attention_mask=pa.array([[1, 1, 1], [1, 1, 0]], pa.list_(pa.uint8())),
    )
    got = batch.to_training()
    assert got["score"].dtype == torch.float32
    assert got["flag"].tolist() == [True, False]
    assert got["half"] == [1, None]
    assert got["text"] == ["a", "b"]
    assert got["box"].dtype == torch.int16
    assert got["box"].tolist() == [[1, 2], [3, 4]]
    assert [part.tolist() for part in got["ragged"]] == [[1.0], [2.0, 3.0]]
    assert got["grid"].tolist() == [[[1, 2]], [[3, 4]]]
    assert got["words"] == [["x"], ["y", "z"]]
    assert got["attention_mask"].tolist() == [[1, 1], [1, 1]]
    assert batch.to_training(flatten=True)["attention_mask"].tolist() == [1, 1, 1, 1]
    for name in ("score", "flag", "box", "grid"):
        got[name][...] = 0
    assert batch.to_pydict()["box"] == [[1, 2], [3, 4]]
    assert batch.to_training(dtype=None)["box"] == [[1, 2], [3, 4]]


def test_columns_that_the_packer_carried_are_cut_as_the_inputs() -> None:
    group = batch_of(input_ids=tokens([1, 2, 3]), weight=pa.array([[0.5, 1.0, 2.0]]), kind=tokens([7, 8, 9])).group
    got = Batch(group, lane=0, step=0, index=0, defaults={"token_columns": ("weight", "kind")}).to_training(dtype=torch.int32)
    assert got["weight"].tolist() == [[0.5, 1.0]]
    assert got["kind"].dtype == torch.int32
    assert got["kind"].tolist() == [[7, 8]]


def test_other_columns_of_a_slice_and_of_no_rows() -> None:
    whole = batch_of(input_ids=tokens([1, 2], [3, 4], [5, 6]), box=[[1, 2], [3, 4], [5, 6]], ragged=[[1], [2, 3], [4]])
    part = Batch(whole.group.slice(1, 2), lane=0, step=0, index=0).to_training()
    assert part["box"].tolist() == [[3, 4], [5, 6]]
    assert [r.tolist() for r in part["ragged"]] == [[2, 3], [4]]
    none = Batch(whole.group.slice(1, 0), lane=0, step=0, index=0).to_training()
    assert none["input_ids"].shape == none["labels"].shape == (0, 0)
    assert none["num_label_tokens"] == 0


def test_an_image_tensor_column_keeps_its_shape() -> None:
    images = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    batch = batch_of(input_ids=tokens([1, 2], [3, 4]), image=pa.FixedShapeTensorArray.from_numpy_ndarray(images))
    got = batch.to_training()["image"]
    assert got.dtype == torch.uint8
    assert got.tolist() == images.tolist()


def test_a_column_with_the_name_of_one_of_our_fields_is_refused() -> None:
    batch = batch_of(input_ids=tokens([1, 2, 3]), labels=tokens([1, 2, 3]))
    with pytest.raises(RecipeError, match="'labels' has the name"):
        batch.to_training()
    assert batch.to_training(return_labels=False)["labels"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (groups.LENGTHS, [[2, 2], [3]]),
        (groups.LENGTHS, [[3], [4]]),
        (groups.LOSS_MASK, [[1, 1, 1], [1, 1]]),
        ("positions", [[0], [0, 1, 2]]),
    ],
)
def test_columns_that_contradict_the_tokens_are_an_error_that_names_the_row(column: str, values: list[list[int]]) -> None:
    with pytest.raises(DataError, match=r"row [01] of a batch"):
        batch_of(input_ids=tokens([1, 2, 3], [4, 5, 6]), **{column: tokens(*values)}).to_training()


def test_empty_sequences_train_on_nothing_whatever_their_tokens_are() -> None:
    group = batch_of(input_ids=tokens([1, 2, 3], [4, 5, 6]), document_lengths=tokens([3], [1, 2])).group
    got = Batch(group, lane=0, step=0, index=0, empty=1).to_training(return_padding_mask=True)
    assert got["labels"].tolist() == [[2, 3], [-100, -100]]
    assert got["loss_mask"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert got["padding_mask"].tolist() == [[False, False], [True, True]]
    assert got["cu_seqlens"].tolist() == [[0, 2], [0, 2]]
    assert got["num_label_tokens"] == 2


def test_label_counts_of_unequal_microbatches_add_up() -> None:
    """Case 109: 10 and 1,000 label tokens."""
    counts = [batch_of(input_ids=tokens([1] * (n + 1))).to_training()["num_label_tokens"] for n in (10, 1000)]
    assert counts == [10, 1000]

"""`to_training(shift=False)`: inputs and labels of one length, against the shifted ones and loops over segments."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from batch.oracle import Drawn, packed
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.batch import Batch

keywords = st.fixed_dictionaries(
    {},
    optional={
        "cross_documents": st.booleans(),
        "ignore_index": st.sampled_from([-100, 0, 3]),
        "position_mode": st.sampled_from(["sample", "sequence"]),
        "eos_mask_loss": st.booleans(),
    },
)


@settings(max_examples=examples(150), deadline=None)
@given(packed(), keywords)
def test_the_same_labels_stand_where_their_tokens_are(drawn: Drawn, options: dict[str, Any]) -> None:
    options["eos_token_id"] = 2
    shifted = drawn.batch.to_training(dtype=np.int64, **options)
    whole = drawn.batch.to_training(dtype=np.int64, shift=False, return_padding_mask=True, **options)
    ignored = options.get("ignore_index", -100)
    rows = len(drawn.rows) if whole["labels"].size else 0
    assert whole["input_ids"].tolist() == [row.tokens for row in drawn.rows]
    for name in ("labels", "loss_mask"):
        assert whole[name].shape == whole["input_ids"].shape
        assert whole[name][:, 1:].tolist() == shifted[name].tolist()
    assert whole["labels"][:, :1].ravel().tolist() == [ignored] * rows
    assert not whole["loss_mask"][:, :1].any()
    assert whole["num_label_tokens"] == shifted["num_label_tokens"]
    assert whole["position_ids"][:, :-1].tolist() == shifted["position_ids"].tolist()


@settings(max_examples=examples(100), deadline=None)
@given(packed(), st.booleans())
def test_the_first_label_of_every_document_is_ignored_and_segments_reach_to_the_end(drawn: Drawn, flatten: bool) -> None:
    got = drawn.batch.to_training(dtype=np.int64, shift=False, flatten=flatten, return_padding_mask=True)
    width = len(drawn.rows[0].tokens) if drawn.rows else 1
    labels, positions = got["labels"].reshape(-1, width), got["position_ids"].reshape(-1, width)
    ids, padded = got["document_ids"].reshape(-1, width), got["padding_mask"].reshape(-1, width)
    first = 0
    for i, row in enumerate(drawn.rows):
        lengths = [] if row.empty else [p.length for p in row.pieces]
        assert padded[i].tolist() == [t >= sum(lengths) for t in range(width)]
        lengths += [width - sum(lengths)] if sum(lengths) < width else []
        borders = [0, *accumulate(lengths)]
        assert (labels[i, borders[:-1]] == -100).all()
        assert positions[i].tolist() == [t for n in lengths for t in range(n)]
        assert ids[i].tolist() == [first + d for d, n in enumerate(lengths) for _ in range(n)]
        if not flatten:
            cu = got["cu_seqlens"][i].tolist()
            assert cu == borders + [width] * (len(cu) - len(borders))
        first += len(lengths) if flatten else 0


@pytest.mark.parametrize("width", [0, 1])
def test_rows_of_no_and_of_one_token(width: int) -> None:
    group = pa.RecordBatch.from_pydict({"input_ids": pa.array([[7] * width] * 2, pa.list_(pa.int32()))})
    got = Batch(group, lane=0, step=0, index=0).to_training(dtype=np.int64, shift=False)
    assert got["input_ids"].tolist() == [[7] * width] * 2
    assert got["labels"].tolist() == [[-100] * width] * 2
    assert got["num_label_tokens"] == 0

"""Operators that take part in `to_training`, written as another package would write them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from zephon import Dataset, Pipeline
from zephon.operators.pack import PackFlat
from zephon.plugin import Collates, Collation, Fields, Operator


@dataclass(frozen=True, kw_only=True)
class Lengthy(Operator):
    """Says how long rows are, times a factor that the caller may choose; hides a column; numbers what was there before."""

    name: ClassVar[str] = "lengthy"
    keeps_rows: ClassVar[bool] = True
    field: str = "sizes"

    def bind(self) -> Callable[..., Any]:
        return lambda group: group

    def training_options(self) -> Mapping[str, Any]:
        return {"factor": 1, "unit": None if self.field == "sizes" else self.field, "shift": False}

    def collate(self, batch: Collation, fields: Fields) -> Fields:
        made = {name: make for name, make in fields.items() if name != "padding_length"}
        factor, unit = batch.options["factor"], batch.options["unit"]
        made[self.field] = lambda: batch.finish(np.full(len(batch.inputs), batch.inputs.shape[1] * factor))
        made[f"before_{self.field}"] = lambda: (sorted(fields), unit, batch.shift, batch.flatten, batch.segments.sum())
        return made


def pipeline(*steps: Operator) -> Pipeline:
    rows = pa.table({"input_ids": pa.array([[i + 1] * (i % 5 + 1) for i in range(40)], pa.list_(pa.int32()))})
    made = Pipeline(Dataset.from_records("a", rows)).then(PackFlat(max_length=8, pad_token_id=0))
    for step in steps:
        made.then(step)
    return made.batch(2)


def test_an_operator_adds_replaces_and_hides_fields() -> None:
    batch = next(iter(pipeline(Lengthy())))
    got = batch.to_training(dtype=np.int64, factor=3, flatten=True)
    assert got["sizes"].tolist() == [24, 24]
    before, unit, shift, flatten, total = got["before_sizes"]
    assert {"input_ids", "labels", "ids"} <= set(before)
    assert (unit, shift, flatten, total) == (None, False, True, 16)
    assert batch.to_training(dtype=None, exclude_fields=["before_sizes"], rename_fields={"sizes": "s"})["s"] == [8, 8]


def test_operators_take_part_in_order_and_share_their_keywords() -> None:
    batch = next(iter(pipeline(Lengthy(), Lengthy(field="other"))))
    got = batch.to_training(shift=True)
    assert got["other"].tolist() == [7, 7]
    assert "sizes" in got["before_other"][0]
    assert got["before_sizes"][1] == got["before_other"][1] == "other"
    assert got["before_sizes"][2] is True


def test_shift_is_off_by_default_only_where_an_operator_wants_it() -> None:
    assert next(iter(pipeline())).to_training(dtype=np.int64)["input_ids"].shape == (2, 7)
    assert next(iter(pipeline(Lengthy()))).to_training(dtype=np.int64)["input_ids"].shape == (2, 8)


def test_keywords_that_no_operator_declared_are_unknown() -> None:
    with pytest.raises(TypeError, match="factr"):
        next(iter(pipeline(Lengthy()))).to_training(factr=2)
    with pytest.raises(TypeError, match="factor"):
        next(iter(pipeline())).to_training(factor=2)


def test_a_batch_takes_them_along_when_it_is_pickled() -> None:
    batch = next(iter(pipeline(Lengthy())))
    assert pickle.loads(pickle.dumps(batch)).to_training(dtype=None) == batch.to_training(dtype=None)


def test_operators_without_these_methods_take_no_part() -> None:
    assert not isinstance(PackFlat(max_length=8), Collates)
    assert isinstance(Lengthy(), Collates)

"""What a reader of somebody else's gives is looked at: wrong counts and missing columns are its error, and no row is lost for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import PluginError
from zephon.memory import _OpenTable
from zephon.plugin import Units

ROWS = pa.table({"x": list(range(20))})


@pytest.mark.parametrize(
    "units",
    [
        None,
        Units(np.array([10.5, 9.5]), np.array([1.0, 1.0])),  # type: ignore[arg-type]
        Units(np.array([-5, 25]), np.array([1, 1])),
        Units(np.array([20]), np.array([1, 1])),
        Units(np.array(20), np.array(1)),
        Units([["20"]], [[1]]),  # type: ignore[arg-type]
    ],
)
def test_units_that_are_none_are_refused_with_the_file(units: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_OpenTable, "units", lambda _: units)
    with pytest.raises(PluginError, match=r"units\(\) gave .* it must give Units(.|\n)*dataset 'd', shard '"):
        len(Dataset.from_records("d", ROWS))


def test_lists_of_whole_numbers_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_OpenTable, "units", lambda _: Units([12, 8], [100, 100]))  # type: ignore[arg-type]
    assert len(Dataset.from_records("d", ROWS)) == 20


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (ROWS, "gave ChunkedArray; it must give record batches"),
        ([ROWS], "gave Table; it must give record batches"),
        ([ROWS.rename_columns(["y"]).to_batches()[0]], "gave no column 'x'"),
    ],
)
def test_what_is_read_must_be_groups_with_the_columns(made: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_OpenTable, "read", lambda *_: made)
    source = StaticMixtureWorkSource(Dataset.from_records("d", ROWS), stop_after_passes=1)
    with pytest.raises(PluginError, match=words) as caught:
        list(Pipeline(source).batch(4).options(runner="inline", on_error="skip"))
    assert caught.value.where.dataset == "d"

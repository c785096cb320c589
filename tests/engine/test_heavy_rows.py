"""Operators whose rows are heavy (`max_rows`): never many at once, and the first batch doesn't wait for a whole chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import CheckpointError
from zephon.plugin import Operator

SEEN: list[int] = []


@dataclass(frozen=True, kw_only=True)
class Heavy(Operator):
    """Notes how many rows it gets."""

    name: ClassVar[str] = "heavy"
    max_rows: ClassVar[int | None] = 4

    def inputs(self) -> tuple[str, ...]:
        return ("n",)

    def bind(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            SEEN.append(len(group))
            return group

        return apply


@dataclass(frozen=True, kw_only=True)
class Heavier(Heavy):
    """The same with another bound."""

    max_rows: ClassVar[int | None] = 8


def heavy(operator: Operator, runner: str = "inline") -> Pipeline:
    data = Dataset.from_records("data", [{"n": n} for n in range(400)])
    source = StaticMixtureWorkSource(data, seed=3, chunk_size=50, stop_after_passes=1)
    return Pipeline(source).then(operator).batch(4).options(lanes=2, runner=runner, workers=2)


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_stage_gets_no_more_rows_than_it_takes(runner: str) -> None:
    SEEN.clear()
    rows = sorted(n for batch in heavy(Heavy(), runner) for n in batch.group.column("n").to_pylist())
    assert rows == list(range(400))
    assert max(SEEN) == 4


def test_the_first_batch_does_not_wait_for_a_chunk() -> None:
    SEEN.clear()
    next(iter(heavy(Heavy())))
    assert sum(SEEN) < 50


def test_a_state_goes_on_inside_of_a_chunk_and_knows_the_parts() -> None:
    whole = [batch.group.column("n").to_pylist() for batch in heavy(Heavy())]
    begun = heavy(Heavy())
    batches = iter(begun)
    for _ in range(6):
        next(batches)
    state = begun.checkpoint()
    rest = heavy(Heavy(), "threads")
    rest.restore(state)
    assert [batch.group.column("n").to_pylist() for batch in rest] == whole[6:]
    with pytest.raises(CheckpointError, match="rows_at_once"):
        heavy(Heavier()).restore(state)

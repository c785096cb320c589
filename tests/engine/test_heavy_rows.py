"""Operators whose rows are heavy (`max_rows`): never many at once, and the first batch doesn't wait for a whole chunk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine.lane import Lane
from zephon.engine.stages import cut_levels
from zephon.engine.tasks import Supply
from zephon.errors import CheckpointError
from zephon.operators.basic import Map
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Operator
from zephon_vision.pack_multimodal import PackMultimodal

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


@dataclass(frozen=True, kw_only=True)
class Slow(Heavy):
    """Takes long for what reading gives in no time."""

    name: ClassVar[str] = "slow"

    def bind(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            time.sleep(0.002)
            return group

        return apply


def test_what_was_built_by_the_few_comes_by_the_few_after_a_selection() -> None:
    """Packs with their images are as heavy behind a shuffle as where they were packed."""
    packs: Operator = PackMultimodal(max_length=8192, pad_token_id=0)
    steps = [packs, Map(fn=lambda record: record), Shuffle(buffer_size=8), Heavy()]
    levels = cut_levels([(step, "raise") for step in steps])
    assert [level.stage.max_rows for level in levels] == [None, packs.max_rows, packs.max_rows]
    assert packs.max_rows == 2


def test_a_state_knows_the_parts_behind_an_accumulator() -> None:
    def shuffled(operator: Operator) -> Pipeline:
        data = Dataset.from_records("data", [{"n": n} for n in range(400)])
        source = StaticMixtureWorkSource(data, seed=3, chunk_size=50, stop_after_passes=1)
        return Pipeline(source).shuffle(buffer_size=60).then(operator).batch(4).options(lanes=2, runner="inline")

    begun = shuffled(Heavy())
    batches = iter(begun)
    for _ in range(6):
        next(batches)
    with pytest.raises(CheckpointError, match="rows_at_once"):
        shuffled(Heavier()).restore(begun.checkpoint())


def test_lanes_read_no_further_ahead_than_building_needs() -> None:
    data = Dataset.from_records("data", [{"n": n} for n in range(8000)])
    source = StaticMixtureWorkSource(data, seed=3, chunk_size=50)
    pipeline = Pipeline(source).then(Slow()).batch(4).options(lanes=2, runner="threads", workers=2)
    most = 0
    for number, _ in enumerate(pipeline):
        most = max(most, *(lane.decided for lane in pipeline._last.pump.lanes))  # type: ignore[union-attr]
        if number == 100:
            break
    # half a chunk, and the next one; a machine that stands still at a bad moment may double it. Memory alone has room for all 8,000 rows
    assert 0 < most <= 300


def test_a_lane_lasts_by_what_its_chunks_gave() -> None:
    supply = Supply()
    assert not supply.lasts(0, 1, least=2, times=1)
    supply.chunks = 4
    supply.came(0)
    assert not supply.lasts(0, 9, least=2, times=1)  # a shuffle fills: chunks alone don't count
    supply.came(40)
    assert supply.lasts(10, 1, least=2, times=1)
    assert not supply.lasts(9, 1, least=2, times=1)
    assert not supply.lasts(10, 1, least=2, times=2)


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_what_is_built_next_is_of_the_lane_with_the_fewest_sequences_begun(
    runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another lane's task has made room."""
    starts: list[tuple[int, list[int]]] = []
    start = Lane.start_waiting

    def noted(lane: Lane) -> None:
        starts.append((lane.begun, [rival.begun for rival in lanes() if rival.startable]))
        start(lane)

    def lanes() -> list[Lane]:
        return pipeline._last.pump.lanes  # type: ignore[union-attr]

    monkeypatch.setattr(Lane, "start_waiting", noted)
    rows = [{"n": n, "pad": bytes(20_000)} for n in range(400)]
    source = StaticMixtureWorkSource(Dataset.from_records("data", rows), seed=3, chunk_size=25, stop_after_passes=1)
    pipeline = Pipeline(source).shuffle(buffer_size=50).then(Slow()).batch(4)
    pipeline.options(lanes=4, runner=runner, workers=2, max_bytes=4 << 20, flush_every_chunks=2)
    assert sum(len(batch) for batch in pipeline) == 400
    assert all(begun == min(rivals) for begun, rivals in starts)
    assert any(len(set(rivals)) > 1 for _, rivals in starts), "there was nothing to choose"

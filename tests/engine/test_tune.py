"""`workers="auto"`: numbers that follow from measured times, settle, and change no byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine import tune
from zephon.engine.meter import Meter, Spent, Times
from zephon.engine.tune import Part, Tuner, ready_batches


def nap(record: dict[str, Any]) -> dict[str, Any]:
    """A user's function that waits for something."""
    time.sleep(0.002)
    return record


def napping(passes: int | None = 1, **options: Any) -> Pipeline:
    data = Dataset.from_records("numbers", [{"a": i} for i in range(700)])
    source = StaticMixtureWorkSource(data, chunk_size=6, stop_after_passes=passes)
    return Pipeline(source).map(nap).shuffle(buffer_size=20).batch(2).options(lanes=2, ranks_per_node=1, **options)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks twenty times as often, so that a test needn't take minutes."""
    monkeypatch.setattr(tune, "_LOOK_S", 0.05)


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_the_bytes_do_not_depend_on_it(impatient: None, runner: str) -> None:
    """Invariant 1, with more and more workers while the stream is read."""

    def stream(pipeline: Pipeline) -> list[Any]:
        return [(batch.lane_ids, batch.group.to_pydict()) for batch in pipeline]

    expected = napping(runner="inline")
    tuned = napping(runner=runner, workers="auto")
    assert stream(tuned) == stream(expected)
    assert tuned.checkpoint() == expected.checkpoint()
    assert tuned.stats()["time"]["workers"] >= tuned.stats()["time"]["cores"]


def test_work_that_waits_is_given_more_workers_than_cores(impatient: None) -> None:
    pipeline = napping(passes=None, workers="auto")
    end = time.monotonic() + 60  # where others use the cores, a step may not pay at first, and is tried again
    for number, _ in enumerate(pipeline):
        times = pipeline.stats()["time"] if number % 10 == 9 else {}
        if times and times["workers"] > times["cores"]:
            return
        assert time.monotonic() < end


class Machine:
    """A run whose pace follows from its sizes by a given law, as `Meter` would have measured it."""

    def __init__(self, pace: Callable[[int, int], float], *, cpu: float, cores: int = 4) -> None:
        self.parts = [
            Part("workers", cores, lambda size: None, lambda times: times.working),
            Part("reads", cores, lambda size: None, lambda times: times.reading),
        ]
        self._pace = pace
        self._cpu = cpu
        self.sizes: list[tuple[int, int]] = []
        self.held: list[int] = []
        self.tuner = Tuner(Meter(), self.parts, cores=cores, hold=self.held.append, most_ready=64)

    def spans(self, count: int, *, waited: float = 0.5, reading: float = 0.1) -> list[tuple[int, int]]:
        """Sizes after each of `count` spans of a second; workers are always busy, and use `cpu` of a core each."""
        for _ in range(count):
            workers, reads = (part.size for part in self.parts)
            work = Spent(workers * 1.0, workers * self._cpu, 50)
            batches = int(self._pace(workers, reads) * 100)
            self.tuner._judge(Times(1.0, waited, batches, Spent(reads * reading, 0.0, 50), {"map": work}, 0.0, 0.0))
            self.sizes.append((self.parts[0].size, self.parts[1].size))
        return self.sizes


def test_numbers_settle_where_more_is_no_quicker() -> None:
    """A service that answers ten at a time: ten workers are enough."""
    sizes = Machine(lambda workers, _: min(workers, 10), cpu=0.02).spans(200)
    assert 10 <= sizes[-1][0] <= 15
    assert sum(before != after for before, after in pairwise(sizes[20:])) <= 2 * 180 // tune._REST
    assert {reads for _, reads in sizes} == {4}


def test_work_that_holds_the_interpreters_lock_is_tried_once_and_put_back() -> None:
    sizes = Machine(lambda workers, _: 1.0, cpu=0.25).spans(20)
    assert sizes[0] == (6, 4)
    assert set(sizes[1:]) == {(4, 4)}


def test_cores_in_use_are_no_reason_for_more_threads() -> None:
    assert set(Machine(lambda workers, _: workers, cpu=1.0).spans(50)) == {(4, 4)}


def test_a_training_step_that_does_not_wait_changes_nothing() -> None:
    assert set(Machine(lambda workers, _: workers, cpu=0.02).spans(50, waited=0.01)) == {(4, 4)}


def test_reads_that_wait_are_grown_where_they_are_what_is_slow() -> None:
    machine = Machine(lambda _, reads: min(reads, 40), cpu=0.0)
    machine.parts[0].rest = 10**6
    assert 40 <= machine.spans(60, reading=1.0)[-1][1] <= 64


def test_no_part_grows_without_bound() -> None:
    sizes = Machine(lambda workers, _: workers, cpu=0.001).spans(100)
    assert max(workers for workers, _ in sizes) == 16 * 4


def test_a_rank_that_uses_more_than_its_cores_gives_threads_back() -> None:
    machine = Machine(lambda workers, _: workers, cpu=0.02)
    machine.spans(20)
    machine._cpu = 1.0
    assert machine.spans(40)[-1][0] == 4


@pytest.mark.parametrize(("step", "task", "held"), [(1.0, 0.1, 3), (0.1, 1.0, 22), (0.001, 1.0, 64), (0.0, 1.0, 64)])
def test_batches_held_ready_cover_the_longest_task(step: float, task: float, held: int) -> None:
    span = Times(100 * step + 1.0, 1.0, 100, Spent(1, 1, 100), {"map": Spent(10 * task, 0, 10)}, 0.0, 0.0)
    assert ready_batches(span, 64) == held

"""What a run waits for is said in one sentence, from times that were measured."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine.bottleneck import Setup, bottleneck
from zephon.engine.meter import Spent, Stopwatch, Times
from zephon.memory import MemoryShards

NAP_S = 0.004


def nap(record: dict[str, Any]) -> dict[str, Any]:
    """A user's function that waits for something."""
    time.sleep(NAP_S)
    return record


class SlowShards(MemoryShards):
    """A storage that lets its readers wait."""

    def open(self, shard: Any) -> Any:
        inner = super().open(shard)

        class Slow:
            schema = inner.schema
            units, close = inner.units, inner.close

            def read(self, unit: int, columns: Any, start: int, stop: int) -> Any:
                time.sleep(0.02)
                return inner.read(unit, columns, start, stop)

        return Slow()


def numbers() -> Dataset:
    return Dataset.from_records("numbers", [{"a": i} for i in range(2000)])


def run(pipeline: Pipeline, *, step_s: float = 0.0, seconds: float = 0.8) -> str:
    """The sentence after so many seconds of a training loop whose steps take `step_s`."""
    began = None
    for _ in pipeline:
        began = began or time.monotonic()
        time.sleep(step_s)
        if time.monotonic() - began > seconds:
            break
    assert f"  {pipeline.stats()['bottleneck']}" in pipeline.explain().splitlines()
    return str(pipeline.stats()["bottleneck"])


def napping(**options: Any) -> Pipeline:
    source = StaticMixtureWorkSource(numbers(), chunk_size=8)
    return Pipeline(source).map(nap).batch(4).options(lanes=2, workers=2, **options)


def test_a_slow_user_function_is_named_with_its_share_and_what_would_help() -> None:
    said = run(napping())
    assert "map takes" in said
    assert "of the workers' time and waits most of it" in said
    assert "of 2 busy" in said
    assert "more workers than cores would help" in said


def test_a_slow_training_step_has_nothing_to_gain_from_a_faster_loader() -> None:
    said = run(napping(), step_s=0.1)
    assert "the training step is slower than the loader" in said
    assert "would gain nothing" in said


def test_inline_is_told_to_use_threads() -> None:
    assert "map takes 9" in run(napping(runner="inline")) or "map takes 100 %" in run(napping(runner="inline"))


def test_a_slow_storage_is_waited_for() -> None:
    shards = SlowShards({f"s{i}": pa.table({"a": [bytes([i]) * (256 << 10)] * 4}) for i in range(60)})
    source = StaticMixtureWorkSource(Dataset("slow", shards), chunk_size=8, shuffle_block_size=8)
    said = run(Pipeline(source).batch(8).options(lanes=2, workers=1))
    assert "reading waits for storage" in said
    assert "fetch_parallelism" in said


def test_times_are_those_of_the_operators_and_of_nobody_else() -> None:
    pipeline = napping()
    run(pipeline)
    spent = pipeline.stats()["time"]
    assert set(spent["operators_s"]) == {"map", "digest"}
    assert spent["operators_s"]["map"] <= 2 * spent["elapsed_s"] + 10 * 8 * NAP_S
    assert spent["operators_cpu_s"]["map"] < 0.5 * spent["operators_s"]["map"]
    assert 0 < spent["waited_s"] <= spent["elapsed_s"]


def test_nothing_is_claimed_before_there_is_something_to_measure() -> None:
    pipeline = napping()
    stream = iter(pipeline)
    next(stream)
    assert pipeline.stats()["bottleneck"].startswith("too short to say")
    stream.close()


TEN_SECONDS: dict[str, Any] = {
    "elapsed": 10.0,
    "waited": 5.0,
    "batches": 100,
    "reading": Spent(1, 1, 50),
    "operators": {},
    "pump_cpu": 0.5,
    "full": 0.0,
    "idle": 10.0,
}
TWO = Setup(runner="threads", workers=2, reads=2, cores=2, max_bytes=1 << 30)


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"operators": {"tokenize": Spent(18, 17.5, 50)}}, "tokenize takes 100 % of the workers' time, on 1.9 of 2 cores"),
        ({"operators": {"map": Spent(20, 10, 50)}, "pump_cpu": 0.1}, "runner='processes' would help"),
        ({"operators": {"map": Spent(20, 9, 50)}, "idle": 0.1}, "other processes use this machine's cores"),
        ({"reading": Spent(19, 2, 50)}, "reading waits for storage (1.9 of 2 busy"),
        ({"reading": Spent(19, 18, 50)}, "fewer columns or a quicker format"),
        ({"full": 6.0}, "a larger max_bytes would help (now 1,073,741,824)"),
        ({"pump_cpu": 9.0}, "larger batches, or fewer lanes per process"),
        ({"operators": {"map": Spent(8, 1, 50)}}, "no part is busy all the time, map the most (0.8 of 2 at work)"),
        ({"waited": 0.1}, "the training step is slower than the loader"),
        ({"elapsed": 0.1}, "too short to say"),
    ],
)
def test_each_part_that_can_be_slow_is_told_from_the_others(measured: dict[str, Any], said: str) -> None:
    assert said in bottleneck(Times(**{**TEN_SECONDS, **measured}), TWO)


def test_a_machine_with_many_cores_is_told_to_use_more_workers() -> None:
    many = Setup(runner="threads", workers=2, reads=2, cores=64, max_bytes=1)
    times = Times(**{**TEN_SECONDS, "operators": {"tokenize": Spent(19, 19, 9), "map": Spent(1, 1, 9)}, "idle": 600.0})
    assert "tokenize takes 95 % of the workers' time; more workers would help (2.0 of 2 busy" in bottleneck(times, many)


def test_a_full_byte_budget_is_timed_while_it_is_full() -> None:
    watch = Stopwatch()
    watch.set(False)
    assert watch.seconds == 0
    watch.set(True)
    time.sleep(0.02)
    watch.set(True)
    assert 0.02 <= watch.seconds < 10
    watch.set(False)
    kept = watch.seconds
    time.sleep(0.01)
    assert watch.seconds == kept >= 0.02

"""When nothing moves, all stacks are shown and the run goes on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource


def slow_at(number: int) -> Any:
    def step(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] == number:
            time.sleep(2.5)
        return record

    return step


@pytest.mark.parametrize("slow", [5, 11])  # before a batch; and in what drop_last leaves, which is only counted
def test_stacks_are_shown_where_nothing_moves_and_the_run_goes_on(
    slow: int, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = Dataset.from_records("d", [{"id": i} for i in range(12)])
    source = StaticMixtureWorkSource(data, stop_after_passes=1, chunk_size=1, shuffle_within_shard=False, shuffle_block_size=1)
    pipeline = Pipeline(source).map(slow_at(slow)).batch(1 if slow == 5 else 5, drop_last=True)
    batches = list(pipeline.options(lanes=1, runner="threads", workers=1, watchdog_s=0.2))
    assert sum(len(batch) for batch in batches) == (12 if slow == 5 else 10)
    assert "no batch for" in caplog.text
    assert " in step" in capfd.readouterr().err

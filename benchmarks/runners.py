"""Runners: a map in plain Python with threads and with processes on two workers, against the same inline."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.data import text
from benchmarks.harness import CORES, Result, Setting, alternate, rates, script
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.options import RunnerName

_RUNNERS: tuple[RunnerName, ...] = ("inline", "threads", "processes")


def count_words(record: dict[str, Any]) -> dict[str, Any]:
    """Work for the interpreter: about a millisecond for 4,000 characters."""
    counts: dict[str, int] = {}
    for word in record["text"].split():
        clean = "".join(letter for letter in word.lower() if letter.isalpha())
        counts[clean] = counts.get(clean, 0) + 1
    return {"words": sum(counts.values()), "distinct": len(counts)}


def measure(setting: Setting) -> list[Result]:
    """Records per second over one pass, the start of the workers included (once per run: a second or so for processes)."""
    made = text(setting.folder, 2 if setting.quick else 24)

    def run(runner: RunnerName) -> float:
        # chunks that are small beside the data, so that both workers have something to do
        source = StaticMixtureWorkSource([Dataset.from_path("text", made.parquet)], seed=1, stop_after_passes=1, chunk_size=64)
        pipeline = Pipeline(source).map(count_words).batch(64).options(runner=runner, workers=CORES)
        return float(sum(len(batch.group) - batch.empty for batch in pipeline))

    inline, threads, processes = alternate(*(partial(run, name) for name in _RUNNERS), repeats=setting.repeats)
    return [
        rates(
            "map in Python, threads (bare: inline)",
            inline,
            threads,
            unit="records/s",
            note="one interpreter lock: 1 is the best",
        ),
        rates("map in Python, processes (bare: inline)", inline, processes, unit="records/s", note="2 is the best"),
    ]


if __name__ == "__main__":
    script(measure)

"""Checkpoints: their size and cost, and how long a restore takes beside the window that it replays."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from benchmarks.data import documents_of_tokens, text
from benchmarks.harness import CORES, Result, Setting, Timed, alternate, costs, rates, script, value
from zephon import Dataset, Pipeline, StaticMixtureWorkSource

_LANES = (1, 8, 32)
_CUT = 0.9
"""Where in its window a state is taken: late, so that nearly all of it must be replayed."""


def measure(setting: Setting) -> list[Result]:
    """Windows are made short for text (a few hundred documents), so that 32 of them fit into the time."""
    made = text(setting.folder, 2 if setting.quick else 24)
    tokenizer = Tokenizer.from_file(str(made.tokenizer))
    written = StaticMixtureWorkSource([Dataset.from_path("text", made.parquet)], seed=1, chunk_size=8)
    lists = Dataset.from_records("lists", documents_of_tokens(20_000 if setting.quick else 200_000))
    listed = StaticMixtureWorkSource([lists], seed=1, chunk_size=400)

    def of_text(lanes: int) -> Pipeline:
        return _packed(Pipeline(written).tokenize(tokenizer=tokenizer), lanes, 16)

    def of_lists(lanes: int) -> Pipeline:
        return _packed(Pipeline(listed), lanes, 256)

    results = [*_sizes(of_lists(32)), _every_step(of_lists, setting)]
    for what, make in (("text", of_text), ("token lists", of_lists)):
        results += [_restore(what, make, lanes, setting.repeats) for lanes in _LANES]
    return results


def _packed(pipeline: Pipeline, lanes: int, buffer_size: int) -> Pipeline:
    pipeline.pack_flat(max_length=2048, algorithm="wrap", pad_token_id=0).shuffle(buffer_size=buffer_size).batch(1)
    return pipeline.options(lanes=lanes, workers=CORES)


def _sizes(pipeline: Pipeline) -> list[Result]:
    batches = iter(pipeline)
    for _ in range(32 * 50):
        next(batches)
    state = pipeline.checkpoint()
    took = []
    for _ in range(50):
        began = time.perf_counter()
        pipeline.checkpoint()
        took.append(time.perf_counter() - began)
    batches.close()  # type: ignore[attr-defined]
    per_lane = len(json.dumps(state["lanes"])) / 32
    return [
        value("checkpoint, per lane (32 lanes)", per_lane, "bytes of JSON", at_most=200),
        value("checkpoint, in all (32 lanes)", len(json.dumps(state)), "bytes of JSON"),
        value("checkpoint(), 32 lanes", statistics.median(took) * 1e3, "ms"),
    ]


def _every_step(make: Any, setting: Setting) -> Result:
    """What a checkpoint after each step costs."""

    def run(checkpoints: bool) -> float:
        pipeline = make(8)
        batches = iter(pipeline)
        steps = 20 if setting.quick else 300
        for _ in range(steps):
            for _ in range(8):
                next(batches)
            if checkpoints:
                pipeline.checkpoint()
        batches.close()
        return float(steps)

    without, with_them = alternate(lambda: run(False), lambda: run(True), repeats=setting.repeats)
    return costs("step with a checkpoint each (bare: without)", without, with_them, unit="ms/step", scale=1e3, note="8 lanes, token lists")


def _restore(what: str, make: Any, lanes: int, repeats: int) -> Result:
    """A restore until each lane has delivered again, beside the time that the engine takes for a window of all lanes."""
    pipeline = make(lanes)
    batches = iter(pipeline)
    sizes = [_until_window(pipeline, batches, lanes, 1)]
    began = time.perf_counter()
    last = _until_window(pipeline, batches, lanes, 3)
    window = (time.perf_counter() - began) / 2
    steps = (last - sizes[0]) / 2
    # on to a late place in the window after that
    for _ in range(int(steps * _CUT)):
        _step(batches, lanes)
    state = pipeline.checkpoint()
    batches.close()
    took = []
    for _ in range(repeats):
        again = make(lanes)
        began = time.perf_counter()
        again.restore(state)
        resumed = iter(again)
        _step(resumed, lanes)
        took.append(time.perf_counter() - began)
        resumed.close()  # type: ignore[attr-defined]
    base = [Timed(window, window, 1.0)] * repeats
    made = costs(
        f"restore, {what}, {lanes} lanes (bare: running one window)",
        base,
        [Timed(t, t, 1.0) for t in took],
        unit="s",
        scale=1.0,
        at_most=1.0,
        note=f"{steps:.0f} sequences per lane and window",
    )
    return made


def _until_window(pipeline: Pipeline, batches: Iterator[Any], lanes: int, window: int) -> int:
    """Go on until each lane is in that window; steps since the beginning."""
    while True:
        _step(batches, lanes)
        states = pipeline.checkpoint()["lanes"].values()
        if min(state[0] for state in states) >= window:
            return int(min(state[2] for state in states))


def _step(batches: Iterator[Any], lanes: int) -> None:
    for _ in range(lanes):
        next(batches)


if __name__ == "__main__":
    script(measure)

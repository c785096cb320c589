"""Checkpoints: their size and cost, and how long a restore takes beside the window that it replays."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from benchmarks.data import documents_of_tokens, text
from benchmarks.harness import CORES, Result, Setting, alternate, costs, script, value
from zephon import Dataset, Pipeline, StaticMixtureWorkSource

_LANES = (1, 8, 32)
_CUT = 0.9
"""Where in its window a state is taken: late, so that nearly all of it must be replayed."""


def measure(setting: Setting) -> list[Result]:
    """Windows are shorter than at the defaults, and shorter the more lanes there are: all lanes together replay as much each time."""
    made = text(setting.folder, 2 if setting.quick else 24)
    tokenizer = Tokenizer.from_file(str(made.tokenizer))
    written = Dataset.from_path("text", made.parquet)
    listed = Dataset.from_records("lists", documents_of_tokens(20_000 if setting.quick else 200_000))

    def of_text(lanes: int) -> Pipeline:
        source = StaticMixtureWorkSource([written], seed=1, chunk_size=1024 // lanes)
        return _packed(Pipeline(source).tokenize(tokenizer=tokenizer), lanes)

    def of_lists(lanes: int) -> Pipeline:
        return _packed(Pipeline(StaticMixtureWorkSource([listed], seed=1, chunk_size=4096 // lanes)), lanes)

    results = [*_sizes(of_lists(32)), _every_step(of_lists, setting)]
    for what, make in (("text", of_text), ("token lists", of_lists)):
        results += [_restore(what, partial(make, lanes), lanes, setting.repeats) for lanes in _LANES]
    return results


def _packed(pipeline: Pipeline, lanes: int) -> Pipeline:
    pipeline.pack_flat(max_length=2048, algorithm="wrap", pad_token_id=0).shuffle(buffer_size=max(8, 64 // lanes)).batch(8)
    return pipeline.options(lanes=lanes, workers=CORES)


def _sizes(pipeline: Pipeline) -> list[Result]:
    batches = iter(pipeline)
    for _ in range(32 * 10):
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
    return costs(
        "step with a checkpoint each (bare: without)",
        without,
        with_them,
        unit="ms/step",
        scale=1e3,
        note="8 lanes, token lists",
    )


def _restore(what: str, make: Callable[[], Pipeline], lanes: int, repeats: int) -> Result:
    """From states late in the first and in the second window until each lane has delivered again, beside runs of so many steps as the two
    have in the mean: one window may hold much longer documents than the other."""
    first, second = _window_ends(make(), lanes)
    steps = second // 2
    states = [_run(make(), lanes, int(cut)) for cut in (first * _CUT, first + (second - first) * _CUT)]

    def run() -> float:
        return float(sum(bool(_run(make(), lanes, steps)) for _ in states))

    def restore() -> float:
        return float(sum(bool(_run(make().restore(state), lanes, 1)) for state in states))

    running, restoring = alternate(run, restore, repeats=repeats)
    note = f"about {steps * 8:,} sequences per lane and window"
    label = f"restore, {what}, {lanes} lanes (bare: running one window)"
    return costs(label, running, restoring, unit="s", scale=1.0, at_most=1.0, note=note)


def _run(pipeline: Pipeline, lanes: int, steps: int) -> dict[str, Any]:
    """The state after so many steps."""
    batches = iter(pipeline)
    for _ in range(steps):
        _step(batches, lanes)
    state = pipeline.checkpoint()
    batches.close()  # type: ignore[attr-defined]
    return state


def _window_ends(pipeline: Pipeline, lanes: int) -> list[int]:
    """After how many steps every lane has delivered all of its first window, and of its second."""
    batches = iter(pipeline)
    ends: list[int] = []
    steps = 0
    while len(ends) < 2:
        _step(batches, lanes)
        if min(_windows(pipeline)) > len(ends):
            ends.append(steps)  # this step went on to the next window already
        steps += 1
    batches.close()  # type: ignore[attr-defined]
    return ends


def _windows(pipeline: Pipeline) -> list[int]:
    """The window that each lane is in."""
    return [state[0] for state in pipeline.checkpoint()["lanes"].values()]


def _step(batches: Iterator[Any], lanes: int) -> None:
    for _ in range(lanes):
        next(batches)


if __name__ == "__main__":
    script(measure)

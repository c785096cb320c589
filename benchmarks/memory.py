"""Memory: peak RSS of a fresh process over a long run, for two byte budgets, and whether it still grows in the second half."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.data import documents_of_tokens_file, text
from benchmarks.harness import CORES, Result, Setting, script, settle, value

_BUDGETS_MB = (256, 1024)
_BEYOND_MB = 300
_FLAT = 1.05


def measure(setting: Setting) -> list[Result]:
    """Eight lanes, the threads runner. The reader of token lists is slow, so that the loader fills its budget; that of text is quick."""
    seconds = 3.0 if setting.quick else 40.0
    made = text(setting.folder, 2 if setting.quick else 24)
    lists = documents_of_tokens_file(setting.folder, 10_000 if setting.quick else 200_000)
    results = []
    runs: dict[str, list[object]] = {
        "text, quick reader": [made.parquet, "--tokenizer", made.tokenizer],
        "token lists, slow reader": [lists, "--pause", "0.004"],
    }
    for budget in _BUDGETS_MB:
        # at the same time: memory, unlike time, does not suffer from that
        children = {what: _child([*arguments, "--budget", budget, "--seconds", seconds]) for what, arguments in runs.items()}
        for what, running in children.items():
            printed, _ = running.communicate()
            seen: dict[str, float] = json.loads(printed)
            note = f"{seen['bytes_ahead']:.0f} MB of sequences and tasks at most"
            results.append(
                value(f"peak RSS, {what}, budget {budget} MiB", seen["peak"], "MB", at_most=_allowed(budget), note=note)
            )
            results.append(value(f"RSS at the end / before, {what}, budget {budget} MiB", seen["growth"], "", at_most=_FLAT))
    return results


def _allowed(budget: int) -> float:
    return round(budget * 1.048576 + _BEYOND_MB)


def _child(arguments: list[object]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def child(argv: list[str]) -> None:
    """One long run; prints what RSS did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args(argv)
    settle()
    from zephon import Dataset, Pipeline

    pipeline = Pipeline(Dataset.from_path("data", given.data))
    if given.tokenizer is not None:
        pipeline.tokenize(tokenizer_id=str(given.tokenizer))
    # a small buffer is full early on: what grows afterwards is a leak
    pipeline.pack_flat(max_length=2048, algorithm="wrap", pad_token_id=0).shuffle(buffer_size=128).batch(8)
    pipeline.options(lanes=8, workers=CORES, max_bytes=given.budget << 20)
    watch = Watch(given.seconds)
    watch.start()
    for _ in pipeline:
        time.sleep(given.pause)
        if not watch.is_alive():
            break
    after_filling = watch.seen[len(watch.seen) // 3 :]  # buffers and caches are full by then
    half = len(after_filling) // 2
    first, second = (
        statistics.median(after_filling[:half]),
        statistics.median(after_filling[half:]),
    )  # a leak moves all, a peak only one
    ahead = pipeline.stats()["peak_lane_bytes"]
    print(json.dumps({"peak": max(watch.seen) / 1e6, "growth": second / first, "bytes_ahead": ahead / 1e6}))


class Watch(threading.Thread):
    """Looks at RSS 50 times a second, for some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self.seen: list[int] = []
        self._until = time.monotonic() + seconds

    def run(self) -> None:
        """Look until the time is over."""
        me = psutil.Process()
        while time.monotonic() < self._until:
            self.seen.append(me.memory_info().rss)
            time.sleep(0.02)


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2:])
    else:
        script(measure)

"""Late decode: the peak memory of packing and shuffling files, beside the same pipeline with images decoded first. In fresh processes."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.harness import Result, Setting, script, settle, value
from benchmarks.memory import Watch
from benchmarks.vision_data import illustrated

_SHUFFLE = 512
"""Half of the 1,024 that users take, since all of that decoded first would not fit into many a machine's memory."""


def measure(setting: Setting) -> list[Result]:
    """One lane, one worker thread, sequences of 8,192 tokens and a shuffle over 512 of them; what is left is that of the bins and of the shuffle."""
    made = illustrated(setting.folder, 12 if setting.quick else 160)
    seen = {way: _child(way, made.parquet, made.tokenizer, setting.quick) for way in ("late", "first")}
    assert seen["late"]["sha"] == seen["first"]["sha"], "not the same batches"
    late, first = (seen[way]["peak"] for way in ("late", "first"))
    note = f"RSS above that before the first record: {late / 1e6:.0f} MB, decoded first {first / 1e6:.0f} MB; same batches"
    held = seen["late"]["held"] / seen["first"]["held"]
    return [
        value("late decode: peak memory / decoded first", late / first, "", at_most=0.125, note=note),
        value("late decode: bytes held by lanes / decoded first", held, "", at_most=0.125),
    ]


def _child(way: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.vision_memory", "--child", way, *map(str, arguments)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def child(argv: list[str]) -> None:
    """One run until a few batches came; prints what was held, and what RSS did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("parquet", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("quick")
    given = parser.parse_args(argv)
    settle()
    import torch

    from benchmarks.vision_early import DecodeFirst, Unwrap
    from zephon import Dataset, Pipeline, StaticMixtureWorkSource

    torch.set_num_threads(1)
    shuffle = 8 if given.quick == "True" else _SHUFFLE
    passes = 1 if given.quick == "True" else 6
    pipeline = (
        Pipeline(
            StaticMixtureWorkSource([Dataset.from_path("p", given.parquet)], seed=1, stop_after_passes=passes, chunk_size=16)
        )
        .interleave()
        .probe_images()
        .tokenize_interleaved(tokenizer=str(given.tokenizer), images="qwen2_5_vl", max_length=8192, over_long="split")
    )
    if given.way == "first":
        pipeline.then(DecodeFirst())
    pipeline.pack_multimodal(max_length=8192, max_patches=32768, open_bins=32).shuffle(buffer_size=shuffle)
    if given.way == "first":
        pipeline.then(Unwrap())
    else:
        pipeline.decode_images()
    pipeline.batch(1).options(lanes=1, runner="inline", max_bytes=64 << 20, flush_every_chunks=1000)
    before = psutil.Process().memory_info().rss
    watch = Watch(1000.0)
    watch.start()
    sha = hashlib.sha256()
    for batch in pipeline:
        for name in ("input_ids", "pixel_values"):
            sha.update(str(batch.group.column(name).to_pylist()).encode() if name == "input_ids" else _bytes(batch))
    print(json.dumps({"peak": max(watch.seen) - before, "sha": sha.hexdigest(), "held": pipeline.stats()["peak_lane_bytes"]}))


def _bytes(batch: Any) -> bytes:
    return b"".join(pixels for row in batch.group.column("pixel_values").to_pylist() for pixels in row)


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2:])
    else:
        script(measure)

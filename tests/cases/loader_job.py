"""One loader as a program of its own: `python loader_job.py SETTINGS`, a JSON object (see `DEFAULTS`).

It waits for a line on stdin, runs, and prints one JSON object: the batches' hashes, the recipe's fingerprint, and how much memory it took.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

DEFAULTS: dict[str, Any] = {
    "data": None, "cache": None, "lanes": 4, "rank": 0, "world": 1, "runner": "threads", "workers": 2, "steps": 10,
    "size": 2, "max_bytes": 1 << 30, "look_at": (), "chunk": 20, "stop_at": None,
}  # fmt: skip


def private_bytes(process: int) -> int:
    """Memory that is this process's alone: what a copy-on-write page becomes once it is touched."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def own_bytes() -> int:
    """Resident memory that isn't a page of a file, which the kernel may take back."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) << 10


def children() -> list[int]:
    """The processes that this one started."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(number) for number in found]


def same(record: dict[str, Any]) -> dict[str, Any]:
    """The record; it must go to a worker."""
    return record


def make(given: dict[str, Any]) -> Pipeline:
    """The pipeline that the settings describe."""
    data = Dataset.from_path("d", given["data"], cache_dir=given["cache"])
    pipeline = Pipeline(StaticMixtureWorkSource([data], seed=3, chunk_size=given["chunk"]))
    if given["runner"] == "processes":
        pipeline.map(same)
    return pipeline.batch(given["size"]).options(
        lanes=given["lanes"], dp_rank=given["rank"], dp_size=given["world"], runner=given["runner"], workers=given["workers"],
        max_steps=given["steps"], max_bytes=given["max_bytes"], prefetch_batches=4,
    )  # fmt: skip


def run(given: dict[str, Any]) -> dict[str, Any]:
    """What a run with these settings gives."""
    pipeline = make(given)
    recipe = pipeline.recipe()
    before = most = own_bytes()
    hashes: list[Any] = []
    workers: list[list[int]] = []
    for number, batch in enumerate(pipeline):
        hashes.append([batch.step, batch.lane, batch.sha256()])
        most = max(most, own_bytes())
        if number in given["look_at"]:
            workers.append([private_bytes(child) for child in children()])
        if number == given["stop_at"]:
            print("there", flush=True)
            sys.stdin.readline()
    fingerprint = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return {"hashes": hashes, "recipe": fingerprint, "grown": most - before, "workers": workers}


def main() -> None:
    """Wait for the word, run, print."""
    given = DEFAULTS | json.loads(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(run(given)), flush=True)


if __name__ == "__main__":
    main()

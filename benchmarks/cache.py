"""The shard cache: Parquet shards on an S3 server (moto, in a process of its own) whose every answer is late and slow, read directly,
cold, cold with prefetch, and warm.

The server stands behind a proxy, also a process of its own, that lets each request wait and its bytes trickle, as an object store does.
A training step is simulated by a sleep, so that there is something to hide the reads behind. Each turn has a fresh cache folder (but the
warm ones) and a fresh client. Fewer seconds are better, so the ratios are.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fetch import photographs
from benchmarks.harness import CORES, Result, Setting, Timed, alternate, costs, script
from zephon import Dataset, Pipeline, StaticMixtureWorkSource

_TESTS = str(Path(__file__).parents[1] / "tests")
_BATCH = 32
_WAIT_S, _BYTES_PER_S = 0.05, 60e6
"""Of each request: the time to its first byte, and how fast the rest comes; what one connection to S3 gives in the same region."""
_STEP_S = 0.01


def serve(port: Any, stop: Any) -> None:
    """The proxy's process: `port` is told where it listens."""
    sys.path.insert(0, _TESTS)
    from storage.servers import Fault, Proxy, moto

    with moto() as upstream:
        proxy = Proxy(upstream)
        proxy.fresh(
            Fault("slow", method="GET", delay_s=_WAIT_S, bytes_per_s=_BYTES_PER_S),
            Fault("slow", method="HEAD", delay_s=_WAIT_S),
        )
        port.send((upstream, proxy.port))
        stop.wait()
        proxy.close()


@contextlib.contextmanager
def server() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Options for the server itself, and for it behind the proxy."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    stop = context.Event()
    made = context.Process(target=serve, args=(theirs, stop))
    made.start()
    try:
        quick, slow = ({"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"} for port in mine.recv())
        yield quick, slow
    finally:
        stop.set()
        made.join()


def upload(table: pa.Table, shards: int, options: dict[str, Any], scratch: Path) -> None:
    """The table as so many Parquet shards with four row groups each."""
    import s3fs

    fs = s3fs.S3FileSystem(**options)
    fs.mkdir("bench")
    rows = -(-len(table) // shards)
    for number in range(shards):
        path = scratch / f"part-{number:03d}.parquet"
        pq.write_table(table.slice(number * rows, rows), path, row_group_size=-(-rows // 4), compression="none")
        fs.put_file(str(path), f"bench/{path.name}")


def measure(setting: Setting) -> list[Result]:
    """Seconds for one pass, start-up included."""
    count, shards = (512, 4) if setting.quick else (960, 16)
    with server() as (quick, slow), tempfile.TemporaryDirectory(prefix="zephon-bench-") as made:
        scratch, numbers = Path(made), itertools.count()
        (scratch / "local").mkdir()
        upload(photographs(count), shards, quick, scratch / "local")

        def run(where: str, step_s: float, options: dict[str, Any]) -> float:
            source = StaticMixtureWorkSource([Dataset.from_path("photographs", where, **options)], seed=1, stop_after_passes=1)
            # little is read ahead in memory: what is fetched ahead is a matter of the cache
            pipeline = Pipeline(source).batch(_BATCH).options(lanes=1, runner="threads", workers=CORES, prefetch_batches=4)
            rows = 0
            for batch in pipeline:
                rows += len(batch) - batch.empty
                time.sleep(step_s)
            assert rows == count
            return float(rows)

        def remote(step_s: float, cache: dict[str, Any] | bool, *, warm: bool = False) -> float:
            root = scratch / ("warm" if warm else f"cache-{next(numbers)}")
            cache = {"root": str(root), **cache} if isinstance(cache, dict) else cache
            rows = run(
                "s3://bench", step_s, {"storage_options": slow, "io_options": {"cache": cache}, "cache_dir": str(scratch)}
            )
            if not warm:
                shutil.rmtree(root, ignore_errors=True)
            return rows

        results = []
        for step_s in (0.0, _STEP_S):
            direct, cold, ahead, warm, local = alternate(
                lambda s=step_s: remote(s, False),
                lambda s=step_s: remote(s, {"prefetch_threads": 0}),
                lambda s=step_s: remote(s, {"prefetch_threads": 4}),
                lambda s=step_s: remote(s, {}, warm=True),
                lambda s=step_s: run(str(scratch / "local"), s, {}),
                repeats=max(2, setting.repeats),  # the first turn, which is not measured, warms the warm cache
            )
            after = f", a step of {step_s * 1e3:.0f} ms" if step_s else ", as fast as it goes"

            def line(what: str, bare: list[Timed], ours: list[Timed], note: str, after: str = after) -> Result:
                return costs(f"{what}{after}", bare, ours, unit="ms/record", scale=1e3, note=f"bare: {note}")

            results += [
                line("S3, cold cache, no prefetch", direct, cold, "S3 read directly"),
                line("S3, cold cache, prefetch", direct, ahead, "S3 read directly"),
                line("S3, cold cache, prefetch", cold, ahead, "cold, no prefetch"),
                line("S3, warm cache", direct, warm, "S3 read directly"),
                line("S3, warm cache", local, warm, "local files"),
            ]
        return results


if __name__ == "__main__":
    script(measure)

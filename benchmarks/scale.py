"""Planning and reading at the scale of a large run: 10^12 tokens, 10^6 shards, 4,096 lanes, 512 nodes. No data is read.

Tables of read units exist as arrays only; plans, stripes, bundles and the cache of kept units are the real ones. What a node asks of
its object store is counted by walking the bundles of its lanes as `zephon/engine/fetch.py` does. Footers are timed on real files.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks.harness import Result, Setting, alternate, script, value
from benchmarks.plan import Planned, Walk
from zephon import Dataset, StaticMixtureWorkSource
from zephon.contents import describe_files
from zephon.engine.keep import Keep
from zephon.plan.passes import ComponentRows
from zephon.plan.source import Plan
from zephon.plan.units import unit_table
from zephon.plugin import Shard

LANES, NODES, RANKS_PER_NODE = 4096, 512, 8
SHARDS, TOKENS, TOKENS_PER_RECORD = 10**6, 10**12, 1000
UNIT_CACHE = (1 << 30) // 4
"""What a process keeps of decoded units with the default `max_bytes`."""


@dataclass(frozen=True)
class Case:
    """A data set, and how fast a rank takes its records."""

    what: str
    shards: int
    units_per_shard: int
    rows_per_unit: int
    row_bytes: int
    records_per_second: float
    """Of one rank."""
    block: int | None = None
    """shuffle_block_size"""
    nodes: int = NODES
    spread: int = 0
    """How much units differ in rows."""


CASES = [
    Case("text, 10^6 shards of 4 MB", SHARDS, 1, 1000, 4096, 10),
    Case("text, 10^6 shards of 4 MB, shuffle blocks of a shard", SHARDS, 1, 1000, 4096, 10, block=1000),
    Case("text, 10^6 uneven shards, shuffle blocks of a shard", SHARDS, 1, 1000, 4096, 10, block=1000, spread=100),
    Case("text, 10^6 uneven shards, shuffle blocks of 4 shards", SHARDS, 1, 1000, 4096, 10, block=4000, spread=100),
    Case("text, 62,500 shards of 64 MB in row groups of 16 MB", SHARDS // 16, 4, 4000, 4096, 10),
    Case("the same, shuffle blocks of a row group", SHARDS // 16, 4, 4000, 4096, 10, block=4000),
    Case("the same on 64 nodes (8 lanes per rank)", SHARDS // 16, 4, 4000, 4096, 10, nodes=64),
    Case("images, 10^6 shards of 64 MB in one unit", SHARDS, 1, 640, 100_000, 100),
    Case("the same, shuffle blocks of a shard", SHARDS, 1, 640, 100_000, 100, block=640),
    Case("images, 10^6 shards of 64 MB in units of 4 MB", SHARDS, 16, 40, 100_000, 100),
]


def measure(setting: Setting) -> list[Result]:
    """Planning cost and memory, then requests and amplification case by case, then what starting costs."""
    shards = SHARDS // 50 if setting.quick else SHARDS
    results = [*planning(shards, setting), *(r for case in CASES for r in reading(case, shards / SHARDS, setting.quick))]
    return [*results, *starting(shards, setting)]


def planning(shards: int, setting: Setting) -> list[Result]:
    """The cost of a plan for 10^9 records in 10^6 read units."""
    dataset = table(Case("", shards, 1, TOKENS // TOKENS_PER_RECORD // SHARDS, 4096, 0))
    source = StaticMixtureWorkSource([dataset], seed=1)
    tracemalloc.start()
    began = time.process_time()
    plan = source.plan(LANES)
    first = plan.chunk(LANES - 1, 0)
    rows = _rows(plan)
    rows.bundle_rows(LANES - 1, 0)
    first_s, (kept, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    records = 1 << (16 if setting.quick else 20)
    walk = Walk(plan, range(RANKS_PER_NODE))
    (node,) = alternate(lambda: walk.on(records), repeats=setting.repeats)
    arrays = (dataset.units.rows, dataset.units.nbytes, dataset.units.shard, dataset.units.first_row, dataset.units.number)
    return [
        value("table of read units", sum(a.nbytes for a in arrays) / len(dataset.units), "bytes/unit"),
        value("plan and first bundle of a lane, from a table in memory", first_s * 1e3, "ms of CPU"),
        value("memory that it keeps (the order of one pass)", kept / 2**20, "MiB"),
        value("memory at most meanwhile", peak / 2**20, "MiB"),
        value("records in the first chunk", len(first), "records"),
        value("planning, the 8 lanes of a node", statistics.median(t.cpu / t.work for t in node) * 1e9, "ns of CPU/record"),
    ]


def reading(case: Case, scale: float, quick: bool) -> Iterator[Result]:
    """What one node reads, of a data set of which no process reads everything."""
    dataset = table(case, scale)
    plan = StaticMixtureWorkSource([dataset], seed=1, shuffle_block_size=case.block).plan(LANES)
    rows = _rows(plan)
    per_rank = LANES // case.nodes // RANKS_PER_NODE
    spent = Node(rows, per_rank).walk(32 if quick else 256)
    rate = case.records_per_second * RANKS_PER_NODE
    yield value(
        f"{case.what}: reads per second and node",
        spent.reads / spent.rows * rate,
        "1/s",
        note=f"stripes of {rows.stripe:,} rows, bundles of {rows.bundle:,}; {case.records_per_second:g} records/s and rank",
    )
    yield value(f"{case.what}: reads per second, all nodes", spent.reads / spent.rows * rate * case.nodes, "1/s")
    yield value(f"{case.what}: bytes read per byte used", spent.nbytes / (spent.rows * case.row_bytes), "×")
    yield value(
        f"{case.what}: the same with a shard cache on the node",
        len(spent.shards) * case.units_per_shard * case.rows_per_unit / spent.rows,
        "×",
        note="whole shards, each fetched once per node",
    )
    yield value(
        f"{case.what}: reads of all ranks for their first bundles",
        spent.first / (RANKS_PER_NODE * per_rank) * LANES,
        "reads",
    )


@dataclass
class Spent:
    """What a node did."""

    rows: int = 0
    reads: int = 0
    nbytes: int = 0
    first: int = 0
    """Reads for the first bundle of every lane."""
    shards: set[int] | frozenset[int] = frozenset()


class Node:
    """The ranks of the first node, each with its lanes and its cache of units."""

    def __init__(self, rows: ComponentRows, lanes_per_rank: int) -> None:
        self._rows = rows
        self._per_rank = lanes_per_rank

    def walk(self, bundles: int) -> Spent:
        """Each lane reads so many bundles, in turns with the other lanes of its rank."""
        spent, shards = Spent(), []
        table = self._rows.table
        for rank in range(RANKS_PER_NODE):
            lanes = range(rank * self._per_rank, (rank + 1) * self._per_rank)
            units: Keep[int] = Keep(UNIT_CACHE, lambda nbytes: nbytes)
            for number in range(bundles // self._per_rank or 1):
                for lane in lanes:
                    _, unit, row = self._rows.bundle_rows(lane, number)
                    spent.rows += len(unit)
                    before = spent.reads
                    self._read(unit, row, units, spent)
                    if number == 0:
                        spent.first += spent.reads - before
                    shards.append(np.unique(table.shard[unit]))
        spent.shards = set(np.concatenate(shards).tolist())
        return spent

    def _read(self, unit: np.ndarray, row: np.ndarray, units: Keep[int], spent: Spent) -> None:
        """As `Fetcher._slices`: a unit that one run takes whole is read and not kept, any other is read whole and kept."""
        table = self._rows.table
        border = np.flatnonzero((np.diff(unit) != 0) | (np.diff(row) != 1)) + 1
        starts = np.concatenate([[0], border])
        for start, stop in zip(starts.tolist(), np.append(border, len(unit)).tolist(), strict=True):
            number, nbytes = int(unit[start]), int(table.nbytes[unit[start]])
            made = units.made
            if stop - start == int(table.rows[number]):
                spent.reads, spent.nbytes = spent.reads + 1, spent.nbytes + nbytes
                continue
            units.get(number, lambda nbytes=nbytes: nbytes)
            if units.made > made:
                spent.reads, spent.nbytes = spent.reads + 1, spent.nbytes + nbytes


def starting(shards: int, setting: Setting) -> list[Result]:
    """What is done before the first batch, once per process: the listing as objects, the recipe, footers."""
    tracemalloc.start()
    listed = [
        Shard(f"s3://bucket/corpus/part-{i // 1000:04d}/shard-{i:07d}.parquet", 4 << 20, f"{i:032x}") for i in range(shards)
    ]
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    began = time.perf_counter()
    describe_files(listed, np.full(shards, 1000, np.int64))
    described = time.perf_counter() - began
    count = 200 if setting.quick else 4000
    dataset = _parquet(setting.folder / f"scale-{count}", count)
    gc.collect()
    began, before = time.process_time(), psutil.Process().memory_info().rss
    units = len(dataset.units)
    gc.collect()
    scanned, grown = time.process_time() - began, psutil.Process().memory_info().rss - before
    return [
        value("a listing of shards in memory", kept / shards, "bytes/shard"),
        value("the recipe's entry of the listing", described / shards * 1e6, "µs/shard"),
        value(f"opening Parquet footers (measured on {units:,} local files)", scanned / units * 1e6, "µs of CPU per shard"),
        value("memory that it keeps", grown / 1024 / units, "KiB/shard"),
    ]


def table(case: Case, scale: float = 1.0) -> Planned:
    """Units of about the same size."""
    count = max(LANES, int(case.shards * scale))
    random = np.random.default_rng(1)
    low, high = case.rows_per_unit - case.spread, case.rows_per_unit + case.spread
    rows = random.integers(low, high + 1, count * case.units_per_shard)
    made = unit_table([(rows, rows * case.row_bytes)])
    made.shard[:] = np.repeat(np.arange(count), case.units_per_shard)  # a list of a million pairs of arrays takes minutes
    return Planned("data", made)


def _rows(plan: Plan) -> ComponentRows:
    rows = plan.rows[0]
    assert rows is not None
    return rows


def _parquet(folder: Path, count: int) -> Dataset:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"part-{number:05d}.parquet"
        if not path.exists():
            pq.write_table(pa.table({"text": ["a"] * 10, "id": list(range(10)), "url": ["b"] * 10}), path)
    return Dataset.from_path("many", str(folder))


if __name__ == "__main__":
    script(measure)

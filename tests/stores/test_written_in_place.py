"""A local file whose bytes are overwritten in place, while rows that were read from it are still to be delivered: never a wrong row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from formats.test_megatron import write_pair
from formats.test_vortex import write as write_vortex
from stores.formats import FORMATS
from stores.test_bad_shards import COUNT, EACH, data_of, others, row_of

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.engine.fetch import Fetcher
from zephon.errors import DataError

MANY = 3000
"""Rows of a file, so many that a bundle is one run of them and need not be put together."""


def overwrite(victim: str, data: bytes) -> None:
    """Other bytes into the same file: neither truncated nor replaced."""
    with open(victim, "r+b") as file:
        assert len(data) == Path(victim).stat().st_size
        file.write(data)


def run_on(found: list[Any], rest: Iterator[Any]) -> DataError | None:
    """Add what still comes, and give the error that ended it."""
    try:
        found.extend(rest)
    except DataError as error:
        return error
    return None


def pipeline(dataset: Dataset, **options: Any) -> Pipeline:
    """One lane, whose one bundle holds all rows before the first one is delivered."""
    source = StaticMixtureWorkSource([dataset], seed=1, chunk_size=5, shuffle_block_size=COUNT, stop_after_passes=1)
    options = {"runner": "inline", "max_bytes": 1 << 20, "flush_every_chunks": 1, **options}
    return Pipeline(source).batch(1).options(lanes=1, **options)


@pytest.mark.parametrize(("policy", "copy"), [("raise", False), ("raise", True), ("skip", True)])
@pytest.mark.parametrize("name", FORMATS)
def test_rows_that_come_after_it_are_the_listed_ones_an_error_or_drops(
    name: str, policy: str, copy: bool, tmp_path: Path
) -> None:
    made = FORMATS[name]
    rows = {json.dumps(row) for row in made.write_rows(tmp_path / "new", COUNT, COUNT // EACH)}
    (tmp_path / "all").mkdir()
    made.write(tmp_path / "all", [others(made.rows(COUNT)[i : i + EACH]) for i in range(0, COUNT, EACH)])
    dataset = Dataset.from_path("corpus", tmp_path / "new", cache_dir=str(tmp_path / "cache"))
    victim = data_of(dataset.shards[2])
    run = pipeline(dataset, on_error=policy, copy=copy)
    batches = iter(run)
    found = [row_of(next(batches))]
    overwrite(victim, Path(data_of(Dataset.from_path("other", tmp_path / "all").shards[2])).read_bytes())
    error = run_on(found, map(row_of, batches))
    if error is not None:
        assert policy == "raise"
        assert "'corpus'" in str(error)
        assert victim in str(error)
    else:
        report = run.accounting()["rows"]
        assert (report["in"], report["out"], sum(report["dropped"].values())) == (COUNT, len(found), COUNT - len(found))
    assert len(found) == len(set(found))
    assert set(found) <= rows
    assert len(found) >= (1 if policy == "raise" else COUNT - EACH)


def arrow_file(path: Path, tokens: list[list[int]]) -> Path:
    table = pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))})
    with pa.ipc.new_file(path.with_suffix(".arrow"), table.schema) as writer:
        writer.write_table(table)
    return path.with_suffix(".arrow")


def megatron_file(path: Path, tokens: list[list[int]]) -> Path:
    write_pair(path.with_suffix(".idx"), tokens, dtype="i4")
    return path.with_suffix(".bin")


def vortex_file(path: Path, tokens: list[list[int]]) -> Path:
    write_vortex(path.with_suffix(".vortex"), pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))}))
    return path.with_suffix(".vortex")


@pytest.mark.parametrize("write", [arrow_file, megatron_file, vortex_file])
def test_what_was_fetched_stays_as_it_was(write: Callable[[Path, list[list[int]]], Path], tmp_path: Path) -> None:
    """Packers gather tokens long after they were fetched, by views of what was fetched."""
    draw = np.random.default_rng(0)
    tokens = [draw.integers(0, 2**20, 9).tolist() for _ in range(MANY)]
    known = set(map(tuple, tokens))
    (tmp_path / "new").mkdir()
    victim = write(tmp_path / "new" / "a", tokens)
    dataset = Dataset.from_path("corpus", tmp_path / "new")
    source = StaticMixtureWorkSource([dataset], seed=1, chunk_size=700, shuffle_block_size=1500)
    plan = source.plan(1)
    fetcher = Fetcher(plan, [dataset], columns=None, keep_bytes=1 << 30, policy="raise", views=True)
    group, _, _ = fetcher.fetch(plan.chunk(0, 0))
    overwrite(str(victim), bytes(victim.stat().st_size))
    found = group.column("input_ids").to_pylist()
    assert len(found) == 700
    # a bundle in memory has the rest as well; a map of the file has not
    error = run_on(found, chain.from_iterable(fetcher.fetch(plan.chunk(0, n))[0].column("input_ids").to_pylist() for n in [1]))
    assert error is None or str(victim) in str(error)
    assert set(map(tuple, found)) <= known

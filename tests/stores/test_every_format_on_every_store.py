"""Every format gives the rows that were written, and the same global batches, on every store, world size and runner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from storage.conftest import QUICK
from stores.conftest import Place
from stores.formats import FORMATS, Rows
from strategies import quietly

from zephon import Batch, Dataset, Pipeline, StaticMixtureWorkSource, merge_states
from zephon.batch import global_sha256
from zephon.plugin import Store
from zephon.registry import load
from zephon.storage import CacheOptions, StoreOptions, open_store
from zephon.testing import check_format

COUNT, SHARDS, STEPS, CUT = 36, 3, 6, 2
"""48 sequences: more than one pass, and the border of the passes inside a step."""


@dataclass(frozen=True)
class Written:
    folder: Path
    rows: Rows


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """Each format's files, written once."""

    @cache
    def write(name: str) -> Written:
        folder = tmp_path_factory.mktemp(name) / "data"
        return Written(folder, FORMATS[name].write_rows(folder, COUNT, SHARDS))

    return write


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory, written: Callable[[str], Written]) -> Callable[[str], list[str]]:
    """Each format's global hashes from local disk, on one rank, inline."""

    @cache
    def hashes(name: str) -> list[str]:
        where = str(tmp_path_factory.mktemp(f"{name}-cache"))
        return run(lambda: Dataset.from_path("d", written(name).folder, cache_dir=where))[0]

    return hashes


def pipeline(dataset: Dataset, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([dataset], seed=3, chunk_size=3, shuffle_block_size=5)
    return Pipeline(source).batch(1, 8).options(lanes=4, flush_every_chunks=2, max_steps=STEPS, workers=1, **options)


def run(
    make: Callable[[], Dataset],
    world: int = 1,
    runner: str = "inline",
    *,
    steps: int = STEPS,
    state: Mapping[str, Any] | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """The hashes of `steps` global batches from `state` on, and the ranks' merged state after them."""
    found: dict[int, list[Batch]] = {}
    states = []
    dataset = make()  # one for all ranks: each look-up of an object of S3 takes ten milliseconds
    for rank in range(world):
        made = pipeline(dataset, dp_rank=rank, dp_size=world, runner=runner)
        if state is not None:
            quietly(made.restore, state)
        batches = iter(made)
        for _ in range(steps * 8 // world):
            batch = next(batches)
            found.setdefault(batch.step, []).append(batch)
        states.append(json.loads(json.dumps(made.checkpoint())))
        batches.close()  # type: ignore[attr-defined]
    return [global_sha256(found[step]) for step in sorted(found)], merge_states(states)


def read_all(dataset: Dataset) -> Rows:
    return [row for unit in range(len(dataset.units.rows)) for batch in dataset.read(unit, None) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_what_the_formats_own_library_reads(name: str, written: Callable[[str], Written]) -> None:
    made, theirs = written(name), FORMATS[name].theirs
    if theirs is not None:
        assert theirs(made.folder) == made.rows


@pytest.mark.parametrize(("place", "cached"), [("memory", True), ("s3", True), ("s3", False)], indirect=["place"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_conformance_kit_passes_on_every_store(name: str, place: Place, cached: bool) -> None:
    """On local disk and on a store without local paths, the tests of each format run it on more rows."""
    made, reader = FORMATS[name], load("zephon.formats", name)()

    def write(folder: Path, rows: Rows) -> list[Path]:
        if not rows:
            return []
        made.write(folder, [rows[:9], rows[9:]])
        return [Path(shard.path) for shard in Dataset.from_path("d", folder, name).shards]

    def elsewhere(folder: Path) -> tuple[Store, str]:
        place.put(folder)
        options = StoreOptions(cache=CacheOptions(root=str(place.cache), prefetch_threads=0)) if cached else QUICK
        return open_store(place.url, place.storage_options, str(place.cache), options=options)

    check_format(reader, write, rows=made.rows(18), damaged=False, elsewhere=elsewhere)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_global_batches_are_the_same_everywhere(
    name: str, place: Place, written: Callable[[str], Written], expected: Callable[[str], list[str]]
) -> None:
    made = written(name)
    place.put(made.folder)
    assert read_all(place.dataset()) == made.rows
    assert len(place.dataset().shards) == SHARDS
    want = expected(name)
    assert len(set(want)) == STEPS
    assert run(place.dataset)[0] == want
    assert run(place.dataset, 2, "threads")[0] == want
    assert run(place.dataset, 4, "threads")[0] == want
    assert run(place.dataset, 1, "processes")[0] == want
    head, state = run(place.dataset, steps=CUT)
    assert head + run(place.dataset, 2, "threads", steps=STEPS - CUT, state=state)[0] == want

"""`options(io_options=…)`: remote shards come through the shard cache, ahead of time, with the same batches; closing leaves nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import zephon_threads
from storage.servers import Fault, Proxy
from stores.conftest import Place, Server, make_place
from stores.formats import FORMATS

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.batch import global_sha256
from zephon.errors import RecipeError

BUNDLE = 4096
"""Rows that a lane reads at once, of small records."""
QUICK = {"retries": 2, "first_wait_s": 0.01, "longest_wait_s": 0.05}


@pytest.fixture(params=["memory", "s3"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A remote folder; data sets of it have no options of their own."""
    return make_place(request.param, request, tmp_path)


def fill(place: Place, folder: Path, shards: int = 5) -> None:
    """Parquet files of one bundle each."""
    folder.mkdir()
    for number in range(shards):
        ids = pa.array(range(number * BUNDLE, (number + 1) * BUNDLE), pa.int64())
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet")
    place.put(folder)


def pipeline(dataset: Dataset, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource([dataset], seed=5, chunk_size=64, shuffle_block_size=BUNDLE, stop_after_passes=1)
    return Pipeline(source).batch(64).options(lanes=1, workers=2, **options)


def cached(root: Path) -> list[str]:
    """Shards in the cache by the end of their names, and `PART` for each that is on its way."""
    found = [path.name for path in root.glob("*/??/*")]
    return sorted("PART" if name.endswith(".part") else name[33:] for name in found)


def soon(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def cache_at(root: Path, **more: Any) -> dict[str, Any]:
    return {**QUICK, "cache": {"root": str(root), "limit_bytes": "10mb", **more}}


def test_a_run_reads_through_the_cache_and_gives_the_same_batches(there: Place, tmp_path: Path, runner: str) -> None:
    fill(there, tmp_path / "new", 3)
    want = [global_sha256([b]) for b in pipeline(there.dataset(io_options=None), runner="inline")]
    root = tmp_path / "root"
    for again in (runner, "inline"):
        made = pipeline(there.dataset(io_options=None), runner=again, io_options=cache_at(root))
        assert [global_sha256([b]) for b in made] == want
        assert cached(root) == [f"{number}.parquet" for number in range(3)]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_its_rows_through_the_cache(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = make_place("memory", request, tmp_path)
    rows = FORMATS[name].write_rows(tmp_path / "new", 36, 3)
    place.put(tmp_path / "new")
    for _ in range(2):
        dataset = place.dataset(io_options=cache_at(tmp_path / "root"))
        found = [r for unit in range(len(dataset.units.rows)) for batch in dataset.read(unit, None) for r in batch.to_pylist()]
        assert found == rows
    assert cached(tmp_path / "root")
    assert "PART" not in cached(tmp_path / "root")


def test_the_shards_after_this_one_are_fetched_before_they_are_read(
    there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bundles ahead, which are four shards here; and of tiny ones (these have 32 KB) as many as have 32 MB."""
    fill(there, tmp_path / "tiny", 7)
    batches = iter(pipeline(there.dataset(io_options=None), runner="inline", io_options=cache_at(tmp_path / "all")))
    next(batches)
    soon(lambda: len(cached(tmp_path / "all")) == 7 and "PART" not in cached(tmp_path / "all"))
    batches.close()  # type: ignore[attr-defined]
    monkeypatch.setattr("zephon.engine.fetch._AHEAD_BYTES", 0)
    fill(there, tmp_path / "new", 7)
    made = pipeline(there.dataset(io_options=None), runner="inline", io_options=cache_at(tmp_path / "root"))
    batches = iter(made)
    next(batches)
    soon(lambda: len(cached(tmp_path / "root")) == 5 and "PART" not in cached(tmp_path / "root"))
    assert made.stats()["bundles_read"] == 1
    for _ in range(BUNDLE // 64 + 1):
        next(batches)
    soon(lambda: len(cached(tmp_path / "root")) == 6)
    batches.close()  # type: ignore[attr-defined]


def test_a_data_sets_own_options_win(there: Place, tmp_path: Path) -> None:
    fill(there, tmp_path / "new", 2)
    own, other = tmp_path / "own", tmp_path / "other"
    list(pipeline(there.dataset(io_options=cache_at(own)), io_options=cache_at(other)))
    assert len(cached(own)) == 2
    assert not other.exists()
    list(pipeline(there.dataset(io_options={"retries": 1}), io_options=cache_at(other)))
    assert not other.exists()


def test_local_files_are_read_where_they_are(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = make_place("local", request, tmp_path)
    fill(place, tmp_path / "new", 2)
    list(pipeline(place.dataset(io_options=None), io_options=cache_at(tmp_path / "root")))
    assert not (tmp_path / "root").exists()


def test_the_recipe_does_not_know_of_them(there: Place, tmp_path: Path) -> None:
    fill(there, tmp_path / "new", 2)
    with_cache = pipeline(there.dataset(io_options=None), io_options=cache_at(tmp_path / "root"))
    without = pipeline(there.dataset(io_options=None))
    assert with_cache.recipe() == without.recipe()
    batches = iter(with_cache)
    [next(batches) for _ in range(70)]
    state = with_cache.checkpoint()
    rest = [global_sha256([b]) for b in batches]
    without.restore(state)
    assert [global_sha256([b]) for b in without] == rest


def test_a_limit_below_one_shard_is_refused_with_the_number_that_it_takes(there: Place, tmp_path: Path) -> None:
    fill(there, tmp_path / "new", 2)
    size = max(path.stat().st_size for path in (tmp_path / "new").iterdir())
    with pytest.raises(RecipeError, match=rf"{size}"):
        list(pipeline(there.dataset(io_options=None), io_options=cache_at(tmp_path / "root", limit_bytes=size - 1)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cach": True}, "cach.*cache"),
        ({"cache": {"limit": "1gb"}}, "limit_bytes"),
        ({"cache": {"limit_bytes": "10 potatoes"}}, "10 potatoes"),
        ({"retries": -1}, "retries"),
        ("cache", "mapping"),
    ],
)
def test_what_they_can_not_be_is_said(options: Any, says: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = make_place("memory", request, tmp_path)
    fill(place, tmp_path / "new", 1)
    with pytest.raises(RecipeError, match=says):
        list(pipeline(place.dataset(io_options=None), io_options=options))


def test_closing_in_the_middle_of_downloads_leaves_no_thread_and_no_half_file(
    s3: Server, request: pytest.FixtureRequest, tmp_path: Path, runner: str
) -> None:
    place = make_place("s3", request, tmp_path)
    fill(place, tmp_path / "new", 8)
    proxy = Proxy(int(s3.options["endpoint_url"].rpartition(":")[2]))
    place.storage_options = {**s3.options, "endpoint_url": f"http://127.0.0.1:{proxy.port}"}
    before = {thread.name for thread in threading.enumerate()}
    batches = iter(pipeline(place.dataset(io_options=None), runner=runner, io_options=cache_at(tmp_path / "root")))
    next(batches)
    proxy.fresh(Fault("slow", delay_s=0.1))
    for _ in range(BUNDLE // 64):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert "PART" not in cached(tmp_path / "root")
    assert cached(tmp_path / "root")
    assert not zephon_threads()
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in left if not name.startswith(("fsspecIO", "test-server", "Thread-", "asyncio_"))}, left
    proxy.close()

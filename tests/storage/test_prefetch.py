"""Fetching ahead fills the cache in the background, stops when told, and never fails anybody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from storage.conftest import SIZE, Web, body
from storage.servers import Fault
from storage.test_cache import on_disk

from zephon.storage import open_store
from zephon.storage.prefetch import Prefetcher
from zephon.waiting import Flag


def soon(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def test_shards_fetched_ahead_are_read_from_disk(web: Web, tmp_path: Path) -> None:
    urls = [web.put(name) for name in "abc"]
    store = web.store(tmp_path / "c")
    store.prefetch(urls)
    soon(lambda: on_disk(tmp_path / "c") == ["a", "b", "c"])
    web.proxy.fresh()
    assert [store.read(url) for url in urls] == [body(name) for name in "abc"]
    assert web.proxy.asked("") == []


def test_it_never_takes_more_than_half_of_the_cache_before_it_is_read(web: Web, tmp_path: Path) -> None:
    urls = {name: web.put(name) for name in "abcd"}
    store = web.store(tmp_path / "c", 4 * SIZE, prefetch_threads=1)
    store.prefetch(urls.values())
    soon(lambda: on_disk(tmp_path / "c") == ["a", "b"] and store._prefetcher._threads == 0)  # type: ignore[attr-defined]
    assert store.read(urls["a"]) == body("a")
    store.prefetch([urls["c"]])
    soon(lambda: on_disk(tmp_path / "c") == ["a", "b", "c"])


def test_a_reader_waits_for_the_download_ahead_instead_of_a_second_one(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    store = web.store(tmp_path / "c")
    web.proxy.fresh(Fault("slow", "/a", delay_s=0.1))
    store.prefetch([url])
    soon(lambda: on_disk(tmp_path / "c") == ["PART"])
    assert store.read(url) == body("a")
    assert len(web.proxy.asked("/a")) == 2


def test_failures_are_left_to_the_reader(web: Web, tmp_path: Path) -> None:
    store = web.store(tmp_path / "c")
    url = web.put("a")
    store.prefetch([url.replace("/a", "/none"), "nonsense", url])
    soon(lambda: on_disk(tmp_path / "c") == ["a"])


def test_cancelling_stops_what_runs_and_forgets_what_waits(web: Web, tmp_path: Path) -> None:
    data = body("a", 40 * SIZE // 2)
    urls = [web.put("a", data), web.put("b")]
    store = web.store(tmp_path / "c", prefetch_threads=1)
    web.proxy.fresh(Fault("slow", "/a", delay_s=0.1))
    store.prefetch(urls)
    soon(lambda: on_disk(tmp_path / "c") == ["PART"])
    store.cancel_prefetch()
    assert on_disk(tmp_path / "c") == []
    assert not any(t.name.startswith("zephon-prefetch") for t in threading.enumerate())
    store.prefetch(urls[1:])
    soon(lambda: on_disk(tmp_path / "c") == ["b"])


def test_no_thread_is_left_when_there_is_nothing_to_do() -> None:
    done: list[str] = []
    made = Prefetcher(lambda path, stopped: done.append(path), 2)
    made.add(str(n) for n in range(20))
    soon(lambda: len(done) == 20)
    soon(lambda: not any(t.name.startswith("zephon-prefetch") for t in threading.enumerate()))
    made.add(["again"])
    soon(lambda: done[-1] == "again")


def test_the_queue_is_bounded_and_each_path_waits_once() -> None:
    started, go = threading.Event(), threading.Event()
    seen: list[str] = []

    def load(path: str, stopped: Flag) -> None:
        seen.append(path)
        started.set()
        go.wait(20)

    made = Prefetcher(load, 1)
    made.add(["x"])
    started.wait(20)
    made.add(["x", "y", "y"])
    made.add(str(n) for n in range(10_000))
    assert len(made._waiting) == 256
    go.set()
    made.cancel()
    assert seen.count("x") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # lance warns in a hook when it was imported before
def test_a_forked_child_reads_and_prefetches_with_a_client_of_its_own(web: Web, tmp_path: Path) -> None:
    urls = [web.put(name) for name in "ab"]
    store = web.store(tmp_path / "c")
    assert store.read(urls[0]) == body("a")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.prefetch(urls[1:])
            soon(lambda: "b" in on_disk(tmp_path / "c"))
            status = 0 if store.inner.read(urls[1]) == body("b") else 2  # type: ignore[attr-defined]
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert store.inner.read(urls[0]) == body("a")  # type: ignore[attr-defined]


def test_local_and_uncached_stores_have_nothing_to_do(tmp_path: Path) -> None:
    for address in (str(tmp_path), "memory://x"):
        store, _ = open_store(address)
        store.prefetch(["anything"])
        store.cancel_prefetch()
        store.check_limits([])

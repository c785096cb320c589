"""GCS through gcsfs, against the emulator as a process of its own, behind the proxy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from storage.conftest import QUICK
from storage.servers import Fault, Proxy, Reply, free_port, process, query_of
from storage.service import DATA, Service

from zephon.errors import DataError, RecipeError
from zephon.storage import CacheOptions


@pytest.fixture(scope="module")
def emulator() -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    with process([*command, "--default-bucket", "b"], port):
        yield port


@pytest.fixture
def gcs(emulator: int) -> Iterator[Service]:
    proxy = Proxy(emulator)
    made = Service(proxy, "gs://b", {"token": "anon", "endpoint_url": f"http://127.0.0.1:{proxy.port}"})
    yield made
    made.proxy.close()


def test_objects_are_listed_and_read_by_ranges(gcs: Service) -> None:
    names = ["list/a.x", "list/b c.x", "list/d%25e.x", "list/ü#1.x", "list/s/f.x", "list/_h/g.x"]
    for name in names:
        gcs.put(name)
    urls = [f"gs://b/{name}" for name in sorted(names) if "_h" not in name]
    assert gcs.found("gs://b/list") == gcs.found("gs://b/list/") == sorted(urls)
    assert gcs.found("gs://b/list/*.x") == sorted(u for u in urls if "/s/" not in u)
    store = gcs.store(replace(QUICK, part_bytes=30_000))
    for url in urls:
        assert (store.read(url), store.read(url, 7, 99), store.read(url, 100, 10**9)) == (DATA, DATA[7:99], DATA[100:])
        with store.open(url) as file:
            file.seek(-9, 2)
            assert file.read() == DATA[-9:]
    assert store.read(urls[0], len(DATA), len(DATA) + 5) == b""
    assert store.read(gcs.put("empty", b"")) == b""
    with pytest.raises(RecipeError, match="does not exist"):
        gcs.found("gs://b/none.x")


@pytest.mark.parametrize(
    "fault", [Fault("status", status=503, times=2), Fault("status", status=429, times=2), Fault("cut", times=2), Fault("stall", times=1)],
    ids=["503", "429", "cut", "stall"],
)  # fmt: skip
def test_what_passes_is_tried_again(gcs: Service, fault: Fault) -> None:
    url = gcs.put("a.x")
    store = gcs.store()
    gcs.proxy.fresh(replace(fault, path="a.x"))
    assert store.read(url, 0, 5000) == DATA[:5000]
    assert len(gcs.proxy.asked("a.x")) == fault.times + 1


def test_the_error_after_the_last_try_counts_only_real_tries(gcs: Service) -> None:
    url = gcs.put("a.x")
    store = gcs.store()
    gcs.proxy.fresh(Fault("status", "a.x", status=500))
    with pytest.raises(DataError, match=r"gs://b/a\.x' can't be read .* after 4 tries"):
        store.read(url, 0, 5000)
    assert len(gcs.proxy.asked("a.x")) == 4


@pytest.mark.parametrize("status", [401, 403])
def test_denied_credentials_are_refreshed_once(gcs: Service, status: int) -> None:
    url = gcs.put("a.x")
    store = gcs.store()
    before = store.fs  # type: ignore[attr-defined]
    gcs.proxy.fresh(Fault("status", "a.x", status=status, times=1, body=b'{"error": {"code": 401, "message": "no"}}'))
    assert store.read(url, 0, 10) == DATA[:10]
    assert store.fs is not before  # type: ignore[attr-defined]


def test_a_download_that_differs_from_the_store_s_md5_is_made_again_and_then_refused(gcs: Service, tmp_path: Path) -> None:
    url = gcs.put("a.x")
    options = replace(QUICK, cache=CacheOptions(root=str(tmp_path)))
    store = gcs.store(options)
    gcs.proxy.fresh(Fault("flip", "/download/", times=1))
    assert store.read(url) == DATA
    other = gcs.put("b.x", DATA[::-1])
    gcs.proxy.fresh(Fault("flip", "/download/"))
    with pytest.raises(DataError, match=r"gs://b/b\.x' is damaged: its md5 is"):
        store.read(other)
    assert list(tmp_path.glob("*/??/*b.x")) == list(tmp_path.glob("*/??/*.part")) == []
    unchecked = gcs.store(replace(options, cache=CacheOptions(root=str(tmp_path), verify=False)))
    assert unchecked.read(other)[1:] == DATA[::-1][1:]


def google(emulator: int, *, heeds: bool) -> Callable[[str, Reply], Reply]:
    """What Google answers to a download and the emulator doesn't: the object's generation, and 412 where another one was asked for."""

    def amend(path: str, reply: Reply) -> Reply:
        if "/download/" not in path or reply[0] >= 300:
            return reply
        with urlopen(f"http://127.0.0.1:{emulator}{urlsplit(path).path.removeprefix('/download')}") as answer:
            generation = json.load(answer)["generation"]
        (asked,) = parse_qs(query_of(path)).get("ifGenerationMatch", [generation])
        if heeds and asked != generation:
            body = {"error": {"code": 412, "message": "At least one of the pre-conditions you specified did not hold."}}
            return 412, {}, json.dumps(body).encode()
        return reply[0], {**reply[1], "X-Goog-Generation": generation}, reply[2]

    return amend


@pytest.mark.parametrize("heeds", [True, False], ids=["condition", "header"])
def test_an_object_that_is_replaced_by_one_of_its_size_is_never_read_for_the_listed_one(
    gcs: Service, emulator: int, heeds: bool
) -> None:
    gcs.proxy.amend = google(emulator, heeds=heeds)
    url = gcs.put("list/ü 1#%25.x")
    store = gcs.store()
    store.files(url)
    looks = len(gcs.proxy.requests)
    assert store.read(url, 0, 100) == DATA[:100]
    assert len(gcs.proxy.requests) == looks + 1  # the answer says which object it is of: nobody asks again
    gcs.put("list/ü 1#%25.x", DATA[::-1])
    for _ in range(2):
        with pytest.raises(DataError, match="has changed since it was listed"):
            store.read(url, 200, 300)

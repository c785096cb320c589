"""Azure through adlfs, against Azurite from npm as a process of its own, behind the proxy."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from storage.conftest import QUICK
from storage.servers import Fault, Proxy, free_port, process
from storage.service import DATA, Service

from zephon.errors import DataError, RecipeError
from zephon.storage import CacheOptions

# Azurite's own account; its key is in its documentation
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE = ["npx", "--yes", "--package", "azurite@3.34.0", "azurite-blob"]


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if shutil.which("npx") is None:
        pytest.skip("Azurite needs node and npx")
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    options += ["--disableTelemetry"]
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(process([*AZURITE, *options], port, patience_s=100, cwd=tmp_path_factory.mktemp("azurite")))
        except RuntimeError as error:
            pytest.skip(f"npx can't fetch or start Azurite: {error}")
        yield port


@pytest.fixture
def azure(azurite: int) -> Iterator[Service]:
    proxy = Proxy(azurite)
    endpoint = f"http://127.0.0.1:{proxy.port}/{ACCOUNT}"
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"
    made = Service(proxy, "az://box", {"account_name": ACCOUNT, "connection_string": text})
    fs = made.store().fs  # type: ignore[attr-defined]
    if not fs.exists("box"):
        fs.mkdir("box")
    yield made
    proxy.close()


def test_blobs_are_listed_and_read_by_ranges(azure: Service) -> None:
    names = ["list/a.x", "list/b c.x", "list/d%25e.x", "list/ü#1.x", "list/s/f.x", "list/_h/g.x"]
    for name in names:
        azure.put(name)
    urls = sorted(f"az://box/{name}" for name in names if "_h" not in name)
    assert azure.found("az://box/list") == azure.found("az://box/list/") == urls
    assert azure.found("abfs://box/list/*.x") == ["abfs" + u[2:] for u in urls if "/s/" not in u]
    store = azure.store(replace(QUICK, part_bytes=30_000))
    for url in urls:
        assert (store.read(url), store.read(url, 7, 99), store.read(url, 100, 10**9)) == (DATA, DATA[7:99], DATA[100:])
    assert store.read(urls[0], len(DATA), len(DATA) + 5) == b""
    assert store.read(azure.put("empty", b"")) == b""
    with pytest.raises(RecipeError, match="does not exist"):
        azure.found("az://box/none.x")
    with pytest.raises(DataError, match="does not exist"):
        store.read("az://box/none.x", 0, 5)


@pytest.mark.parametrize(
    "fault", [Fault("status", status=503, times=2), Fault("status", status=500, times=2), Fault("cut", times=2), Fault("stall", times=1)],
    ids=["503", "500", "cut", "stall"],
)  # fmt: skip
def test_what_passes_is_tried_again(azure: Service, fault: Fault) -> None:
    url = azure.put("a.x")
    store = azure.store()
    azure.proxy.fresh(replace(fault, path="a.x"))
    assert store.read(url, 0, 5000) == DATA[:5000]
    assert len(azure.proxy.asked("a.x")) >= fault.times + 1


def test_the_error_after_the_last_try_names_blob_and_tries(azure: Service) -> None:
    url = azure.put("a.x")
    store = azure.store()
    azure.proxy.fresh(Fault("status", "a.x", status=503))
    with pytest.raises(DataError, match=r"az://box/a\.x' can't be read .* after 4 tries"):
        store.read(url, 0, 5000)
    assert len(azure.proxy.asked("a.x")) == 4


def test_denied_credentials_are_refreshed_once(azure: Service) -> None:
    url = azure.put("a.x")
    store = azure.store()
    before = store.fs  # type: ignore[attr-defined]
    azure.proxy.fresh(Fault("status", "a.x", status=403, times=1))
    assert store.read(url, 0, 10) == DATA[:10]
    assert store.fs is not before  # type: ignore[attr-defined]


def test_blobs_are_cached_under_their_tag(azure: Service, tmp_path: Path) -> None:
    url = azure.put("a.x")
    options = replace(QUICK, cache=CacheOptions(root=str(tmp_path)))
    assert azure.store(options).read(url) == DATA
    azure.proxy.fresh()
    assert azure.store(options).read(url) == DATA
    assert azure.proxy.asked("a.x") == []
    azure.put("a.x", DATA[::-1])
    assert azure.store(options).read(url) == DATA[::-1]


def test_a_blob_that_is_replaced_by_one_of_its_size_is_never_read_for_the_listed_one(azure: Service) -> None:
    url = azure.put("a.x")
    store = azure.store()
    store.files(url)
    assert store.read(url, 0, 100) == DATA[:100]
    azure.put("a.x", DATA[::-1])
    for _ in range(2):
        with pytest.raises(DataError, match="has changed since it was listed"):
            store.read(url, 200, 300)

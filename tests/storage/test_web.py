"""Plain web servers, in-memory file systems, and chains of them."""

from __future__ import annotations

import io
import logging
import os
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from storage.conftest import QUICK
from storage.servers import Fault, Proxy, folder_server

from zephon.errors import DataError, PluginError, RecipeError
from zephon.storage import CacheOptions, expand, open_store

DATA = bytes(range(256)) * 100


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, Proxy]]:
    folder = tmp_path / "site"
    folder.mkdir()
    with folder_server(folder) as port:
        proxy = Proxy(port)
        yield folder, proxy
        proxy.close()


def test_a_folder_page_is_followed_to_its_depth_and_no_further(site: tuple[Path, Proxy]) -> None:
    folder, proxy = site
    for name in ["d/a.x", "d/s/b c.x", "d/_h/c.x", "d/.d.x", "d/e%25.x", "other/f.x"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    root = f"http://127.0.0.1:{proxy.port}"
    for address in ("/d", "/d/"):
        store, inner = open_store(root + address, options=QUICK)
        found = expand(store, inner)
        assert [f.path.removeprefix(root) for f in found] == ["/d/a.x", "/d/e%2525.x", "/d/s/b%20c.x"]
        assert [store.read(f.path) for f in found] == [b"d/a.x", b"d/e%25.x", b"d/s/b c.x"]
        assert [f.size for f in found] == [5, 8, 9]
    assert [f.path for f in expand(*open_store(root + "/d/*.x", options=QUICK))] == [root + "/d/a.x", root + "/d/e%2525.x"]
    (one,) = expand(*open_store(root + "/d/{a}.x".replace("{a}", "a"), options=QUICK))
    assert one.path == root + "/d/a.x"
    with pytest.raises(RecipeError, match="does not exist"):
        open_and_expand(root + "/none.x")


def open_and_expand(address: str) -> list[str]:
    return [f.path for f in expand(*open_store(address, options=QUICK))]


def test_ranges_of_a_web_file(site: tuple[Path, Proxy]) -> None:
    folder, proxy = site
    (folder / "a.bin").write_bytes(DATA)
    (folder / "empty").write_bytes(b"")
    url = f"http://127.0.0.1:{proxy.port}/a.bin"
    store, _ = open_store(url, options=replace(QUICK, part_bytes=7000))
    assert store.read(url, 10, 20) == DATA[10:20]
    assert store.read(url, len(DATA), len(DATA) + 5) == b""
    assert store.read(url) == DATA
    assert store.read(url.replace("a.bin", "empty"), 0, 10) == b""
    with store.open(url) as file:
        file.seek(-3, 2)
        assert file.read() == DATA[-3:]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_trouble_at_a_look_up_is_not_a_missing_file(site: tuple[Path, Proxy], status: int) -> None:
    folder, proxy = site
    (folder / "a.bin").write_bytes(DATA)
    url = f"http://127.0.0.1:{proxy.port}/a.bin"
    proxy.fresh(Fault("status", method="HEAD", status=status, times=2), Fault("status", method="GET", status=status, times=2))
    assert open_and_expand(url) == [url]
    proxy.fresh(Fault("status", method="HEAD", status=status), Fault("status", method="GET", status=status))
    with pytest.raises(DataError, match=f"after 4 tries.*{status}"):
        open_and_expand(url)


def test_a_body_that_ends_early_is_fetched_again(site: tuple[Path, Proxy]) -> None:
    folder, proxy = site
    (folder / "a.bin").write_bytes(DATA)
    url = f"http://127.0.0.1:{proxy.port}/a.bin"
    store, _ = open_store(url, options=QUICK)
    for kind in ("cut", "short", "stall", "reset"):
        proxy.fresh(Fault(kind, times=1))
        assert store.read(url, 5, 20_000) == DATA[5:20_000]


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    url = "http://127.0.0.1:9/a.bin"
    with pytest.raises(DataError, match=r"127\.0\.0\.1:9/a\.bin' can't be looked up after 4 tries"):
        open_and_expand(url)


def test_a_server_without_ranges_is_read_right_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    with folder_server(tmp_path, ranges=False) as port:
        url = f"http://127.0.0.1:{port}/a.bin"
        store, _ = open_store(url, options=QUICK)
        with caplog.at_level(logging.WARNING):
            assert [store.read(url, a, a + 100) for a in (0, 5000)] == [DATA[:100], DATA[5000:5100]]
        assert len(caplog.records) == 1
        cache = CacheOptions(root=str(tmp_path / "c"))
        cached, _ = open_store(url, options=replace(QUICK, cache=cache, part_bytes=1 << 20))
        assert cached.read(url) == DATA


def test_memory_and_chained_file_systems_work_with_and_without_a_cache(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("in/a.x", DATA)
    fsspec.filesystem("memory").pipe({"/z/b.zip": packed.getvalue(), "/z/a.x": DATA})
    for options in (QUICK, replace(QUICK, cache=CacheOptions(root=str(tmp_path)))):
        for address in ("memory://z/a.x", "zip://in/a.x::memory://z/b.zip", "zip://in::memory://z/b.zip"):
            store, inner = open_store(address, options=options)
            (info,) = expand(store, inner)
            assert store.read(info.path) == DATA
            assert store.read(info.path, 3, 9) == DATA[3:9]
            with store.on_disk(info.path) as path:
                assert Path(path).read_bytes() == DATA


def test_two_chains_to_files_of_one_name_are_kept_apart_in_the_cache(tmp_path: Path) -> None:
    for name in "ab":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(zipfile.ZipInfo("x"), name.encode() * 1000)
        fsspec.filesystem("memory").pipe({f"/z/{name}.zip": packed.getvalue()})
    options = replace(QUICK, cache=CacheOptions(root=str(tmp_path)))
    for name in "ab":
        store, inner = open_store(f"zip://x::memory://z/{name}.zip", options=options)
        (info,) = expand(store, inner)
        assert store.read(info.path) == name.encode() * 1000


def test_a_missing_client_names_the_package_to_install() -> None:
    with pytest.raises(PluginError, match="dropbox"):
        open_store("dropbox://x")


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(("tags", "heeds"), [(True, True), (True, False), (False, False)], ids=["condition", "tag", "time"])
def test_a_file_that_is_replaced_by_one_of_its_size_is_never_read_for_the_listed_one(
    tags: bool, heeds: bool, ranges: bool, tmp_path: Path
) -> None:
    """By what the answer itself says, where the server doesn't know conditions: not only when the version is asked for again."""
    (tmp_path / "a.bin").write_bytes(DATA)
    os.utime(tmp_path / "a.bin", (1, 1))
    with folder_server(tmp_path, ranges=ranges, tags=tags, heeds=heeds) as port:
        url = f"http://127.0.0.1:{port}/a.bin"
        store, _ = open_store(url, options=QUICK)
        store.files(url)
        assert store.read(url, 0, 100) == DATA[:100]
        (tmp_path / "a.bin").write_bytes(DATA[::-1])
        for _ in range(2):
            with pytest.raises(DataError, match="has changed since it was listed"):
                store.read(url, 200, 300)


def test_a_file_that_is_replaced_by_a_longer_one_is_noticed_by_its_size_alone(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(DATA)
    os.utime(tmp_path / "a.bin", (1, 1))
    with folder_server(tmp_path) as port:
        url = f"http://127.0.0.1:{port}/a.bin"
        store, _ = open_store(url, options=QUICK)
        store.files(url)
        assert store.read(url, 0, 100) == DATA[:100]
        (tmp_path / "a.bin").write_bytes(DATA[::-1] + DATA)
        os.utime(tmp_path / "a.bin", (1, 1))
        with pytest.raises(DataError, match=r"has changed: it had 25600 bytes when it was listed, and has 51200 now"):
            store.read(url, 200, 300)

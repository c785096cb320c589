"""The shard cache: whole files once per node, within its limit, and never a wrong or a half one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import pytest
from storage.conftest import QUICK, SIZE, Bucket, Web, body
from storage.servers import Fault

from zephon.errors import DataError, RecipeError
from zephon.storage import CacheOptions
from zephon.storage.disk import FOLDER, Key, ShardCache


def on_disk(root: Path) -> list[str]:
    """The shards that are there, by the end of their names; parts as `PART`."""
    found = [path.name for path in (root / FOLDER).glob("??/*")]
    return sorted("PART" if name.endswith(".part") else name[33:] for name in found)


def test_the_second_read_comes_from_disk_in_every_store_on_the_node(web: Web, tmp_path: Path) -> None:
    url = web.put("a.bin")
    store = web.store(tmp_path / "c")
    assert store.read(url) == body("a.bin")
    web.proxy.fresh()
    for other in (store, web.store(tmp_path / "c"), pickle.loads(pickle.dumps(store))):
        assert other.read(url, 100, 5000) == body("a.bin")[100:5000]
        with other.open(url) as file:
            assert file.read() == body("a.bin")
        with other.on_disk(url) as path:
            assert Path(path).read_bytes() == body("a.bin")
            assert path.endswith("a.bin")
    assert web.proxy.asked("a.bin") == []
    assert on_disk(tmp_path / "c") == ["a.bin"]


def test_footers_are_read_without_fetching_the_shard_and_data_fetches_it(web: Web, tmp_path: Path) -> None:
    data = body("a.bin", 8 * SIZE)
    url = web.put("a.bin", data)
    store = web.store(tmp_path / "c")
    with store.open(url) as file:
        file.seek(-1000, 2)
        assert file.read() == data[-1000:]
    assert on_disk(tmp_path / "c") == []
    assert store.read(url, 0, SIZE) == data[:SIZE]
    assert on_disk(tmp_path / "c") == ["a.bin"]


def test_equal_base_names_and_replaced_objects_never_meet(web: Web, tmp_path: Path) -> None:
    one, two = web.put("x/0.bin"), web.put("y/0.bin")
    store = web.store(tmp_path / "c")
    assert (store.read(one), store.read(two)) == (body("x/0.bin"), body("y/0.bin"))
    web.put("x/0.bin", body("other"))
    os.utime(web.folder / "x/0.bin", (1, 1))  # the server's version is the time of change
    assert web.store(tmp_path / "c").read(one) == body("other")
    assert on_disk(tmp_path / "c") == ["0.bin"] * 3


def test_the_same_bucket_on_two_endpoints_is_two_buckets() -> None:
    keys = [Key(identity, "s3://b/k", 1, "v").digest for identity in ("http://one", "http://two")]
    assert len(set(keys)) == 2
    assert Key("a", "bc", 1, "v").digest != Key("ab", "c", 1, "v").digest


def test_the_least_recently_used_shards_go_and_the_limit_holds_at_every_moment(web: Web, tmp_path: Path) -> None:
    urls = {name: web.put(name) for name in "abcd"}
    store = web.store(tmp_path / "c", 2 * SIZE)
    for name, left in [("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("d", "cd")]:
        assert store.read(urls[name]) == body(name)
        assert on_disk(tmp_path / "c") == list(left)
    assert ShardCache(str(tmp_path / "c"), 1).usage().nbytes == 2 * SIZE


def test_neither_times_from_the_future_nor_a_stepping_clock_matter(web: Web, tmp_path: Path) -> None:
    urls = {name: web.put(name) for name in "abc"}
    store = web.store(tmp_path / "c", 2 * SIZE)
    store.read(urls["a"])
    store.read(urls["b"])
    (of_b,) = (tmp_path / "c" / FOLDER).glob("??/*-b")
    os.utime(of_b, (2**31 - 1, 2**31 - 1))
    store.read(urls["a"])
    store.read(urls["c"])
    assert on_disk(tmp_path / "c") == ["a", "c"]


def test_a_limit_below_one_shard_is_refused_with_both_numbers(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    store = web.store(tmp_path / "c", "1mb")
    assert store.read(url, 0, 100) == body("a")[:100]
    with pytest.raises(RecipeError, match=rf"may hold 1000000 bytes.*{SIZE}"):
        store.check_limits(store.files(url))
    with pytest.raises(RecipeError, match="1000000"):
        store.read(url)


def test_a_reader_keeps_its_shard_through_any_eviction(web: Web, tmp_path: Path) -> None:
    urls = {name: web.put(name) for name in "abc"}
    store = web.store(tmp_path / "c", SIZE)
    with (
        store.on_disk(urls["a"]) as path,
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
    ):
        # the only room there is is pinned: the others are read directly, at once
        assert store.read(urls["b"]) == body("b")
        with store.on_disk(urls["c"]) as other:
            assert Path(other).read_bytes() == body("c")
        assert Path(path).read_bytes() == view[:] == body("a")
        assert on_disk(tmp_path / "c") == ["a"]
        ShardCache(str(tmp_path / "c"), SIZE).clear()
        assert Path(path).read_bytes() == body("a")
    assert store.read(urls["b"]) == body("b")
    assert on_disk(tmp_path / "c") == ["b"]


def test_a_fast_and_a_slow_reader_share_a_cache_of_one_shard(web: Web, tmp_path: Path) -> None:
    urls = {name: web.put(name) for name in "abcdef"}
    stores = [web.store(tmp_path / "c", SIZE) for _ in range(2)]
    wrong: list[str] = []

    def slow() -> None:
        for name in "aabbaa":
            with stores[0].on_disk(urls[name]) as path:
                time.sleep(0.05)
                wrong.extend([name] * (Path(path).read_bytes() != body(name)))

    thread = threading.Thread(target=slow)
    thread.start()
    while thread.is_alive():
        for name in "cdefa":
            assert stores[1].read(urls[name]) == body(name)
    assert wrong == []
    assert ShardCache(str(tmp_path / "c"), SIZE).usage().nbytes <= SIZE


def test_threads_that_want_one_shard_fetch_it_once(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    stores = [web.store(tmp_path / "c") for _ in range(4)]
    web.proxy.fresh(Fault("slow", "/a", delay_s=0.1))
    with ThreadPoolExecutor(16) as pool:
        assert {hashlib.sha256(d).digest() for d in pool.map(lambda n: stores[n % 4].read(url), range(16))} == {
            hashlib.sha256(body("a")).digest()
        }
    assert len(web.proxy.asked("/a")) == 2  # its two parts


def test_a_shard_that_has_just_got_its_name_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    cache = ShardCache(str(tmp_path / "c"), 10 * SIZE)
    store = web.store(tmp_path / "c")
    store.read(url)
    key = store._key(url, store.inner.facts(url))  # type: ignore[attr-defined]
    with cache.find(key) as held:  # type: ignore[union-attr]
        place = held.path
    with open(place, "rb") as shard, ThreadPoolExecutor(1) as pool:
        fcntl.flock(shard, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as its downloader has it for a moment after the renaming
        again = pool.submit(cache.fetch, key, lambda _: pytest.fail("fetched again"))
        assert not wait([again], 0.1).done
        fcntl.flock(shard, fcntl.LOCK_SH)
        with again.result(30) as held:  # type: ignore[union-attr]
            assert held.in_place()


def test_who_waits_too_long_reads_directly(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    cache = ShardCache(str(tmp_path / "c"), 10 * SIZE)
    store = web.store(tmp_path / "c", wait_s=0.1)
    facts = store.inner.facts(url)  # type: ignore[attr-defined]
    key = store._key(url, facts)  # type: ignore[attr-defined]
    begun, may_end = threading.Event(), threading.Event()

    def never_ready(fd: int) -> None:
        begun.set()
        may_end.wait(30)
        os.pwrite(fd, body("a"), 0)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(cache.fetch, key, never_ready)
        begun.wait(30)
        assert on_disk(tmp_path / "c") == ["PART"]
        assert cache.usage().nbytes == SIZE  # what is promised counts
        assert store.read(url) == body("a")
        may_end.set()
        slow.result().close()  # type: ignore[union-attr]
    assert on_disk(tmp_path / "c") == ["a"]


def test_a_failed_download_leaves_nothing_and_its_error_says_where(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    store = web.store(tmp_path / "c")
    web.proxy.fresh(Fault("status", "/a", status=500))
    with pytest.raises(DataError, match=r"/a' can't be read .* after 4 tries"):
        store.read(url)
    assert on_disk(tmp_path / "c") == []
    web.proxy.fresh()
    assert store.read(url) == body("a")


def test_what_a_killed_download_left_is_never_used_and_gives_way(web: Web, tmp_path: Path) -> None:
    url, other = web.put("a"), web.put("b")
    store = web.store(tmp_path / "c", 2 * SIZE)
    key = store._key(url, store.inner.facts(url))  # type: ignore[attr-defined]
    assert store.read(other) == body("b")
    left = Path(store.cache._part_path(key))  # type: ignore[attr-defined]
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"x" * SIZE)
    assert store.read(url) == body("a")
    assert on_disk(tmp_path / "c") == ["a", "b"]
    left.write_bytes(b"x" * SIZE)
    assert web.store(tmp_path / "c", 2 * SIZE).read(web.put("d")) == body("d")
    assert on_disk(tmp_path / "c") in (["a", "d"], ["b", "d"])


def test_a_shortened_shard_on_disk_is_fetched_again(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    store = web.store(tmp_path / "c")
    store.read(url)
    (path,) = (tmp_path / "c" / FOLDER).glob("??/*-a")
    os.truncate(path, 1000)
    assert store.read(url) == body("a")
    assert path.stat().st_size == SIZE


def test_a_full_disk_is_told_once_and_reads_go_on(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    urls = {name: web.put(name) for name in "abc"}
    store = web.store(tmp_path / "c")
    assert store.read(urls["a"]) == body("a")
    write = os.pwrite

    def full(fd: int, data: bytes, at: int) -> int:
        if len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    with caplog.at_level(logging.WARNING):
        for name in "bcab":
            assert store.read(urls[name]) == body(name)
    assert [r.getMessage() for r in caplog.records if "is full" in r.getMessage()] != []
    assert len(caplog.records) == 1
    assert on_disk(tmp_path / "c") == ["a"]


@pytest.mark.skipif(not os.path.exists("/dev/full") or os.geteuid() != 0, reason="needs a small disk of its own")
def test_a_disk_that_is_really_full_degrades_in_the_same_way(web: Web, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=1500k tmpfs '{small}' 2>/dev/null") != 0:
        pytest.skip("a file system can't be mounted here")
    try:
        urls = {name: web.put(name) for name in "ab"}
        store = web.store(small)
        for name in "abab":
            assert store.read(urls[name]) == body(name)
        assert on_disk(small) == ["a"]
    finally:
        os.system(f"umount -l '{small}'")


def test_a_place_where_nothing_can_be_written_is_told_once(web: Web, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = web.put("a")
    (tmp_path / "file").write_bytes(b"")
    store = web.store(tmp_path / "file" / "c")
    with caplog.at_level(logging.WARNING):
        assert store.read(url) == store.read(url) == body("a")
        with store.on_disk(url) as path:
            assert Path(path).read_bytes() == body("a")
    assert len(caplog.records) == 1
    assert "can't be used" in caplog.text


def test_a_folder_of_somebody_else_is_refused_and_strange_files_stay(web: Web, tmp_path: Path) -> None:
    url = web.put("a")
    theirs = tmp_path / "c" / FOLDER
    theirs.mkdir(parents=True)
    (theirs / "thesis.txt").write_text("mine")
    with pytest.raises(RecipeError, match="not a shard cache of ours"):
        web.store(tmp_path / "c").read(url)
    root = tmp_path / "d"
    web.store(root, SIZE).read(url)
    strange = [root / "x", root / FOLDER / "y", *(p / "thesis.txt" for p in (root / FOLDER).glob("??"))]
    for path in strange:
        path.write_text("mine")
    (root / FOLDER / "ab").mkdir(exist_ok=True)
    (root / FOLDER / "ab" / ("f" * 32)).symlink_to(strange[0])
    web.store(root, SIZE).read(web.put("b"))
    ShardCache(str(root), SIZE).clear()
    link = root / FOLDER / "ab" / ("f" * 32)
    assert {*(root / FOLDER).glob("??/*")} == {path for path in [*strange, link] if path.parent.parent == root / FOLDER}
    assert all(path.read_text() == "mine" for path in strange)


def test_a_cache_removed_by_hand_during_the_run_is_made_again(web: Web, tmp_path: Path) -> None:
    import shutil

    urls = {name: web.put(name) for name in "ab"}
    store = web.store(tmp_path / "c")
    with store.on_disk(urls["a"]) as path, open(path, "rb") as file:
        shutil.rmtree(tmp_path / "c")
        assert file.read() == body("a")
    assert store.read(urls["b"]) == body("b")
    assert on_disk(tmp_path / "c") == ["b"]


def test_a_disk_without_file_locks_degrades(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    url = web.put("a")
    monkeypatch.setattr(fcntl, "flock", refuse)
    store = web.store(tmp_path / "c")
    with caplog.at_level(logging.WARNING):
        assert store.read(url) == store.read(url) == body("a")
    assert len(caplog.records) == 1


def test_a_flipped_byte_on_the_way_is_noticed_and_fetched_again(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put("a.bin", body("a"))
    store = bucket.store(replace(QUICK, cache=CacheOptions(root=str(tmp_path / "c"))))
    bucket.proxy.fresh(Fault("flip", "a.bin", times=1))
    assert store.read(url) == body("a")
    assert len(bucket.proxy.asked("a.bin")) == 2
    bucket.proxy.fresh(Fault("flip", "a.bin"))
    other = bucket.put("a.bin", body("b"))
    again = bucket.store(replace(QUICK, cache=CacheOptions(root=str(tmp_path / "c"))))
    # a tag that looks like an MD5 need not be one; two equal downloads are believed
    assert again.read(other)[1:] == body("b")[1:]


def test_an_object_whose_tag_is_no_checksum_is_cached_all_the_same(bucket: Bucket, tmp_path: Path) -> None:
    made = bucket.client.create_multipart_upload(Bucket=bucket.name, Key="big.bin")
    parts = []
    for number in (1, 2):
        answer = bucket.client.upload_part(
            Bucket=bucket.name, Key="big.bin", PartNumber=number, UploadId=made["UploadId"], Body=body(str(number), 5 << 20)
        )
        parts.append({"ETag": answer["ETag"], "PartNumber": number})
    bucket.client.complete_multipart_upload(
        Bucket=bucket.name, Key="big.bin", UploadId=made["UploadId"], MultipartUpload={"Parts": parts}
    )
    store = bucket.store(replace(QUICK, cache=CacheOptions(root=str(tmp_path / "c"))))
    url = f"s3://{bucket.name}/big.bin"
    assert store.read(url) == body("1", 5 << 20) + body("2", 5 << 20)
    assert "-2" in store.files(url)[0].etag
    assert on_disk(tmp_path / "c") == ["big.bin"]


def test_the_limit_holds_at_every_moment_with_failures_evictions_and_clearings_at_once(tmp_path: Path) -> None:
    """Counting must not meet a rename or a removal halfway: without the lock around either, this goes over the limit."""
    sizes = [100_000 + 13_000 * n for n in range(12)]
    limit, over, wrong = 400_000, [], []
    done = threading.Event()

    def use(seed: int) -> None:
        rng = random.Random(seed)
        cache = ShardCache(str(tmp_path), limit, wait_s=0.02)
        for _ in range(60):
            number = rng.randrange(12)

            def fill(fd: int, number: int = number) -> None:
                os.pwrite(fd, body(str(number), sizes[number]), 0)
                time.sleep(rng.random() * 0.002)
                if rng.random() < 0.1:
                    raise ValueError("the network is down")

            with contextlib.suppress(ValueError):
                held = cache.fetch(Key("", f"u{number}", sizes[number], "v"), fill)
                if held is not None:
                    with held:
                        if os.pread(held.fd, sizes[number], 0) != body(str(number), sizes[number]):
                            wrong.append(number)
            if rng.random() < 0.02:
                cache.clear()

    def watch() -> None:
        cache = ShardCache(str(tmp_path), limit)
        while not done.is_set():
            with contextlib.suppress(FileNotFoundError), cache._accounts() as accounts:
                counted = sum(entry.size for entry in cache._scan())
                if counted > limit or accounts.total < counted:
                    over.append((counted, accounts.total))
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    done.set()
    watcher.join()
    assert (over, wrong) == ([], [])
    assert "PART" not in on_disk(tmp_path)

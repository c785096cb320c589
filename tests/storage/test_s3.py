"""S3 through s3fs over HTTP: complete bytes, or an error that names the object and the number of tries."""

from __future__ import annotations

import hashlib
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from storage.conftest import QUICK, Bucket
from storage.servers import Fault

from zephon.errors import DataError, RecipeError
from zephon.storage import expand, open_store

DATA = bytes(range(256)) * 400
ODD = ["a b.bin", "50%25.bin", "a#b.bin", "what?.bin", "日本ü.bin", "a::b.bin", "x[1].bin", "{a,b}.bin", "a+b&c=d.bin"]


def test_objects_are_listed_as_full_urls_with_sizes_and_tags(bucket: Bucket) -> None:
    for key in ["d/b.x", "d/a.x", "d/s/c.x", "d/_h/c.x", "d/.c.x", "d/a.x.zidx", "d2/e.x", "d/marker/"]:
        bucket.put(key, key.encode())
    root = f"s3://{bucket.name}"

    def found(path: str) -> list[str]:
        return [f.path.removeprefix(root) for f in expand(*open_store(root + path, bucket.storage_options, options=QUICK))]

    assert found("/d") == found("/d/") == ["/d/a.x", "/d/b.x", "/d/s/c.x"]
    assert found("/d/*.x") == ["/d/a.x", "/d/b.x"]
    assert found("/d*/*.x") == ["/d/a.x", "/d/b.x", "/d2/e.x"]
    assert found("/d/**/*.x") == ["/d/a.x", "/d/b.x", "/d/s/c.x"]
    assert found("/d/{a,b}.x") == ["/d/a.x", "/d/b.x"]
    assert found("/{d,d2}") == ["/d/a.x", "/d/b.x", "/d/s/c.x", "/d2/e.x"]
    assert found("/d/_h") == ["/d/_h/c.x"]
    (info,) = expand(*open_store(root + "/d/a.x", bucket.storage_options, options=QUICK))
    assert (info.size, info.etag) == (5, hashlib.md5(b"d/a.x").hexdigest())
    with pytest.raises(RecipeError, match=r"d/c\.x' does not exist"):
        found("/d/{a,c}.x")
    with pytest.raises(RecipeError, match="does not exist"):
        found("/none")
    with pytest.raises(RecipeError, match="no file matches"):
        found("/d/*.y")


@pytest.mark.parametrize("name", ODD)
def test_any_letter_in_a_key_means_itself(bucket: Bucket, name: str) -> None:
    url = bucket.put(f"d/{name}", DATA)
    store, inner = open_store(url, bucket.storage_options, options=QUICK)
    (info,) = expand(store, inner)
    assert info.path == url
    assert store.read(info.path, 5, 9) == DATA[5:9]
    assert [f.path for f in expand(*open_store(f"s3://{bucket.name}/d", bucket.storage_options, options=QUICK))] == [url]


def test_a_glob_of_many_objects_is_one_listing_and_no_look_up_each(bucket: Bucket) -> None:
    for number in range(20):
        bucket.put(f"d/{number:02d}.x", b"1")
    bucket.proxy.fresh()
    assert len(expand(*open_store(f"s3://{bucket.name}/d/*.x", bucket.storage_options, options=QUICK))) == 20
    assert len(bucket.proxy.requests) <= 8


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 10), (100, 200), (len(DATA) - 5, None), (len(DATA) - 5, len(DATA) + 50), (7, 7), (9, 3)]
)
def test_a_range_is_these_bytes_whether_or_not_the_size_is_known(bucket: Bucket, start: int, stop: int | None) -> None:
    url = bucket.put("a.bin", DATA)
    expected = DATA[start:stop] if stop is None or stop > start else b""
    store = bucket.store(replace(QUICK, part_bytes=10_000))
    assert store.read(url, start, stop) == expected
    store.files(url)
    assert store.read(url, start, stop) == expected


def test_reading_behind_the_end_and_an_empty_object_give_nothing(bucket: Bucket) -> None:
    url, empty = bucket.put("a.bin", DATA), bucket.put("empty", b"")
    store = bucket.store()
    assert store.read(url, len(DATA), len(DATA) + 10) == b""
    assert store.read(empty, 0, 10) == store.read(empty) == b""
    with store.open(empty) as file:
        assert file.read() == b""


def test_long_reads_are_cut_into_parts_that_come_at_once(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store(replace(QUICK, part_bytes=30_000))
    bucket.proxy.fresh()
    assert store.read(url) == DATA
    assert sorted(bucket.proxy.asked("a.bin")) == sorted(
        f"bytes={a}-{min(a + 30_000, len(DATA)) - 1}" for a in range(0, len(DATA), 30_000)
    )
    with store.on_disk(url) as path:
        assert path.endswith("/a.bin")
        with open(path, "rb") as file:
            assert file.read() == DATA


def test_an_open_file_seeks_and_reads_ahead_in_order(bucket: Bucket) -> None:
    data = bytes(1 << 20) + DATA
    url = bucket.put("a.bin", data)
    store = bucket.store()
    bucket.proxy.fresh()
    with store.open(url) as file:
        assert file.seek(-5, 2) == len(data) - 5
        assert file.read() == data[-5:]
        file.seek(1 << 20)
        assert file.read(300) == DATA[:300]
        file.seek(0)
        assert b"".join(iter(lambda: file.read(10_000), b"")) == data
    assert len(bucket.proxy.asked("a.bin")) < 20


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=503, times=2, body=b"<Error><Code>SlowDown</Code></Error>"),
        Fault("status", status=500, times=2),
        Fault("status", status=429, times=2),
        Fault("reset", times=2),
        Fault("cut", times=2),
        Fault("short", times=2),
        Fault("stall", times=1),
    ],
    ids=lambda fault: f"{fault.kind}{fault.status if fault.kind == 'status' else ''}",
)
def test_what_passes_is_tried_again_and_gives_the_right_bytes(bucket: Bucket, fault: Fault) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    bucket.proxy.fresh(replace(fault, path="a.bin"))
    assert store.read(url, 0, 50_000) == DATA[:50_000]
    assert len(bucket.proxy.asked("a.bin")) == fault.times + 1


@pytest.mark.parametrize(
    ("fault", "says"),
    [(Fault("status"), "503"), (Fault("short"), "10 bytes came of 50000"), (Fault("reset"), "onnection")],
    ids=["503", "short", "reset"],
)
def test_the_error_after_the_last_try_names_object_and_tries(bucket: Bucket, fault: Fault, says: str) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    bucket.proxy.fresh(replace(fault, path="a.bin"))
    with pytest.raises(DataError) as caught:
        store.read(url, 0, 50_000)
    assert url in str(caught.value)
    assert "after 4 tries" in str(caught.value)
    assert says in str(caught.value)
    # aiohttp repeats a request by itself when a connection that it kept was closed
    assert 4 <= len(bucket.proxy.asked("a.bin")) <= (8 if fault.kind == "reset" else 4)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_stalled_body_is_noticed_and_named(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store(replace(QUICK, retries=1, read_timeout_s=0.3))
    bucket.proxy.fresh(Fault("stall", "a.bin"))
    with pytest.raises(DataError, match=r"a\.bin' can't be read .* after 2 tries: .*[Tt]ime"):
        store.read(url, 0, 50_000)


def test_a_body_that_drips_for_ever_ends_with_the_whole_request_s_time(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store(replace(QUICK, retries=0, read_timeout_s=30, timeout_s=0.4))
    bucket.proxy.fresh(Fault("stall", "a.bin"))
    with pytest.raises(DataError, match=r"after 1 try: FSTimeoutError"):
        store.read(url, 0, 50_000)


def test_the_store_s_retry_after_is_obeyed(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    bucket.proxy.fresh(Fault("status", "a.bin", times=1, headers={"Retry-After": "1"}))
    start = time.monotonic()
    assert store.read(url, 0, 9) == DATA[:9]
    assert time.monotonic() - start >= 1


def test_what_is_not_there_is_not_tried_again(bucket: Bucket) -> None:
    store = bucket.store()
    bucket.proxy.fresh()
    with pytest.raises(DataError, match=r"none\.bin' does not exist"):
        store.read(f"s3://{bucket.name}/none.bin", 0, 10)
    assert len(bucket.proxy.asked("none.bin")) == 1
    with pytest.raises(DataError, match="does not exist"):
        store.open(f"s3://{bucket.name}/none.bin")


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "ExpiredToken"), (401, "Unauthorized")])
def test_denied_credentials_are_refreshed_once_and_then_it_is_an_error(bucket: Bucket, status: int, code: str) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    before = store.fs  # type: ignore[attr-defined]
    bucket.proxy.fresh(Fault("status", "a.bin", times=1, status=status, body=body))
    assert store.read(url, 0, 10) == DATA[:10]
    assert store.fs is not before  # type: ignore[attr-defined]
    bucket.proxy.fresh(Fault("status", "a.bin", status=status, body=body))
    with pytest.raises(DataError, match="after 2 tries"):
        store.read(url, 0, 10)
    assert len(bucket.proxy.asked("a.bin")) == 2


def test_a_bare_400_to_a_look_up_is_taken_for_an_expired_token(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    bucket.proxy.fresh(Fault("status", "a.bin", times=1, method="HEAD", status=400))
    assert store.files(url)[0].size == len(DATA)


def test_many_threads_share_one_client_and_refresh_it_once(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    stores = [bucket.store() for _ in range(16)]
    first = stores[0].fs  # type: ignore[attr-defined]
    assert {id(store.fs) for store in stores} == {id(first)}  # type: ignore[attr-defined]
    bucket.proxy.fresh(Fault("status", "a.bin", times=16, status=403))
    together = threading.Barrier(16)

    def read(store) -> bytes:
        together.wait()
        return store.read(url, 0, 10)

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(read, stores)) == {DATA[:10]}
    (second,) = {id(store.fs) for store in stores}  # type: ignore[attr-defined]
    assert second != id(first)


def test_sixteen_threads_on_one_client_get_their_own_bytes(bucket: Bucket) -> None:
    bodies = {n: hashlib.sha256(str(n).encode()).digest() * (1000 + 37 * n) for n in range(16)}
    urls = {n: bucket.put(f"{n}.bin", body) for n, body in bodies.items()}
    store = bucket.store()
    bucket.proxy.fresh(Fault("cut", times=5), Fault("short", times=5))
    with ThreadPoolExecutor(16) as pool:
        for n, data in pool.map(lambda n: (n % 16, store.read(urls[n % 16], n, 20_000 + n)), range(64)):
            assert data in {bodies[n][m : 20_000 + m] for m in range(n, 64, 16)}


def test_an_object_that_shrank_or_went_after_the_listing_is_an_error_that_says_so(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    store.files(url)
    bucket.put("a.bin", DATA[:1000])
    with pytest.raises(DataError, match=rf"has changed: it had {len(DATA)} bytes when it was listed, and has 1000 now"):
        store.read(url, 0, 5000)
    store.files(url)
    bucket.client.delete_object(Bucket=bucket.name, Key="a.bin")
    with pytest.raises(DataError, match="does not exist any more"):
        store.read(url, 0, 10)


def test_a_failing_look_up_is_not_taken_for_a_missing_object(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    bucket.proxy.fresh(Fault("status", method="HEAD", status=503))
    with pytest.raises(DataError, match=r"a\.bin' can't be looked up after 4 tries"):
        expand(*open_store(url, bucket.storage_options, options=QUICK))
    bucket.proxy.fresh(Fault("status", method="GET", path="list-type", status=503, times=2))
    assert len(expand(*open_store(f"s3://{bucket.name}/", bucket.storage_options, options=QUICK))) == 1


def test_a_store_survives_pickling_and_goes_on_in_the_same_client(bucket: Bucket) -> None:
    url = bucket.put("a.bin", DATA)
    store = bucket.store()
    again = pickle.loads(pickle.dumps(store))
    assert again.read(url, 1, 4) == DATA[1:4]
    assert again.fs is store.fs  # type: ignore[attr-defined]

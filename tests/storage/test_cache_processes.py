"""Eight processes start at once on one cache, and one of them is killed in the middle of a download."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from storage.conftest import body
from storage.servers import Fault, Proxy, folder_server
from storage.test_cache import on_disk

from zephon.storage.disk import FOLDER, ShardCache

SIZE = 1 << 20
SHARDS = [f"train/{n:02d}.bin" for n in range(6)] + ["eval/00.bin"]

READER = """
import hashlib, os, sys, time
from zephon.storage import CacheOptions, StoreOptions, open_store

url, root, start, names, limit = sys.argv[1:6]
cache = CacheOptions(root=root, limit_bytes=int(limit), wait_s=60)
store, _ = open_store(url, options=StoreOptions(cache=cache, part_bytes=1 << 18, first_wait_s=0.05))
store.fs
print("ready", flush=True)
while not os.path.exists(start):
    time.sleep(0.002)
for name in names.split(","):
    with store.on_disk(url + name) as path:
        data = open(path, "rb").read()
    again = store.read(url + name, 1000, len(data))
    assert again == data[1000:], name
    print(name, hashlib.sha256(data).hexdigest(), flush=True)
"""


def lock_holders(path: Path) -> set[int]:
    """The processes that have a `flock` on this file, by the kernel's own list."""
    inode = path.stat().st_ino
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(f[4]) for f in lines if f[1] == "FLOCK" and f[5].rsplit(":", 1)[-1] == str(inode)}


def start_readers(url: str, tmp_path: Path, count: int, limit: int) -> list[subprocess.Popen[str]]:
    made = []
    for number in range(count):
        names = ",".join(SHARDS[number % 2 :] + SHARDS[: number % 2])
        command = [sys.executable, "-c", READER, url, str(tmp_path / "c"), str(tmp_path / "go"), names, str(limit)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for one in made:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="finds the downloader in /proc/locks")
@pytest.mark.parametrize(("count", "room"), [(8, len(SHARDS)), (4, 3)])
def test_all_others_get_the_right_bytes_when_one_dies_in_its_download(tmp_path: Path, count: int, room: int) -> None:
    served = tmp_path / "served"
    for name in SHARDS:
        (served / name).parent.mkdir(parents=True, exist_ok=True)
        (served / name).write_bytes(body(name))
    with folder_server(served) as port:
        proxy = Proxy(port)
        # the first download of one shard stops in the middle of its second part
        proxy.fresh(Fault("stall", "train/01.bin", times=1, after=1000))
        readers = start_readers(f"http://127.0.0.1:{proxy.port}/", tmp_path, count, room * SIZE)
        (tmp_path / "go").touch()
        victim = find_downloader(tmp_path / "c", proxy)
        os.kill(victim, signal.SIGKILL)
        answers = {one.pid: one.communicate(timeout=60) for one in readers}
        requests = {name: len(proxy.asked(name)) for name in SHARDS}
        proxy.close()
    assert [one.returncode for one in readers if one.pid == victim] == [-signal.SIGKILL]
    expected = {f"{name} {hashlib.sha256(body(name)).hexdigest()}" for name in SHARDS}
    for one in readers:
        if one.pid != victim:
            assert one.returncode == 0, answers[one.pid][1]
            assert set(answers[one.pid][0].split("\n")) - {"ready", ""} == expected
    assert "PART" not in on_disk(tmp_path / "c")
    assert ShardCache(str(tmp_path / "c"), 1).usage().nbytes <= room * SIZE
    if room == len(SHARDS):
        assert len(on_disk(tmp_path / "c")) == len(SHARDS)
        # four parts each, once on this node; the victim's shard a second time
        again = requests.pop("train/01.bin")
        assert again in (5, 6, 7, 8)
        assert set(requests.values()) == {4}


def find_downloader(root: Path, proxy: Proxy) -> int:
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        if proxy.faults[0].seen:
            time.sleep(0.3)  # its other parts come in, the others begin to wait
            for part in (root / FOLDER).glob("??/*.part"):
                holders = lock_holders(part)
                # the shard that doesn't get ready is the one whose download stalls
                if len(holders) == 1:
                    return holders.pop()
        time.sleep(0.01)
    raise AssertionError("nobody downloads")

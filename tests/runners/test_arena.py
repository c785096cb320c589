"""Messages between processes: what fits where, and what happens when nothing fits."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zephon.runners.arena import INLINE_BYTES, Channel, pack, unpack

BIG = pa.record_batch({"x": np.arange(100_000), "s": pa.array(["word"] * 100_000)})
SMALL = BIG.slice(7, 10)


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ends = [Channel(end) for end in socket.socketpair()]
    yield ends[0], ends[1]
    for end in ends:
        end.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_small_parcels_need_no_descriptor_and_large_ones_one() -> None:
    small, big = pack(1, [SMALL]), pack(1, [BIG])
    assert small.descriptor is None
    assert len(small.body) <= INLINE_BYTES
    assert big.descriptor is not None
    assert unpack(small)[1][0].equals(SMALL)
    assert unpack(big)[1][0].equals(BIG)


@pytest.mark.parametrize(
    "size", [0, INLINE_BYTES - 200, INLINE_BYTES - 65, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 5 * INLINE_BYTES]
)
def test_a_head_of_any_size_survives(size: int) -> None:
    head = os.urandom(size)
    assert unpack(pack(head, [SMALL, BIG, SMALL])) == (head, [SMALL, BIG, SMALL])


def test_results_are_read_only_views_and_hold_no_descriptor() -> None:
    before = open_files()
    held = [unpack(pack(None, [BIG]))[1][0] for _ in range(50)]
    assert open_files() == before
    assert not held[0]["x"].to_numpy().flags.writeable
    assert all(group.equals(BIG) for group in held)


def test_memory_lives_as_long_as_a_view_of_it_and_no_longer() -> None:
    def maps() -> int:
        with open("/proc/self/maps") as lines:
            return sum("memfd:zephon" in line for line in lines)

    before = maps()
    column = unpack(pack(None, [BIG]))[1][0].slice(5, 3)["x"].to_numpy()
    assert maps() == before + 1
    assert column.tolist() == [5, 6, 7]
    del column
    assert maps() == before


def test_without_nameless_memory_an_unlinked_file_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parcel = pack("head", [BIG])
    assert list(tmp_path.iterdir()) == []
    assert os.readlink(f"/proc/self/fd/{parcel.descriptor}").startswith(str(tmp_path))
    head, groups = unpack(parcel)
    assert (head, groups) == ("head", [BIG])


def test_memory_that_fills_up_is_continued_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    memory: list[int] = []
    written = [0]
    make = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda name: memory.append(make(name)) or memory[-1])

    def full(descriptor: int, data: Any) -> int:
        if descriptor in memory and written[0] > 200_000:
            memory.clear()
            raise OSError(28, "No space left on device")
        written[0] += 100_000
        return real(descriptor, memoryview(data)[:100_000])

    monkeypatch.setattr(os, "write", full)
    head, groups = unpack(pack("head", [BIG, BIG]))
    assert not memory
    assert (head, groups) == ("head", [BIG, BIG])


FULL = """
import os, resource, pyarrow as pa
from zephon.errors import RunnerError
from zephon.runners.arena import pack
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
before = len(os.listdir("/proc/self/fd"))
try:
    pack(None, [pa.record_batch({"x": [0] * 100_000})])
except RunnerError as error:
    print(error)
print(len(os.listdir("/proc/self/fd")) - before)
"""


def test_no_room_anywhere_is_a_clear_error_and_leaves_nothing_open() -> None:
    out = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "no room for a message between processes" in out
    assert "TMPDIR" in out
    assert out.splitlines()[-1] == "0"


def test_parcels_arrive_in_order_with_their_own_memory(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    before = open_files()
    groups = [SMALL, BIG, BIG.slice(0, 50_000), SMALL, BIG.slice(1)]
    for number, group in enumerate(groups):
        left.send(pack(number, [group]))
    got: list[Any] = []
    while len(got) < len(groups):
        got += [unpack(parcel) for parcel in right.receive() or ()]
    assert got == [(number, [group]) for number, group in enumerate(groups)]
    assert open_files() == before


def test_the_end_of_a_channel_is_seen_after_what_was_sent(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    assert right.receive() == []
    left.send(pack(1, []))
    left.close()
    assert [unpack(p)[0] for p in right.receive() or ()] == [1]
    assert right.receive() is None


LIMIT = """
import os, resource, socket, numpy as np, pyarrow as pa
from zephon.errors import RunnerError
from zephon.runners.arena import Channel, pack
a, b = (Channel(end) for end in socket.socketpair())
parcel = pack(None, [pa.record_batch({"x": np.arange(100_000)})])
a.send(parcel)
highest = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
try: b.receive()
except RunnerError as error: print(error)
"""


def test_a_descriptor_lost_to_the_limit_of_open_files_is_an_error() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
    out = subprocess.run([sys.executable, "-c", LIMIT], capture_output=True, text=True, timeout=60)
    assert "too many open files" in out.stdout, out.stderr

"""Inputs that broke other loaders, by their numbers: several hosts and processes at once, and what they hold in memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases.loader_job import DEFAULTS, run

JOB = Path(__file__).with_name("loader_job.py")
PIPE = subprocess.PIPE


class Jobs:
    """Loaders as programs, all ready before any begins."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.processes: list[subprocess.Popen[str]] = []

    def add(self, *before: str, **settings: Any) -> subprocess.Popen[str]:
        command = [
            *before,
            sys.executable,
            str(JOB),
            json.dumps({k: str(v) if isinstance(v, Path) else v for k, v in settings.items()}),
        ]
        process = self._stack.enter_context(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True))
        self._stack.callback(process.kill)
        self.processes.append(process)
        return process

    def go(self) -> None:
        """Begin, all at once."""
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in self.processes:
            say(process)

    def results(self) -> list[dict[str, Any]]:
        """What they print at their ends."""
        found = []
        for process in self.processes:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0
            found.append(json.loads(out.splitlines()[-1]))
        return found

    def close(self) -> None:
        self._stack.close()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.close()


def write_lines(folder: Path, count: int = 400) -> Path:
    folder.mkdir(parents=True)
    for part in range(3):
        lines = [json.dumps({"id": 1000 * part + i, "text": "x" * (i % 50)}) for i in range(count)]
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def merged(results: list[dict[str, Any]]) -> list[list[Any]]:
    return sorted(entry for result in results for entry in result["hashes"])


def alone(**settings: Any) -> dict[str, Any]:
    jobs = Jobs()
    jobs.add(**settings)
    try:
        jobs.go()
        return jobs.results()[0]
    finally:
        jobs.close()


def test_28_hosts_that_share_no_disk_build_their_own_index_and_agree(tmp_path: Path, jobs: Jobs) -> None:
    one = write_lines(tmp_path / "one" / "data")
    for host in ("host-0", "host-1"):
        shutil.copytree(one, tmp_path / host / "data")
    for rank in (0, 1):
        host = tmp_path / f"host-{rank}"
        jobs.add(data=host / "data", cache=host / "cache", rank=rank, world=2, runner="inline")
    jobs.go()
    found = jobs.results()
    want = run(DEFAULTS | {"data": one, "cache": tmp_path / "one" / "cache"})
    assert merged(found) == merged([want])
    assert {result["recipe"] for result in found} == {want["recipe"]}
    for host in ("host-0", "host-1"):
        made = [p for p in (tmp_path / host).rglob("*") if p.is_file() and p.suffix != ".jsonl"]
        assert len(made) == 3, "an index for each file, on each host"


def test_29_eight_ranks_that_start_at_once_on_an_empty_cache_agree(tmp_path: Path, jobs: Jobs) -> None:
    data = write_lines(tmp_path / "data")
    for rank in range(8):
        jobs.add(data=data, cache=tmp_path / "cache", rank=rank, world=8, lanes=8, runner="inline")
    jobs.go()
    found = jobs.results()
    fresh = write_lines(tmp_path / "again")
    want = run(DEFAULTS | {"data": fresh, "cache": tmp_path / "other", "lanes": 8})
    assert merged(found) == merged([want])
    assert {result["recipe"] for result in found} == {want["recipe"]}
    left = [p.name for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".jsonl"]
    assert len(left) == 6, "one index per file and folder, no lock and no half-written file"


def test_32_loaders_at_once_and_after_a_kill_do_not_meet(tmp_path: Path, jobs: Jobs) -> None:
    data = write_lines(tmp_path / "data")
    settings: dict[str, Any] = {"data": data, "cache": tmp_path / "cache", "runner": "processes", "workers": 1, "steps": 5}
    shared_before = set(os.listdir("/dev/shm"))
    for _ in range(4):
        jobs.add(**settings, stop_at=7)
    jobs.go()
    for process in jobs.processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"  # all four are in the middle of their runs
    victim = jobs.processes.pop(1)
    victim.kill()
    victim.wait(20)
    jobs.add(**settings, stop_at=7)  # the launcher starts it again, while the others are still there
    again = jobs.processes[-1]
    assert again.stdout is not None
    assert again.stdout.readline() == "ready\n"
    say(again)
    for process in jobs.processes:
        say(process)
    found = jobs.results()
    assert len(found) == 4
    assert all(result["hashes"] == found[0]["hashes"] for result in found)
    assert len(found[0]["hashes"]) == 20
    assert not [name for name in set(os.listdir("/dev/shm")) - shared_before if "zephon" in name]


def test_37_a_longer_file_takes_no_more_memory(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    schema = pa.schema([pa.field("b", pa.binary())])
    grown = []
    for groups in (20, 60):
        path = tmp_path / f"{groups}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False, compression="none") as writer:
            for _ in range(groups):
                whole = draw.bytes(4_000_000)
                rows = [whole[i : i + 4000] for i in range(0, len(whole), 4000)]
                writer.write_table(pa.table({"b": pa.array(rows, pa.binary())}))
        assert path.stat().st_size > groups * 3.9e6
        found = alone(data=path, lanes=2, size=50, chunk=100, steps=10 * groups, max_bytes=32 << 20)
        assert len(found["hashes"]) == 20 * groups, "a whole pass"
        grown.append(found["grown"])
        path.unlink()
    assert grown[1] - grown[0] < 60e6, f"{grown}: the second file is 160 MB larger"


def test_38_an_index_of_a_million_records_costs_the_workers_nothing_however_long_they_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(b'{"id": 12345678}\n' * 1_000_000)
    found = alone(
        data=tmp_path / "data", cache=tmp_path / "cache", runner="processes", workers=4, lanes=4, chunk=500, size=500, steps=120,
        look_at=[40, 479],
    )  # fmt: skip
    early, late = found["workers"]
    assert len(early) == len(late) == 4
    for before, after in zip(early, late, strict=True):
        assert after - before < 8 << 20, "touching the index must not make copies of it"
    assert found["grown"] < 400e6


def can_mount() -> bool:
    command = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0
    except OSError:
        return False


def test_40_batches_of_fifty_megabytes_with_hardly_any_shared_memory(tmp_path: Path, jobs: Jobs) -> None:
    """A container's /dev/shm, of 1 MB: what crosses between processes is in memory without a name, which needs none of it."""
    pq.write_table(
        pa.table({"b": pa.array([bytes([i]) * (25 << 20) for i in range(4)], pa.binary())}),
        tmp_path / "a.parquet",
        row_group_size=1,
    )
    settings: dict[str, Any] = {"data": tmp_path / "a.parquet", "lanes": 1, "size": 2, "chunk": 2, "steps": 4, "workers": 2}
    want = run(DEFAULTS | settings | {"runner": "inline"})
    inside = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1M tmpfs /dev/shm && exec "$@"',
        "sh",
    ]
    jobs.add(*(inside if can_mount() else []), **settings, runner="processes")
    jobs.go()
    (found,) = jobs.results()
    assert [digest for *_, digest in found["hashes"]] == [digest for *_, digest in want["hashes"]]

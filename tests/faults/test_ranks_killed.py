"""Several real processes with torch.distributed, killed with SIGKILL and resumed on another number: the same global batches."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

JOB = Path(__file__).with_name("rank_job.py")
LANES = 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, world: int, *, stop: int = -1) -> list[subprocess.Popen[bytes]]:
    port = free_port()
    return [
        subprocess.Popen([sys.executable, str(JOB), str(folder), str(rank), str(world), str(port), str(LANES), str(stop)])
        for rank in range(world)
    ]


def killed_at(step: int, folder: Path, world: int) -> None:
    """Run a job of so many ranks until it has delivered that step and saved a state, and kill all of them."""
    ranks = start(folder, world, stop=step)
    deadline = time.monotonic() + 90
    while not (folder / "state.json").exists() or max(hashes(folder), default=0) < step:
        assert time.monotonic() < deadline, "the job does not get on"
        assert all(r.poll() is None for r in ranks), "a rank died by itself"
        time.sleep(0.1)
    for process in ranks:
        process.send_signal(signal.SIGKILL)
    assert [process.wait(20) for process in ranks] == [-signal.SIGKILL] * world


def hashes(folder: Path) -> dict[int, list[list[object]]]:
    """step → [lane, sha256] of every batch, whoever delivered it and how often."""
    found: dict[int, dict[int, str]] = {}
    for path in sorted(folder.glob("hashes-*.jsonl")):
        for line in path.read_text().splitlines():
            step, lane, digest = json.loads(line)
            assert found.setdefault(step, {}).setdefault(lane, digest) == digest, (
                f"step {step}, lane {lane} came in two versions"
            )
    return {step: [[lane, lanes[lane]] for lane in sorted(lanes)] for step, lanes in sorted(found.items())}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = np.random.default_rng(5)
    for name, rows in (("a", 300), ("b", 130)):
        tokens = [draw.integers(1, 1000, size).tolist() for size in draw.integers(1, 40, rows)]
        pq.write_table(
            pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))}), tmp_path / f"{name}.parquet", row_group_size=32
        )
    return tmp_path


def test_a_job_that_was_killed_twice_resumes_on_more_and_on_fewer_ranks(folder: Path) -> None:
    killed_at(6, folder, 2)
    killed_at(12, folder, 4)
    for process in start(folder, 2):
        assert process.wait(90) == 0
    resumed = hashes(folder)
    for path in [*folder.glob("hashes-*"), folder / "state.json"]:
        path.unlink()
    for process in start(folder, 1):
        assert process.wait(90) == 0
    assert resumed == hashes(folder)
    assert [len(lanes) for lanes in resumed.values()] == [LANES] * len(resumed)
    assert len(resumed) > 14

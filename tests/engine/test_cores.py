"""A rank's share of its machine: what is read from the system, on a made-up one, and the launchers' variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from zephon import Dataset, Pipeline, cores
from zephon.errors import RecipeError
from zephon.options import Options


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """96 cores, this process bound to none of them; the folder is its /sys/fs/cgroup."""
    monkeypatch.setattr(cores, "_V2", tmp_path)
    monkeypatch.setattr(cores, "_affinity", lambda: 96)
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 96)
    monkeypatch.setattr(cores, "_own_groups", lambda controller: [tmp_path / controller / "job", tmp_path / controller])
    (tmp_path / "job").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "share"),
    [
        ({}, 96),
        ({"LOCAL_WORLD_SIZE": "8"}, 12),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "7"}, 13),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 24),
        ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "6"}, 6),
        ({"SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "64", "LOCAL_WORLD_SIZE": "8"}, 12),
        ({"LOCAL_WORLD_SIZE": "200"}, 1),
        ({"LOCAL_WORLD_SIZE": "x"}, 96),
    ],
)
def test_ranks_divide_the_cores(machine: Path, environ: dict[str, str], share: int) -> None:
    assert cores.core_share(environ=environ) == share


def test_what_the_user_says_wins(machine: Path) -> None:
    assert cores.core_share(4, {"LOCAL_WORLD_SIZE": "8"}) == 24


def test_a_rank_that_is_bound_to_cores_of_its_own_has_them_all(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_affinity", lambda: 12)
    assert cores.core_share(environ={"LOCAL_WORLD_SIZE": "8"}) == 12


def test_a_containers_set_of_cores_is_shared(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_affinity", lambda: 16)
    (machine / "cpuset.cpus.effective").write_text("0-7,48-55\n")
    assert cores.core_share(environ={"LOCAL_WORLD_SIZE": "8"}) == 2


def test_a_quota_of_any_group_around_holds(machine: Path) -> None:
    (machine / "job" / "cpu.max").write_text("max 100000\n")
    assert cores.core_share(environ={}) == 96
    (machine / "cpu.max").write_text("600000 100000\n")
    assert cores.core_share(environ={}) == 6
    (machine / "job" / "cpu.max").write_text("250000 100000\n")
    assert cores.core_share(environ={}) == 2
    assert cores.core_share(environ={"LOCAL_WORLD_SIZE": "2"}) == 1


def test_a_quota_of_old_control_groups_holds_too(machine: Path) -> None:
    (machine / "cpu").mkdir()
    (machine / "cpu" / "cpu.cfs_quota_us").write_text("300000")
    (machine / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cores.core_share(environ={}) == 3
    (machine / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert cores.core_share(environ={}) == 96


def test_memory_is_what_the_container_may_use(machine: Path) -> None:
    everything = cores.memory_share(environ={})
    (machine / "job" / "memory.max").write_text("max")
    assert cores.memory_share(environ={}) == everything
    (machine / "memory.max").write_text(str(4 << 30))
    assert cores.memory_share(environ={"LOCAL_WORLD_SIZE": "8"}) == 512 << 20
    assert Options(ranks_per_node=8).byte_budget == 128 << 20
    assert Options(ranks_per_node=8, max_bytes=5).byte_budget == 5


def test_this_machine_answers() -> None:
    assert 1 <= cores.core_share(environ={}) <= cores._affinity()
    assert cores.memory_share(environ={}) > 1 << 20


def test_a_word_that_is_no_number_of_workers_is_refused() -> None:
    pipeline = Pipeline(Dataset.from_records("x", [{"a": 1}]))
    with pytest.raises(RecipeError, match="unknown number of workers 'autp'; did you mean 'auto'"):
        pipeline.options(workers="autp")
    with pytest.raises(RecipeError, match="resources is"):
        pipeline.options(resources={"map": 2})
    assert pipeline.options(workers="auto", ranks_per_node=2)

"""What this process may use of its machine: cores and memory, shared with the other ranks there."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

_LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",  # torchrun, accelerate, Ray Train
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # Open MPI
    "MPI_LOCALNRANKS",  # Intel MPI, MPICH
    "SLURM_STEP_TASKS_PER_NODE",  # srun: "8" or "8(x2)" or "8(x2),4"
    "SLURM_NTASKS_PER_NODE",
)
_V2 = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Version 1 of cgroups writes "no limit" as a number beyond any memory."""


def core_share(ranks_per_node: int | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Cores for this rank, at least 1: what affinity and the container's quota leave, divided by the ranks on this machine.

    A rank that is bound to cores of its own (`srun --cpu-bind`, `taskset`) has those to itself.
    """
    mine, all_here = _affinity(), _machine_cores()
    ranks = ranks_per_node or local_ranks(environ)
    alone = ranks > 1 and mine * ranks <= all_here  # bound: the others have theirs
    share = mine if alone else min(mine, all_here) / ranks
    quota = _cpu_quota()
    if quota is not None:
        share = min(share, quota / ranks)
    given = environ.get("SLURM_CPUS_PER_TASK", "")
    if given.isdigit() and "LOCAL_WORLD_SIZE" not in environ:  # else one task holds several ranks
        share = min(float(mine), float(given), share if quota is not None else math.inf)
    return max(1, int(share))


def memory_share(ranks_per_node: int | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Bytes of memory for this rank: the container's limit or the machine's memory, divided by the ranks on this machine."""
    limits = [limit for limit in (_memory_limit(), _machine_memory()) if limit is not None]
    return min(limits, default=1 << 40) // (ranks_per_node or local_ranks(environ))


def local_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """How many ranks of this job share the machine, as launchers tell; 1 where none does."""
    for name in _LOCAL_RANKS:
        found = re.match(r"\d+", environ.get(name, ""))
        if found and int(found[0]) > 0:
            return int(found[0])
    return 1


def idle_seconds() -> float | None:
    """Core-seconds that the machine's cores were idle since it started; None where the system doesn't say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = file.readline().split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine_cores() -> int:
    """Of the machine, or of the container's set of cores where it has one."""
    for path in (_V2 / "cpuset.cpus.effective", _V2 / "cpuset/cpuset.effective_cpus"):
        with contextlib.suppress(OSError, ValueError):
            return sum(_length(part) for part in path.read_text().strip().split(","))
    return os.cpu_count() or 1


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def _cpu_quota() -> float | None:
    """Cores' worth of time that the control groups grant, the least of this one and those around it."""
    found: list[float] = []
    for folder in _own_groups(""):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
    for folder in _own_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                found.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min(found, default=None)


def _memory_limit() -> int | None:
    found: list[int] = []
    for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes")):
        for folder in _own_groups(controller):
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / name).read_text())
                if limit < _UNLIMITED:
                    found.append(limit)
    return min(found, default=None)


def _own_groups(controller: str) -> list[Path]:
    """The folder of this process's control group and those above it; "" means version 2."""
    root = _V2 / controller
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, names, place = line.split(":", 2)
        if controller in names.split(","):
            inside = Path(place.lstrip("/"))
            return [root / inside, *(root / parent for parent in inside.parents)]
    return []


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None

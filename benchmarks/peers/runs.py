"""One run: a fresh process in the peer's environment, watched from outside for memory and for what else the machine does."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.harness import CORES, Machine
from benchmarks.peers.environments import HERE, Environments

_LOOK_S = 0.1
_SHARE = 0.02
"""Of the time that looking may take: the kernel goes through all pages for a PSS (40 ms of 1.4 GB), and who maps memory meanwhile waits."""


@dataclass(frozen=True)
class Entry:
    """A peer in one of its ways."""

    peer: str
    """The module in `loaders/`."""
    variant: str
    group: str
    """The environment."""
    setting: str
    """What the table says of it."""
    longer: float = 1
    """So many times the case's window: for a flow that comes in bursts of seconds."""

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.peer}|{self.variant}"


def run(entry: Entry, case: str, environments: Environments, asked: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
    """What the process printed, with `peak_rss_mb`, `peak_pss_mb` and `elsewhere` (cores used by others); or `{"failed": why}`."""
    if entry.group in environments.reasons:
        return {"failed": environments.reasons[entry.group]}
    given = asked | {"case": case, "peer": entry.peer, "variant": entry.variant, "began": time.time()}
    with Machine() as machine:
        made = call(environments.pythons[entry.group], given, _variables(entry, environments), limit_s=limit_s)
    return made | {"elsewhere": round(machine.elsewhere, 3)}


def call(python: Path, asked: dict[str, Any], variables: dict[str, str], *, limit_s: float) -> dict[str, Any]:
    """Run `child.py` in an interpreter: what it printed, and its peaks of memory.

    Output goes to files: a pipe would stay open as long as any process that a peer left behind.
    """
    with tempfile.TemporaryDirectory(prefix="zephon-peer-") as place:
        out, errors = Path(place, "out"), Path(place, "errors")
        with out.open("wb") as written, errors.open("wb") as told:
            command = [str(python), str(HERE / "child.py"), json.dumps(asked)]
            child = subprocess.Popen(command, stdout=written, stderr=told, cwd=place, env=variables, start_new_session=True)
            watch = _Watch(child.pid)
            watch.start()
            timer = threading.Timer(limit_s, lambda: _kill(child.pid))
            timer.start()
            try:
                code = child.wait()
            finally:
                timer.cancel()
                peak = watch.stop()
                _kill(child.pid)
        return _answer(out.read_bytes(), code, errors.read_text(errors="replace"), limit_s) | peak


def _variables(entry: Entry, environments: Environments) -> dict[str, str]:
    threads = {"RAYON_NUM_THREADS": str(CORES), "OMP_NUM_THREADS": str(CORES)}
    return environments.variables(entry.group) | threads


def _answer(out: bytes, code: int, errors: str, limit_s: float) -> dict[str, Any]:
    for line in reversed(out.decode(errors="replace").splitlines()):
        with suppress(ValueError):
            made = json.loads(line)
            if isinstance(made, dict):
                return made
    last = (errors.strip().splitlines() or ["nothing printed"])[-1][:200]
    return {"failed": f"not done after {limit_s:.0f} s" if code == -9 else f"exit code {code}: {last}"}


def _kill(pid: int) -> None:
    """The process and all that it started, which has its session: some peers leave processes behind."""
    with suppress(ProcessLookupError):
        os.killpg(pid, 9)


class _Watch(threading.Thread):
    """Samples the memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self._rss = self._pss = 0

    def run(self) -> None:
        """Until stopped."""
        used = due = 0.0
        while not self._over.wait(max(_LOOK_S, used / _SHARE)):
            began = time.perf_counter()
            with suppress(psutil.Error):
                root = psutil.Process(self._pid)
                tree = [root, *root.children(recursive=True)]
                self._rss = max(self._rss, sum(_of(p, "rss") for p in tree))
                used = time.perf_counter() - began
                if began >= due:
                    self._pss = max(self._pss, sum(_of(p, "pss") for p in tree))
                    ended = time.perf_counter()
                    due = ended + (ended - began - used) / _SHARE

    def stop(self) -> dict[str, float]:
        """Peaks in MB. RSS counts what processes share once for each, PSS once."""
        self._over.set()
        self.join()
        return {"peak_rss_mb": round(self._rss / 1e6, 1), "peak_pss_mb": round(self._pss / 1e6, 1)}


def _of(process: psutil.Process, what: str) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss if what == "rss" else process.memory_full_info().pss)
    return 0

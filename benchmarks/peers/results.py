"""The JSON of raw runs, which several commands share: of each peer in each of its ways, the runs that were made last."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.peers.report import Run, Runs

Results = dict[str, Runs]
"""By case; there, `peer|variant` to its runs."""


def load(path: Path) -> Results:
    """What the file holds; nothing where there is none."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def add(path: Path, case: str, key: str, run: Run, *, anew: bool) -> None:
    """Write one run into the file at once, so that a stop loses nothing.

    Args:
        anew: it takes the place of the runs that the file has of this key, and isn't put after them.
    """
    every = load(path)
    runs = every.setdefault(case, {})
    runs[key] = [run] if anew else [*runs.get(key, ()), run]
    save(path, every)


def save(path: Path, results: Results) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unready = path.with_suffix(".part")
    unready.write_text(json.dumps(results, ensure_ascii=False))
    os.replace(unready, path)


def merge(many: Iterable[Results]) -> Results:
    """One of several: for each case and key the runs of the one whose last run is the newest; of equals, the later one's."""
    made: Results = {}
    for results in many:
        for case, runs in results.items():
            here = made.setdefault(case, {})
            here |= {key: some for key, some in runs.items() if _last(some) >= _last(here.get(key, ()))}
    return made


def _last(runs: Sequence[Run]) -> float:
    return max((float(run.get("at", 0)) for run in runs), default=-1.0)


def tree(root: Path) -> str:
    """The commit that a run was made of, with `+` where the tree differed from it; "?" outside of git."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "?"

"""A virtual environment per group of peers that can live together, made with pip from the pinned lists beside this file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OURS = "ours"
"""The interpreter that runs the command."""
FREE = "free"
"""Ours again, on a free-threaded interpreter."""
_FREE_PYTHONS = ("python3.15t", "python3.14t", "python3.13t")


@dataclass(frozen=True)
class Environments:
    """Interpreters by group; a group that could not be made has a reason instead."""

    pythons: dict[str, Path] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def variables(self, group: str) -> dict[str, str]:
        """The environment of a process: ours sees this tree, a peer sees nothing of it."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
        }
        kept |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        return kept | ({"PYTHONPATH": str(ROOT)} if group in (OURS, FREE) else {})


def build(folder: Path, groups: list[str]) -> Environments:
    """Make what is missing or was made from an older list; a failure is a reason in the table and not the end."""
    made = Environments({OURS: Path(sys.executable)})
    for group in groups:
        if group == OURS:
            continue
        try:
            base = sys.executable if group != FREE else _free_threaded()
            made.pythons[group] = _build(folder / group, HERE / f"{group}.txt", base)
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            made.reasons[group] = (
                "not installed: " + next((line for line in reversed(told.splitlines()) if line.strip()), "?")[:200]
            )
    return made


def _free_threaded() -> str:
    """A free-threaded interpreter on the path. Raises `OSError` where there is none."""
    found = next((path for name in _FREE_PYTHONS if (path := shutil.which(name))), None)
    if found is None:
        raise OSError(f"no free-threaded interpreter is at hand ({', '.join(_FREE_PYTHONS)})")
    return found


def _build(place: Path, wanted: Path, base: str) -> Path:
    python, stamp = place / "bin" / "python", place / "made-from.sha256"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"installing {wanted.name} into {place} …", file=sys.stderr, flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", str(wanted)]
    for command in ([base, "-m", "venv", str(place)], pip):
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600, cwd=ROOT)
    stamp.write_text(digest)
    return python

"""A virtual environment per group of peers that can live together, made with pip from the pinned lists beside this file."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
OURS = "ours"
"""The interpreter that runs the command."""


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
        return kept | ({"PYTHONPATH": str(HERE.parent.parent)} if group == OURS else {})


def build(folder: Path, groups: list[str]) -> Environments:
    """Make what is missing or was made from an older list; a failure is a reason in the table and not the end."""
    made = Environments({OURS: Path(sys.executable)})
    for group in groups:
        if group == OURS:
            continue
        try:
            made.pythons[group] = _build(folder / group, HERE / f"{group}.txt")
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            made.reasons[group] = (
                "not installed: " + next((line for line in reversed(told.splitlines()) if line.strip()), "?")[:200]
            )
    return made


def _build(place: Path, wanted: Path) -> Path:
    python, stamp = place / "bin" / "python", place / "made-from.sha256"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"installing {wanted.name} into {place} …", file=sys.stderr, flush=True)
    venv.create(place, with_pip=True)
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", str(wanted)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=3600)
    stamp.write_text(digest)
    return python

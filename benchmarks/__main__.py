"""`python -m benchmarks`: every yardstick in a process of its own, one table, one JSON file, and the table in README.md."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import table

YARDSTICKS = {
    "text": 300,
    "packing": 120,
    "records": 120,
    "plan": 120,
    "fetch": 300,
    "cache": 200,
    "first_batch": 120,
    "checkpoint": 240,
    "padding": 120,
    "memory": 200,
    "runners": 200,
    "vision": 1500,
    "vision_memory": 300,
    "scale": 120,
}
"""Scripts in order, and the seconds after which one is given up."""
HERE = Path(__file__).parent
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> int:
    """Run what is asked for; 1 where a script failed (a missed goal is no failure)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(YARDSTICKS), help="this one (may be given several times)")
    parser.add_argument("--repeats", type=int, help="turns (default: 3; with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="little data: to see that everything works; README.md stays as it is"
    )
    parser.add_argument("--folder", type=Path, help="keep made data here, for the next run")
    given = parser.parse_args()
    repeats = given.repeats or (1 if given.quick else 3)
    began = time.monotonic()
    parts: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as made:
        for name in given.only or YARDSTICKS:
            print(f"{name} …", file=sys.stderr, flush=True)
            parts[name] = run(name, given.folder or Path(made), Path(made) / f"{name}.json", repeats, given.quick)
    text = report(parts, time.monotonic() - began)
    print(text)
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / f"{time.strftime('%Y%m%d-%H%M%S')}.json").write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n")
    failed = [name for name, part in parts.items() if "failed" in part]
    if not (given.quick or given.only or failed):
        update_readme(text)
    return 1 if failed else 0


def run(name: str, folder: Path, out: Path, repeats: int, quick: bool) -> dict[str, Any]:
    """One script's results, or `{"failed": why}`."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        f"benchmarks.{name}",
        "--repeats",
        str(repeats),
        "--folder",
        str(folder),
        "--json",
        str(out),
    ]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *(["--quick"] if quick else [])],
            cwd=HERE.parent,
            timeout=YARDSTICKS[name],
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {YARDSTICKS[name]} s"}
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    made: dict[str, Any] = json.loads(out.read_text())
    return made | {"seconds": time.monotonic() - began}


def report(parts: dict[str, dict[str, Any]], seconds: float) -> str:
    """The table, what it was measured on, and warnings."""
    lines = [table([result for part in parts.values() for result in part.get("results", ())]), ""]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "pyarrow", "tokenizers"))
    lines.append(
        f"{time.strftime('%Y-%m-%d')}, two cores, {platform.machine()}, Python {platform.python_version()}, {versions}; {seconds:.0f} s in all."
    )
    for name, part in parts.items():
        if "failed" in part:
            lines.append(f"**{name} failed**: {part['failed']}")
        elif part["machine"]["cores_used_elsewhere"] >= 0.15:
            lines.append(
                f"{name}: others used {part['machine']['cores_used_elsewhere']:.2f} cores meanwhile; look at the CPU ratio."
            )
    return "\n".join(lines)


def update_readme(text: str) -> None:
    """Put the report between the markers of README.md."""
    path = HERE / "README.md"
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())

"""The one harness: the bare library and ours in turns (A B A B …), medians, spreads, ratios, and how busy the machine was meanwhile."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

CORES = 2
"""All yardsticks run on so many cores, whatever the machine has: the goals are stated for two."""


@dataclass(frozen=True)
class Setting:
    """How a script was asked to run."""

    folder: Path
    """Where made data is kept, so that several scripts share it."""
    repeats: int
    quick: bool
    """Little data, to see that everything works; the numbers mean nothing."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table. `low` and `high` are the spread of `ratio` over the repeats."""

    what: str
    ours: float
    unit: str
    bare: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    cpu_ratio: float | None = None
    """The same in CPU time of this process and its children: what is left to compare on a machine that others use too."""
    goal: str = ""
    reached: bool | None = None
    note: str = ""


@dataclass(frozen=True)
class Timed:
    """One call: wall and CPU seconds (children that ended included), and how much it did."""

    wall: float
    cpu: float
    work: float


def timed(call: Callable[[], float]) -> Timed:
    """Run it once; it returns how much it did (records, tokens)."""
    wall, cpu = time.perf_counter(), _cpu()
    work = call()
    return Timed(time.perf_counter() - wall, _cpu() - cpu, work)


def alternate(*calls: Callable[[], float], repeats: int) -> list[list[Timed]]:
    """Each call `repeats` times in turns, after one unmeasured turn when there are several repeats; one list per call."""
    if repeats > 1:
        for call in calls:
            call()
    rounds = [[timed(call) for call in calls] for _ in range(repeats)]
    return [list(column) for column in zip(*rounds, strict=True)]


def rates(
    what: str, bare: Sequence[Timed], ours: Sequence[Timed], *, unit: str, at_least: float | None = None, note: str = ""
) -> Result:
    """Throughputs; the ratio is ours / bare, so more is better."""
    ratio = [(o.work / o.wall) / (b.work / b.wall) for o, b in zip(ours, bare, strict=True)]
    cpu = statistics.median((o.work / max(o.cpu, 1e-9)) / (b.work / max(b.cpu, 1e-9)) for o, b in zip(ours, bare, strict=True))
    middle = statistics.median(ratio)
    return Result(
        what=what,
        ours=statistics.median(o.work / o.wall for o in ours),
        bare=statistics.median(b.work / b.wall for b in bare),
        unit=unit,
        ratio=middle,
        low=min(ratio),
        high=max(ratio),
        cpu_ratio=cpu,
        goal="" if at_least is None else f"≥ {at_least:g}",
        reached=None if at_least is None else middle >= at_least,
        note=note,
    )


def costs(
    what: str,
    bare: Sequence[Timed],
    ours: Sequence[Timed],
    *,
    unit: str,
    scale: float,
    at_most: float | None = None,
    note: str = "",
) -> Result:
    """Seconds per piece of work, times `scale`; the ratio is ours / bare, so less is better."""
    ratio = [(o.wall / o.work) / (b.wall / b.work) for o, b in zip(ours, bare, strict=True)]
    cpu = statistics.median((max(o.cpu, 1e-9) / o.work) / (max(b.cpu, 1e-9) / b.work) for o, b in zip(ours, bare, strict=True))
    middle = statistics.median(ratio)
    return Result(
        what=what,
        ours=statistics.median(o.wall / o.work for o in ours) * scale,
        bare=statistics.median(b.wall / b.work for b in bare) * scale,
        unit=unit,
        ratio=middle,
        low=min(ratio),
        high=max(ratio),
        cpu_ratio=cpu,
        goal="" if at_most is None else f"ratio ≤ {at_most:g}",
        reached=None if at_most is None else middle <= at_most,
        note=note,
    )


def value(what: str, ours: float, unit: str, *, at_most: float | None = None, note: str = "") -> Result:
    """A number that has no bare twin."""
    goal = "" if at_most is None else f"≤ {at_most:g} {unit}"
    return Result(what=what, ours=ours, unit=unit, goal=goal, reached=None if at_most is None else ours <= at_most, note=note)


class Machine:
    """How busy the machine was during a block: load averages, and the cores' worth of CPU time that went to others."""

    def __enter__(self) -> Machine:
        self._began, self._busy, self._mine = time.perf_counter(), _busy(), _cpu()
        self.before = os.getloadavg()[0]
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        self.after = os.getloadavg()[0]
        self.elsewhere = max(0.0, (_busy() - self._busy - (_cpu() - self._mine)) / seconds)

    def report(self) -> dict[str, float]:
        """Plain values for the JSON."""
        return {"load_before": self.before, "load_after": self.after, "cores_used_elsewhere": self.elsewhere}

    @property
    def warning(self) -> str:
        """What to say about it; empty where the machine was quiet."""
        if self.elsewhere < 0.15:
            return ""
        return f"others used {self.elsewhere:.2f} cores meanwhile: wall times are too long, and ratios uncertain; look at the CPU ratio"


def script(measure: Callable[[Setting], list[Result]]) -> None:
    """The command line of one yardstick."""
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="little data: to see that everything works")
    parser.add_argument("--folder", type=Path, help="where made data is kept (default: a folder that is removed at the end)")
    parser.add_argument("--json", type=Path, help="write the results here")
    given = parser.parse_args()
    settle()
    with tempfile.TemporaryDirectory(prefix="zephon-bench-") as made, Machine() as machine:
        results = measure(Setting(given.folder or Path(made), given.repeats, given.quick))
    print(table([asdict(r) for r in results]))
    if machine.warning:
        print(f"NOTE: {machine.warning}")
    if given.json is not None:
        given.json.write_text(
            json.dumps({"results": [asdict(r) for r in results], "machine": machine.report()}, ensure_ascii=False)
        )


def settle() -> None:
    """Two cores, and libraries that know it. Before any library starts a pool of threads."""
    with suppress(AttributeError, OSError):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    # an interpreter that may not keep compiled modules compiles torch anew in every fresh process: seconds that no user has
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.update({"RAYON_NUM_THREADS": str(CORES), "OMP_NUM_THREADS": str(CORES)})


def table(results: Sequence[dict[str, object]]) -> str:
    """Markdown."""
    lines = [
        "| what | ours | bare | unit | ratio (spread) | CPU ratio | goal | reached |",
        "|---|---:|---:|---|---:|---:|---|---|",
    ]
    for r in results:
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.3g} ({r['low']:.3g}–{r['high']:.3g})"
        reached = {True: "yes", False: "**no**", None: ""}[r["reached"]]  # type: ignore[index]
        note = f" <br>{r['note']}" if r["note"] else ""
        lines.append(
            f"| {r['what']}{note} | {_short(r['ours'])} | {_short(r['bare'])} | {r['unit']} | {ratio} | {_short(r['cpu_ratio'])} | {r['goal']} | {reached} |"
        )
    return "\n".join(lines)


def _short(number: object) -> str:
    if not isinstance(number, int | float):
        return ""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def _cpu() -> float:
    ended = os.times()  # in steps of 10 ms: of this process that would be too coarse for --quick
    return time.process_time() + ended.children_user + ended.children_system


def _busy() -> float:
    used = psutil.cpu_times()
    return float(sum(used) - used.idle - getattr(used, "iowait", 0.0) - getattr(used, "guest", 0.0))

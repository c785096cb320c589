"""PNG charts of the raw runs: throughput by peer, scaling with workers, the time line of a run."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import OURS, PEERS, Case
from benchmarks.peers.report import Runs, values

_OURS, _THEIRS, _LIMIT = "#0b6e4f", "#9aa5b1", "#d8dee4"


def draw(folder: Path, cases: dict[str, Case], runs: dict[str, Runs]) -> list[Path]:
    """One picture per case, one of scaling, one of time lines; where they are."""
    import matplotlib as mpl

    mpl.use("Agg")
    made = []
    for name, case in cases.items():
        if case.workers:
            made.append(_scaling(folder / f"peers-{name}.png", case, runs[name]))
        else:
            made.append(_bars(folder / f"peers-{name}.png", case, runs[name]))
            if any("line" in run for some in runs[name].values() for run in some):
                made.append(_lines(folder / f"peers-{name}-line.png", case, runs[name]))
    return made


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _stroke(peer: str) -> dict[str, Any]:
    """Ours is thick and of one colour in all charts; the others take what comes."""
    return {"linewidth": 2.5, "color": _OURS, "zorder": 3} if peer == OURS else {"linewidth": 1.2}


def _label(peer: str, way: str) -> str:
    return f"{PEERS[peer][0]}: {way}".replace("`", "")


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _bars(path: Path, case: Case, runs: Runs) -> Path:
    """Medians as bars, ranges as whiskers, the best on top."""
    found = []
    for entry in case.entries:
        numbers = values(runs.get(entry.key, []), case.measure)
        if numbers:
            found.append((statistics.median(numbers), numbers, entry))
    found.sort(key=lambda row: row[0], reverse=case.less_is_better)
    figure, axes = _figure(1 + 0.32 * len(found))
    for at, (middle, numbers, entry) in enumerate(found):
        colour = _OURS if entry.peer == OURS else _LIMIT if entry.peer == "bare" else _THEIRS
        axes.barh(at, middle, color=colour)
        axes.plot([min(numbers), max(numbers)], [at, at], color="black", linewidth=1)
        axes.text(middle, at, f" {middle:,.3g}" if middle < 1000 else f" {middle:,.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(found)), [_label(e.peer, e.setting) for _, _, e in found], fontsize=8)
    figure.suptitle(f"{case.name}: {case.title}", fontsize=10)
    axes.set_xlabel(case.unit + (", less is better" if case.less_is_better else ""))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.margins(x=0.12)
    return _save(figure, path)


def _scaling(path: Path, case: Case, runs: Runs) -> Path:
    figure, axes = _figure(4)
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for entry in case.entries:
        numbers = values(runs.get(entry.key, []), case.measure)
        *words, count = entry.variant.split()
        if numbers:
            lines.setdefault((entry.peer, " ".join(words)), []).append((int(count[1:]), statistics.median(numbers)))
    for (peer, words), points in lines.items():
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, marker="o", label=_label(peer, words), **_stroke(peer))
    figure.suptitle(f"{case.name}: {case.title}", fontsize=10)
    axes.set_xlabel("workers")
    axes.set_xticks(sorted({count for points in lines.values() for count, _ in points}))
    axes.set_ylabel(case.unit)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return _save(figure, path)


def _lines(path: Path, case: Case, runs: Runs) -> Path:
    """How much of the window's work had come by when, in the first good run of each peer at its best."""
    figure, axes = _figure(4)
    best: dict[str, tuple[float, list[Any], str]] = {}
    for key, some in runs.items():
        peer, _, variant = key.partition("|")
        numbers = values(some, "rate")
        line = next((run["line"] for run in some if run.get("line")), None)
        if numbers and line and statistics.median(numbers) > best.get(peer, (0.0, [], ""))[0]:
            best[peer] = (statistics.median(numbers), line, variant)
    for peer, (_, line, variant) in best.items():
        xs, ys = zip(*line, strict=True)
        axes.plot(xs, ys, label=_label(peer, variant), **_stroke(peer))
    figure.suptitle(f"{case.name}: work that had come, by time", fontsize=10)
    axes.set_xlabel("seconds after the first batch")
    axes.set_ylabel(case.unit.partition("/")[0])
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(fontsize=8, frameon=False)
    return _save(figure, path)

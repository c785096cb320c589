"""From raw runs to medians, ranges, ratios and goals. Nothing here measures."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cases import COSTS, OURS, PEERS, Case, Goal, Measure

Run = dict[str, Any]
Runs = dict[str, list[Run]]
"""`peer|variant` to its runs."""

_BUSY = 0.15
_APART_S = 3600.0


def value(run: Run, measure: Measure) -> float | None:
    """One number of one run; None where it failed or does not have it."""
    if "failed" in run:
        return None
    if measure == "rate":
        return run["work"] / run["wall_s"] if run.get("wall_s") else None
    if measure == "cpu_rate":
        return run["work"] / run["cpu_s"] if run.get("cpu_s") else None
    got = run.get(measure)
    return None if got is None else float(got)


def values(runs: Sequence[Run], measure: Measure) -> list[float]:
    """Of those runs that have it."""
    return [v for v in (value(run, measure) for run in runs) if v is not None]


def best(runs: Runs, peer: str, words: str, measure: Measure) -> tuple[str, list[float]] | None:
    """The variant of a peer that does best by its median, among those with all the words.

    A way that did worse in the first turn has no others (`--best`): its single run isn't set against medians of many, among which it may
    do better by chance.
    """
    found = []
    for key, made in runs.items():
        name, _, variant = key.partition("|")
        if name == peer and set(words.split()) <= set(variant.split()):
            numbers = values(made, measure)
            if numbers:
                found.append((key, numbers))
    if not found:
        return None
    most = max(len(numbers) for _, numbers in found)
    found = [(key, numbers) for key, numbers in found if 2 * len(numbers) >= most]
    choose = min if measure in COSTS else max
    return choose(found, key=lambda pair: statistics.median(pair[1]))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of the ratios of runs in the same turn."""
    pairs = [o / t for o, t in zip(ours, theirs, strict=False)]
    return statistics.median(pairs), min(pairs), max(pairs)


def judge(goal: Goal, runs: Runs) -> tuple[str, str, tuple[float, float, float], bool] | None:
    """Our variant, theirs, the ratio with its range, and whether it is reached; None without runs of both.

    The ratio says how many times better ours is; where the goal is `at_most`, ours / theirs.
    """
    peer, _, words = goal.against.partition(": ")
    mine, other = best(runs, OURS, goal.ours, goal.measure), best(runs, peer, words, goal.measure)
    if mine is None or other is None:
        return None
    upside_down = goal.measure in COSTS and not goal.at_most
    got = ratio(other[1], mine[1]) if upside_down else ratio(mine[1], other[1])
    return mine[0], other[0], got, got[0] <= goal.ratio if goal.at_most else got[0] >= goal.ratio


def contenders(case: Case, runs: Runs) -> set[str]:
    """The keys that goals compare, by clock and in CPU time; where nothing was measured yet, all that might be."""
    found: set[str] = set()
    for goal in case.goals:
        sides = ((OURS, goal.ours), (goal.against.partition(": ")[0], goal.against.partition(": ")[2]))
        for measure in (goal.measure, _IN_CPU.get(goal.measure, goal.measure)):
            for peer, words in sides:
                got = best(runs, peer, words, measure)
                might = {e.key for e in case.entries if e.peer == peer and set(words.split()) <= set(e.variant.split())}
                found |= might if got is None else {got[0]}
    return found


def check(batches: Sequence[Sequence[Sequence[int]]], known: Path, tokenizer: Path) -> Run:
    """Documents that lie whole within a sequence must be documents of the reference: how many were looked up, how many are wrong."""
    from tokenizers import Tokenizer

    end = Tokenizer.from_file(str(tokenizer)).token_to_id("<|endoftext|>")
    reference = np.load(known)
    seen = []
    for batch in batches:
        for row in batch:
            ids = np.asarray(row, np.int32)
            ends = np.flatnonzero(ids == end)
            for begin, stop in zip(ends[:-1] + 1, ends[1:], strict=True):
                if stop > begin:
                    seen.append(zlib.crc32(ids[begin:stop].tobytes()) << 20 ^ int(stop - begin))
    wrong = int((~np.isin(np.array(seen, np.int64), reference)).sum()) if seen else 0
    return {"documents_checked": len(seen), "documents_wrong": wrong}


def short(run: Run, case: Case) -> str:
    """For the log."""
    if "failed" in run:
        return f"failed: {run['failed']}"
    rate, per_cpu = value(run, "rate"), value(run, "cpu_rate")
    if "restore_s" in run:
        return f"restore {run['restore_s']:.3f} s (fresh {run['fresh_s']:.3f} s), {run['state_bytes']:,.0f} bytes, state in {run['state_s'] * 1e3:.1f} ms"
    unit = "per second" if case.less_is_better else case.unit
    told = "" if rate is None else f"{rate:,.0f} {unit}, {per_cpu or 0:,.0f} per CPU second, "
    ids = (
        f", ids {run['documents_checked'] - run['documents_wrong']}/{run['documents_checked']}"
        if "documents_checked" in run
        else ""
    )
    first = f"first batch {run['first_batch_s']:.2f} s, " if "first_batch_s" in run else ""
    return f"{told}{first}PSS {run.get('peak_pss_mb', 0):,.0f} MB, elsewhere {run.get('elsewhere', 0):.2f}{ids}"


def markdown(cases: dict[str, Case], runs: dict[str, Runs]) -> str:
    """All tables."""
    return "\n\n".join(["\n".join(_goals(cases, runs)), *("\n".join(_case(case, runs[name])) for name, case in cases.items())])


_WORDS = {
    "rate": "throughput",
    "cpu_rate": "per CPU second",
    "first_batch_s": "time to first batch",
    "import_s": "import",
    "peak_pss_mb": "peak memory",
    "restore_s": "restore",
    "state_bytes": "checkpoint bytes",
}


_IN_CPU: dict[Measure, Measure] = {"rate": "cpu_rate", "first_batch_s": "first_batch_cpu_s", "import_s": "import_cpu_s"}


def _busy(runs: Sequence[Run]) -> bool:
    """Others used the machine in one of them: walls can't be compared, CPU times can."""
    return any(run.get("elsewhere", 0) > _BUSY for run in runs)


def _goals(cases: dict[str, Case], runs: dict[str, Runs]) -> list[str]:
    """Goals in wall time have the same ratio in CPU time beside them, and are judged by it where others used the machine."""
    lines = [
        "| case | against | measure | ratio (range) | in CPU time | goal | reached | ours / theirs |",
        "|---|---|---|---:|---:|---|---|---|",
    ]
    for name, case in cases.items():
        for goal in case.goals:
            peer, _, which = goal.against.partition(": ")
            against = PEERS[peer][0] + (f", {which}" if which else "")
            wanted = f"{'≤' if goal.at_most else '≥'} {goal.ratio:.3g}"
            got = judge(goal, runs[name])
            if got is None:
                lines.append(f"| {name} | {against} | {_WORDS[goal.measure]} | – | | {wanted} | not measured | |")
                continue
            mine, theirs, (middle, low, high), reached = got
            twin = _IN_CPU.get(goal.measure)
            in_cpu = judge(replace(goal, measure=twin), runs[name]) if twin else None
            said = "yes" if reached else "**no**"
            if in_cpu and _busy(runs[name][mine] + runs[name][theirs]):
                said = ("yes" if in_cpu[3] else "**no**") + " (CPU)"
            apart = ", not in turns" if _apart(runs[name][mine], runs[name][theirs]) else ""
            cells = (
                name,
                against,
                _WORDS[goal.measure],
                f"{middle:.3g} ({low:.3g}–{high:.3g})",
                f"{in_cpu[2][0]:.3g}" if in_cpu else "",
                wanted,
                said,
                f"{mine.partition('|')[2]} / {theirs.partition('|')[2]}{apart}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _apart(ours: Sequence[Run], theirs: Sequence[Run]) -> bool:
    """More than an hour lies between the ones and the others: they were measured in different commands."""
    at = [sorted(run.get("at", 0) for run in side) for side in (ours, theirs)]
    return bool(max(at[0][0], at[1][0]) - min(at[0][-1], at[1][-1]) > _APART_S)


def _measured(runs: Sequence[Run]) -> str:
    """How many, when and of which trees."""
    days = {time.strftime("%Y-%m-%d", time.gmtime(run["at"])): None for run in runs if "at" in run}
    trees = {run["tree"]: None for run in runs if "tree" in run}
    return f"{len(runs)}" + (f" ({', '.join([*days, *trees])})" if days else "")


def _case(case: Case, runs: Runs) -> list[str]:
    lines = [
        f"**{case.name}** {case.title}",
        "",
        f"| peer | setting | {case.unit} (range) | {' | '.join(head for head, _ in case.beside)} | peak RSS / PSS, MB | elsewhere | runs |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for entry in case.entries:
        made = runs.get(entry.key)
        if not made:
            continue
        name = PEERS[entry.peer][0]
        good = [run for run in made if "failed" not in run]
        if not good:
            lines.append(f"| {name} | {entry.setting} | – | | | | | {made[-1]['failed']} |")
            continue
        wrong = sum(run.get("documents_wrong", 0) for run in good)
        checked = sum(run.get("documents_checked", 0) for run in good)
        ids = (
            f"; **{wrong} of {checked} documents have other ids**"
            if wrong
            else f"; ids equal ({checked} documents)"
            if checked
            else ""
        )
        elsewhere = statistics.median(run.get("elsewhere", 0) for run in good)
        busy = f"**{elsewhere:.2f}**" if elsewhere > _BUSY else f"{elsewhere:.2f}"
        memory = f"{_middle(good, 'peak_rss_mb')} / {_middle(good, 'peak_pss_mb')}"
        lines.append(
            f"| {name} | {entry.setting}{ids} | {_spread(values(good, case.measure))} "
            f"| {' | '.join(_number(values(good, what)) for _, what in case.beside)} | {memory} | {busy} | {_measured(good)} |"
        )
    lines += [f"| {PEERS[peer][0]} | – | – | | | | | {reason} |" for peer, reason in case.missing]
    return lines


def _spread(numbers: Sequence[float]) -> str:
    if not numbers:
        return "–"
    return f"{_short(statistics.median(numbers))} ({_short(min(numbers))}–{_short(max(numbers))})"


def _number(numbers: Sequence[float]) -> str:
    return _short(statistics.median(numbers)) if numbers else "–"


def _middle(runs: Sequence[Run], what: str) -> str:
    return _number([float(run[what]) for run in runs if run.get(what) is not None])


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"

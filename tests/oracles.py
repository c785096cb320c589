"""Slow and obviously right versions of what `zephon.plan` and `zephon.engine` compute."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from zephon import keys

Flat = tuple[int, int, int]
"""(pass, unit, row in the unit)."""


def flat_line(unit_rows: Sequence[int], passes: int, *, units_key: int | None, reshuffle: bool = True) -> list[Flat]:
    """All rows of `passes` passes in flat order: each pass has its units in the order of a keyed permutation."""
    line: list[Flat] = []
    for pass_index in range(passes):
        order = list(range(len(unit_rows)))
        if units_key is not None and len(unit_rows) > 1:
            first = (pass_index if reshuffle else 0) * len(unit_rows)
            noise = [int(keys.hashes(units_key, [first + unit])[0]) for unit in range(len(unit_rows))]
            order = sorted(range(len(unit_rows)), key=lambda unit: noise[unit])
        line += [(pass_index, unit, row) for unit in order for row in range(unit_rows[unit])]
    return line


def deal(count: int, lanes: int, stripe: int) -> list[list[int]]:
    """Flat rows 0..count-1 dealt to lanes like cards, a stripe at a time."""
    hands: list[list[int]] = [[] for _ in range(lanes)]
    for start in range(0, count, stripe):
        hands[start // stripe % lanes] += range(start, min(start + stripe, count))
    return hands


def highest_averages(weights: Sequence[Fraction], seats: int) -> list[int]:
    """Webster's rule as the law books have it: each seat to the one with the highest weight / (2 * seats so far + 1)."""
    given = [0] * len(weights)
    queue = [(-w, c) for c, w in enumerate(weights) if w]
    heapq.heapify(queue)
    for _ in range(seats):
        _, winner = heapq.heappop(queue)
        given[winner] += 1
        heapq.heappush(queue, (-weights[winner] / (2 * given[winner] + 1), winner))
    return given


def walk(
    phases: Sequence[tuple[Sequence[int], int | None]],
    endings: Sequence[tuple[str, int | None, int | None]],
    phase_key: int,
    most: int,
) -> tuple[list[tuple[int, int] | None], bool]:
    """One lane's draws one by one: `(component, how many of it came before)`, None for a draw that nobody can serve; and
    whether the lane ended before `most` draws.

    `phases` are (order of components, length in draws), `endings` are (rule, limit, cap) per component.
    """
    given = [0] * len(endings)

    def finished(component: int) -> bool:
        rule, limit, cap = endings[component]
        if cap is not None and given[component] >= cap:
            return True
        return rule in ("stop", "redistribute") and limit is not None and given[component] >= limit

    goals = [c for c, (rule, _, _) in enumerate(endings) if rule == "all"]

    def goals_met() -> bool:
        return bool(goals) and all(given[c] >= (endings[c][1] or 0) for c in goals)

    drawn_ever = {c for order, _ in phases for c in order}
    if goals_met() or any(finished(c) and endings[c][0] == "stop" for c in drawn_ever):
        return [], True
    draws: list[tuple[int, int] | None] = []
    for order, length in phases:
        if length is None and goals:
            # in the last phase, those that it doesn't draw have no more passes to make
            goals = [c for c in goals if c in order]
            if all(given[c] >= (endings[c][1] or 0) for c in goals):
                return draws, True
        left = [c for c in order if not finished(c)]
        at = phase_key % len(left) if left else 0
        taken = 0
        while length is None or taken < length:
            if len(draws) >= most:
                return draws[:most], False
            if not left:
                if length is None:
                    return draws, True
                draws += [None] * (length - taken)
                break
            component = left[at % len(left)]
            draws.append((component, given[component]))
            given[component] += 1
            taken += 1
            at += 1
            if finished(component) and endings[component][0] == "stop":
                return draws, True
            if goals_met():
                return draws, True
            if finished(component):
                left = [c for c in order if not finished(c)]
                at = phase_key % len(left) if left else 0
    return draws, True


def prefix_errors(order: Sequence[int], seats: Sequence[int], turns: int = 2) -> float:
    """The largest |drawn - share| over all prefixes and components of the endlessly repeated order."""
    table = np.tile(np.asarray(order), turns)
    size = len(order)
    worst = 0.0
    for component, count in enumerate(seats):
        drawn = np.cumsum(table == component)
        due = np.arange(1, len(table) + 1) * count
        worst = max(worst, float(np.abs(drawn * size - due).max()) / size)
    return worst

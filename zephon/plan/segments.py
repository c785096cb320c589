"""One lane's draws from beginning to end: phases, components that run out, and where the lane ends.

A lane's draws are cut into *segments* in which the set of components and their order stay the same; inside a segment
everything is closed form. An endless source with one phase has a single segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from zephon.keys import I64
from zephon.plan.mixture import Schedule

Exhausted = Literal["stop", "repeat", "redistribute", "all"]
"""What happens when a component has made its passes: the lane stops; it is read again; the others take its share; or (all) it is read
again until every component of this kind has made its passes, and then the lane stops."""


@dataclass(frozen=True)
class Ending:
    """What one component may give to one lane: `limit` rows, and what happens then. `limit` None: endless."""

    rule: Exhausted
    limit: int | None
    cap: int | None = None
    """Rows after which even a repeated component is exhausted and leaves the mixture (`max_repeats`)."""


@dataclass(frozen=True)
class Segment:
    """Draws [start, stop) of a lane; `offset` is the schedule's draw number at `start`, `base` what each component gave before."""

    start: int
    stop: int | None
    schedule: Schedule
    offset: int
    base: I64

    def draws(self, low: int, high: int) -> tuple[npt.NDArray[np.int32], I64]:
        """Draws [low, high) of the lane: the component of each, and the lane's row number in it."""
        shift = self.offset - self.start
        component, count = self.schedule.draws(low + shift, high + shift)
        base = self.base[component] if self.schedule.size > 1 else self.base[component[0]]
        return component, count + base


def lane_segments(
    phases: Sequence[tuple[Schedule, int | None]], endings: Sequence[Ending], *, phase_key: int
) -> tuple[list[Segment], int | None]:
    """The segments of one lane, and its number of draws (None: endless).

    Args:
        phases: a schedule and its length in draws of this lane (None: until the end), in order.
        endings: per component.
        phase_key: where in its period this lane begins, a number that is reduced modulo each period.
    """
    components = len(endings)
    given = np.zeros(components, dtype=np.int64)
    gone = np.array([_finished(e, 0) for e in endings])
    start = 0
    segments: list[Segment] = []
    goals = [c for c, e in enumerate(endings) if e.rule == "all"]
    met = bool(goals) and all(not endings[c].limit for c in goals)
    if met or _must_stop(endings, gone & _drawn_ever(phases, components)):
        return [], 0
    for full, length in phases:
        end = None if length is None else start + length
        if end is None and goals:
            # a component that the last phase doesn't draw has made all the passes it will (the plan refuses shortfalls that are
            # more than a lane's rounding)
            goals = [c for c in goals if full.seats[c]]
            if all(given[c] >= (endings[c].limit or 0) for c in goals):
                return segments, start
        while end is None or start < end:
            schedule = full.without(gone) if gone.any() else full
            if schedule is None:
                if end is None:
                    return segments, start
                start = end  # nothing of this phase is left: the next one may have something
                break
            offset = phase_key % schedule.size
            base = given - schedule.before(offset)
            events = _events(schedule, offset, base, endings, gone)
            goal = _goal(schedule, offset, base, endings, goals, given)
            if goal is not None:
                events.append(goal)
            take = min(events, default=None)
            if take is None and end is None:
                segments.append(Segment(start, None, schedule, offset, base))
                return segments, None
            stop = min(x for x in (None if take is None else start + take, end) if x is not None)
            if stop > start:
                segments.append(Segment(start, stop, schedule, offset, base))
            given = _given(schedule, offset + stop - start, base)
            start = stop
            before = gone
            gone = np.array([_finished(e, int(g)) for e, g in zip(endings, given, strict=True)])
            reached = goals and all(given[c] >= (endings[c].limit or 0) for c in goals)
            if reached or _must_stop(endings, gone & ~before):
                return segments, start
    return segments, start


def _drawn_ever(phases: Sequence[tuple[Schedule, int | None]], components: int) -> npt.NDArray[np.bool_]:
    drawn = np.zeros(components, dtype=bool)
    for schedule, _ in phases:
        drawn |= schedule.seats > 0
    return drawn


def _finished(ending: Ending, given: int) -> bool:
    if ending.cap is not None and given >= ending.cap:
        return True
    return ending.rule in ("stop", "redistribute") and ending.limit is not None and given >= ending.limit


def _must_stop(endings: Sequence[Ending], newly_gone: npt.NDArray[np.bool_]) -> bool:
    return any(bool(gone) and ending.rule == "stop" for gone, ending in zip(newly_gone, endings, strict=True))


def _given(schedule: Schedule, draw: int, base: I64) -> I64:
    turn, rest = divmod(draw, schedule.size)
    return base + turn * schedule.seats + schedule.before(rest)


def _events(schedule: Schedule, offset: int, base: I64, endings: Sequence[Ending], gone: npt.NDArray[np.bool_]) -> list[int]:
    """After how many draws each component of the schedule is used up."""
    found = []
    for component, ending in enumerate(endings):
        if gone[component] or not schedule.seats[component]:
            continue
        limits = [ending.cap] if ending.cap is not None else []
        if ending.rule in ("stop", "redistribute") and ending.limit is not None:
            limits.append(ending.limit)
        if limits:
            found.append(schedule.nth(component, min(limits) - 1 - int(base[component])) + 1 - offset)
    return found


def _goal(
    schedule: Schedule, offset: int, base: I64, endings: Sequence[Ending], goals: Sequence[int], given: I64
) -> int | None:
    """After how many draws every component of the rule "all" has made its passes; None: not in this segment."""
    draws = []
    for component in goals:
        limit = endings[component].limit or 0
        if given[component] >= limit:
            continue
        if not schedule.seats[component]:
            return None
        draws.append(schedule.nth(component, limit - 1 - int(base[component])) + 1 - offset)
    return max(draws, default=None)

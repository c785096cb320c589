"""Which component each draw takes: exact integer arithmetic, closed form in the draw's number.

Weights become *seats*: a period of W draws in which component c has s_c seats (Webster's rule, which apportions without negative or
missing seats). Inside the period the order is by earliest deadline: the i-th seat of c may be drawn no earlier than draw
floor(i*W/s_c) and no later than ceil((i+1)*W/s_c), which one queue can always satisfy and which keeps every prefix within one record
of its share (Baruah, Cohen, Plaxton, Varvel 1996, "Proportionate progress"). Webster's own order does not: with one
component at 0.5 and a hundred at 0.005 it draws the big one 50 times before any small one, a miss of 25 records.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon.checks import whole_or_none
from zephon.errors import RecipeError, unknown
from zephon.keys import I64

_SEATS = 4096
_MAX_SEATS = 1 << 19


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Weights that hold for a span of draws."""

    weights: Mapping[str, float]
    records: int | None = None
    """Draws over all lanes together, rounded up to as many for each lane; then the next phase begins, and after the last one the run is
    over. None (the last phase only): until the end of the data."""


@dataclass(frozen=True)
class MixtureSpec:
    """Relative weights of the data sets by name, and optionally further phases after the first (a curriculum).

    Args:
        weights: name → weight; 0 leaves a data set out.
        phases: instead of `weights`: phases in order, all but the last with `records` (the last one may have it, too).

    Raises:
        RecipeError: a weight is NaN, infinite or negative, all are zero, or a phase before the last has no length.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    phases: Sequence[Phase] = ()

    def __post_init__(self) -> None:
        if bool(self.weights) == bool(self.phases):
            raise RecipeError("a mixture needs either weights or phases")
        for phase in self.all_phases():
            _check_weights(phase.weights)
        for phase in self.all_phases():
            if (whole_or_none("records of a phase", phase.records) or 0) >= 1 << 62:
                raise RecipeError(f"records of a phase is {phase.records}; it must be below 2**62")
        for phase in self.all_phases()[:-1]:
            if phase.records is None or phase.records <= 0:
                raise RecipeError("every phase but the last needs records > 0", hint="give Phase(records=…)")

    @classmethod
    def from_any(cls, value: MixtureSpec | Mapping[str, float]) -> MixtureSpec:
        """A spec, or a plain mapping name → weight."""
        return value if isinstance(value, MixtureSpec) else cls(value)

    def all_phases(self) -> list[Phase]:
        """The phases; plain weights are one endless phase."""
        return list(self.phases) or [Phase(weights=self.weights)]

    def check_names(self, names: Sequence[str]) -> None:
        """Raises `RecipeError` where a weight has no data set or a data set no weight."""
        known = set(names)
        for phase in self.all_phases():
            for name in phase.weights:
                if name not in known:
                    raise RecipeError(unknown("data set in the mixture", name, names))
            for name in names:
                if name not in phase.weights:
                    raise RecipeError(
                        f"data set {name!r} has no weight in the mixture", hint="give it a weight; 0 leaves it out"
                    )

    def recipe(self) -> Any:
        """Plain values for the recipe."""
        return [{"weights": {k: float(v) for k, v in p.weights.items()}, "records": p.records} for p in self.all_phases()]


def _is_weight(weight: Any) -> bool:
    try:
        return math.isfinite(float(weight)) and weight >= 0
    except OverflowError:
        return False


def _check_weights(weights: Mapping[str, float]) -> None:
    if not weights:
        raise RecipeError("the mixture is empty")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.floating | np.integer | Fraction):
            raise RecipeError(f"weight of data set {name!r} is {weight!r}; weights must be numbers")
        if not _is_weight(weight):
            raise RecipeError(
                f"weight of data set {name!r} is {weight!r}; weights must be finite and ≥ 0",
                hint="give 0 to leave a data set out",
            )
    if not any(weight > 0 for weight in weights.values()):
        raise RecipeError("all weights of the mixture are 0", hint="give at least one data set a weight > 0")


def apportion(weights: Sequence[float]) -> I64:
    """Seats per component, int64[C]: proportional to the weights, at least one where the weight is positive.

    Small ratios are met exactly (0.7 : 0.3 is 7 : 3). Else W is 4096 or more, so that every positive weight has at least 32
    seats (an error below 2 %), up to 2**19 seats, by Webster's rule.
    """
    exact = [Fraction(w).limit_denominator(_SEATS) for w in weights]
    total = sum(Fraction(w) for w in weights)
    exact_total = sum(exact)
    common = math.lcm(*(f.denominator for f in exact))
    if exact_total and all(
        abs(float(f / exact_total) - float(Fraction(w) / total)) < 1e-12 for f, w in zip(exact, weights, strict=True)
    ):
        whole = [int(f * common) for f in exact]
        divisor = math.gcd(*whole)
        if sum(whole) // divisor <= _SEATS:
            return np.array([w // divisor for w in whole], dtype=np.int64)
    shares = np.array([float(Fraction(w) / total) for w in weights])
    smallest = shares[shares > 0].min()
    size = _SEATS
    while size < _MAX_SEATS and size * smallest < 32:
        size *= 2
    return _webster(shares, max(size, 2 * int((shares > 0).sum())))


def _webster(shares: npt.NDArray[np.float64], size: int) -> I64:
    """Webster's (Sainte-Laguë) seats for shares that sum to one; every positive share gets a seat."""
    low, high = 0.0, 2.0 * size + len(shares)
    for _ in range(200):
        middle = (low + high) / 2
        if int(np.floor(shares * middle + 0.5).sum()) < size:
            low = middle
        else:
            high = middle
    seats: I64 = np.floor(shares * high + 0.5).astype(np.int64)
    seats[(shares > 0) & (seats == 0)] = 1
    return seats


def arrange(seats: I64) -> npt.NDArray[np.int32]:
    """The order of a period, int32[sum(seats)]: component numbers by earliest deadline; ties by number."""
    size = int(seats.sum())
    present = [int(c) for c in np.flatnonzero(seats)]
    if len(present) == 1:
        return np.full(size, present[0], dtype=np.int32)
    counts = [int(s) for s in seats]
    waiting: list[list[tuple[int, int, int]]] = [[] for _ in range(size + 1)]
    waiting[0] = [(-(-size // counts[c]), c, 0) for c in present]
    ready: list[tuple[int, int, int]] = []
    table = np.empty(size, dtype=np.int32)
    for draw in range(size):
        for job in waiting[draw]:
            heapq.heappush(ready, job)
        deadline, component, done = heapq.heappop(ready)
        assert deadline > draw, "a seat missed its deadline"
        table[draw] = component
        done += 1
        if done < counts[component]:
            release = max(done * size // counts[component], draw + 1)
            waiting[release].append((-(-(done + 1) * size // counts[component]), component, done))
    return table


class Schedule:
    """A periodic order of components; the i-th draw and the counts before it in O(1)."""

    def __init__(self, table: npt.NDArray[np.int32], components: int) -> None:
        self.table = table
        self.size = len(table)
        self.seats = np.bincount(table, minlength=components).astype(np.int64)
        order = np.argsort(table, kind="stable")
        starts = np.cumsum(self.seats) - self.seats
        self.rank = np.empty(self.size, dtype=np.int64)
        self.rank[order] = np.arange(self.size) - np.repeat(starts, self.seats)
        self._positions = order
        self._starts = starts

    def without(self, gone: npt.NDArray[np.bool_]) -> Schedule | None:
        """The same order without some components; None where nothing is left."""
        kept = self.table[~gone[self.table]]
        return Schedule(kept, len(self.seats)) if len(kept) else None

    def before(self, phase: int) -> I64:
        """How often each component comes in draws [0, phase); phase < size. int64[C]"""
        return np.bincount(self.table[:phase], minlength=len(self.seats)).astype(np.int64)

    def draws(self, start: int, stop: int) -> tuple[npt.NDArray[np.int32], I64]:
        """Components of draws [start, stop), and how often each came before (counted from draw 0)."""
        if self.size == 1:
            return np.full(stop - start, self.table[0], dtype=np.int32), np.arange(start, stop, dtype=np.int64)
        turn, at = np.divmod(np.arange(start, stop, dtype=np.int64), self.size)
        component = self.table[at]
        return component, turn * self.seats[component] + self.rank[at]

    def nth(self, component: int, n: int) -> int:
        """The number of the draw that takes `component` for the (n+1)-th time, counted from draw 0."""
        turn, rest = divmod(n, int(self.seats[component]))
        return turn * self.size + int(self._positions[int(self._starts[component]) + rest])

"""The operator list cut at its accumulators: levels, each with deciders (serial, per lane) and a stage (stateless, on workers)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups, views
from zephon.crews import lent
from zephon.engine.counts import Counts, record_counts
from zephon.engine.faults import Losses, Policy, apply_under, joined
from zephon.errors import RecipeError, at
from zephon.hashing import hash_group
from zephon.plugin import Operator, SelectOperator, StatefulOperator
from zephon.recipe import operator_fingerprint
from zephon.runners.base import Groups, Work

INDEX = "_index"
"""In the rows of a selection: the row in its source group."""


@dataclass(frozen=True)
class Note:
    """What travels with a task to a worker."""

    numbers: tuple[int, ...] = ()
    """The groups after the first are sources with these numbers."""
    empty: bool = False
    """Make the empty row instead of gathering."""
    schema: pa.Schema | None = None
    """For the empty row: of the rows that are gathered."""
    plain: bool = False
    """The first group is payload already: nothing to gather."""
    hash: bool = False
    """Hash the resulting group's content (for the digest)."""


@dataclass
class Report:
    """What comes back with the result of a task."""

    losses: Losses = field(default_factory=Losses)
    hash: int = 0
    spent: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By operator: seconds on the clock, and of a core in the worker's thread."""
    gathered: tuple[Counts, Counts] | None = None
    """Rows and tokens that the gather gave, where the accumulator doesn't balance by itself."""


def shown_inputs(operators: Sequence[Operator], follower: Operator | None = None) -> frozenset[str]:
    """The columns that the first of these operators may get as views: it takes them so, and what it makes of them goes to those who do.
    `follower`: who takes what they all make."""
    for op, after in zip(operators, [*operators[1:], follower], strict=False):  # of no operators the follower is left over
        left = set(op.viewed_outputs())
        if not left:
            break
        if after is None or not left <= set(after.viewed_inputs()):
            return frozenset()
    return frozenset(operators[0].viewed_inputs() if operators else ())


Gather = Callable[[pa.RecordBatch, Mapping[int, pa.RecordBatch]], pa.RecordBatch]


def gather_selection(rows: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
    """The gather of operators that only select: the rows of their source groups."""
    offsets, values = groups.list_parts(groups.column(rows, groups.SOURCE))
    numbers = values[int(offsets[0]) : int(offsets[-1])]
    index = groups.ints(rows, INDEX)
    parts, places = [], []
    for number in dict.fromkeys(numbers.tolist()):
        here = np.flatnonzero(numbers == number)
        parts.append(views.take_rows(sources[number], index[here]))
        places.append(here)
    if len(parts) == 1:
        return parts[0]
    return views.take_rows(joined(parts), np.argsort(np.concatenate(places), kind="stable"))


@dataclass(frozen=True)
class Stage:
    """Stateless work between accumulators: gather what the accumulator before decided, then apply operators."""

    builder: StatefulOperator | None
    selects: bool
    """Without a builder: whether a selection must be gathered."""
    steps: tuple[tuple[Operator, Policy], ...]
    built_at_once: int | None = None
    """How many of its rows an accumulator before it had built at once, where that bounds them: they are as heavy here."""

    @property
    def name(self) -> str:
        """The operators' names."""
        names = ([self.builder.name] if self.builder else []) + [op.name for op, _ in self.steps]
        return "+".join(names) or "gather"

    @property
    def fingerprint(self) -> str:
        """Of all settings, as this process sees them."""
        every = ([self.builder] if self.builder else []) + [op for op, _ in self.steps]
        return "-".join(operator_fingerprint(op) for op in every)

    @property
    def trivial(self) -> bool:
        """Nothing but moving memory: not worth sending to another process."""
        return not self.steps

    @property
    def moves(self) -> bool:
        """Nothing but whole rows, as they are: there is no operator that would look into them."""
        return self.trivial and self.builder is None

    @property
    def counted(self) -> bool:
        """Whether the engine counts what goes into the accumulator and what its gather gives."""
        return self.builder is not None and not self.builder.balances

    @property
    def keeps_rows(self) -> bool:
        """Whether output row i comes from decision row i alone, so that rows may be skipped before the work."""
        return self.by_row and all(policy == "raise" for _, policy in self.steps)

    @property
    def by_row(self) -> bool:
        """The same, but for rows that fail and are left out."""
        return all(op.keeps_rows for op, _ in self.steps)

    @property
    def max_rows(self) -> int | None:
        """The strictest of the operators' bounds on rows per call."""
        every = [*([self.builder] if self.builder else []), *(op for op, _ in self.steps)]
        bounds = [op.max_rows for op in every if op.max_rows is not None]
        if bounds and self.built_at_once is not None:
            bounds.append(self.built_at_once)
        return min(bounds, default=None)

    def bind(self) -> Work:
        """Bind the operators; in each worker once."""
        gather: Gather | None = None
        if self.builder is not None:
            with at(operator=self.builder.name):
                gather = self.builder.bind_shown(shown_inputs([op for op, _ in self.steps]))
        elif self.selects:
            gather = gather_selection
        bound = []
        for op, policy in self.steps:
            with at(operator=op.name):
                bound.append((op.name, op.bind(), policy))
        return _BoundStage(self, gather, bound).run


class _Lap:
    """Splits a task's time among its operators."""

    def __init__(self, spent: dict[str, tuple[float, float]]) -> None:
        self._spent = spent
        self._clock, self._cpu = time.perf_counter(), time.thread_time()

    def end(self, name: str) -> None:
        """What passed since the last end was `name`'s, and what other workers did for it."""
        clock, cpu = time.perf_counter(), time.thread_time()
        seconds, of_a_core = self._spent.get(name, (0.0, 0.0))
        their_seconds, theirs = lent()
        self._spent[name] = seconds + their_seconds + clock - self._clock, of_a_core + theirs + cpu - self._cpu
        self._clock, self._cpu = clock, cpu


class _BoundStage:
    def __init__(self, stage: Stage, gather: Gather | None, steps: Sequence[tuple[str, Any, Policy]]) -> None:
        self.stage = stage
        self.gather = gather
        self.steps = steps

    def run(self, given: Groups, note: Note) -> tuple[Groups, Report]:
        """One task."""
        report = Report()
        lap = _Lap(report.spent)
        current: list[pa.RecordBatch] = []
        if note.empty:
            assert self.stage.builder is not None
            made = self.stage.builder.empty_row(note.schema)
            current = [] if made is None else [made]
        elif note.plain or self.gather is None:
            current = [given[0]]
        else:
            with at(operator=self.stage.name):
                current = [self.gather(given[0], dict(zip(note.numbers, given[1:], strict=True)))]
            if self.stage.counted:
                report.gathered = record_counts(current[0])
            lap.end(self.stage.builder.name if self.stage.builder else "gather")
        for name, apply, policy in self.steps:
            current = [
                g
                for group in current
                if len(group)
                for g in apply_under(policy, apply, group, operator=name, losses=report.losses)
            ]
            lap.end(name)
        current = [g for g in current if len(g)]
        result = groups.concat(current) if current else None
        if result is not None and note.hash:
            # where operators make much of little, as pixels of files, what they were given says the same in a hundredth of the bytes
            report.hash = hash_group(result if self.stage.max_rows is None else given[0])
            lap.end("digest")
        return ([] if result is None else [result]), report


@dataclass(frozen=True)
class Level:
    """Deciders that share one gather, and the stage after them. The first level has no deciders."""

    deciders: tuple[StatefulOperator | SelectOperator, ...]
    stage: Stage

    @property
    def can_be_empty(self) -> bool:
        """Whether it makes empty sequences."""
        return self.stage.builder is not None and self.stage.builder.empty_row(None) is not None


def cut_levels(steps: Sequence[tuple[Operator, Policy]]) -> list[Level]:
    """Cut the operator list at its accumulators.

    Selecting operators straight after an accumulator decide on its light rows, before anything is gathered.

    Raises:
        RecipeError: an operator calls itself stateful but is neither a StatefulOperator nor a SelectOperator.
    """
    levels: list[Level] = []
    deciders: list[StatefulOperator | SelectOperator] = []
    stateless: list[tuple[Operator, Policy]] = []

    def close() -> None:
        builder = deciders[0] if deciders and isinstance(deciders[0], StatefulOperator) else None
        selects = bool(deciders) and builder is None
        before = next((level.stage.max_rows for level in reversed(levels) if level.stage.builder), None) if selects else None
        levels.append(Level(tuple(deciders), Stage(builder, selects, tuple(stateless), before)))

    for op, policy in steps:
        if not op.stateful:
            stateless.append((op, policy))
            continue
        if not isinstance(op, StatefulOperator | SelectOperator):
            raise RecipeError(
                f"operator {op.name!r} is declared stateful but is neither a StatefulOperator nor a SelectOperator",
                hint="derive it from one of them (zephon.plugin)",
            )
        if isinstance(op, SelectOperator) and deciders and not stateless:
            deciders.append(op)
            continue
        close()
        deciders, stateless = [op], []
    close()
    _check_by_step(levels)
    return levels


def _check_by_step(levels: Sequence[Level]) -> None:
    """What decides by the step that a row falls into must be the last to change which rows there are, and their order."""
    for number, level in enumerate(levels):
        for place, op in enumerate(level.deciders):
            if not isinstance(op, SelectOperator) or not op.by_step:
                continue
            later = [*level.deciders[place + 1 :], *(d for after in levels[number + 1 :] for d in after.deciders)]
            if later:
                raise RecipeError(
                    f"{op.name!r} orders the sequences of a step, and {later[0].name!r} after it would change which those are",
                    hint=f"put {op.name!r} after it",
                )
            for after, policy in level.stage.steps:
                if not after.keeps_rows or policy != "raise":
                    why = "may drop or add rows" if not after.keeps_rows else f"skips rows that fail (on_error={policy!r})"
                    raise RecipeError(
                        f"{op.name!r} must know the step of each row that it orders, and {after.name!r} after it {why}",
                        hint=f'put {op.name!r} after it, or use on_error="raise" for it',
                    )

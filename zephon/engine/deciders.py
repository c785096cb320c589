"""The serial half of a level, for one lane and window: accumulators and selectors fed in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import to_arrow
from zephon.engine.faults import Losses, placed
from zephon.engine.spill import Source, held_bytes, in_memory_of_its_own
from zephon.engine.stages import INDEX
from zephon.errors import InternalError, RecipeError, at
from zephon.keys import I64
from zephon.plugin import Accumulator, Decision, LaneWindow, SelectOperator, Selector, StatefulOperator


class Deciders:
    """A level's accumulators: the first sees groups, the selectors after it see its light rows."""

    def __init__(
        self,
        operators: Sequence[StatefulOperator | SelectOperator],
        where: LaneWindow,
        park: Callable[[pa.RecordBatch], Source] = in_memory_of_its_own,
    ) -> None:
        """`park`: what becomes of a source that waits and shows little of much."""
        first = operators[0]
        self._number = 0
        self._name = first.name
        self._builder: Accumulator | None = None
        self._light: tuple[str, ...] = ()
        self._selections: list[_Selection] = []
        with at(operator=first.name, lane=where.lane):
            slices = False
            if isinstance(first, StatefulOperator):
                self._builder, slices = first.accumulator(where), first.slices
            for op in operators:
                if isinstance(op, SelectOperator):
                    held = park if slices and not self._selections else None
                    self._selections.append(_Selection(op.name, op.selector(where), held))
                    self._light += op.inputs() or ()

    @property
    def nbytes(self) -> int:
        """Bytes that are held on to."""
        return (self._builder.nbytes if self._builder else 0) + sum(s.nbytes for s in self._selections)

    def add(self, group: pa.RecordBatch, losses: Losses) -> list[Decision]:
        """Feed the next group; what is decided by that."""
        number, self._number = self._number, self._number + 1
        try:
            with at(operator=self._name):
                if self._builder is not None:
                    made = list(self._builder.add(group, number))
                    for decision in made:
                        losses.of_drops(self._name, group, decision.drops)
                else:
                    made = [_as_decision(group, number, self._light)]
            return self._select(made)
        except RecipeError as error:  # a column of a type that isn't taken
            placed(error, group)
            raise

    def flush(self, losses: Losses) -> list[Decision]:
        """The window ends: everything that is held is decided."""
        with at(operator=self._name):
            made = list(self._builder.flush()) if self._builder is not None else []
            for decision in made:
                losses.of_drops(self._name, decision.rows, decision.drops)
        for selection in self._selections:
            made = [d for decision in made for d in selection.add(decision)] + selection.flush()
        return made

    def _select(self, made: list[Decision]) -> list[Decision]:
        for selection in self._selections:
            made = [d for decision in made for d in selection.add(decision)]
        return made


def _as_decision(group: pa.RecordBatch, number: int, light: Sequence[str]) -> Decision:
    size = len(group)
    source = groups.make_list(np.arange(size + 1), np.full(size, number, dtype=np.int32))
    columns = {name: groups.column(group, name) for name in light}
    columns[groups.SOURCE] = source
    columns[INDEX] = to_arrow(np.arange(size, dtype=np.int64))
    return Decision(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), {number: group})


class _Selection:
    """A selector with the light rows that wait in it. Their sources are `park`ed where they may show little of much."""

    def __init__(self, name: str, selector: Selector, park: Callable[[pa.RecordBatch], Source] | None) -> None:
        self.name = name
        self._park = park
        self._selector = selector
        self._rows: pa.RecordBatch | None = None
        self._waiting: I64 = np.zeros(0, dtype=np.int64)
        self._alive: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        self._sources: dict[int, Any] = {}
        """`Source`s; a `Decision` doesn't say so, since operators only see groups."""
        self._source_bytes: dict[int, int] = {}
        self._uses: I64 = np.zeros(0, dtype=np.int64)
        """By source, how often the rows that wait refer to it: files of images go with the last row that shows them."""
        self._seen = 0

    @property
    def nbytes(self) -> int:
        return sum(self._source_bytes.values())

    def add(self, decision: Decision) -> list[Decision]:
        rows = decision.rows
        if not len(rows):
            return []
        self._rows = rows if self._rows is None else groups.concat([self._rows, rows])
        self._waiting = np.concatenate([self._waiting, np.arange(self._seen, self._seen + len(rows), dtype=np.int64)])
        self._alive = np.concatenate([self._alive, np.ones(len(rows), dtype=bool)])
        self._seen += len(rows)
        for number, source in decision.sources.items():
            if number not in self._sources:
                held = source if self._park is None else self._park(source)
                self._sources[number] = held
                self._source_bytes[number] = weighed(decision, (number,)) if held is source else held_bytes(held)
        uses = np.bincount(groups.source_numbers(rows), minlength=len(self._uses))
        uses[: len(self._uses)] += self._uses
        self._uses = uses
        with at(operator=self.name):
            return self._emit(np.asarray(self._selector.add(rows), dtype=np.int64))

    def flush(self) -> list[Decision]:
        with at(operator=self.name):
            made = self._emit(np.asarray(self._selector.flush(), dtype=np.int64))
        if self._alive.any():
            raise InternalError(f"operator {self.name!r} kept {int(self._alive.sum())} rows at the flush")
        return made

    def _emit(self, numbers: I64) -> list[Decision]:
        if not len(numbers):
            return []
        assert self._rows is not None
        place = np.searchsorted(self._waiting, numbers)
        left = np.count_nonzero(self._alive) - len(numbers)
        known = int(place.max()) < len(self._waiting) and bool((self._waiting[place] == numbers).all())
        if known:
            self._alive[place] = False
        if not known or np.count_nonzero(self._alive) != left:
            raise InternalError(f"operator {self.name!r} chose a row twice, or one that it was never given")
        rows = groups.take(self._rows, place)
        used = np.bincount(groups.source_numbers(rows))
        sources = {n: self._sources[n] for n in np.flatnonzero(used).tolist()}
        self._uses[: len(used)] -= used
        weights = {n: self._source_bytes[n] for n in sources}
        for number in sources:
            if not self._uses[number]:
                del self._sources[number], self._source_bytes[number]
        if 2 * left < len(self._alive):
            kept = np.flatnonzero(self._alive)
            self._rows = groups.take(self._rows, kept)
            self._waiting, self._alive = self._waiting[kept], np.ones(left, dtype=bool)
        return [Decision(rows, sources, weights=weights)]


def weighed(decision: Decision, numbers: Iterable[int]) -> int:
    """Bytes that these sources of a decision take."""
    known, sources = decision.weights, decision.sources
    return sum(known[n] if n in known else held_bytes(sources[n]) for n in numbers)


def used_sources(rows: pa.RecordBatch) -> list[int]:
    """The numbers of the groups that these decision rows draw on, ascending."""
    # group numbers count from 0 in a window, so that counting beats sorting
    numbers: list[int] = np.flatnonzero(np.bincount(groups.source_numbers(rows))).tolist()
    return numbers


def shows_sources(rows: pa.RecordBatch) -> bool:
    """Whether decision rows say whose rows these are, without gathering them."""
    return rows.schema.get_field_index(groups.PIECES) >= 0 or rows.schema.get_field_index(INDEX) >= 0

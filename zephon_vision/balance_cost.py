"""`balance_cost`: sequences of similar cost at the same time on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.errors import RecipeError
from zephon.keys import I64
from zephon.plugin import LaneWindow, SelectOperator, Selector
from zephon_vision import columns


@dataclass(frozen=True, kw_only=True)
class BalanceCost(SelectOperator):
    """Order each run of `window` sequences by cost, the dearest first.

    Ranks wait for each other after every microbatch, so the dearest one sets the pace. With `window` the sequences of a lane and step
    (global batch / lanes, more than the microbatch), the first microbatches of a step are then the dearest ones on all ranks, the last
    ones the cheapest, and each step has the same sequences as before. It comes after packing and shuffling. Every lane orders its own
    sequences, so what it does is the same on any number of ranks.

    Runs are counted from the start of a lane's window of chunks (`flush_every_chunks`). Where that holds no whole number of steps, later
    runs reach over the border of two steps: still the same sequences in all, and the same everywhere.
    """

    name: ClassVar[str] = "balance_cost"

    window: int
    column: str = columns.IMAGE_BLOCKS
    """A number per sequence: its cost."""

    def __post_init__(self) -> None:
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise RecipeError(f"balance_cost: window is {self.window!r}; it must be a whole number ≥ 1")

    def inputs(self) -> tuple[str, ...]:
        """The cost."""
        return (self.column,)

    def selector(self, where: LaneWindow) -> Selector:
        """Afresh; nothing depends on the lane."""
        del where
        return _Balancing(self.window, self.column)


class _Balancing:
    def __init__(self, window: int, column: str) -> None:
        self._window = window
        self._column = column
        self._costs = np.zeros(0)
        self._first = 0

    def add(self, rows: pa.RecordBatch) -> I64:
        """See `Selector`: whole runs, ordered."""
        self._costs = np.concatenate([self._costs, groups.ints(rows, self._column)])
        return self._emit(len(self._costs) // self._window * self._window)

    def flush(self) -> I64:
        """See `Selector`: the run that was begun."""
        return self._emit(len(self._costs))

    def _emit(self, count: int) -> I64:
        costs, self._costs = self._costs[:count], self._costs[count:]
        order = np.lexsort((-costs, np.arange(count) // self._window))
        first, self._first = self._first, self._first + count
        chosen: I64 = (first + order).astype(np.int64)
        return chosen

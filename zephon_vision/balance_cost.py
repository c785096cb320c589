"""`balance_cost`: sequences of similar cost at the same time on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups, keys
from zephon.arrays import to_numpy
from zephon.errors import DataError, RecipeError
from zephon.keys import I64
from zephon.plugin import LaneWindow, SelectOperator, Selector
from zephon_vision import columns

Costs = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BalanceCost(SelectOperator):
    """Put sequences of like cost at the same place of a step on all lanes, in a seeded order.

    Ranks wait for each other after every microbatch, so the dearest one sets the pace. A lane's sequences of a step (global batch /
    lanes, more than the microbatch for this to be of use) are ranked by cost, and which rank of cost comes where is drawn from the seed
    and the step alone: all lanes have their dearest sequence at the same place, their second dearest at another one, and so on. It
    comes after packing and shuffling.

    Every global batch has exactly the sequences that it has without this operator, each in its lane's part of the batch; only their
    order in that part changes, and it is the same on any number of ranks and after any restart. With `steps` above 1 sequences also
    change places between that many steps (which then balances even one sequence per lane and step): each such span has the same
    sequences as before, its single steps have not.

    Where a lane's window of chunks (`flush_every_chunks`) ends inside a step, the two parts of that step are ranked by themselves.
    """

    name: ClassVar[str] = "balance_cost"
    version: ClassVar[int] = 2
    by_step: ClassVar[bool] = True

    steps: int = 1
    """How many steps make a span inside of which sequences change places; spans are counted from the start of the run."""
    seed: int | None = None
    """None: the source's seed."""
    column: str = columns.IMAGE_BLOCKS
    """A number per sequence: its cost."""

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise RecipeError(f"balance_cost: steps is {self.steps!r}; it must be a whole number ≥ 1")

    def inputs(self) -> tuple[str, ...]:
        """The cost."""
        return (self.column,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The same schema. Raises `RecipeError` where the cost is no number."""
        _check_cost(schema.field(self.column).type, self.column)
        return schema

    def selector(self, where: LaneWindow) -> Selector:
        """For one lane and window; what it draws depends on neither."""
        seed = where.seed if self.seed is None else self.seed
        return _Balancing(self.column, seed, span=self.steps * where.per_step, place=where.first)


def _check_cost(kind: pa.DataType, column: str) -> None:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise RecipeError(f"column {column!r} is {kind}, not numbers: a cost is one", hint="name the cost with column=")


class _Balancing:
    """Rows wait until their span is complete. `place`: where in the lane's stream the first row stands that waits."""

    def __init__(self, column: str, seed: int, *, span: int, place: int) -> None:
        self._column = column
        self._seed = seed
        self._span = span
        self._place = place
        self._costs: Costs = np.zeros(0)
        self._first = 0

    def add(self, rows: pa.RecordBatch) -> I64:
        """See `Selector`: whole spans, ordered."""
        costs: Any = groups.column(rows, self._column)
        _check_cost(costs.type, self._column)
        if costs.null_count:
            raise DataError(f"balance_cost: {costs.null_count} of {len(costs)} rows have no {self._column!r}")
        self._costs = np.concatenate([self._costs, to_numpy(costs).astype(np.float64)])
        return self._emit(last=False)

    def flush(self) -> I64:
        """See `Selector`: with the span that was begun."""
        return self._emit(last=True)

    def _emit(self, *, last: bool) -> I64:
        parts = [np.zeros(0, dtype=np.int64)]
        while len(self._costs):
            number, begin = divmod(self._place, self._span)
            size = self._span - begin
            if len(self._costs) < size and not last:
                break
            size = min(size, len(self._costs))
            # ranks[i]: how dear the row at place i of the span is to be, 0 the dearest; of a part of a span only their order counts
            ranks = keys.permutation(keys.key(self._seed, "balance_cost", number), self._span)[begin : begin + size]
            dearest_first = np.argsort(-self._costs[:size], kind="stable")
            order = np.empty(size, dtype=np.int64)
            order[np.argsort(ranks, kind="stable")] = dearest_first
            parts.append(self._first + order)
            self._first, self._place, self._costs = self._first + size, self._place + size, self._costs[size:]
        return np.concatenate(parts)

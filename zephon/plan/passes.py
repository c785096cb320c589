"""The rows of one data set as the lanes traverse them, pass after pass.

The endless concatenation of passes is one line of rows, the *flat* line: pass p holds flat rows [p*N, (p+1)*N), its units in the
order of a keyed permutation. The line is cut into *stripes* of S rows, dealt round-robin: stripe q goes to lane q mod L. So each
lane's i-th row is arithmetic, `(i // S * L + lane) * S + i % S`, for any i and any number of passes, and every row is drawn exactly once
per pass whatever the unit sizes are. Inside a stripe the rows are permuted, those of an earlier pass before those of a later one.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from zephon.keys import I64, hashes, key
from zephon.plan.units import UnitTable

_KEPT = 256
_MATRIX = 1 << 20


class ComponentRows:
    """One component's rows, lane by lane.

    Args:
        table: the units; at least one row.
        seed_key: from the recipe's seed and the data set's name.
        lanes: L.
        stripe: S, rows per stripe.
        shuffle_units: permute the units of each pass.
        shuffle_rows: permute the rows of each stripe.
        reshuffle: every pass has an order of its own; else all have the order of the first.
        bundle_rows: stripes shorter than this are planned and read several at a time.
    """

    def __init__(
        self,
        table: UnitTable,
        *,
        seed_key: int,
        lanes: int,
        stripe: int,
        shuffle_units: bool = True,
        shuffle_rows: bool = True,
        reshuffle: bool = True,
        bundle_rows: int = 1024,
    ) -> None:
        self.table = table
        self.lanes = lanes
        self.stripe = stripe
        self.total_rows = table.total_rows
        # small stripes are handled many at a time, so that planning stays vectorised
        self.bundle = max(1, bundle_rows // stripe) * stripe
        self._units_key = key(seed_key, "units") if shuffle_units and len(table) > 1 else None
        self._rows_key = key(seed_key, "rows") if shuffle_rows else None
        self._reshuffle = reshuffle
        self._orders: OrderedDict[tuple[int, int], I64] = OrderedDict()
        self._passes: OrderedDict[int, tuple[I64, I64]] = OrderedDict()

    def lane_rows(self, lane: int, passes: int) -> int:
        """How many rows lane `lane` gets in the first `passes` passes; O(1)."""
        whole, rest = divmod(passes * self.total_rows, self.lanes * self.stripe)
        return whole * self.stripe + min(max(rest - lane * self.stripe, 0), self.stripe)

    def flat(self, lane: int, index: I64) -> I64:
        """The flat row behind each of the lane's row numbers, before permuting; int64[n]."""
        turn, offset = np.divmod(index, self.stripe)
        rows: I64 = (turn * self.lanes + lane) * self.stripe + offset
        return rows

    def draw(self, lane: int, index: I64) -> tuple[I64, I64]:
        """The lane's row numbers, permuted: `(bundle, offset in it)`, int64[n] each. `bundle_flat` says what a bundle holds.

        A lane that ends before a bundle does (finite run) still gets each of its rows once, since rows of later passes sort last.
        """
        bundle, offset = np.divmod(index, self.bundle)
        if self._rows_key is None or not len(bundle):
            return bundle, offset
        first, last = int(bundle.min()), int(bundle.max())
        if first == last:
            return bundle, self._order(lane, first)[offset]
        out = np.empty_like(offset)
        for number in np.unique(bundle).tolist():
            here = bundle == number
            out[here] = self._order(lane, number)[offset[here]]
        return bundle, out

    def bundle_flat(self, lane: int, bundle: int) -> I64:
        """The flat rows of one bundle, ascending; int64[B]."""
        return self.flat(lane, np.arange(bundle * self.bundle, (bundle + 1) * self.bundle, dtype=np.int64))

    def _order(self, lane: int, bundle: int) -> I64:
        cached = self._orders.get((lane, bundle))
        if cached is not None:
            return cached
        flat = self.bundle_flat(lane, bundle)
        assert self._rows_key is not None
        pass_index = flat // self.total_rows
        noise = hashes(self._rows_key, flat if self._reshuffle else flat % self.total_rows)
        stripe = np.arange(len(flat), dtype=np.int64) // self.stripe
        if pass_index[0] == pass_index[-1]:
            # one pass: every stripe by itself, as the rows of a matrix
            order = np.argsort(noise.reshape(-1, self.stripe), axis=1, kind="stable")
            order = (order + np.arange(0, len(flat), self.stripe)[:, None]).ravel()
        else:
            order = np.lexsort((noise, pass_index, stripe))
        self._orders[(lane, bundle)] = order
        self._orders.pop(
            (lane, bundle - 2), None
        )  # a lane never goes back; only the chunk before this one may be at the bundle before
        if len(self._orders) > max(_KEPT, 2 * self.lanes):
            self._orders.popitem(last=False)
        return order

    def resolve(self, flat: I64) -> tuple[I64, I64, I64]:
        """Where flat rows are: `(pass_index, unit, row in the unit)`, int64[n] each; ascending input is quickest."""
        pass_index, position = np.divmod(flat, self.total_rows)
        unit = np.empty_like(flat)
        row = np.empty_like(flat)
        if len(self.table) == 1:
            return pass_index, np.zeros_like(flat), position
        passes = np.unique(pass_index)
        if len(passes) > 1 and len(passes) * len(self.table) <= _MATRIX:
            return pass_index, *self._resolve_many(pass_index, position, passes)
        for number in passes.tolist():
            order, ends = self._pass_order(number)
            here = pass_index == number
            slot = np.searchsorted(ends, position[here], side="right")
            unit[here] = order[slot]
            row[here] = position[here] - (ends[slot] - self.table.rows[order[slot]])
        return pass_index, unit, row

    def _resolve_many(self, pass_index: I64, position: I64, passes: I64) -> tuple[I64, I64]:
        """The same for many passes over few units at once: all their orders as one matrix, laid end to end for one search."""
        orders = self._unit_orders(passes)
        lengths = self.table.rows[orders]
        ends = (np.cumsum(lengths, axis=1) + np.arange(len(passes))[:, None] * self.total_rows).ravel()
        place = np.searchsorted(passes, pass_index) * self.total_rows + position
        slot = np.searchsorted(ends, place, side="right")
        return orders.ravel()[slot], place - (ends[slot] - lengths.ravel()[slot])

    def _unit_orders(self, passes: I64) -> I64:
        """int64[P, U]: the order of the units in each of these passes, by the hashes of (pass, unit)."""
        size = len(self.table)
        units = np.arange(size, dtype=np.uint64)
        if self._units_key is None:
            return np.tile(units.astype(np.int64), (len(passes), 1))
        rounds = passes.astype(np.uint64) if self._reshuffle else np.zeros(len(passes), dtype=np.uint64)
        noise = hashes(self._units_key, (rounds[:, None] * np.uint64(size) + units).ravel()).reshape(len(passes), size)
        return np.argsort(noise, axis=1, kind="stable").astype(np.int64, copy=False)

    def _pass_order(self, pass_index: int) -> tuple[I64, I64]:
        cached = self._passes.get(pass_index)
        if cached is not None:
            return cached
        order = self._unit_orders(np.array([pass_index], dtype=np.int64))[0]
        made = order, np.cumsum(self.table.rows[order])
        self._passes[pass_index] = made
        if len(self._passes) > 4:
            self._passes.popitem(last=False)
        return made

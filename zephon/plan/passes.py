"""The rows of one data set as the lanes traverse them, pass after pass.

The endless concatenation of passes is one line of rows, the *flat* line: pass p holds flat rows [p*N, (p+1)*N), its units in the
order of a keyed permutation. The line is cut into *stripes* of S rows, dealt round-robin: stripe q goes to lane q mod L. So each
lane's i-th row is arithmetic, `(i // S * L + lane) * S + i % S`, for any i and any number of passes, and every row is drawn exactly once
per pass whatever the unit sizes are. Inside a stripe the rows are permuted, those of an earlier pass before those of a later one.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from itertools import pairwise

import numpy as np

from zephon.keys import I64, U64, hashes, key
from zephon.plan.units import UnitTable

_KEPT = 256
_SEVERAL, _MATRIX = 2, 1 << 20
"""How many sets of passes are kept laid out, and the most units that one of them may have: 32 MB in all."""


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
        bundle_rows: stripes shorter than this are read several at a time, about so many rows.
        block_rows: bundles smaller than this are planned several at a time. Neither changes an order.
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
        block_rows: int = 4096,
    ) -> None:
        self.table = table
        self.lanes = lanes
        self.stripe = stripe
        self.total_rows = table.total_rows
        self.bundle = max(1, round(bundle_rows / stripe)) * stripe
        self.block = max(1, block_rows // self.bundle) * self.bundle
        self._units_key = key(seed_key, "units") if shuffle_units and len(table) > 1 else None
        self._rows_key = key(seed_key, "rows") if shuffle_rows else None
        self._reshuffle = reshuffle
        self._first_block, self._starts = _block(lanes, stripe, self.bundle, self.block)
        self._orders: OrderedDict[tuple[int, int], I64] = OrderedDict()
        self._last: tuple[int, int, I64, I64] | None = None
        """Lane, number, flat rows and passes of the last block: it's first drawn from, then resolved."""
        self._resolved: dict[int, tuple[int, I64, tuple[I64, I64, I64]]] = {}
        """By lane, the block that a bundle was last asked of: its number, its flat rows, and where these are."""
        self._passes: OrderedDict[int, tuple[I64, I64]] = OrderedDict()
        self._several: OrderedDict[bytes, tuple[I64, I64]] = OrderedDict()

    def lane_rows(self, lane: int, passes: int) -> int:
        """How many rows lane `lane` gets in the first `passes` passes; O(1)."""
        whole, rest = divmod(passes * self.total_rows, self.lanes * self.stripe)
        return whole * self.stripe + min(max(rest - lane * self.stripe, 0), self.stripe)

    def flat(self, lane: int, index: I64) -> I64:
        """The flat row behind each of the lane's row numbers, before permuting; int64[n]."""
        return _flat(lane, index, self.lanes, self.stripe)

    def draw(self, lane: int, index: I64) -> tuple[I64, I64]:
        """The lane's row numbers, ascending, permuted: `(bundle, offset in it)`, int64[n] each. `bundle_rows` says what a bundle holds.

        A lane that ends before a bundle does (finite run) still gets each of its rows once, since rows of later passes sort last.
        """
        number = index // self.bundle  # a row stays in its stripe, so in its bundle
        if self._rows_key is None or not len(index):
            return number, index - number * self.bundle
        first, last = int(index[0]) // self.block, int(index[-1]) // self.block
        if first == last:
            return number, self._order(lane, first)[index - first * self.block]
        cuts = np.searchsorted(index, np.arange(first, last + 2) * self.block).tolist()
        parts = [
            self._order(lane, first + i)[index[low:high] - (first + i) * self.block]
            for i, (low, high) in enumerate(pairwise(cuts))
            if low < high
        ]
        return number, np.concatenate(parts)

    def bundle_flat(self, lane: int, bundle: int) -> I64:
        """The flat rows of one bundle, ascending; int64[B]."""
        turns = bundle * (self.bundle // self.stripe)
        return self._first_block[: self.bundle] + (turns * self.lanes + lane) * self.stripe

    def bundle_rows(self, lane: int, bundle: int, limit: int | None = None) -> tuple[I64, I64, I64]:
        """Where the rows of one bundle are, as `resolve` says it, those from flat row `limit` on left out."""
        number, place = divmod(bundle, self.block // self.bundle)
        kept = self._resolved.get(lane)
        if kept is None or kept[0] != number:
            flat, passes = self._block(lane, number)
            kept = self._resolved[lane] = number, flat, self.resolve(flat, passes)
        _, flat, (pass_index, unit, row) = kept
        start = place * self.bundle
        stop = start + self.bundle
        if limit is not None:
            stop = min(stop, int(np.searchsorted(flat, limit)))
        here = slice(start, max(start, stop))
        return pass_index[here], unit[here], row[here]

    def _block(self, lane: int, block: int) -> tuple[I64, I64]:
        """The flat rows of a block, ascending, and their passes; int64[block] each."""
        last = self._last
        if last is None or last[:2] != (lane, block):
            flat = self._first_block + (block * (self.block // self.stripe) * self.lanes + lane) * self.stripe
            last = self._last = lane, block, flat, flat // self.total_rows
        return last[2:]

    def _order(self, lane: int, block: int) -> I64:
        """int64[block]: for each row number in a lane's block the place in its bundle that is drawn."""
        cached = self._orders.get((lane, block))
        if cached is not None:
            return cached
        flat, pass_index = self._block(lane, block)
        assert self._rows_key is not None
        noise = hashes(self._rows_key, flat if self._reshuffle else flat % self.total_rows)
        # every stripe by itself, as the rows of a matrix; of a stripe that lies in two passes the later one's rows come last
        stripes, passes = noise.reshape(-1, self.stripe), pass_index.reshape(-1, self.stripe)
        several = bool((passes[:, 0] != passes[:, -1]).any())
        order: I64 = _in_turn(stripes, passes - passes[:, :1]) if several else np.argsort(stripes, axis=1, kind="stable")
        order = (order + (np.arange(0, len(flat), self.stripe) - self._starts[:: self.stripe])[:, None]).ravel()
        self._orders[(lane, block)] = order
        # a lane never goes back; only the chunk before this one may be at the block before
        self._orders.pop((lane, block - 2), None)
        if len(self._orders) > max(_KEPT, 2 * self.lanes):
            self._orders.popitem(last=False)
        return order

    def resolve(self, flat: I64, pass_index: I64 | None = None) -> tuple[I64, I64, I64]:
        """Where flat rows are: `(pass_index, unit, row in the unit)`, int64[n] each; ascending input is quickest."""
        if pass_index is None:
            pass_index = flat // self.total_rows
        position = flat - pass_index * self.total_rows
        if len(self.table) == 1 or not len(flat):
            return pass_index, np.zeros_like(flat), position
        passes = _distinct(pass_index)
        if len(passes) > 1 and len(passes) * len(self.table) <= _MATRIX:
            return pass_index, *self._resolve_many(pass_index, position, passes)
        unit = np.empty_like(flat)
        row = np.empty_like(flat)
        for number in passes.tolist():
            order, ends = self._pass_order(number)
            here = pass_index == number
            slot = np.searchsorted(ends, position[here], side="right")
            unit[here] = order[slot]
            row[here] = position[here] - (ends[slot] - self.table.rows[order[slot]])
        return pass_index, unit, row

    def _resolve_many(self, pass_index: I64, position: I64, passes: I64) -> tuple[I64, I64]:
        """The same for many passes over few units at once: all their orders as one matrix, laid end to end for one search."""
        units, starts = self._laid_out(passes)
        place = np.searchsorted(passes, pass_index) * self.total_rows + position
        slot = np.searchsorted(starts, place, side="right") - 1
        return units[slot], place - starts[slot]

    def _laid_out(self, passes: I64) -> tuple[I64, I64]:
        """The units of these passes end to end, and where each begins; the lanes of a rank ask for the same passes one after another."""
        cached = self._several.get(passes.tobytes())
        if cached is None:
            orders = self._unit_orders(passes)
            lengths = self.table.rows[orders]
            starts = np.cumsum(lengths, axis=1) - lengths + np.arange(len(passes))[:, None] * self.total_rows
            cached = self._several[passes.tobytes()] = orders.ravel(), starts.ravel()
            if len(self._several) > _SEVERAL:
                self._several.popitem(last=False)
        return cached

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


def _flat(lane: int, index: I64, lanes: int, stripe: int) -> I64:
    turn, offset = np.divmod(index, stripe)
    rows: I64 = (turn * lanes + lane) * stripe + offset
    return rows


@lru_cache(maxsize=64)
def _block(lanes: int, stripe: int, bundle: int, block: int) -> tuple[I64, I64]:
    """The first block of lane 0: the flat rows, and where the bundle of each begins; int64[block] each.

    They depend on nothing of a data set but its stripe: made for each of 100,000 data sets of a mixture they took 6.5 GB.
    """
    index = np.arange(block, dtype=np.int64)
    made = _flat(0, index, lanes, stripe), index // bundle * bundle
    for array in made:
        array.flags.writeable = False
    return made


def _distinct(values: I64) -> I64:
    """The distinct values, ascending; quick where they lie close together, as bundles and passes do."""
    first = int(values.min())
    spread = int(values.max()) - first
    return np.flatnonzero(np.bincount(values - first)) + first if spread < len(values) else np.unique(values)


def _in_turn(noise: U64, later: I64) -> I64:
    """For each row of a matrix the order that sorts it by `later`, then by noise, ties as they come. int64[n, m]"""
    bits = int(later.max()).bit_length()
    # both in one number: one quick sort instead of two. Where that makes two of a row equal, they count whole
    keys = (later.astype(np.uint64) << np.uint64(64 - bits)) | (noise >> np.uint64(bits))
    order = np.argsort(keys, axis=1, kind="stable")
    put = np.take_along_axis(keys, order, axis=1)
    return order if bool((put[:, 1:] > put[:, :-1]).all()) else np.lexsort((noise, later), axis=1)

"""Rows and tokens in, out and dropped, per data set: what `pipeline.accounting()` reports."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.engine.balance import Balance
from zephon.engine.counts import LIGHT, Counts, add_counts, flat, per_component, record_counts
from zephon.engine.faults import Losses
from zephon.engine.state import LaneState


def decision_counts(decided: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch], index_column: str) -> tuple[Counts, Counts]:
    """`record_counts` of decision rows that are never gathered (a restore drops them); `sources` may be more than theirs."""
    if groups.PIECES in decided.schema.names:
        pieces = groups.list_pieces(decided)[1]
        return per_component(pieces["component"], pieces["start"] == 0), per_component(pieces["component"], pieces["length"])
    rows: Counts = {}
    tokens: Counts = {}
    numbers = flat(decided, groups.SOURCE)
    index = groups.ints(decided, index_column)
    for number in np.unique(numbers).tolist():
        mine, source = index[numbers == number], sources[number]
        names = [n for n in (*LIGHT, groups.TOKENS) if n in source.schema.names]
        more_rows, more_tokens = record_counts(groups.take(groups.select(source, names), mine))
        add_counts(rows, more_rows)
        add_counts(tokens, more_tokens)
    return rows, tokens


class Ledger:
    """Counts of one run of this process. The pump writes; what was delivered is settled from the consumer's side."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.losses = Losses()
        self.rows_in: Counts = {}
        self.rows_out: Counts = {}
        self.tokens_out: Counts = {}
        self.rows_replayed: Counts = {}
        self.tokens_replayed: Counts = {}
        self.padding = 0
        self.sequences = 0
        self.failures = 0
        self._balances: list[Balance] = []
        self._waiting: dict[int, deque[tuple[int, int, pa.RecordBatch]]] = {}
        self._guard = threading.Lock()

    def source(self, rows: Mapping[int, int]) -> None:
        """Records that were planned and fetched (or failed to be)."""
        add_counts(self.rows_in, rows)

    def count(self, losses: Losses) -> None:
        """What one task took in, added and left out."""
        self.losses.add(losses)
        self.failures += len(losses.failures)

    def balance(self, operator: str) -> Balance:
        """For an accumulator, of that name, of a lane."""
        made = Balance(operator, self.count)
        self._balances.append(made)
        return made

    def replayed(self, counts: tuple[Counts, Counts]) -> None:
        """Sequences that an earlier run delivered, or rows of which it knew what became."""
        add_counts(self.rows_replayed, counts[0])
        add_counts(self.tokens_replayed, counts[1])

    def ready(self, lane: int, window: int, first: int, group: pa.RecordBatch) -> None:
        """Sequences [first, first + len) of a lane's window, ready to be delivered. Only the columns that count are held."""
        have = set(group.schema.names)
        names = [n for n in LIGHT if n in have]
        if groups.DOC_COMPONENT not in have and groups.TOKENS in have:
            names.append(groups.TOKENS)
        light = groups.select(group, names) if names else group
        self._waiting.setdefault(lane, deque()).append((window, first, light))

    def settle(self, lane: int, state: LaneState) -> None:
        """Count what lies before the lane's delivered position; called now and then, not for every batch."""
        waiting = self._waiting.get(lane)
        while waiting:
            window, first, group = waiting[0]
            if (window, first + len(group)) > (state.window, state.delivered) and window >= state.window:
                return
            waiting.popleft()
            self._count(group)

    def _count(self, group: pa.RecordBatch) -> None:
        rows, tokens = record_counts(group)
        add_counts(self.rows_out, rows)
        add_counts(self.tokens_out, tokens)
        self.sequences += len(group)
        if groups.PADDING in group.schema.names:
            self.padding += int(groups.ints(group, groups.PADDING).sum())

    def _count_exactly(self, states: Mapping[int, LaneState]) -> None:
        """Settle every lane, and split the group that a lane is in the middle of."""
        for lane, state in states.items():
            self.settle(lane, state)
            waiting = self._waiting.get(lane)
            if waiting and waiting[0][0] == state.window and waiting[0][1] < state.delivered:
                window, first, group = waiting.popleft()
                self._count(group.slice(0, state.delivered - first))
                waiting.appendleft((window, state.delivered, group.slice(state.delivered - first)))

    def drop_rest(self, states: Mapping[int, LaneState], operator: str, reason: str) -> None:
        """Count all sequences after the lanes' delivered `states` as left out: the run is over, and nobody will take them."""
        with self._guard:
            self._count_exactly(states)
            for waiting in self._waiting.values():
                for _, _, group in waiting:
                    self.losses.drop(operator, reason, *record_counts(group))
                waiting.clear()

    def report(self, states: Mapping[int, LaneState]) -> dict[str, Any]:
        """`{"rows": {...}, "tokens": {...}, ...}`, each with totals and per data set, up to the lanes' delivered `states`.

        `in + added = out + replayed + sum(dropped) + in_flight`, for rows and for tokens, in total and for each data set. `parts` says
        what rows that stayed have lost, by kind (say, images) and reason, in what has been worked on so far.
        """
        with self._guard:
            self._count_exactly(states)
        lost = self.losses
        # first what accumulators made in windows that are under way: what they made it of is then surely counted
        rows_made, tokens_made = _sum(b.made[0] for b in self._balances), _sum(b.made[1] for b in self._balances)
        rows_added, tokens_added = _sum([rows_made, *lost.added.values()]), _sum([tokens_made, *lost.tokens_added.values()])
        return {
            "rows": self._side(self.rows_in, rows_added, self.rows_out, self.rows_replayed, lost.rows),
            "tokens": self._side(lost.tokens_in, tokens_added, self.tokens_out, self.tokens_replayed, lost.tokens),
            "parts": {kind: self._parts(kind) for kind in sorted({kind for kind, _, _ in lost.parts})},
            "sequences": self.sequences,
            "padding_tokens": self.padding,
            "failures": self.failures,
        }

    def _parts(self, kind: str) -> dict[str, Any]:
        """What rows that stayed have lost of this kind."""
        lost = _named({(operator, reason): counts for (k, operator, reason), counts in self.losses.parts.items() if k == kind})
        return self._in_all_and_each(lambda component: {"dropped": _picked(lost, component)})

    def _side(
        self, came: Counts, added: Counts, out: Counts, replayed: Counts, dropped: Mapping[tuple[str, str], Counts]
    ) -> dict[str, Any]:
        lost = _named(dropped)

        def one(component: int | None) -> dict[str, Any]:
            tables = {"in": came, "added": added, "out": out, "replayed": replayed}
            side: dict[str, Any] = {name: _pick(table, component) for name, table in tables.items()}
            reasons = _picked(lost, component)
            held = side["in"] + side["added"] - side["out"] - side["replayed"] - sum(reasons.values())
            return side | {"dropped": reasons, "in_flight": held}

        return self._in_all_and_each(one)

    def _in_all_and_each(self, one: Callable[[int | None], dict[str, Any]]) -> dict[str, Any]:
        """What `one` says of all data sets (None), and of each."""
        return one(None) | {"by_dataset": {name: one(number) for number, name in enumerate(self.names)}}


def _pick(table: Mapping[int, int], component: int | None) -> int:
    """One data set's count, or (None) that of all."""
    return sum(table.values()) if component is None else table.get(component, 0)


def _named(dropped: Mapping[tuple[str, str], Counts]) -> dict[str, Counts]:
    """By operator and reason, as they are told, in order."""
    return {f"{operator}: {reason}": counts for (operator, reason), counts in sorted(dropped.items())}


def _picked(tables: Mapping[str, Mapping[int, int]], component: int | None) -> dict[str, int]:
    """`_pick` of each, without those that are 0."""
    return {name: count for name, table in tables.items() if (count := _pick(table, component))}


def _sum(tables: Iterable[Counts]) -> Counts:
    out: Counts = {}
    for counts in tables:
        add_counts(out, counts)
    return out

"""What becomes of a failure: raise, skip or quarantine; and the record of everything that was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.errors import Where, ZephonError, wrap
from zephon.plugin import Drops, Outcome, at

Policy = Literal["raise", "skip", "quarantine"]
POLICIES: tuple[str, ...] = ("raise", "skip", "quarantine")


@dataclass(frozen=True)
class Failure:
    """One record that failed, in plain values: a line of the quarantine file."""

    component: int
    shard: str | int | None
    row: int | None
    pass_index: int | None
    operator: str
    error: str

    @classmethod
    def of(cls, error: ZephonError, *, component: int, operator: str, pass_index: int | None = None) -> Failure:
        """From an error whose `where` says shard and row."""
        return cls(component, error.where.shard, error.where.row, pass_index, operator, error.message)


@dataclass
class Losses:
    """Rows and tokens left out, by (operator, reason) and component; rows that operators added; and failures to report."""

    rows: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    tokens: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    added: dict[str, dict[int, int]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def drop(self, operator: str, reason: str, rows: Mapping[int, int], tokens: Mapping[int, int] | None = None) -> None:
        """Count rows (and tokens) of some components as left out."""
        _add(self.rows, (operator, reason), rows)
        _add(self.tokens, (operator, reason), tokens or {})

    def add(self, other: Losses) -> None:
        """Count what `other` counts, too."""
        for name, counts in other.rows.items():
            _add(self.rows, name, counts)
        for name, counts in other.tokens.items():
            _add(self.tokens, name, counts)
        for operator, counts in other.added.items():
            _add(self.added, operator, counts)
        self.failures += other.failures

    def of_drops(self, operator: str, group: pa.RecordBatch, drops: Drops) -> None:
        """Count what an operator reported for its input group."""
        for reason, indices in drops.rows.items():
            _add(self.rows, (operator, reason), component_counts(group, indices))
        for reason, tokens in drops.tokens.items():
            _add(self.tokens, (operator, reason), {int(c): int(n) for c, n in tokens.items()})


def _add(table: dict[Any, dict[int, int]], name: Any, counts: Mapping[int, int]) -> None:
    mine = table.setdefault(name, {})
    for component, count in counts.items():
        if count:
            mine[component] = mine.get(component, 0) + count
    if not mine:
        del table[name]


def component_counts(group: pa.RecordBatch, indices: Any = None) -> dict[int, int]:
    """Records per component of a group (or of some of its rows); records without provenance count as component -1."""
    size = len(group) if indices is None else len(indices)
    if group.schema.get_field_index(groups.COMPONENT) < 0:
        return {-1: size} if size else {}
    values = groups.ints(group, groups.COMPONENT)
    values = values if indices is None else values[np.asarray(indices, dtype=np.int64)]
    if not len(values):
        return {}
    counts = np.bincount(values)
    return {int(c): int(counts[c]) for c in np.flatnonzero(counts)}


Apply = Callable[[pa.RecordBatch], "pa.RecordBatch | Outcome"]


def apply_under(policy: Policy, apply: Apply, group: pa.RecordBatch, *, operator: str, losses: Losses) -> list[pa.RecordBatch]:
    """Apply an operator to a group; a failing row raises (naming the row) or is left out, as the policy says.

    The group is tried whole. Only when that fails, halves are tried, down to the rows at fault: an operator is stateless, so the
    other rows give what they would have given.
    """
    try:
        with at(operator=operator):
            return [_apply_once(apply, group, operator, losses)]
    except Exception as error:
        if len(group) > 1:
            middle = len(group) // 2
            parts = [group.slice(0, middle), group.slice(middle)]
            made = [g for part in parts for g in apply_under(policy, apply, part, operator=operator, losses=losses)]
            if policy == "raise":
                raise  # every part works by itself: the operator fails on the whole only, and there is no row to name
            return made
        ours = _place(wrap(error, Where()), group, operator)
        if policy == "raise":
            raise ours from error
        losses.drop(operator, f"failed: {ours.message.split(':', 1)[0]}", component_counts(group))
        component = int(groups.ints(group, groups.COMPONENT)[0]) if groups.COMPONENT in group.schema.names else -1
        pass_index = int(groups.ints(group, groups.PASS)[0]) if groups.PASS in group.schema.names else None
        losses.failures.append(Failure.of(ours, component=component, operator=operator, pass_index=pass_index))
        return []


def _apply_once(apply: Apply, group: pa.RecordBatch, operator: str, losses: Losses) -> pa.RecordBatch:
    result: Any = apply(group)
    made, drops = (result.group, result.drops) if isinstance(result, Outcome) else (result, Drops())
    if not isinstance(made, pa.RecordBatch):
        raise TypeError(f"{operator} returned {type(made).__name__}; it must return a RecordBatch or an Outcome")
    losses.of_drops(operator, group, drops)
    dropped = sum(len(indices) for indices in drops.rows.values())
    if len(made) != len(group) - dropped:
        _count_change(operator, group, made, drops, losses)
    return made


def _count_change(operator: str, group: pa.RecordBatch, made: pa.RecordBatch, drops: Drops, losses: Losses) -> None:
    """Rows that an operator made or left out without a word are counted per component from the provenance."""
    balance = component_counts(made)
    for indices in drops.rows.values():
        for component, count in component_counts(group, indices).items():
            balance[component] = balance.get(component, 0) + count
    for component, count in component_counts(group).items():
        balance[component] = balance.get(component, 0) - count
    _add(losses.added, operator, {c: n for c, n in balance.items() if n > 0})
    _add(losses.rows, (operator, "left out"), {c: -n for c, n in balance.items() if n < 0})


def _place(error: ZephonError, group: pa.RecordBatch, operator: str) -> ZephonError:
    names = group.schema.names
    row = int(groups.ints(group, groups.ROW)[0]) if groups.ROW in names else None
    shard = int(groups.ints(group, groups.SHARD)[0]) if groups.SHARD in names else None
    component = int(groups.ints(group, groups.COMPONENT)[0]) if groups.COMPONENT in names else None
    error.where = error.where.within(Where(row=row, shard=shard, operator=operator, component=component))
    return error

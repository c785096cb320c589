"""Tokens per record, measured once on a sample with the pipeline's own operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups, keys
from zephon.arrays import to_arrow
from zephon.dataset import Dataset
from zephon.engine.faults import Losses, Policy, apply_under
from zephon.engine.pump import locate
from zephon.engine.schemas import source_schema, with_provenance
from zephon.errors import RecipeError, ZephonError, at
from zephon.keys import I64
from zephon.plugin import CountsTokens, Operator

_SPOTS = 16
"""Units that are looked into, where so many have enough rows."""


def spread(total: int, count: int, key: int) -> I64:
    """`count` of the numbers below `total`, ascending, all where there are no more: one out of each of `count` equal parts, drawn by `key`.

    Not evenly spaced ones: data often has a period (sources that take turns, every fourth row a long one), and then they are all alike.
    """
    if count >= total:
        return np.arange(total, dtype=np.int64)
    borders = np.arange(count + 1, dtype=np.int64) * total // count
    return borders[:-1] + keys.uniform_below(key, np.arange(count), np.diff(borders))


def sample(dataset: Dataset, columns: Sequence[str] | None, component: int, size: int) -> pa.RecordBatch:
    """About `size` records, spread over the data set: some of each of 16 units, or of as many as it takes. A function of the data alone."""
    table = dataset.units
    schema = source_schema([dataset], columns, [True])
    needed = -(-size * len(table) // max(1, int(table.rows.sum())))
    spots = spread(len(table), max(_SPOTS, needed), keys.key("token estimation"))
    each = -(-size // len(spots))
    parts = []
    for unit in spots:
        wanted = spread(int(table.rows[unit]), each, keys.key("token estimation", int(unit)))
        names = None if columns is None else [f.name for f in schema]
        read = dataset.read(int(unit), names or None)
        whole = groups.concat([groups.select(g, [n for n in schema.names if n in g.schema.names]) for g in read])
        made = groups.take(whole, wanted)
        size_here = len(made)
        provenance = [
            to_arrow(np.full(size_here, component, np.int32)),
            to_arrow(np.zeros(size_here, np.int64)),
            to_arrow(np.full(size_here, int(table.shard[unit]), np.int32)),
            to_arrow(dataset.row_of(unit, wanted)),
        ]
        parts.append(pa.RecordBatch.from_arrays([*made.columns, *provenance], schema=with_provenance(made.schema)))
    return groups.concat(parts)


def measure(
    datasets: Sequence[Dataset],
    steps: Sequence[tuple[Operator, Policy]],
    *,
    columns: Sequence[str] | None,
    samples: int,
    count: Callable[[dict[str, Any]], int] | None,
) -> dict[str, float]:
    """Tokens per record of each data set, by name.

    Raises:
        RecipeError: no operator before the first accumulator makes tokens, and there is no `measure` function; a column of a type that
            one of them doesn't take.
    """
    before: list[tuple[Operator, Policy]] = []
    counter: CountsTokens | None = None
    for op, policy in steps:
        if op.stateful or counter is not None:
            break
        before.append((op, policy))
        counter = op if isinstance(op, CountsTokens) else None
    found = {}
    bound = [(op.name, op.bind(), policy) for op, policy in before] if count is None else []
    for number, dataset in enumerate(datasets):
        if not len(dataset.units):
            found[dataset.name] = 1.0
            continue
        try:
            with at(dataset=dataset.name):
                group = sample(dataset, columns, number, samples)
                tokens = sum(int(count(row)) for row in groups.iter_rows(group)) if count else _tokens(group, bound, counter)
        except ZephonError as error:
            locate(error, [d.name for d in datasets], lambda component, shard: datasets[component].shards[shard].path)
            raise
        found[dataset.name] = max(tokens, 1) / len(group)
    return found


def _tokens(group: pa.RecordBatch, bound: Sequence[tuple[str, Any, Policy]], counter: CountsTokens | None) -> int:
    name = counter.token_column() if counter is not None else groups.TOKENS
    current = [group]
    for operator, apply, _ in bound:
        current = [g for c in current if len(c) for g in apply_under("skip", apply, c, operator=operator, losses=Losses())]
    tokens = 0
    for made in current:
        if name not in made.schema.names:
            raise RecipeError(
                "token estimation needs tokens: no operator before packing makes them",
                hint="add tokenize, give TokenEstimation(measure=…), or leave token_estimation out",
            )
        offsets = groups.list_parts(groups.column(made, name))[0]
        tokens += int(offsets[-1] - offsets[0])
    return tokens

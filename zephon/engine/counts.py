"""Records and tokens per data set in a group, before packing and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups

Counts = dict[int, int]
"""By component: the data set's number in the mixture, -1 where it isn't known."""
LIGHT = (groups.COMPONENT, groups.DOC_COMPONENT, groups.DOC_START, groups.LENGTHS, groups.PADDING)
"""The columns that count (besides TOKENS, where documents aren't packed yet)."""


def add_counts(table: Counts, counts: Mapping[int, int]) -> None:
    """Add counts per component."""
    for component, count in counts.items():
        table[component] = table.get(component, 0) + count


def difference(counts: Mapping[int, int], *others: Mapping[int, int]) -> Counts:
    """`counts` less all of `others`; what is 0 is left out."""
    out = dict(counts)
    for other in others:
        for component, count in other.items():
            out[component] = out.get(component, 0) - count
    return {component: count for component, count in out.items() if count}


def per_component(component: Any, weights: Any = None) -> Counts:
    """The sum of the weights (default: 1 each) of each component."""
    if not len(component):
        return {}
    sums = np.bincount(component, weights=weights).tolist()
    return {c: int(total) for c, total in enumerate(sums) if total}


def flat(group: pa.RecordBatch, name: str) -> Any:
    """The values of a list column, one after the other."""
    offsets, values = groups.list_parts(groups.column(group, name))
    return values[int(offsets[0]) : int(offsets[-1])]


def has_documents(group: pa.RecordBatch) -> bool:
    """Whether the rows are tokenised documents that aren't packed yet."""
    index = group.schema.get_field_index(groups.TOKENS)
    if index < 0 or groups.LENGTHS in group.schema.names or groups.COMPONENT not in group.schema.names:
        return False
    kind = group.schema.field(index).type
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind)


def record_counts(group: pa.RecordBatch, indices: Any = None) -> tuple[Counts, Counts]:
    """Records and tokens per component of a group (or of some of its rows). A packed document counts as a record where it starts."""
    names = group.schema.names
    if groups.DOC_COMPONENT in names:
        if indices is not None:
            group = groups.take(groups.select(group, [n for n in LIGHT if n in names]), indices)
        component = flat(group, groups.DOC_COMPONENT)
        starts = component[flat(group, groups.DOC_START) == 0]
        return per_component(starts), per_component(component, flat(group, groups.LENGTHS))
    if groups.COMPONENT not in names:
        size = len(group) if indices is None else len(indices)
        return ({-1: size} if size else {}), {}
    rows = slice(None) if indices is None else np.asarray(indices, dtype=np.int64)
    component = groups.ints(group, groups.COMPONENT)[rows]
    return per_component(component), _tokens(group, component, rows)


def token_counts(group: pa.RecordBatch) -> Counts:
    """Tokens per component of a group of tokenised documents that aren't packed yet; of other groups nothing."""
    return _tokens(group, groups.ints(group, groups.COMPONENT), slice(None)) if has_documents(group) else {}


def _tokens(group: pa.RecordBatch, component: Any, rows: Any) -> Counts:
    if not has_documents(group):
        return {}
    return per_component(component, groups.list_lengths(groups.column(group, groups.TOKENS))[rows])

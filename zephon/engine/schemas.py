"""The schema of groups as they leave the source."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from zephon import groups
from zephon.dataset import Dataset
from zephon.errors import RecipeError


def with_provenance(schema: pa.Schema) -> pa.Schema:
    """The schema of groups as they leave the source."""
    return pa.schema([*schema, *groups.PROVENANCE_FIELDS])


def source_schema(datasets: Sequence[Dataset], columns: Sequence[str] | None, used: Sequence[bool]) -> pa.Schema:
    """The columns that groups have at the source: those that are needed, over all data sets that are drawn from.

    Raises:
        RecipeError: two data sets have a column of one name with types that don't go together, or a name is reserved.
    """
    schema = pa.schema([])
    for dataset, is_used in zip(datasets, used, strict=True):
        if not is_used:
            continue
        mine = pa.schema([f for f in dataset.schema if columns is None or f.name in columns])
        for name in mine.names:
            if groups.is_internal(name) and name in groups.PROVENANCE:
                raise RecipeError(f"data set {dataset.name!r} has a column {name!r}; that name is reserved")
        try:
            schema = pa.unify_schemas([schema, mine], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise RecipeError(
                f"data set {dataset.name!r} has a column whose type does not go with the same column of another data set: {error}",
                hint="leave it out with columns=…",
            ) from error
    return schema

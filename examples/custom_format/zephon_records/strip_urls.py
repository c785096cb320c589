"""The operator `strip_urls`: `pipeline.strip_urls(field="text")` in every program of who has this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zephon.plugin import Drops, Operator, Outcome, RecipeError, groups

URL = r"https?://[^\s<>\"]+"


@dataclass(frozen=True, kw_only=True)
class StripUrls(Operator):
    """Replace URLs in a text column. The fields are the settings; they make the fingerprint of a recipe."""

    name: ClassVar[str] = "strip_urls"
    version: ClassVar[int] = 1  # raised whenever equal settings would give other bytes than before

    field: str = "text"
    replacement: str = ""
    drop_empty: bool = True
    """Leave out texts that were nothing but URLs. What is left out is counted with a reason; no row may vanish."""

    def inputs(self) -> tuple[str, ...]:
        return (self.field,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if self.field not in schema.names or schema.field(self.field).type != pa.string():
            raise RecipeError(f"strip_urls needs a text column {self.field!r}")
        return schema

    def bind(self) -> Callable[[pa.RecordBatch], Outcome]:
        return self._apply  # runs once in each worker: the place to load what is heavy

    def _apply(self, group: pa.RecordBatch) -> Outcome:
        before = groups.column(group, self.field)
        after = pc.replace_substring_regex(before, URL, self.replacement)
        made = groups.set_column(group, self.field, after)
        emptied: Any = pc.and_(pc.equal(pc.utf8_trim_whitespace(after), pa.scalar("")), pc.not_equal(before, after))
        gone = np.flatnonzero(emptied.fill_null(False).to_numpy(zero_copy_only=False))
        if not self.drop_empty or not len(gone):
            return Outcome(made)
        kept = np.setdiff1d(np.arange(len(made)), gone)
        return Outcome(groups.take(made, kept), Drops(rows={"nothing but URLs": gone}))

"""An operator of your own: numbers become one token each. A package adds it with an entry point in its pyproject.toml:

    [project.entry-points."zephon.operators"]
    mask_numbers = "my_package.numbers:MaskNumbers"

after which everybody can write `pipeline.mask_numbers(field="text")`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from zephon import Dataset, Pipeline
from zephon.plugin import Operator, RecipeError, groups
from zephon.testing import check_operator


@dataclass(frozen=True, kw_only=True)
class MaskNumbers(Operator):
    """Replace every number in a text column. The fields are the settings; they make the fingerprint."""

    name: ClassVar[str] = "mask_numbers"
    keeps_rows: ClassVar[bool] = True  # row i of the output is made from row i of the input alone

    field: str = "text"
    mask: str = "<number>"

    def inputs(self) -> tuple[str, ...]:
        return (self.field,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        if schema.field(self.field).type != pa.string():
            raise RecipeError(f"mask_numbers needs text in {self.field!r}")
        return schema

    def bind(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return self._apply  # nothing heavy to load; a model or a tokenizer would be loaded here, once per worker

    def _apply(self, group: pa.RecordBatch) -> pa.RecordBatch:
        texts = pc.replace_substring_regex(groups.column(group, self.field), r"\d+", self.mask)
        return groups.set_column(group, self.field, texts)


records = [{"text": "room 101"}, {"text": None}, {"text": ""}, {"text": "1984 and 2001"}]
check_operator(MaskNumbers(), [groups.from_rows(records), groups.from_rows(records[2:])])

data = Dataset.from_records("books", [r for r in records if r["text"]])
source_once = Pipeline(data).then(MaskNumbers(mask="#")).batch(2).options(max_steps=1)
for batch in source_once:
    print(batch.to_pydict())

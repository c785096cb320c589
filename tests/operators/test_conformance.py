"""`check_operator` finds what it is there to find: each of these operators breaks one promise."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from zephon import groups
from zephon.operators.pack import PackAccumulator, PackFlat
from zephon.operators.shuffle import Reservoir, Shuffle
from zephon.plugin import Decision, Drops, LaneWindow, Operator, Outcome
from zephon.testing import check_operator

GROUPS = [pa.RecordBatch.from_pydict({"n": list(range(a, b)), "other": [0] * (b - a)}) for a, b in ((0, 6), (6, 7), (7, 20))]
TOKENS = [pa.RecordBatch.from_pydict({"input_ids": pa.array([[i] * (i % 7) for i in range(9)], type=pa.list_(pa.int32()))})] * 3

counter = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Fine(Operator):
    """Adds one, and may be told to do something wrong."""

    name: ClassVar[str] = "fine"

    wrong: str = ""

    def inputs(self) -> tuple[str, ...]:
        return ("n",)

    def bind(self) -> Any:
        return lambda group: getattr(self, f"_{self.wrong or 'right'}")(group)

    def _right(self, group: pa.RecordBatch) -> Any:
        return groups.set_column(group, "n", pa.array(groups.ints(group, "n") + 1))

    def _random(self, group: pa.RecordBatch) -> Any:
        return groups.set_column(group, "n", pa.array([next(counter)] * group.num_rows, type=pa.int64()))

    def _looks_across(self, group: pa.RecordBatch) -> Any:
        return groups.set_column(group, "n", pa.array(np.cumsum(groups.ints(group, "n"))))

    def _forgets_provenance(self, group: pa.RecordBatch) -> Any:
        return groups.select(group, ["n"])

    def _drops_silently(self, group: pa.RecordBatch) -> Any:
        return group.slice(1) if group.num_rows else group

    def _counts_wrongly(self, group: pa.RecordBatch) -> Any:
        return Outcome(group, Drops(rows={"gone": np.arange(min(group.num_rows, 1))}))

    def _invents_rows(self, group: pa.RecordBatch) -> Any:
        return groups.set_column(group, "_row", pa.array(groups.ints(group, "_row") + 1000))

    def _needs_more(self, group: pa.RecordBatch) -> Any:
        has = "other" in group.schema.names
        return groups.set_column(group, "n", pa.array(groups.ints(group, "n") + int(has)))

    def _returns_nonsense(self, group: pa.RecordBatch) -> Any:
        return group.to_pydict()

    def _fails_on_nothing(self, group: pa.RecordBatch) -> Any:
        first = group.column("n")[0].as_py() if group.num_rows else -1
        return group if first >= 0 else pa.concat_batches([GROUPS[0].append_column("_pass", GROUPS[0].column("n"))]).slice(0, 1)


def test_an_operator_that_keeps_its_promises_passes() -> None:
    made = check_operator(Fine(), GROUPS)
    assert made[0].column("n").to_pylist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("random", "called again"),
        ("looks_across", "slice of a group"),
        ("forgets_provenance", "not carried over"),
        ("drops_silently", "neither in the output nor counted"),
        ("counts_wrongly", "counted as dropped and is there"),
        ("invents_rows", "no row that came in"),
        ("needs_more", "inputs\\(\\) names"),
        ("returns_nonsense", "apply returned dict"),
        ("fails_on_nothing", "without rows"),
    ],
)
def test_each_broken_promise_is_found(wrong: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_operator(Fine(wrong=wrong), GROUPS)


def test_looking_across_rows_may_be_allowed() -> None:
    check_operator(Fine(wrong="looks_across"), GROUPS, across_rows=True)


@dataclass(frozen=True, kw_only=True)
class Promises(Fine):
    """Promises a schema that it doesn't keep."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.set(0, pa.field("n", pa.string()))


@dataclass(frozen=True, kw_only=True)
class KeepsRows(Fine):
    """Says that it keeps rows, and doubles them."""

    keeps_rows: ClassVar[bool] = True

    def _right(self, group: pa.RecordBatch) -> Any:
        return groups.take(group, np.repeat(np.arange(group.num_rows), 2))


@dataclass(frozen=True, kw_only=True)
class SaysStateful(Fine):
    """Says that it is stateful."""

    stateful: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("operator", "message"), [(Promises(), "output_schema"), (KeepsRows(), "keeps_rows"), (SaysStateful(), "stateful")]
)
def test_each_wrong_declaration_is_found(operator: Operator, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_operator(operator, GROUPS)


class Losing(PackAccumulator):
    """Names a source too many."""

    def add(self, group: pa.RecordBatch, number: int) -> Any:
        return [Decision(d.rows, {**d.sources, 77: group}, d.drops) for d in super().add(group, number)]


@dataclass(frozen=True, kw_only=True)
class WrongSources(PackFlat):
    """A packer with a source too many."""

    def accumulator(self, where: LaneWindow) -> Any:
        return Losing(self)


@dataclass(frozen=True, kw_only=True)
class GathersTogether(PackFlat):
    """A packer whose rows depend on the rows that are gathered with them."""

    def bind(self) -> Any:
        gather = super().bind()

        def wrong(rows: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
            return gather(rows, sources).append_column("rows", pa.array([rows.num_rows] * rows.num_rows))

        return wrong


@pytest.mark.parametrize(("kind", "message"), [(WrongSources, "sources"), (GathersTogether, "some of the rows")])
def test_a_packer_that_breaks_a_promise_is_found(kind: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_operator(kind(max_length=5, pad_token_id=0), TOKENS)


class Twice(Reservoir):
    """Emits a row twice."""

    def flush(self) -> Any:
        return np.append(super().flush(), 0)


@dataclass(frozen=True, kw_only=True)
class ShufflesTwice(Shuffle):
    """A shuffle that emits a row twice."""

    def selector(self, where: LaneWindow) -> Any:
        return Twice(3, draw_key=1, flush_key=2)


def test_a_selector_that_emits_a_row_twice_is_found() -> None:
    with pytest.raises(AssertionError, match="each row once"):
        check_operator(ShufflesTwice(), GROUPS)

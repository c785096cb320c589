"""A user's own accumulator: the books balance whether or not it reports what it leaves out, and it resumes like ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from invariants.test_4_rows_in_equal_rows_out import check, counted
from strategies import Recipe, Topology, drive, quietly, to_the_end

from zephon import groups
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Decision, Drops, LaneWindow, StatefulOperator


@dataclass(frozen=True, kw_only=True)
class Thin(StatefulOperator):
    """Keeps every third row, each `copies` times; holds one back until the flush, and forgets the last of a window."""

    name: ClassVar[str] = "thin"
    copies: int = 1
    says: bool = False
    """Whether it reports what it leaves out."""

    def accumulator(self, where: LaneWindow) -> Any:
        return _Thinning(self)

    def bind(self) -> Any:
        def gather(rows: pa.RecordBatch, sources: Any) -> pa.RecordBatch:
            _, numbers = groups.list_parts(groups.column(rows, groups.SOURCE))
            at = groups.ints(rows, "at").tolist()
            return groups.concat([sources[n].slice(i, 1) for n, i in zip(numbers.tolist(), at, strict=True)])

        return gather


class _Thinning:
    nbytes = 0

    def __init__(self, settings: Thin) -> None:
        self._settings = settings
        self._seen = 0
        self._held: tuple[int, int, pa.RecordBatch] | None = None

    def add(self, group: pa.RecordBatch, number: int) -> Iterable[Decision]:
        places = np.arange(self._seen, self._seen + len(group))
        self._seen += len(group)
        gone = np.flatnonzero(places % 3 != 0)
        drops = Drops(rows={"thinned": gone}) if self._settings.says and len(gone) else Drops()
        rows: list[tuple[int, int, pa.RecordBatch]] = []
        for at in np.flatnonzero(places % 3 == 0).tolist():
            rows += [] if self._held is None else [self._held]
            self._held = (number, at, group)
        yield self._decision(rows, drops)

    def _decision(self, rows: list[tuple[int, int, pa.RecordBatch]], drops: Drops) -> Decision:
        rows = [row for row in rows for _ in range(self._settings.copies)]
        source = groups.make_list(np.arange(len(rows) + 1), np.array([n for n, _, _ in rows], dtype=np.int32))
        made = pa.RecordBatch.from_arrays([source, pa.array([i for _, i, _ in rows], pa.int64())], names=[groups.SOURCE, "at"])
        return Decision(made, {n: group for n, _, group in rows}, drops)

    def flush(self) -> Iterable[Decision]:
        return ()


RECIPE = Recipe(
    data=(("a", tuple(range(1, 60))), ("b", (5, 0, 17, 3, 3, 60) * 3)),
    weights=(2, 1),
    tokenised=True,
    lanes=2,
    per_step=2,
    chunk=5,
    window=2,
    passes=1,
    exhausted="redistribute",
)


@pytest.mark.parametrize("says", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("behind", [(), (Shuffle(),)])
def test_what_an_accumulator_leaves_out_or_copies_is_counted_in_its_name(
    copies: int, says: bool, behind: Any, runner: str
) -> None:
    recipe = replace(RECIPE, steps=(Thin(copies=copies, says=says), *behind))
    pipeline = recipe.pipeline(runner=runner, workers=2)
    rows, tokens, _, _ = counted(list(pipeline))
    report = pipeline.accounting()
    for kind, found in (("rows", rows), ("tokens", tokens)):
        check(report[kind])
        assert report[kind]["in_flight"] == 0
        assert report[kind]["out"] == sum(found.values())
        assert report[kind]["by_dataset"]["a"]["out"] == found[0]
        assert set(report[kind]["dropped"]) == {"thin: left out", *(["thin: thinned"] if says else [])}
    assert report["rows"]["in"] == 59 + 18
    if says and copies == 1:
        assert report["rows"]["dropped"]["thin: left out"] < 20, "only what it holds at a flush"


def test_a_run_that_goes_on_has_only_little_in_flight() -> None:
    pipeline = replace(RECIPE, passes=None, exhausted=None, steps=(Thin(),)).pipeline(runner="inline", max_steps=200)
    list(pipeline)
    check(pipeline.accounting()["rows"])
    assert pipeline.accounting()["rows"]["in_flight"] <= 2 * 3 * 2 * 5, "a few windows"


def test_what_an_accumulator_copies_is_never_less_than_nothing_in_flight() -> None:
    recipe = replace(RECIPE, window=100, steps=(Thin(copies=7),))
    pipeline = recipe.pipeline(runner="inline")
    state: Any = None
    for number, _ in enumerate(pipeline):
        report = pipeline.accounting()
        check(report["rows"])
        check(report["tokens"])
        state = pipeline.checkpoint() if number == 10 else state
    assert report["rows"]["added"] > 0
    quietly(pipeline.restore, state)
    for _ in pipeline:
        check(pipeline.accounting()["rows"])
        check(pipeline.accounting()["tokens"])


@pytest.mark.parametrize("behind", [(), (Shuffle(),)])
@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_an_accumulator_with_rows_of_its_own_kind_resumes_inside_a_window(cut: int, behind: Any) -> None:
    recipe = replace(RECIPE, steps=(Thin(), *behind))
    want = to_the_end(recipe)
    first = drive(recipe, Topology(), steps=cut)
    second = quietly(drive, recipe, Topology(runner="threads"), steps=100, state=first.state)
    assert [(first.steps | second.steps)[s] for s in range(len(want))] == want

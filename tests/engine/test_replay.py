"""What a restore builds again of a window: what wasn't delivered, and never more than one task of a lane besides."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from invariants.test_4_rows_in_equal_rows_out import check
from operators_for_tests import Copies, KeepSome, LeaveOut
from strategies import Driven, Recipe, Topology, drive

from zephon import Pipeline, groups
from zephon.engine.state import LaneState
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Operator

BUILT: set[tuple[int, int]] = set()
"""The records (data set, number) that reached the last stage."""
AT_ONCE = 3
STEPS = 18
"""More than there are sequences for."""


@dataclass(frozen=True, kw_only=True)
class Heavy(Operator):
    """Notes which records it gets; fails on those whose number is in `bad`."""

    name: ClassVar[str] = "heavy"
    keeps_rows: ClassVar[bool] = True
    max_rows: ClassVar[int | None] = AT_ONCE
    bad: tuple[int, ...] = ()

    def inputs(self) -> tuple[str, ...]:
        return ("id",)

    def bind(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            numbers = groups.ints(group, "id").tolist()
            BUILT.update(zip(groups.ints(group, groups.COMPONENT).tolist(), numbers, strict=True))
            if set(numbers) & set(self.bad):
                raise ValueError("a bad record")
            return group

        return apply


@dataclass(frozen=True)
class Under(Recipe):
    """A recipe under a policy."""

    policy: str = "skip"

    def pipeline(self, **options: Any) -> Pipeline:
        return super().pipeline(**{**options, "on_error": self.policy, "quarantine": os.devnull, "max_steps": STEPS})


def recipe(*steps: Operator, policy: str = "skip") -> Under:
    data = (("a", tuple(range(40))), ("b", tuple(range(20))))
    return Under(
        data=data,
        weights=(2, 1),
        steps=steps,
        lanes=2,
        per_step=2,
        chunk=10,
        window=8,
        passes=1,
        exhausted="redistribute",
        policy=policy,
    )


def delivered(run: Driven) -> set[tuple[int, int]]:
    return {(row["_component"], row["id"]) for rows in run.steps.values() for row in rows}


BEFORE: dict[str, tuple[Operator, ...]] = {"the first stage": (), "after a shuffle": (Shuffle(buffer_size=4),)}


@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
def test_where_nothing_was_lost_nothing_is_built_again(before: tuple[Operator, ...], policy: str) -> None:
    made = recipe(*before, Heavy(), policy=policy)
    whole = drive(made, Topology(), steps=STEPS)
    for cut in range(1, STEPS, 3):
        first = drive(made, Topology(), steps=cut)
        BUILT.clear()
        second = drive(made, Topology(world=2), steps=STEPS, state=first.state)
        assert first.steps | second.steps == whole.steps
        assert delivered(second) == BUILT
        assert second.state == whole.state


LOSSES: dict[str, tuple[Operator, ...]] = {
    "records fail": (Heavy(bad=(3, 8, 9, 17)),),
    "a filter": (Heavy(), KeepSome(column="id", of=15)),
    "a filter that says nothing": (Heavy(), LeaveOut(column="id", of=15)),
    "records fail before a filter": (Heavy(bad=(4, 31)), KeepSome(column="id", of=19)),
}


@pytest.mark.parametrize("last", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
def test_where_some_were_lost_one_task_of_each_lane_is_built_again(
    before: tuple[Operator, ...], last: tuple[Operator, ...]
) -> None:
    made = recipe(*before, *last)
    whole = drive(made, Topology(), steps=STEPS)
    odd, skipped = 0, 0
    for cut in range(1, STEPS, 2):
        first = drive(made, Topology(), steps=cut)
        BUILT.clear()
        second = drive(made, Topology(world=2, runner="threads"), steps=STEPS, state=first.state)
        assert first.steps | second.steps == whole.steps
        assert second.state == whole.state
        assert len(BUILT & delivered(first)) <= made.lanes * (AT_ONCE - 1)
        skipped += not BUILT & delivered(first)
        odd += any(lane[6:] not in ([], [[]]) for lane in first.state["lanes"].values())
    assert odd >= STEPS // 4, "nothing was lost: the case isn't there"
    assert skipped, "no state lay at the end of a task"


STATES: dict[str, tuple[Operator, ...]] = {
    "more than a state names": (Heavy(), Copies(column="id")),
    "all of a task": (Heavy(bad=tuple(range(12))),),
}


@pytest.mark.parametrize("last", STATES.values(), ids=STATES.keys())
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
def test_however_much_was_lost_a_restore_goes_on_exactly(before: tuple[Operator, ...], last: tuple[Operator, ...]) -> None:
    made = recipe(*before, *last)
    whole = drive(made, Topology(), steps=STEPS)
    for cut in range(1, STEPS, 3):
        first = drive(made, Topology(world=2), steps=cut)
        second = drive(made, Topology(), steps=STEPS, state=first.state)
        assert first.steps | second.steps == whole.steps
        assert second.state == whole.state


@pytest.mark.parametrize("last", (LOSSES | STATES).values(), ids=(LOSSES | STATES).keys())
def test_a_run_that_is_restored_at_every_step_has_the_states_of_one_that_never_was(last: tuple[Operator, ...]) -> None:
    made = recipe(Shuffle(buffer_size=4), *last)
    pipeline = made.pipeline(runner="inline")
    states = [pipeline.checkpoint()["lanes"] for number, _ in enumerate(pipeline) if number % made.lanes == made.lanes - 1]
    state: Any = None
    for want in states:
        state = drive(made, Topology(), steps=1, state=state).state
        assert state["lanes"] == want


def test_a_state_of_before_does_not_say_what_was_lost_and_goes_on_exactly() -> None:
    made = recipe(Shuffle(buffer_size=4), Heavy(bad=(3, 8)))
    whole = drive(made, Topology(), steps=STEPS)
    first = drive(made, Topology(), steps=4)
    old = first.state | {"lanes": {lane: values[:5] for lane, values in first.state["lanes"].items()}}
    BUILT.clear()
    second = drive(made, Topology(), steps=STEPS, state=old)
    assert first.steps | second.steps == whole.steps
    assert delivered(first) <= BUILT


def test_what_is_not_built_again_is_accounted_for() -> None:
    made = recipe(Shuffle(buffer_size=4), *LOSSES["records fail before a filter"])
    state = drive(made, Topology(), steps=6).state
    pipeline = made.pipeline(runner="inline")
    pipeline.restore(state)
    out = sum(len(batch) for batch in pipeline)
    rows = pipeline.accounting()["rows"]
    check(rows)
    assert (rows["in"], rows["out"], rows["in_flight"]) == (60, out, 0)
    assert rows["replayed"] >= 24, "with what the first run lost of them"


def test_a_state_says_nothing_of_losses_where_there_can_be_none() -> None:
    steps = (Shuffle(buffer_size=4), Heavy())
    raising, skipping = (drive(recipe(*steps, policy=policy), Topology(), steps=4) for policy in ("raise", "skip"))
    assert {len(lane) for lane in raising.state["lanes"].values()} == {5}
    assert [lane[5:] for lane in skipping.state["lanes"].values()] == [[0, []]] * 2


def test_a_lane_takes_less_than_200_bytes_however_much_it_lost() -> None:
    made = replace(recipe(Heavy(), KeepSome(column="id", of=2)), data=(("a", tuple(range(4000))),), weights=(1,), chunk=500)
    state = drive(made, Topology(), steps=500).state
    assert all(len(str(lane)) < 200 for lane in state["lanes"].values())
    far = LaneState(10**5, 10**5, 10**12, 2**64 - 1, 2**64 - 1, 0, tuple((place, 16) for place in range(10**4, 10**4 + 6)))
    assert len(str(far.pack())) < 200
    assert LaneState.unpack(far.pack(), "0") == far

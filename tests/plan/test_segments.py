"""The closed form of a lane's draws equals drawing one by one."""

from __future__ import annotations

import numpy as np
import oracles
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.plan.mixture import Schedule, arrange
from zephon.plan.segments import Ending, lane_segments

MOST = 400


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[tuple[list[int], int | None]], list[tuple[str, int | None, int | None]], int]:
    components = draw(st.integers(1, 4))
    phases: list[tuple[list[int], int | None]] = []
    for number in range(draw(st.integers(1, 3))):
        seats = draw(st.lists(st.integers(0, 5), min_size=components, max_size=components).filter(any))
        phases.append((arrange(np.array(seats)).tolist(), draw(st.integers(1, 60))))
        if number == 2:
            break
    phases[-1] = (phases[-1][0], None)
    endings: list[tuple[str, int | None, int | None]] = []
    for _ in range(components):
        rule = draw(st.sampled_from(["stop", "repeat", "redistribute", "all"]))
        limit = None if rule == "repeat" else draw(st.integers(0, 40))
        endings.append((rule, limit, draw(st.one_of(st.none(), st.integers(0, 80)))))
    return phases, endings, draw(st.integers(0, 1000))


@settings(max_examples=examples(300))
@given(lanes())
def test_segments_give_the_draws_of_a_walk_step_by_step(
    lane: tuple[list[tuple[list[int], int | None]], list[tuple[str, int | None, int | None]], int],
) -> None:
    phases, endings, phase_key = lane
    want, ended = oracles.walk(phases, endings, phase_key, MOST)
    made, total = lane_segments(
        [(Schedule(np.array(order, dtype=np.int32), len(endings)), length) for order, length in phases],
        [Ending(rule, limit, cap) for rule, limit, cap in endings],  # type: ignore[arg-type]
        phase_key=phase_key,
    )
    found: list[tuple[int, int] | None] = [None] * (MOST if total is None else min(total, MOST))
    for segment in made:
        stop = min(MOST, segment.stop if segment.stop is not None else MOST)
        if segment.start >= stop:
            continue
        shift = segment.offset - segment.start
        component, before = segment.schedule.draws(segment.start + shift, stop + shift)
        index = before + segment.base[component]
        found[segment.start : stop] = zip(component.tolist(), index.tolist(), strict=True)
    if total is None:
        assert not ended
        assert found == want
    elif ended:
        assert total == len(want)
        assert found == want
    else:
        assert total >= MOST
        assert found == want


def test_an_endless_source_is_one_segment() -> None:
    schedule = Schedule(arrange(np.array([3, 1])), 2)
    made, total = lane_segments([(schedule, None)], [Ending("repeat", None)] * 2, phase_key=2)
    assert total is None
    assert [(s.start, s.stop) for s in made] == [(0, None)]

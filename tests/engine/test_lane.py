"""A lane equals its operators applied by hand: chunk after chunk, window after window, without queues, futures or threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Recipe, Rows, lane_streams, recipes, topologies
from thoroughness import examples

from zephon import Pipeline
from zephon.engine.deciders import Deciders
from zephon.engine.faults import Losses
from zephon.engine.fetch import Fetcher
from zephon.engine.stages import Note, cut_levels
from zephon.plugin import LaneWindow


def by_hand(pipeline: Pipeline, recipe: Recipe, lane: int) -> Rows:
    """All sequences of one lane of a finite recipe."""
    levels = cut_levels([(op, "raise") for op in recipe.steps])
    work = [level.stage.bind() for level in levels]
    plan = pipeline.source.plan(recipe.lanes)
    datasets: Any = pipeline.source.datasets
    fetcher = Fetcher(plan, datasets, columns=None, keep_bytes=0, policy="raise")
    out: Rows = []

    def through(level: int, group: Any, deciders: list[Deciders]) -> None:
        if level + 1 == len(levels):
            out.extend(group.to_pylist())
            return
        for decision in deciders[level].add(group, Losses()):
            gather(level + 1, decision, deciders)

    def gather(level: int, decision: Any, deciders: list[Deciders]) -> None:
        if not len(decision.rows):
            return
        numbers = tuple(sorted(decision.sources))
        made, _ = work[level]([decision.rows, *(decision.sources[n] for n in numbers)], Note(numbers=numbers))
        for group in made:
            through(level, group, deciders)

    chunks = plan.lane_chunks(lane)
    assert chunks is not None
    # a lane's first window is shorter by its number, so that lanes flush at different times
    borders = [k for k in range(1, chunks) if (k + lane % recipe.window) % recipe.window == 0]
    for window, (start, stop) in enumerate(zip([0, *borders], [*borders, chunks], strict=True)):
        deciders = [Deciders(level.deciders, LaneWindow(pipeline.source.seed, lane, window)) for level in levels[1:]]
        for number in range(start, stop):
            group, _, _ = fetcher.fetch(plan.chunk(lane, number))
            if len(group):
                for made in work[0]([group], Note())[0]:
                    through(0, made, deciders)
        for level, one in enumerate(deciders):
            for decision in one.flush(Losses()):
                gather(level + 1, decision, deciders)
    return out


@settings(max_examples=examples(30))
@given(data=st.data(), recipe=recipes(passes=1, drop_last=False))
def test_the_engine_gives_what_the_operators_give_by_hand(data: st.DataObject, recipe: Recipe) -> None:
    recipe = replace(recipe, per_step=1)
    steps = 400
    found, _ = lane_streams(recipe, replace(data.draw(topologies(recipe)), microbatch=1), steps)
    for lane in range(recipe.lanes):
        assert found.get(lane, []) == by_hand(recipe.pipeline(), recipe, lane)

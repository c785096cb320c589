"""Invariant 4: rows in = rows out + counted drops, each with a reason; the same for tokens; nothing is dropped silently."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import Copies, DropLong, Encode, Fragile, KeepSome, LeaveOut
from strategies import MIXED, PAD, Recipe, quietly, recipes, rows_of
from thoroughness import examples

from zephon import Batch, Pipeline
from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Operator, groups

fragile = st.builds(Fragile, bad=st.lists(st.integers(0, 30), max_size=6).map(tuple))


@st.composite
def finite_recipes(draw: st.DrawFn) -> Recipe:
    """Ending ones, some of whose steps fail on some records."""
    recipe = draw(recipes(passes=draw(st.integers(1, 2))))
    steps: list[Operator] = list(recipe.steps)
    packing = next((i for i, s in enumerate(steps) if isinstance(s, PackFlat)), len(steps))
    for _ in range(draw(st.integers(0, 2))):
        steps.insert(draw(st.integers(0, packing)), draw(fragile))
    return replace(recipe, steps=tuple(steps))


def check(side: dict[str, Any]) -> None:
    """The balance of one side of the ledger, in total and per data set."""
    parts = side["by_dataset"]
    for one in (side, *parts.values()):
        assert one["in"] + one["added"] == one["out"] + one["replayed"] + sum(one["dropped"].values()) + one["in_flight"]
        assert min(one["in"], one["added"], one["out"], one["replayed"], one["in_flight"], *one["dropped"].values(), 0) >= 0, (
            one
        )
    for name in ("in", "added", "out", "replayed", "in_flight"):
        assert side[name] == sum(one[name] for one in parts.values())
    reasons: Counter[str] = Counter()
    for one in parts.values():
        reasons.update(one["dropped"])
    assert reasons == Counter(side["dropped"])


def counted(batches: list[Any]) -> tuple[Counter[int], Counter[int], int, int]:
    """Rows and tokens per component, sequences, padding: counted in what came, one by one."""
    rows: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    sequences = padding = 0
    for batch in batches:
        for row in batch.group.to_pylist()[: len(batch) - batch.empty]:
            sequences += 1
            padding += row.get(groups.PADDING) or 0
            if groups.LENGTHS in row:
                for component, start, size in zip(
                    row[groups.DOC_COMPONENT], row[groups.DOC_START], row[groups.LENGTHS], strict=True
                ):
                    rows[component] += start == 0
                    tokens[component] += size
            else:
                rows[row[groups.COMPONENT]] += 1
                tokens[row[groups.COMPONENT]] += len(row.get(groups.TOKENS) or ())
    return rows, tokens, sequences, padding


@settings(max_examples=examples(80))
@given(recipe=finite_recipes(), runner=st.sampled_from(["inline", "inline", "threads"]))
def test_a_finished_run_balances_exactly_and_nothing_is_in_flight(recipe: Recipe, runner: str) -> None:
    pipeline = recipe.pipeline(runner=runner, on_error="skip")
    batches = list(pipeline)
    report = pipeline.accounting()
    rows, tokens, sequences, padding = counted(batches)
    for kind, found in (("rows", rows), ("tokens", tokens)):
        check(report[kind])
        assert report[kind]["in_flight"] == 0
        assert all(one["in_flight"] == 0 for one in report[kind]["by_dataset"].values())
        assert {c: n for c, n in found.items() if n} == {
            c: one["out"] for c, one in enumerate(report[kind]["by_dataset"].values()) if one["out"]
        }
    assert (report["sequences"], report["padding_tokens"]) == (sequences, padding)
    plan = pipeline.ws.plan(recipe.lanes)
    assert report["rows"]["in"] == sum(plan.lane_draws(lane) or 0 for lane in range(recipe.lanes))
    failed = sum(n for reason, n in report["rows"]["dropped"].items() if "failed" in reason)
    assert report["failures"] == failed


@settings(max_examples=examples(60))
@given(data=st.data(), recipe=finite_recipes(), runner=st.sampled_from(["inline", "threads"]))
def test_a_run_that_is_stopped_balances_with_what_is_in_flight(data: st.DataObject, recipe: Recipe, runner: str) -> None:
    pipeline = recipe.pipeline(runner=runner, on_error="skip", microbatch=1)
    batches = iter(pipeline)
    taken = []
    for _ in range(data.draw(st.integers(0, 20))):
        batch = next(batches, None)
        taken += [] if batch is None else [batch]
    batches.close()  # type: ignore[attr-defined]
    if not taken:
        return
    report = pipeline.accounting()
    rows, tokens, sequences, padding = counted(taken)
    for kind, found in (("rows", rows), ("tokens", tokens)):
        check(report[kind])
        assert report[kind]["out"] == sum(found.values())
    assert (report["sequences"], report["padding_tokens"]) == (sequences, padding)


@settings(max_examples=examples(50))
@given(data=st.data(), recipe=finite_recipes())
def test_a_finite_run_delivers_and_counts_each_batch_once_however_often_it_was_resumed(
    data: st.DataObject, recipe: Recipe
) -> None:
    def told(batch: Batch) -> Any:
        return batch.step, batch.lane, rows_of(batch)

    whole = recipe.pipeline(runner="inline", on_error="skip")
    want = [told(batch) for batch in whole]
    found: list[Any] = []
    out, sequences = dict.fromkeys(("rows", "tokens"), 0), 0
    state: Any = None
    for last in (False, False, True):
        pipeline = recipe.pipeline(runner=data.draw(st.sampled_from(["inline", "threads"])), on_error="skip")
        if state is not None:
            quietly(pipeline.restore, state)
        batches = iter(pipeline)
        for _ in range(len(want) + 1 if last else data.draw(st.integers(1, len(want) // 2 + 1))):
            batch = next(batches, None)
            found += [] if batch is None else [told(batch)]
        state = pipeline.checkpoint()
        batches.close()  # type: ignore[attr-defined]
        report = pipeline.accounting()
        sequences += report["sequences"]
        for kind in out:
            check(report[kind])
            out[kind] += report[kind]["out"]
            if last:
                assert report[kind]["in_flight"] == 0
    assert found == want
    assert out == {kind: whole.accounting()[kind]["out"] for kind in out}
    assert sequences == whole.accounting()["sequences"]
    after = recipe.pipeline(runner="inline", on_error="skip")
    quietly(after.restore, state)
    assert list(after) == [], "a state from after the end has nothing more"
    assert after.checkpoint()["lanes"] == state["lanes"]


DOCUMENTS = Recipe(
    data=(("a", (1, 4, 9, 16, 25, 0, 0, 7, 30) * 3), ("b", (12, 3, 0, 40))),
    weights=(1, 1),
    tokenised=True,
    lanes=2,
    per_step=2,
    passes=1,
    exhausted="redistribute",
)
PACK: dict[str, Any] = {"max_length": 12, "pad_token_id": PAD}
STEPS: dict[str, tuple[Operator, ...]] = {
    "filter in front": (KeepSome(column="id", of=3), PackFlat(**PACK)),
    "filter without a word in front": (LeaveOut(column="id", of=3), PackFlat(**PACK)),
    "filter behind a shuffle": (Shuffle(), KeepSome(column="id", of=3), PackFlat(**PACK)),
    "filter without a word behind a shuffle": (Shuffle(), LeaveOut(column="id", of=3), PackFlat(**PACK)),
    "failure in front": (Fragile(bad=(2, 8)), PackFlat(**PACK)),
    "failure behind a shuffle": (Shuffle(), Fragile(bad=(2, 8)), PackFlat(**PACK)),
    "everything dropped": (DropLong(limit=-1), PackFlat(**PACK)),
    "everything dropped behind a shuffle": (Shuffle(), DropLong(limit=-1), PackFlat(**PACK)),
    "copies behind a shuffle": (Shuffle(), Copies(column="id"), PackFlat(**PACK)),
    "truncated": (PackFlat(over_long="truncate", **PACK),),
    "over-long dropped": (PackFlat(over_long="drop", **PACK),),
    "short sequences dropped": (PackFlat(min_sequence_length=12, **PACK),),
    "short sequences dropped by best fit": (
        PackFlat(min_sequence_length=10, algorithm="best_fit", num_bins=2, **PACK),
        Shuffle(),
    ),
    "packed by data set": (PackFlat(homogeneity="full", algorithm="best_fit_wrap", **PACK), Shuffle()),
}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_each_way_to_lose_a_document_is_counted_with_its_tokens(steps: tuple[Operator, ...], drop_last: bool) -> None:
    recipe = replace(DOCUMENTS, steps=steps, drop_last=drop_last)
    pipeline = recipe.pipeline(runner="inline", on_error="skip")
    list(pipeline)
    report = pipeline.accounting()
    for kind in ("rows", "tokens"):
        check(report[kind])
        assert report[kind]["in_flight"] == 0, report[kind]


def test_without_losses_every_token_of_every_document_comes_out() -> None:
    recipe = replace(DOCUMENTS, steps=(PackFlat(**PACK),))
    pipeline = recipe.pipeline(runner="inline")
    list(pipeline)
    report = pipeline.accounting()
    assert report["tokens"]["in"] == report["tokens"]["out"] == sum(sum(lengths) for _, lengths in DOCUMENTS.data)
    assert report["rows"]["in"] == 31
    assert report["rows"]["dropped"] == {"pack_flat: empty": 7}


def test_drops_at_the_end_of_a_run_are_the_same_on_every_runner(runner: str) -> None:
    recipe = replace(DOCUMENTS, steps=(PackFlat(**PACK),), drop_last=True, per_step=5, lanes=4)
    reports = []
    for name in ("inline", runner):
        pipeline = recipe.pipeline(runner=name)
        list(pipeline)
        reports.append(pipeline.accounting())
    assert reports[0] == reports[1]
    assert reports[0]["rows"]["dropped"]["batch: drop_last"] > 0
    assert reports[0]["rows"]["in_flight"] == reports[0]["tokens"]["in_flight"] == 0


def test_quarantined_records_are_counted_written_and_excluded_the_next_time(tmp_path: Path) -> None:
    recipe = replace(MIXED, passes=1, exhausted="redistribute", steps=(Fragile(bad=(2, 5)), Encode(), PackFlat(**PACK)))
    file = tmp_path / "quarantine.jsonl"
    first = recipe.pipeline(runner="threads", on_error="quarantine", quarantine=str(file))
    want = [b.group.to_pylist() for b in first]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == first.accounting()["failures"] == 4
    assert {(entry["dataset"], entry["row"]) for entry in lines} == {(d, r) for d in "ab" for r in (2, 5)}

    def balanced(pipeline: Pipeline) -> dict[str, Any]:
        report = pipeline.accounting()
        for kind in ("rows", "tokens"):
            check(report[kind])
            assert report[kind]["in_flight"] == 0
        return report

    balanced(first)
    second = recipe.pipeline(runner="inline", exclude=str(file))
    assert [b.group.to_pylist() for b in second] == want
    assert balanced(second)["rows"]["dropped"]["source: excluded"] == 4
    assert second.accounting()["failures"] == 0

"""Invariant 1: a lane is a pure function of the recipe."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import Count, Encode, KeepSome, Suffix
from strategies import PAD, Recipe, Rows, Topology, drive, recipes, reference, rows_of, topologies

from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle

STEPS = 4
MIXED = Recipe(
    data=(("a", tuple(range(1, 40))), ("b", (5, 0, 17, 3, 3, 60))),
    weights=(2, 1),
    steps=(
        Suffix(text="!"),
        KeepSome(column="id", of=5),
        Shuffle(buffer_size=4),
        Encode(),
        PackFlat(max_length=16, algorithm="best_fit_wrap", pad_token_id=PAD),
        Shuffle(),
        Count(),
    ),
    lanes=4,
    per_step=2,
)


def lane_streams(recipe: Recipe, topology: Topology, steps: int) -> tuple[dict[int, Rows], dict[str, Any]]:
    """Rows by lane, and the lanes' states (digests included) after so many steps."""
    found: dict[int, Rows] = {}
    lanes: dict[str, Any] = {}
    for rank in range(topology.world):
        pipeline = recipe.pipeline(microbatch=topology.microbatch, max_steps=steps, **topology.options(rank))
        for batch in pipeline:
            found.setdefault(batch.lane, []).extend(rows_of(batch))
        lanes |= pipeline.checkpoint()["lanes"]
    found.pop(-1, None)
    return found, lanes


@settings(max_examples=80)
@given(data=st.data(), recipe=recipes())
def test_runner_workers_prefetch_and_budget_change_no_byte_of_a_lane(data: st.DataObject, recipe: Recipe) -> None:
    alone = lane_streams(recipe, Topology(), STEPS)
    assert lane_streams(recipe, Topology(runner="threads", workers=3, microbatch=1), STEPS) == alone
    topology = data.draw(topologies(recipe, runners=("threads",)))
    assert lane_streams(recipe, topology, STEPS) == alone


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_give_the_bytes_and_digests_of_the_inline_runner(workers: int) -> None:
    want = lane_streams(MIXED, Topology(), 6)
    assert lane_streams(MIXED, Topology(runner="processes", workers=workers), 6) == want


def test_a_lane_is_the_same_whether_its_rank_has_others_or_not() -> None:
    want, _ = lane_streams(MIXED, Topology(), 6)
    for rank in range(MIXED.lanes):
        pipeline = MIXED.pipeline(dp_rank=rank, dp_size=MIXED.lanes, runner="inline", max_steps=6)
        assert [row for batch in pipeline for row in rows_of(batch)] == want[rank]


@settings(max_examples=20)
@given(recipe=recipes(), seed=st.integers(0, 9))
def test_the_order_of_runs_in_a_process_does_not_matter(recipe: Recipe, seed: int) -> None:
    first = reference(recipe, STEPS)
    reference(replace(recipe, seed=seed), STEPS)
    drive(recipe, Topology(runner="threads", prefetch=3), steps=1, max_steps=STEPS)
    assert reference(recipe, STEPS) == first


SCRIPT = """
import sys; sys.path.insert(0, {tests!r})
import hashlib
from invariants_1 import MIXED
digest = hashlib.sha256()
for batch in MIXED.pipeline(runner={runner!r}, max_steps=5):
    digest.update(batch.sha256().encode())
print(digest.hexdigest())
"""


def test_another_process_with_another_hash_seed_gives_the_same_bytes(tmp_path: Any) -> None:
    import hashlib
    import pathlib

    digest = hashlib.sha256()
    for batch in MIXED.pipeline(runner="inline", max_steps=5):
        digest.update(batch.sha256().encode())
    here = pathlib.Path(__file__)
    (tmp_path / "invariants_1.py").write_text(here.read_text())
    for hash_seed, runner in (("1", "inline"), ("2", "threads")):
        code = SCRIPT.format(tests=str(here.parent.parent), runner=runner)
        made = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.strip() == digest.hexdigest()

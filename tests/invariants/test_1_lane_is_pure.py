"""Invariant 1: a lane is a pure function of the recipe."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MIXED, Recipe, Topology, drive, lane_streams, recipes, reference, rows_of, topologies
from thoroughness import examples

STEPS = 4


@settings(max_examples=examples(28))
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


@settings(max_examples=examples(20))
@given(recipe=recipes(), seed=st.integers(0, 9))
def test_the_order_of_runs_in_a_process_does_not_matter(recipe: Recipe, seed: int) -> None:
    first = reference(recipe, STEPS)
    reference(replace(recipe, seed=seed), STEPS)
    drive(recipe, Topology(runner="threads", prefetch=3), steps=1, max_steps=STEPS)
    assert reference(recipe, STEPS) == first


SCRIPT = """
import sys; sys.path.insert(0, {tests!r})
import hashlib
from strategies import MIXED
digest = hashlib.sha256()
for batch in MIXED.pipeline(runner={runner!r}, max_steps=5):
    digest.update(batch.sha256().encode())
print(digest.hexdigest())
"""


def test_another_process_with_another_hash_seed_gives_the_same_bytes() -> None:
    digest = hashlib.sha256()
    for batch in MIXED.pipeline(runner="inline", max_steps=5):
        digest.update(batch.sha256().encode())
    tests = str(pathlib.Path(__file__).parent.parent)
    for hash_seed, runner in (("1", "inline"), ("2", "threads")):
        made = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(tests=tests, runner=runner)],
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.strip() == digest.hexdigest()

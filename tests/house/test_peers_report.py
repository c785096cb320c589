"""The comparison with the peers: what it computes and says from raw runs, without measuring anything."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import report
from benchmarks.peers.cases import CASES, PEERS, Case, Goal, entry
from benchmarks.peers.tools import LENGTH, ROWS, concat_then_split, pack_samples

CASE = Case(
    "B0", "a case", "samples/s", (entry("ours", "a", "way a"), entry("grain", "x", "way x"), entry("grain", "y", "way y"))
)


def runs_of(*numbers: tuple[float, float], **more: float) -> list[report.Run]:
    """Runs of so much work in so many seconds, on half of the CPU time."""
    return [{"work": work, "wall_s": wall, "cpu_s": wall / 2, "elsewhere": 0.0, **more} for work, wall in numbers]


def test_ours_at_its_best_is_compared_with_the_peer_at_its_best_turn_by_turn() -> None:
    runs = {
        "ours|a": runs_of((100, 1), (90, 1), (200, 1)),
        "grain|x": runs_of((1, 1)),
        "grain|y": runs_of((50, 1), (30, 1), (50, 1)),
    }
    assert report.judge(Goal("grain", 3, "rate"), runs) == ("ours|a", "grain|y", (3.0, 2.0, 4.0), True)
    assert report.judge(Goal("grain: x", 3, "rate"), runs) == ("ours|a", "grain|x", (100.0, 100.0, 100.0), True)
    assert report.judge(Goal("grain", 3.1, "cpu_rate"), runs) == ("ours|a", "grain|y", (3.0, 2.0, 4.0), False)
    assert report.judge(Goal("litdata", 3, "rate"), runs) is None


def test_a_way_that_was_given_up_after_its_first_turn_is_not_the_best_by_one_lucky_run() -> None:
    runs = {"ours|a": runs_of(*[(100, 1)] * 3), "grain|x": runs_of((60, 1)), "grain|y": runs_of(*[(50, 1)] * 3)}
    assert report.judge(Goal("grain", 2, "rate"), runs) == ("ours|a", "grain|y", (2.0, 2.0, 2.0), True)
    runs["grain|x"] *= 2  # one turn failed, or is still to come
    assert report.judge(Goal("grain", 2, "rate"), runs) == ("ours|a", "grain|x", (5 / 3, 5 / 3, 5 / 3), False)


def test_of_costs_less_is_better_and_the_ratio_says_how_many_times() -> None:
    runs = {"ours|a": [{"first_batch_s": 0.5, "peak_pss_mb": 25.0}], "grain|x": [{"first_batch_s": 5.0, "peak_pss_mb": 100.0}]}
    assert report.judge(Goal("grain", 10, "first_batch_s"), runs) == ("ours|a", "grain|x", (10.0, 10.0, 10.0), True)
    assert report.judge(Goal("grain", 0.25, "peak_pss_mb", at_most=True), runs) == (
        "ours|a",
        "grain|x",
        (0.25, 0.25, 0.25),
        True,
    )
    assert report.judge(Goal("grain", 0.2, "peak_pss_mb", at_most=True), runs) == (
        "ours|a",
        "grain|x",
        (0.25, 0.25, 0.25),
        False,
    )


def test_a_failed_run_is_no_number_and_a_peer_that_only_fails_is_said_so() -> None:
    case = replace(CASE, goals=(Goal("grain", 1, "rate"),), missing=(("webdataset", "no packing"),))
    runs = {"ours|a": runs_of((10, 1)), "grain|x": [{"failed": "not installed: no wheel"}]}
    text = report.markdown({"B0": case}, {"B0": runs})
    assert "| Grain | way x | – | | | | | not installed: no wheel |" in text
    assert "not measured" in text
    assert "| WebDataset | – | – | | | | | no packing |" in text


def test_a_goal_that_is_missed_is_a_loud_no() -> None:
    case = replace(CASE, goals=(Goal("grain", 3, "rate"),))
    text = report.markdown({"B0": case}, {"B0": {"ours|a": runs_of((10, 1)), "grain|x": runs_of((5, 1))}})
    assert "| B0 | Grain | throughput | 2 (2–2) | 2 | ≥ 3 | **no** | a / x |" in text


def test_where_others_used_the_machine_a_goal_is_judged_in_cpu_time() -> None:
    case = replace(CASE, goals=(Goal("grain", 3, "rate"),))
    busy = [{"work": 10, "wall_s": 2.0, "cpu_s": 0.5, "elsewhere": 1.0}]
    text = report.markdown({"B0": case}, {"B0": {"ours|a": busy, "grain|x": runs_of((5, 1))}})
    assert "| B0 | Grain | throughput | 1 (1–1) | 2 | ≥ 3 | **no** (CPU) | a / x |" in text


def test_medians_ranges_and_a_busy_machine_stand_in_the_table() -> None:
    runs = {"ours|a": runs_of((10, 1), (30, 1), (20, 1), peak_rss_mb=7.0, peak_pss_mb=5.0)}
    assert "| 20 (10–30) | 40 |" in report.markdown({"B0": CASE}, {"B0": runs})
    for run in runs["ours|a"]:
        run["elsewhere"] = 0.5
    assert "| **0.50** |" in report.markdown({"B0": CASE}, {"B0": runs})


def test_imports_and_checkpoints_stand_beside_first_batches_and_restores() -> None:
    start = [{"first_batch_s": 0.5, "first_batch_cpu_s": 0.7, "import_s": 0.002}]
    text = report.markdown({"B5": CASES["B5"]}, {"B5": {"ours|fast": start}})
    assert "| s (range) | CPU s | import, s |" in text
    assert "| 0.5 (0.5–0.5) | 0.7 | 0.002 |" in text
    back = [{"restore_s": 0.1, "fresh_s": 0.3, "state_s": 0.0004, "state_bytes": 3125}]
    text = report.markdown({"B6": CASES["B6"]}, {"B6": {"ours|8 lanes": back}})
    assert "| s to restore (range) | checkpoint, bytes | checkpoint, s |" in text
    assert "| 0.1 (0.1–0.1) | 3,125 | 0.0004 |" in text


def test_charts_are_drawn_of_throughput_time_lines_and_workers(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.peers.charts import draw

    one = [{**run, "line": [(0.1, 30.0), (1.0, 100.0)]} for run in runs_of((100, 1), (90, 1))]
    runs = {"B2": {"ours|uint8": one}, "B5": {}, "scaling": {"ours|uint8 w1": one, "ours|uint8 w2": one}}
    drawn = draw(tmp_path, {name: CASES[name] for name in runs}, runs)
    assert [path.name for path in drawn] == ["peers-B2.png", "peers-B2-line.png", "peers-B5.png", "peers-scaling.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_ids_that_no_document_has_are_found(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    from benchmarks.peers.data import fingerprint

    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1, "b": 2}, unk_token="a"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    np.save(tmp_path / "known.npy", np.array([fingerprint([1, 2]), fingerprint([2])], np.int64))
    rows = [[[1, 0, 1, 2, 0, 2, 0, 2], [0, 1, 2, 0, 1, 1, 0, 1]]]  # what a row begins and ends with is not whole
    assert report.check(rows, tmp_path / "known.npy", tmp_path / "tokenizer.json") == {
        "documents_checked": 4,
        "documents_wrong": 1,
    }


def test_the_packing_that_peers_without_any_are_given_keeps_order_and_loses_only_the_rest() -> None:
    random = np.random.default_rng(0)
    documents = [np.arange(n, dtype=np.int32) for n in random.integers(1, 5000, 60)]
    made = list(concat_then_split(documents))
    flat = np.concatenate(documents)
    assert np.array_equal(np.concatenate([m.ravel() for m in made]), flat[: len(flat) // (LENGTH * ROWS) * LENGTH * ROWS])


def test_the_image_packing_that_peers_without_any_are_given_puts_each_sample_whole_into_one_row() -> None:
    samples = [{"input_ids": np.full(700, n + 1, np.int32), "pixels": n} for n in range(40)]
    rows, images = next(pack_samples(samples))
    assert images == list(range(2 * ROWS))
    assert [sorted(set(row.tolist())) for row in rows] == [[0, 2 * n + 1, 2 * n + 2] for n in range(ROWS)]


def test_a_format_that_could_not_be_written_is_the_reason_of_its_entries_and_of_no_others() -> None:
    from benchmarks.peers.data import missing

    failed = {"images/mds": "no streaming"}
    told = {(e.peer, e.variant): missing(CASES["B1"], e.variant, failed) for e in CASES["B1"].entries}
    assert {key for key, reason in told.items() if reason == "no streaming"} == {("ours", "mds"), ("public", "mds threads")}
    assert set(told.values()) == {None, "no streaming"}
    assert {missing(CASES["B3"], e.variant, failed) for e in CASES["B3"].entries} == {None}


def test_make_bench_hands_its_variables_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers.__main__ import _arguments

    asked = "CASES=B1 B3", "PEERS=grain litdata", "REPEATS=5", "IMAGES=8", "MEGABYTES=2", "DOCUMENTS=9", "QUICK=1"
    root = Path(__file__).resolve().parents[2]
    make = ["make", "-n", "--no-print-directory", "bench", *asked]  # the suite itself may be run by make
    told = subprocess.run(make, cwd=root, capture_output=True, text=True, check=True).stdout
    command = shlex.split(told.replace("\\\n", " ")[told.index("-m benchmarks.peers") :])
    monkeypatch.setattr(sys, "argv", command[1:])
    given = _arguments()
    assert (given.only, given.peer) == (["B1", "B3"], ["ours", "grain", "litdata"])
    assert (given.repeats, given.images, given.megabytes, given.documents) == (5, 8, 2, 9)
    assert given.quick
    assert given.charts


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_every_case_names_entries_once_and_goals_against_entries_that_it_has(case: Case) -> None:
    keys = [(e.peer, e.variant) for e in case.entries]
    assert len(set(keys)) == len(keys)
    assert {peer for peer, _ in keys} <= PEERS.keys()
    for goal in case.goals:
        peer, _, words = goal.against.partition(": ")
        assert any(p == peer and set(words.split()) <= set(v.split()) for p, v in keys), goal
        assert any(p == "ours" and set(goal.ours.split()) <= set(v.split()) for p, v in keys), goal

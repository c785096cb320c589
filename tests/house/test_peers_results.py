"""Raw runs of the comparison with the peers: several commands share a JSON, and the report says when and of what each was made."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.peers import report, results
from benchmarks.peers.cases import Case, Goal, entry

CASE = Case(
    "B0",
    "a case",
    "samples/s",
    (entry("ours", "a", "way a"), entry("ours", "b", "way b"), entry("grain", "x", "way x"), entry("grain", "y", "way y")),
    (Goal("grain", 1, "rate"),),
)


def run_at(at: float, work: float = 1.0, tree: str = "abc") -> report.Run:
    return {"work": work, "wall_s": 1.0, "cpu_s": 1.0, "elsewhere": 0.0, "at": at, "tree": tree}


def test_a_run_is_put_after_the_others_or_takes_their_place_and_leaves_all_else(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "runs.json"
    for at in (1.0, 2.0):
        results.add(path, "B0", "ours|a", run_at(at), anew=False)
        results.add(path, "B0", "grain|x", run_at(at), anew=False)
    results.add(path, "B0", "ours|a", run_at(3.0), anew=True)
    assert results.load(path) == {"B0": {"ours|a": [run_at(3.0)], "grain|x": [run_at(1.0), run_at(2.0)]}}


def test_of_several_files_the_newest_runs_of_each_key_are_taken_as_a_whole() -> None:
    old = {"B0": {"ours|a": [run_at(1), run_at(2)], "grain|x": [run_at(9)]}, "B1": {"ours|a": [run_at(1)]}}
    new = {"B0": {"ours|a": [run_at(3)], "grain|x": [run_at(8), run_at(8.5)], "grain|y": [{"failed": "gone", "at": 3}]}}
    wanted = {
        "B0": {"ours|a": [run_at(3)], "grain|x": [run_at(9)], "grain|y": [{"failed": "gone", "at": 3}]},
        "B1": {"ours|a": [run_at(1)]},
    }
    assert results.merge([old, new]) == wanted
    assert results.merge([new, old]) == wanted


def test_only_the_ways_that_do_best_are_compared_and_all_where_nothing_is_known() -> None:
    runs = {"ours|a": [run_at(1, 5)], "ours|b": [run_at(1, 6)], "grain|x": [run_at(1, 3)], "grain|y": [{"failed": "no"}]}
    assert report.contenders(CASE, runs) == {"ours|b", "grain|x"}
    assert report.contenders(CASE, {"ours|a": runs["ours|a"]}) == {"ours|a", "grain|x", "grain|y"}
    slower = {
        **runs,
        "ours|a": [run_at(1, 5) | {"cpu_s": 0.1}],
    }  # the best by the clock isn't that in CPU time: the table has both
    assert report.contenders(CASE, slower) == {"ours|a", "ours|b", "grain|x"}


def test_the_table_says_when_and_of_which_trees_runs_are_and_where_two_sides_were_not_measured_in_turns() -> None:
    day = 1_796_000_000.0  # a second of 2026-11-30
    runs = {"ours|a": [run_at(day, tree="abc"), run_at(day + 60, tree="abd+")], "grain|x": [run_at(day + 30)]}
    text = report.markdown({"B0": CASE}, {"B0": runs})
    assert "| 0.00 | 2 (2026-11-30, abc, abd+) |" in text
    assert "| a / x |" in text
    apart = {**runs, "grain|x": [run_at(day + 7200)]}
    assert "| a / x, not in turns |" in report.markdown({"B0": CASE}, {"B0": apart})


def test_a_tree_is_named_by_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert results.tree(tmp_path) == "?"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one", "--no-gpg-sign"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    clean = results.tree(tmp_path)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert len(clean) >= 7
    assert head.startswith(clean)
    (tmp_path / "file").write_text("two")
    assert results.tree(tmp_path) == clean + "+"

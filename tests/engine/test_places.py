"""A place that the user names for what a run writes, and that can't be written: an error of ours that names it, and no half of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import CheckpointError, RecipeError, RunnerError, ZephonError


def fails(record: dict[str, Any]) -> dict[str, Any]:
    if record["id"]:
        raise ValueError(f"record {record['id']} is bad")
    return record


def run_over(rows: int, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource(Dataset.from_records("d", [{"id": i} for i in range(rows)]), stop_after_passes=1)
    return Pipeline(source).map(fails).batch(1).options(on_error="quarantine", **options)


def test_a_quarantine_file_that_can_not_be_made_is_refused_before_anything_is_read(tmp_path: Path, runner: str) -> None:
    for place, why in ((tmp_path / "none" / "q.jsonl", "there is no folder"), (tmp_path, "Is a directory")):
        with pytest.raises(RecipeError) as caught:
            next(iter(run_over(3, runner=runner, quarantine=str(place))))
        assert str(caught.value).startswith(f"quarantine={str(place)!r} can't be written: {why}")


def test_without_a_failure_there_is_no_quarantine_file_and_one_that_is_there_stays(tmp_path: Path) -> None:
    for name, before in (("new", None), ("old", "line\n")):
        file = tmp_path / name
        if before is not None:
            file.write_text(before)
        assert len(list(run_over(1, quarantine=str(file)))) == 1
        assert (file.read_text() if file.exists() else None) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_quarantine_file_on_a_full_disk_stops_the_run_with_its_name(runner: str) -> None:
    with pytest.raises(RunnerError, match=r"quarantine='/dev/full' can't be written: No space left on device"):
        list(run_over(3, runner=runner, workers=2, quarantine="/dev/full"))


_LIMITED = """
import resource, sys
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import RunnerError

def fails(record):
    raise ValueError("x" * 300)

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
source = StaticMixtureWorkSource(Dataset.from_records("d", [{"id": i} for i in range(9)]), stop_after_passes=1)
try:
    list(Pipeline(source).map(fails).batch(1).options(on_error="quarantine", runner="inline", quarantine=sys.argv[1]))
except RunnerError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_quarantine_file_that_takes_no_more_ends_with_a_whole_line(tmp_path: Path) -> None:
    """So it can be given back as it is, and added to."""
    file = tmp_path / "q.jsonl"
    ran = subprocess.run([sys.executable, "-c", _LIMITED, str(file)], capture_output=True, text=True, timeout=60, check=True)
    assert f"quarantine={str(file)!r} can't be written: File too large" in ran.stdout
    rows = [json.loads(line)["row"] for line in file.read_text().splitlines()]
    assert rows
    assert file.read_text().endswith("}\n")
    source = StaticMixtureWorkSource(Dataset.from_records("d", [{"id": i} for i in range(9)]), stop_after_passes=1)
    assert sum(map(len, Pipeline(source).batch(1).options(exclude=str(file)))) == 9 - len(rows)


def test_a_line_without_an_end_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"dataset": "d", "sha')
    list(run_over(2, runner="inline", quarantine=str(file)))
    torn, line = file.read_text().splitlines()
    assert torn == '{"dataset": "d", "sha'
    assert json.loads(line)["row"] == 1
    with pytest.raises(RecipeError, match=r"line 1: not a quarantine line(.|\n)*cut short can be deleted"):
        next(iter(run_over(2, exclude=str(file), quarantine=str(tmp_path / "next"))))


def test_states_that_can_not_be_exchanged_say_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipeline = Pipeline(Dataset.from_records("d", [{"id": 1}])).batch(1).options(aggregate_dir=str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"aggregate_dir='.*file' can't be written: Not a directory"):
        pipeline.checkpoint()


def test_a_damaged_state_of_another_rank_is_named(tmp_path: Path) -> None:
    made = [
        Pipeline(Dataset.from_records("d", [{"id": 1}]))
        .batch(1)
        .options(aggregate_dir=str(tmp_path), dp_rank=rank, dp_size=2, lanes=2, aggregate_timeout_s=0.01)
        for rank in range(2)
    ]
    for pipeline in made[::-1]:
        with pytest.raises(CheckpointError, match="did not write") if pipeline is made[1] else nullcontext():
            pipeline.checkpoint()
    (other,) = tmp_path.rglob("*rank-00001*.json")
    other.write_text('{"half')
    with pytest.raises(CheckpointError, match=r"the state '.*rank-00001.*' can't be read"):
        made[0].checkpoint()


def test_a_quarantine_file_that_somebody_removed_is_begun_again(tmp_path: Path) -> None:
    def odd_fails(record: dict[str, Any]) -> dict[str, Any]:
        return fails(record) if record["id"] % 2 else record

    file = tmp_path / "q.jsonl"
    source = StaticMixtureWorkSource(
        Dataset.from_records("d", [{"id": i} for i in range(200)]), stop_after_passes=1, chunk_size=10
    )
    pipeline = (
        Pipeline(source).map(odd_fails).batch(1).options(on_error="quarantine", quarantine=str(file), runner="inline", lanes=1)
    )
    batches = iter(pipeline)
    next(batches)
    before = file.read_text().splitlines()
    file.unlink()
    assert len(list(batches)) == 99
    assert 0 < len(before) < 100
    assert len(file.read_text().splitlines()) == 100 - len(before)


def test_a_state_that_could_not_be_written_whole_leaves_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(Dataset.from_records("d", [{"id": 1}])).batch(1).options(aggregate_dir=str(tmp_path))
    state = pipeline.checkpoint()
    (mine,) = tmp_path.rglob("*.json")
    assert json.loads(mine.read_text()) == state
    mine.unlink()
    mine.mkdir()  # so that it can't be put in its place
    with pytest.raises(ZephonError, match="aggregate_dir"):
        pipeline.checkpoint()
    assert [path.name for path in mine.parent.iterdir()] == [mine.name]

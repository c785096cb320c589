"""`zephon convert` loses no row, goes on after any interruption, and refuses what it did not write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import Dataset
from zephon.cli import main
from zephon.cli.convert import JOURNAL, part_bounds, read_rows
from zephon.errors import DataError

COLUMNS = {
    "id": range(230),
    "text": [None if i % 17 == 3 else f"ünï {i}\n" * (i % 5) for i in range(230)],
    "tags": [["a"] * (i % 3) for i in range(230)],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    table = pa.table(COLUMNS)
    for i, (start, stop) in enumerate([(0, 100), (100, 101), (101, 230)]):
        pq.write_table(table.slice(start, stop - start), folder / f"{i}.parquet", row_group_size=30)
    return folder


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    dataset = Dataset.from_path("d", path, **options)
    return [row for group in read_rows(dataset, 0, len(dataset)) for row in group.to_pylist()]


def parts(path: Path, suffix: str = "") -> list[str]:
    return sorted(
        p.name for p in path.iterdir() if p.name.startswith("part-") and p.name.endswith(suffix) and "zidx" not in p.name
    )


def journal(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / JOURNAL).read_text().splitlines()]


def test_there_and_back_again_gives_the_same_rows_in_the_same_order(source: Path, tmp_path: Path) -> None:
    lines, back = tmp_path / "lines", tmp_path / "back"
    assert main(["convert", str(source), str(lines), "--to", "jsonl", "--rows-per-shard", "100"]) == 0
    assert parts(lines) == [f"part-0000{i}-of-00003.jsonl" for i in range(3)]
    assert main(["convert", str(lines), str(back), "--to", "parquet"]) == 0
    assert rows_of(back) == rows_of(source) == pa.table(COLUMNS).to_pylist()
    assert pq.read_table(back / parts(back)[0]).schema == pa.table(COLUMNS).schema


def test_the_end_compares_the_numbers_of_rows(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(source), str(tmp_path / "d"), "--to", "jsonl", "--columns", "id,text"]) == 0
    captured = capsys.readouterr()
    assert "230 rows in 1 parts of jsonl, as many as" in captured.out
    assert "230 of 230 rows" in captured.err
    assert rows_of(tmp_path / "d")[5] == {"id": 5, "text": ""}


@given(
    rows=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10**6)), max_size=20),
    per=st.one_of(st.none(), st.integers(1, 100)),
    nbytes=st.integers(1, 10**6),
)
def test_parts_cover_all_rows_once(rows: list[tuple[int, int]], per: int | None, nbytes: int) -> None:
    class Planned:
        class units:  # noqa: N801 - stands for an attribute
            rows = np.array([], dtype=np.int64)
            nbytes = np.array([], dtype=np.int64)

    Planned.units.rows = np.array([r for r, _ in rows], dtype=np.int64)
    Planned.units.nbytes = np.array([b for _, b in rows], dtype=np.int64)
    Planned.units.total_rows = total = int(Planned.units.rows.sum())  # type: ignore[attr-defined]
    Planned.units.total_bytes = int(Planned.units.nbytes.sum())  # type: ignore[attr-defined]
    bounds = part_bounds(Planned, per, nbytes).tolist()  # type: ignore[arg-type]
    assert (bounds[0], bounds[-1]) == (0, total)
    assert all(a < b for a, b in pairwise(bounds)) or total == 0
    if per is not None:
        assert all(b - a <= per for a, b in pairwise(bounds))


@given(st.data())
def test_any_range_of_rows_is_read_across_units_and_shards(data: st.DataObject) -> None:
    shards = {str(i): [{"n": 10 * i + k} for k in range(data.draw(st.integers(1, 9)))] for i in range(4)}
    every = [row["n"] for rows in shards.values() for row in rows]
    start = data.draw(st.integers(0, len(every)))
    stop = data.draw(st.integers(start, len(every)))
    found = [n for g in read_rows(Dataset.from_dict("d", shards), start, stop) for n in g.column("n").to_pylist()]
    assert found == every[start:stop]


def convert(source: Path, destination: Path, *more: str) -> int:
    return main(["convert", str(source), str(destination), "--to", "jsonl", "--rows-per-shard", "50", *more])


@pytest.mark.parametrize("finished", range(5))
def test_an_interrupted_run_goes_on_and_writes_no_finished_part_again(
    source: Path, tmp_path: Path, finished: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from zephon_formats._write_jsonl import JsonlWriter

    made = tmp_path / "d"
    write, count = JsonlWriter.write, 0

    def stopped(self: JsonlWriter, batch: pa.RecordBatch) -> None:
        nonlocal count
        if len(parts(made)) == finished:
            count += 1
            if count == 2:
                raise KeyboardInterrupt
        write(self, batch)

    monkeypatch.setattr(JsonlWriter, "write", stopped)
    assert convert(source, made) == 130
    assert len(parts(made)) == finished
    before = {name: (made / name).stat().st_mtime_ns for name in parts(made)}
    monkeypatch.setattr(JsonlWriter, "write", write)
    capsys.readouterr()
    assert convert(source, made) == 0
    if finished:
        assert f"going on: {finished} of 5 parts are there" in capsys.readouterr().err
    assert {name: (made / name).stat().st_mtime_ns for name in before} == before
    assert rows_of(made) == rows_of(source)
    assert journal(made)[-1] == {"finished": True}


def test_a_part_of_csv_with_nothing_but_numbers_in_a_column_of_text_is_counted_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"id": [1, 2, 3], "text": ["42", "seven", None]})
    pq.write_table(table, tmp_path / "source.parquet")
    made = tmp_path / "made"
    assert main(["convert", str(tmp_path / "source.parquet"), str(made), "--to", "csv", "--rows-per-shard", "1"]) == 0
    assert "read it with schema={'text': 'string'}" in capsys.readouterr().err
    assert rows_of(made, schema={"text": "string"}) == table.to_pylist()
    with pytest.raises(DataError, match=r"(?s)types that don't go together.*schema=…"):
        rows_of(made)


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """SIGKILL at any moment: no half-written part is ever taken for a whole one."""
    source, made = tmp_path / "src.parquet", tmp_path / "d"
    pq.write_table(pa.table({"id": range(200_000), "text": ["word " * 20] * 200_000}), source, row_group_size=5000)
    command = [sys.executable, "-m", "zephon", "convert", str(source), str(made), "--to", "jsonl", "--rows-per-shard", "5000"]
    for wanted in (3, 9):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and (not made.exists() or len(parts(made)) < wanted):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert [row["id"] for row in rows_of(made, columns=["id"])] == list(range(200_000))
    assert not [p for p in made.iterdir() if p.name.startswith(".tmp")]


def test_a_part_that_was_renamed_but_not_noted_is_written_again(source: Path, tmp_path: Path) -> None:
    made = tmp_path / "d"
    assert convert(source, made) == 0
    lines = (made / JOURNAL).read_text().splitlines(keepends=True)
    (made / JOURNAL).write_text("".join(lines[:3]) + lines[3][:20])
    for index in made.glob("*.zidx"):
        index.unlink()
    (made / "part-00002-of-00005.jsonl").write_text("rubbish")
    assert convert(source, made) == 0
    assert rows_of(made) == rows_of(source)


def test_a_finished_conversion_is_left_alone(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "d"
    assert convert(source, made) == 0
    before = sorted((p.name, p.stat().st_mtime_ns) for p in made.iterdir())
    assert convert(source, made) == 0
    assert "is complete already" in capsys.readouterr().out
    assert sorted((p.name, p.stat().st_mtime_ns) for p in made.iterdir()) == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "part-00001-of-00005.jsonl").write_text("x"), "which is finished, has 1 bytes"),
        (lambda d: (d / "part-00001-of-00005.jsonl").unlink(), "which is finished, is gone"),
        (lambda d: (d / "mine.txt").write_text("x"), "mine.txt is not of this conversion"),
        (lambda d: (d / JOURNAL).write_text("nonsense\n"), "is damaged"),
    ],
)
def test_an_inconsistent_destination_is_refused(
    source: Path, tmp_path: Path, spoil: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "d"
    assert convert(source, made) == 0
    lines = (made / JOURNAL).read_text().splitlines(keepends=True)
    for path in [*made.glob("*.zidx"), *(made / name for name in parts(made)[3:])]:
        path.unlink()
    (made / JOURNAL).write_text("".join(lines[:4]))
    spoil(made)
    before = sorted(p.name for p in made.iterdir())
    assert convert(source, made) == 1
    assert message in capsys.readouterr().err
    assert sorted(p.name for p in made.iterdir()) == before


def test_a_mapped_source_that_is_written_to_in_place_is_no_finished_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon_formats._write_jsonl import JsonlWriter

    table = pa.table({"n": pa.array(range(100), pa.int64())})
    for name, made in (("a", table), ("other", pa.table({"n": pa.array(range(1000, 1100), pa.int64())}))):
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as writer:
            writer.write_table(made)
    write = JsonlWriter.write

    def late(self: JsonlWriter, batch: pa.RecordBatch) -> None:
        with (tmp_path / "a.arrow").open("r+b") as file:
            file.write((tmp_path / "other.arrow").read_bytes())
        write(self, batch)

    monkeypatch.setattr(JsonlWriter, "write", late)
    assert convert(tmp_path / "a.arrow", tmp_path / "d") == 1
    assert "was changed or replaced after it was listed" in capsys.readouterr().err
    assert parts(tmp_path / "d", ".jsonl") == []


def test_another_conversion_or_a_changed_source_is_refused_with_the_difference(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "d"
    assert convert(source, made) == 0
    assert main(["convert", str(source), str(made), "--to", "jsonl", "--rows-per-shard", "60"]) == 1
    assert "holds another conversion: parts 5 → 4" in capsys.readouterr().err
    assert convert(source, made, "--columns", "id") == 1
    assert "column 'text' is gone" in capsys.readouterr().err
    pq.write_table(pa.table(COLUMNS).slice(0, 2), source / "1.parquet")
    assert convert(source, made) == 1
    assert "shard '1.parquet'" in capsys.readouterr().err


def test_a_directory_with_files_and_a_file_are_no_destinations(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    assert convert(source, tmp_path / "full") == 1
    assert "not empty" in capsys.readouterr().err
    assert convert(source, tmp_path / "full" / "x") == 1
    assert "is a file" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["x"]
    assert main(["convert", str(source), "s3://bucket/d", "--to", "jsonl"]) == 1
    assert "not on local disk" in capsys.readouterr().err


def test_two_runs_at_once_are_one_too_many(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fcntl = pytest.importorskip("fcntl")  # Windows has none
    made = tmp_path / "d"
    made.mkdir()
    with open(made / JOURNAL, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert convert(source, made) == 1
    assert "another conversion is writing" in capsys.readouterr().err
    assert convert(source, made) == 0


def test_values_that_the_format_can_not_hold_are_refused_and_leave_nothing_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"b": [b"x"]}), tmp_path / "bytes.parquet")
    assert convert(tmp_path / "bytes.parquet", tmp_path / "one") == 1
    assert "column 'b' (binary) holds bytes" in capsys.readouterr().err
    pq.write_table(pa.table({"x": [1.0] * 60 + [float("nan")]}), tmp_path / "nan.parquet")
    assert convert(tmp_path / "nan.parquet", tmp_path / "two") == 1
    error = capsys.readouterr().err
    assert "row 10 of the part" in error
    assert "50-60 of the source" in error
    assert sorted(os.listdir(tmp_path / "two")) == [JOURNAL, "part-00000-of-00002.jsonl"]


def test_a_column_that_the_format_left_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(pa.table({"txt": ["a"], "cls": pa.array([None], pa.int64())}), tmp_path / "a.parquet")
    assert main(["convert", str(tmp_path / "a.parquet"), str(tmp_path / "d"), "--to", "webdataset"]) == 1
    error = capsys.readouterr().err
    assert f"column 'cls' is not in {tmp_path / 'd'}" in error
    assert "--columns" in error


def test_an_empty_data_set_keeps_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    assert main(["convert", str(tmp_path / "empty.parquet"), str(tmp_path / "d"), "--to", "parquet"]) == 0
    made = Dataset.from_path("d", tmp_path / "d")
    assert len(made) == 0
    assert made.schema.names == ["a"]


def test_shards_that_lack_a_column_or_have_a_narrower_type_are_widened(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int32())}), tmp_path / "src" / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([3], pa.int64()), "b": ["x"]}), tmp_path / "src" / "1.parquet")
    assert main(["convert", str(tmp_path / "src"), str(tmp_path / "d"), "--to", "parquet"]) == 0
    assert rows_of(tmp_path / "d") == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]


def test_a_format_without_a_writer_is_answered_with_those_that_have_one(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zephon_formats.jsonl import Jsonl

    monkeypatch.setattr(Jsonl, "part_suffix", None)
    assert convert(source, tmp_path / "d") == 1
    error = capsys.readouterr().err
    assert "format 'jsonl' has no writer" in error
    assert "parquet" in error
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("size", ["0", "-3", "many", "12XB"])
def test_a_size_that_is_none_is_wrong_usage(source: Path, tmp_path: Path, size: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["convert", str(source), str(tmp_path / "d"), "--to", "jsonl", f"--shard-bytes={size}"])
    assert caught.value.code == 2


@pytest.mark.parametrize("to", ["parquet", "jsonl", "csv", "arrow", "webdataset"])
def test_a_disk_without_room_is_told_and_the_conversion_goes_on_when_there_is_some(
    to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    (tmp_path / "src").mkdir()
    noise = np.random.default_rng(1)
    pq.write_table(pa.table({"txt": [noise.bytes(1500).hex() for _ in range(200)]}), tmp_path / "src" / "a.parquet")
    command = ["convert", str(tmp_path / "src"), str(tmp_path / "d"), "--to", to]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # what a full disk does, but for one file
    try:
        assert main(command) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{tmp_path / 'd'} can't be written: " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "d").iterdir()] == [JOURNAL]
    assert main(command) == 0
    assert len(Dataset.from_path("d", tmp_path / "d")) == 200

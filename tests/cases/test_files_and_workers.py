"""Inputs that broke other loaders, by their numbers, as whole runs: files (Parquet, JSONL), workers, several ranks, mixtures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from operators.tokenizer_kinds import tokenizer
from strategies import MIXED, rows_of

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError, RecipeError


def once(data: Any, **options: Any) -> Pipeline:
    """One pass over a path, a list of records or data sets."""
    made = data if isinstance(data, Dataset) else Dataset.from_path("d", data)
    return Pipeline(StaticMixtureWorkSource(made, stop_after_passes=1)).options(**{"runner": "inline", **options})


def rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The user's columns of all rows, in the order of the files."""
    found = [row for batch in pipeline.batch(4) for row in rows_of(batch)]
    found.sort(key=lambda row: (row["_shard"], row["_row"]))
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]


# ------------------------------------------------------------------------------------------------------- several ranks


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 4, 5, 6, 7, 8)])
def test_19_shards_that_do_not_divide_among_the_ranks_give_all_of_them_the_same_steps(sizes: Sequence[int]) -> None:
    data = {f"s{i}": [{"id": 100 * i + r} for r in range(size)] for i, size in enumerate(sizes)}
    source = StaticMixtureWorkSource(Dataset.from_dict("d", data), stop_after_passes=1)
    alone = Pipeline(source).batch(2).options(lanes=4, runner="inline")
    steps = max(batch.step for batch in alone) + 1
    ranks = [list(Pipeline(source).batch(2).options(lanes=4, dp_rank=r, dp_size=2, max_steps=steps, workers=4)) for r in (0, 1)]
    assert len({len(rank) for rank in ranks}) == 1
    seen = Counter(row["id"] for rank in ranks for batch in rank for row in rows_of(batch))
    assert seen == Counter({100 * i + r: 1 for i, size in enumerate(sizes) for r in range(size)})


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (2, 1, 0)])
def test_31_an_empty_source_in_a_mixture_is_left_out_with_weight_0_and_refused_with_more(order: Sequence[int]) -> None:
    data = [Dataset.from_records(f"n{size}", pa.table({"id": list(range(size))})) for size in order]
    weights = {f"n{size}": float(size > 0) for size in order}
    found = Pipeline(StaticMixtureWorkSource(data, weights, stop_after_passes=1)).batch(1).options(runner="inline")
    assert Counter(batch.ids[0][0] for batch in found if len(batch)).keys() == {"n2", "n1"}
    with pytest.raises(RecipeError, match="'n0' has no rows"):
        StaticMixtureWorkSource(data, dict.fromkeys(weights, 1.0))


# -------------------------------------------------------------------------------------------- workers and processes


def test_34_workers_start_after_the_parent_has_read_with_threads_of_arrow(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(200))}), tmp_path / "d.parquet", row_group_size=20)
    assert pq.read_table(tmp_path / "d.parquet", use_threads=True).num_rows == 200  # the pool is up, and nothing may fork it
    pipeline = once(tmp_path / "d.parquet", runner="processes", workers=2).map(lambda record: record)
    assert [row["id"] for row in rows(pipeline)] == list(range(200))


LEFT_EARLY = """
import sys
from zephon import Dataset, Pipeline
for batch in Pipeline(Dataset.from_path("d", sys.argv[1])).batch(10).options(runner=sys.argv[2], workers=2):
    break
print(len(batch))
"""


def test_35_an_interpreter_ends_after_a_run_over_large_images_that_was_left_early(tmp_path: Path, runner: str) -> None:
    images = [np.random.default_rng(i).bytes(50_000) for i in range(100)]
    pq.write_table(pa.table({"image": pa.array(images, pa.binary())}), tmp_path / "d.parquet", row_group_size=20)
    made = subprocess.run(
        [sys.executable, "-c", LEFT_EARLY, str(tmp_path / "d.parquet"), runner], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert (made.returncode, made.stdout, made.stderr) == (0, "10\n", "")


def noisy(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": record["id"], "noise": int(rng.integers(1 << 40))}


def test_41_random_augmentation_differs_between_records_and_passes_and_not_between_workers() -> None:
    data = Dataset.from_records("d", [{"id": i} for i in range(40)])
    streams = []
    for runner, workers in (("inline", 1), ("threads", 4), ("processes", 2)):
        pipeline = Pipeline(StaticMixtureWorkSource(data, stop_after_passes=2, chunk_size=5)).map(noisy).batch(1)
        streams.append([row for batch in pipeline.options(runner=runner, workers=workers) for row in rows_of(batch)])
    assert streams[0] == streams[1] == streams[2]
    assert len({row["noise"] for row in streams[0]}) == 80


def test_49_stating_the_position_after_every_batch_costs_no_work_per_record() -> None:
    def calls(pipeline: Pipeline, *, state: bool) -> int:
        batches = iter(pipeline)
        next(batches)
        count = 0

        def seen(_frame: Any, event: str, _value: Any) -> None:
            nonlocal count
            count += event == "call"

        for _ in range(20):
            next(batches)
            sys.setprofile(seen if state else None)
            try:
                pipeline.checkpoint()
            finally:
                sys.setprofile(None)
        batches.close()  # type: ignore[attr-defined]
        return count // 20

    small, large = (replace(MIXED, per_step=n, chunk=4 * n, window=8).pipeline(runner="inline") for n in (1, 64))
    costs = [calls(pipeline, state=True) for pipeline in (small, large)]
    assert costs[1] <= costs[0] + 5, f"{costs} calls: the larger one holds 64 times as many sequences"


def test_47_a_source_that_fails_in_the_middle_says_so_within_seconds(tmp_path: Path, runner: str) -> None:
    lines = [json.dumps({"id": i}) for i in range(30)]
    lines[3] = "not json"
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    begun = time.monotonic()
    with pytest.raises(DataError) as caught:
        list(once(tmp_path / "d.jsonl", runner=runner, workers=2).map(lambda record: record).batch(1))
    assert time.monotonic() - begun < 30
    assert (caught.value.where.dataset, caught.value.where.row) == ("d", 3)


# -------------------------------------------------------------------------------------------------- Parquet and JSONL


def test_65_every_row_of_unequal_row_groups_comes_from_its_own_place(tmp_path: Path) -> None:
    ids = list(range(793))
    with pq.ParquetWriter(tmp_path / "d.parquet", pa.schema([("id", pa.int64())])) as writer:
        at = 0
        for size in (0, *[128] * 6, 14, 11):
            writer.write_table(pa.table({"id": pa.array(ids[at : at + size], pa.int64())}))
            at += size
    found = [row for batch in once(tmp_path / "d.parquet").batch(7).options(lanes=3) for row in rows_of(batch)]
    assert sorted(row["id"] for row in found) == ids
    assert all(row["_row"] == row["id"] for row in found)


def test_67_null_empty_and_present_lists_stay_apart(tmp_path: Path, runner: str) -> None:
    lists = [None, [{"test": 1}], [], [{"test": None}], None, []]
    pq.write_table(pa.table({"x": pa.array(lists, pa.list_(pa.struct([("test", pa.int64())])))}), tmp_path / "d.parquet")
    for pipeline in (once(tmp_path, runner=runner), once(tmp_path, runner=runner).map(lambda record: record)):
        assert [row["x"] for row in rows(pipeline.shuffle())] == lists


def test_68_lists_of_structs_with_a_field_of_nothing_but_nulls(tmp_path: Path, runner: str) -> None:
    lists = [[{"b": None, "g": "x"}, None], None, [], [{"b": None, "g": "y"}]]
    kind = pa.list_(pa.struct([("b", pa.null()), ("g", pa.string())]))
    pq.write_table(pa.table({"x": pa.array(lists, kind)}), tmp_path / "d.parquet")
    batches = list(once(tmp_path, runner=runner).shuffle().batch(2))
    for batch in batches:
        batch.group.validate(full=True)
    assert sorted((row["_row"], row["x"]) for b in batches for row in rows_of(b)) == list(enumerate(lists))


def test_71_files_with_other_columns_are_read_by_name_and_clashes_name_file_and_column(tmp_path: Path) -> None:
    struct = pa.array([{"y": 2, "x": 1}], pa.struct([("y", pa.int64()), ("x", pa.int64())]))
    pq.write_table(pa.table({"a": pa.array([1, 2]), "s": pa.array([{"x": 1, "y": 2}] * 2)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.nulls(1), "s": struct}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([3]), "b": pa.array(["x"])}), tmp_path / "2.parquet")
    same = {"x": 1, "y": 2}
    assert rows(once(tmp_path)) == [
        {"a": 1, "s": same, "b": None},
        {"a": 2, "s": same, "b": None},
        {"a": None, "s": same, "b": None},
        {"a": 3, "s": None, "b": "x"},
    ]
    pq.write_table(pa.table({"a": pa.array(["text"])}), tmp_path / "3.parquet")
    with pytest.raises(DataError, match=r"3\.parquet.*a"):
        rows(once(tmp_path))


def test_79_mixed_types_of_one_key_are_kept_and_late_ones_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"n": [[0, 4, "P"]], "id": 1}\n{"n": [[1, 2, "Q"]], "id": "1"}\n')
    found = [{name: json.loads(value) for name, value in row.items()} for row in rows(once(tmp_path / "d.jsonl"))]
    assert found == [{"n": [[0, 4, "P"]], "id": 1}, {"n": [[1, 2, "Q"]], "id": "1"}]
    (tmp_path / "late.jsonl").write_text('{"id": 1}\n' * 2000 + '{"id": "1"}\n')
    with pytest.raises(DataError) as caught:
        rows(once(Dataset.from_path("d", tmp_path / "late.jsonl", sample_bytes=100)))
    assert (str(caught.value.where.shard).rsplit("/", 1)[-1], caught.value.where.row) == ("late.jsonl", 2000)


def test_80_all_frames_are_read_and_a_torn_one_is_an_error(tmp_path: Path) -> None:
    frames = [zstandard.compress(f'{{"id": {i}}}\n'.encode()) for i in range(5)]
    (tmp_path / "d.jsonl.zst").write_bytes(b"".join(frames))
    assert rows(once(Dataset.from_path("d", tmp_path / "d.jsonl.zst", cache_dir=str(tmp_path / "c")))) == [
        {"id": i} for i in range(5)
    ]
    (tmp_path / "torn.jsonl.zst").write_bytes(b"".join(frames)[:-3])
    with pytest.raises(DataError, match=r"torn\.jsonl\.zst"):
        rows(once(Dataset.from_path("d", tmp_path / "torn.jsonl.zst", cache_dir=str(tmp_path / "c"))))


def test_82_text_that_is_not_unicode_never_reaches_a_tokenizer_or_ends_a_worker(tmp_path: Path, runner: str) -> None:
    bad = [rb'{"text": "a\ud800b"}', b'{"text": "a\xffb"}', b'{"text": "a\x00b"}']
    (tmp_path / "d.jsonl").write_bytes(b"\n".join([b'{"text": "good"}', *bad, b""]))
    found = rows(
        once(tmp_path / "d.jsonl", runner=runner).map(lambda record: {"text": record["text"], "n": len(record["text"])})
    )
    assert found == [{"text": "good", "n": 4}, *[{"text": "a\ufffdb", "n": 3}] * 3]
    strict = Dataset.from_path("d", tmp_path / "d.jsonl", bad_text="error")
    left = once(strict, runner=runner, on_error="skip")
    assert rows(left) == [{"text": "good"}]
    assert left.accounting()["rows"]["dropped"] == {"source: unreadable": 3}


def test_86_the_bad_file_of_many_is_named(tmp_path: Path, runner: str) -> None:
    for number in range(10):
        pq.write_table(pa.table({"id": [number] * 4}), tmp_path / f"{number}.parquet")
    whole = (tmp_path / "7.parquet").read_bytes()
    (tmp_path / "7.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"7\.parquet"):
        list(once(tmp_path, runner=runner).batch(1))


REASONS: dict[str, Callable[[Path], Any]] = {
    "a directory without files": lambda folder: folder,
    "a pattern that fits nothing": lambda folder: folder / "*.parquet",
    "a file that isn't there": lambda folder: folder / "no.parquet",
}


@pytest.mark.parametrize("path", REASONS.values(), ids=REASONS.keys())
def test_a_path_with_nothing_at_it_is_refused_with_the_path(path: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises((RecipeError, DataError), match=str(tmp_path.name)):
        list(once(path(tmp_path)).batch(1))


def spoilt(path: Path, column: str) -> Path:
    """A Parquet file of texts and numbers, one of whose columns can't be read."""
    table = pa.table(
        {"text": [f"text {i}" for i in range(50)], "input_ids": [[i] * 4 for i in range(50)], "more": list(range(50))}
    )
    pq.write_table(table, path, compression="none", use_dictionary=False)
    with open(path, "r+b") as file:
        group = pq.read_metadata(path).row_group(0)
        places = {
            group.column(i).path_in_schema.split(".")[0]: group.column(i).data_page_offset for i in range(group.num_columns)
        }
        file.seek(places[column])
        file.write(b"\xff" * 50)
    return path


STEPS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "a packer": lambda p: p.pack_flat(max_length=8, pad_token_id=0),
    "a filter before a packer": lambda p: p.filter(lambda r: r["input_ids"][0] > 3, columns=["input_ids"]).pack_flat(
        max_length=8, pad_token_id=0
    ),
    "a tokenizer": lambda p: p.tokenize(tokenizer=tokenizer("gpt2")),
    "a function with columns": lambda p: p.map(lambda r: {"n": len(r["text"])}, columns=["text"]),
}


@pytest.mark.parametrize("name", STEPS)
def test_only_the_columns_that_the_steps_need_are_read(name: str, tmp_path: Path) -> None:
    needed = "text" if name in ("a tokenizer", "a function with columns") else "input_ids"
    path = tmp_path / "d.parquet"
    for column in ("text", "input_ids", "more"):
        pipeline = STEPS[name](once(spoilt(path, column))).batch(2)
        if column == needed:
            with pytest.raises(DataError, match="parquet"):
                list(pipeline)
        else:
            assert sum(len(batch) - batch.empty for batch in pipeline)
    with pytest.raises(DataError, match="parquet"):
        list(once(spoilt(path, "more")).filter(lambda r: True).batch(2))  # a function that says nothing sees all

"""Bad records: raised with their place, or left out, counted, written down and excluded the next time; never lost silently."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operators_for_tests import Encode, Fragile
from strategies import Recipe

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.errors import DataError, Where
from zephon.operators.pack import PackFlat
from zephon.plugin import Operator

GOOD = Recipe(
    data=(("a", (9,) * 40), ("b", (7,) * 20)), weights=(2, 1), steps=(), lanes=2, per_step=2, passes=1, exhausted="redistribute"
)
BAD = replace(GOOD, steps=(Fragile(bad=(3, 17)),))


def ids(batches: Any) -> list[tuple[int, int]]:
    return sorted((row["_component"], row["id"]) for b in batches for row in b.group.to_pylist()[: len(b) - b.empty])


def test_a_bad_record_is_named_on_every_runner(runner: str) -> None:
    with pytest.raises(DataError) as caught:
        list(BAD.pipeline(runner=runner, workers=2))
    where = caught.value.where
    assert where.operator == "fragile"
    assert where.dataset in ("a", "b")
    assert where.row in (3, 17)
    assert str(where.shard).startswith(f"{where.dataset}-")
    assert f"ValueError: record {where.row} is bad" in str(caught.value)


def test_the_batches_before_the_failure_come_first_on_every_runner(runner: str) -> None:
    want: list[Any] = []
    found: list[Any] = []
    for name, out in (("inline", want), (runner, found)):
        with pytest.raises(DataError):
            out.extend(b.group.to_pylist() for b in BAD.pipeline(runner=name, workers=2))
    assert found == want


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_skipped_records_are_counted_and_all_others_come(policy: str, tmp_path: Path, runner: str) -> None:
    pipeline = BAD.pipeline(runner=runner, workers=2, on_error=policy, quarantine=str(tmp_path / "bad.jsonl"))
    found = ids(pipeline)
    assert found == sorted((c, i) for c, n in ((0, 40), (1, 20)) for i in range(n) if i not in (3, 17))
    rows = pipeline.accounting()["rows"]
    assert rows["dropped"] == {"fragile: failed: ValueError": 4}
    assert (rows["in"], rows["out"], rows["in_flight"]) == (60, 56, 0)
    assert rows["by_dataset"]["a"]["dropped"] == {"fragile: failed: ValueError": 2}


def test_a_quarantine_file_excludes_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    first = BAD.pipeline(runner="inline", on_error="quarantine", quarantine=str(file))
    survivors = ids(first)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((entry["dataset"], entry["row"], entry["operator"]) for entry in lines) == [
        (d, r, "fragile") for d in ("a", "b") for r in (3, 17)
    ]
    second = BAD.pipeline(runner="inline", exclude=str(file))
    assert ids(second) == survivors
    assert second.accounting()["rows"]["dropped"] == {"source: excluded": 4}
    assert second.recipe() != BAD.pipeline(runner="inline").recipe()


@dataclass(frozen=True, kw_only=True)
class FragileAfterPacking(Operator):
    """Fails on sequences that hold the document of row `bad`, and may say that it was this one."""

    name: ClassVar[str] = "fragile_after_packing"
    bad: int
    says: bool

    def inputs(self) -> tuple[str, ...]:
        return (groups.TOKENS, groups.DOC_COMPONENT, groups.DOC_SHARD, groups.DOC_ROW)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            for row in group.to_pylist():
                if self.bad in row[groups.DOC_ROW]:
                    at = row[groups.DOC_ROW].index(self.bad)
                    place = Where(component=row[groups.DOC_COMPONENT][at], shard=row[groups.DOC_SHARD][at], row=self.bad)
                    raise DataError("it is bad: very", where=place if self.says else None)
            return group

        return apply


PACKED = replace(
    GOOD,
    data=(("a", (9,) * 40), ("b", (7,) * 2)),
    tokenised=True,
    steps=(PackFlat(max_length=32, pad_token_id=0, algorithm="first_fit", num_bins=2),),
)


@pytest.mark.parametrize("says", [True, False], ids=["named", "not named"])
def test_documents_of_a_packed_sequence_are_written_down_as_they_are_called(says: bool, tmp_path: Path, runner: str) -> None:
    file = tmp_path / "bad.jsonl"
    recipe = replace(PACKED, steps=(*PACKED.steps, FragileAfterPacking(bad=17, says=says)))
    pipeline = recipe.pipeline(runner=runner, workers=2, on_error="quarantine", quarantine=str(file))
    left = {
        (c, r)
        for b in pipeline
        for row in b.group.to_pylist()
        for c, r in zip(row[groups.DOC_COMPONENT], row[groups.DOC_ROW], strict=True)
    }
    gone = sorted(({(0, i) for i in range(40)} | {(1, i) for i in range(2)}) - left)
    assert (0, 17) in gone
    assert len(gone) > 1
    assert pipeline.accounting()["rows"]["dropped"] == {"fragile_after_packing: failed: it is bad": len(gone)}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(("ab".index(line["dataset"]), line["row"]) for line in lines) == ([(0, 17)] if says else gone)
    assert {line["shard"] for line in lines} <= {"a-0", "b-0", "memory"}
    again = recipe.pipeline(runner="inline", exclude=str(file))
    assert sum(len(row[groups.DOC_ROW]) for b in again for row in b.group.to_pylist()) == 42 - len(lines)


def test_a_packed_sequence_is_named_by_its_documents() -> None:
    recipe = replace(PACKED, steps=(*PACKED.steps, FragileAfterPacking(bad=17, says=False)))
    with pytest.raises(DataError) as caught:
        list(recipe.pipeline(runner="inline"))
    where = caught.value.where
    assert (where.dataset, where.row, where.operator) == ("a", None, "fragile_after_packing")
    assert where.rows is not None
    assert where.rows.endswith("others of its sequence")


def test_an_operators_own_policy_wins() -> None:
    pipeline = GOOD.pipeline(runner="inline")
    pipeline = Pipeline(pipeline.source)
    pipeline.then(Fragile(bad=(3,)), on_error="skip").then(Fragile(bad=(17,))).batch(2).options(lanes=2, runner="inline")
    with pytest.raises(DataError, match="record 17 is bad"):
        list(pipeline)


def test_too_many_failures_stop_the_run() -> None:
    with pytest.raises(DataError, match="more than max_failures=2"):
        list(BAD.pipeline(runner="inline", on_error="skip", max_failures=2))
    assert ids(BAD.pipeline(runner="inline", on_error="skip", max_failures=4))


def test_too_many_failures_in_a_row_stop_the_run() -> None:
    all_bad = replace(GOOD, steps=(Fragile(bad=tuple(range(40))),))
    with pytest.raises(DataError, match="more than max_failures_in_a_row=5"):
        list(all_bad.pipeline(runner="inline", on_error="skip", max_failures_in_a_row=5))
    assert ids(BAD.pipeline(runner="inline", on_error="skip", max_failures_in_a_row=5))


def in_a_row(bad: set[int], chunk: int, *, limit: int, runner: str, path: Path | None = None) -> int | None:
    """How many of 40 records in order come, some of which can't be parsed (or, in a file, be read); None: the run was stopped."""

    def parse(record: dict[str, Any]) -> dict[str, Any]:
        return {"id": int(record["text"])}

    rows = [{"text": "x" if i in bad else str(i)} for i in range(40)]
    data = Dataset.from_records("d", rows)
    if path is not None:
        path.write_text("".join("torn\n" if i in bad else json.dumps(row) + "\n" for i, row in enumerate(rows)))
        data = Dataset.from_path("d", path)
    source = StaticMixtureWorkSource(data, chunk_size=chunk, shuffle_within_shard=False, stop_after_passes=1)
    pipeline = Pipeline(source).map(lambda record: record).map(parse).batch(1)
    pipeline.options(runner=runner, workers=2, on_error="skip", max_failures_in_a_row=limit)
    try:
        return sum(map(len, pipeline))
    except DataError as error:
        if f"more than max_failures_in_a_row={limit}" not in str(error):
            raise
        return None


@pytest.mark.parametrize("chunk", [1, 5, 7, 40])
@pytest.mark.parametrize("from_file", [False, True])
def test_in_a_row_means_without_one_in_between_that_worked(chunk: int, from_file: bool, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl" if from_file else None
    for runner in ("inline", "threads"):
        assert in_a_row(set(range(0, 40, 2)), chunk, limit=1, runner=runner, path=path) == 20
        assert in_a_row({3, 4, 5, 6}, chunk, limit=4, runner=runner, path=path) == 36
        assert in_a_row({3, 4, 5, 6}, chunk, limit=3, runner=runner, path=path) is None
        assert in_a_row({36, 37, 38, 39}, chunk, limit=3, runner=runner, path=path) is None


def test_failures_in_a_row_are_those_of_worker_processes_too() -> None:
    assert in_a_row({0, 1, 2, 8, 9}, 4, limit=3, runner="processes") == 35
    assert in_a_row({2, 3, 4, 5}, 4, limit=3, runner="processes") is None


def test_failures_in_one_lane_leave_the_others_untouched_and_the_steps_equal() -> None:
    packed = replace(
        GOOD,
        data=(("a", (9,) * 64),),
        weights=(1,),
        steps=(Encode(), PackFlat(max_length=16, pad_token_id=0)),
        lanes=8,
        per_step=1,
    )

    def lanes(recipe: Recipe, rank: int) -> dict[int, list[tuple[int, list[int]]]]:
        found: dict[int, list[tuple[int, list[int]]]] = {}
        for batch in recipe.pipeline(runner="inline", dp_rank=rank, dp_size=4, on_error="skip", max_steps=6):
            found.setdefault(batch.lane, []).extend((batch.step, row["input_ids"]) for row in batch.group.to_pylist())
        return found

    good = {k: v for rank in range(4) for k, v in lanes(packed, rank).items()}
    in_lane_0 = [
        row
        for b in packed.pipeline(runner="inline")
        if b.lane == 0
        for doc in b.group.column("_document_row").to_pylist()
        for row in doc
    ]
    bad = replace(packed, steps=(Fragile(bad=tuple(in_lane_0[:5])), *packed.steps))
    found = {k: v for rank in range(4) for k, v in lanes(bad, rank).items()}
    assert {lane: [step for step, _ in rows] for lane, rows in found.items()} == {lane: list(range(6)) for lane in range(8)}
    assert {lane for lane in range(8) if found[lane] != good[lane]} == {0}


def test_a_file_that_is_damaged_is_named_or_its_rows_are_dropped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "good.parquet", row_group_size=10)
    pq.write_table(
        pa.table({"x": list(range(100, 200))}),
        tmp_path / "torn.parquet",
        row_group_size=50,
        compression="none",
        use_dictionary=False,
    )
    raw = bytearray((tmp_path / "torn.parquet").read_bytes())
    raw[8:60] = b"\xff" * 52  # the header of the first page
    (tmp_path / "torn.parquet").write_bytes(raw)

    def pipeline(**options: Any) -> Pipeline:
        source = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path)], stop_after_passes=1)
        return Pipeline(source).batch(10).options(runner="inline", **options)

    with pytest.raises(DataError, match=r"torn\.parquet"):
        list(pipeline())
    run = pipeline(on_error="skip")
    rows = sorted(x for b in run for x in b.group.column("x").to_pylist())
    assert rows == [*range(100), *range(150, 200)]
    assert run.accounting()["rows"]["dropped"] == {"source: unreadable": 50}


def test_a_bad_json_line_costs_that_line_only(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"line {i}"}) for i in range(50)]
    lines[20] = '{"text": "torn'
    (tmp_path / "d.jsonl").write_text("\n".join(lines) + "\n")

    def pipeline(**options: Any) -> Pipeline:
        source = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path / "d.jsonl")], stop_after_passes=1)
        return Pipeline(source).batch(5).options(runner="inline", **options)

    with pytest.raises(DataError) as caught:
        list(pipeline())
    assert (caught.value.where.dataset, caught.value.where.row) == ("d", 20)
    run = pipeline(on_error="quarantine", quarantine=str(tmp_path / "bad.jsonl"))
    assert sorted(t for b in run for t in b.group.column("text").to_pylist()) == sorted(
        f"line {i}" for i in range(50) if i != 20
    )
    assert json.loads((tmp_path / "bad.jsonl").read_text())["row"] == 20


def test_an_endless_run_that_leaves_out_everything_is_an_error_and_not_a_silent_loop(runner: str) -> None:
    endless = replace(GOOD, steps=(Fragile(bad=tuple(range(40))),), passes=None, exhausted=None)
    with pytest.raises(DataError, match=r"gave no sequence.*fragile: failed: ValueError"):
        list(endless.pipeline(runner=runner, workers=2, on_error="skip"))


def test_a_bad_record_in_what_drop_last_leaves_raises_after_the_last_batch(runner: str) -> None:
    recipe = replace(GOOD, data=(("a", (9,) * 11),), weights=(1,), lanes=1, per_step=4, drop_last=True)
    whole = [b.group.to_pylist() for b in recipe.pipeline(runner="inline")]
    left = sorted(set(range(11)) - {row["id"] for batch in whole for row in batch})
    assert len(left) == 3
    bad = replace(recipe, steps=(Fragile(bad=(left[1],)),))
    found = []
    pipeline = bad.pipeline(runner=runner, workers=2)
    with pytest.raises(DataError, match=f"record {left[1]} is bad"):
        found.extend(b.group.to_pylist() for b in pipeline)
    assert found == whole
    assert pipeline.checkpoint()["lanes"]["0"][2] == 8
    skipping = bad.pipeline(runner=runner, workers=2, on_error="skip")
    assert [b.group.to_pylist() for b in skipping] == whole
    assert skipping.accounting()["rows"]["dropped"] == {"batch: drop_last": 2, "fragile: failed: ValueError": 1}

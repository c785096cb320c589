"""Failures that aren't one bad record: values that don't go together, a library that is wrong, user code that ends the program."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from strategies import rows_of

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.errors import DataError, PluginError
from zephon.plugin import Operator


def pipeline_over(count: int, **options: Any) -> Pipeline:
    data = Dataset.from_dict("d", {"part-0": [{"id": i} for i in range(count)]})
    source = StaticMixtureWorkSource(
        data, stop_after_passes=1, chunk_size=count, shuffle_shards=False, shuffle_within_shard=False
    )
    return Pipeline(source).options(**options)


def odd_one(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], "x": str(record["id"]) if record["id"] in (37, 38, 61) else record["id"]}


def test_a_function_that_returns_mixed_types_is_named_with_the_row(runner: str) -> None:
    with pytest.raises(DataError) as caught:
        list(pipeline_over(100, runner=runner, workers=2).map(odd_one).batch(4))
    where = caught.value.where
    assert (where.dataset, where.shard, where.row, where.operator) == ("d", "part-0", 37, "map")
    assert "another type than the records before it" in str(caught.value)


def test_a_function_that_breaks_its_declared_output_is_named_with_the_row() -> None:
    with pytest.raises(DataError, match="`output` declares") as caught:
        list(pipeline_over(100, runner="inline").map(odd_one, output={"id": "int64", "x": "int64"}).batch(4))
    assert caught.value.where.row == 37


@pytest.mark.parametrize("output", [None, {"id": "int64", "x": "int64"}])
def test_records_of_another_type_are_left_out_by_the_policy_and_written_down(output: Any, tmp_path: Path, runner: str) -> None:
    file = tmp_path / "bad.jsonl"
    pipeline = pipeline_over(100, runner=runner, workers=2, on_error="quarantine", quarantine=str(file))
    pipeline.map(odd_one, output=output).batch(4)
    found = [row["x"] for b in pipeline for row in rows_of(b)]
    assert found == [i for i in range(100) if i not in (37, 38, 61)]
    assert [json.loads(line)["row"] for line in file.read_text().splitlines()] == [37, 38, 61]
    rows = pipeline.accounting()["rows"]
    assert (sum(rows["dropped"].values()), rows["out"], rows["in_flight"]) == (3, 97, 0)
    again = pipeline_over(100, runner="inline", exclude=str(file)).map(odd_one).batch(4)
    assert [row["x"] for b in again for row in rows_of(b)] == found


def test_types_that_change_from_chunk_to_chunk_say_what_to_do() -> None:
    data = Dataset.from_records("d", [{"id": i} for i in range(8)])
    source = StaticMixtureWorkSource(data, stop_after_passes=1, chunk_size=2, shuffle_within_shard=False)
    pipeline = Pipeline(source).map(lambda r: {"x": r["id"] if r["id"] < 4 else str(r["id"])}).batch(8)
    with pytest.raises(DataError, match=r"(?s)types that don't go together.*output=.*") as caught:
        list(pipeline.options(runner="inline"))
    assert (caught.value.where.operator, caught.value.where.dataset, caught.value.where.row) == ("batch", "d", 4)


@dataclass(frozen=True, kw_only=True)
class WrongLibrary(Operator):
    """Finds out now and then that what it uses isn't what it should be."""

    name: ClassVar[str] = "wrong_library"

    def inputs(self) -> tuple[str, ...]:
        return ("id",)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            if len(group) > 8 and 37 in groups.ints(group, "id"):
                raise PluginError("two libraries differ")
            return group

        return apply


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_no_policy_covers_a_library_that_is_wrong(policy: str, runner: str) -> None:
    pipeline = pipeline_over(100, runner=runner, workers=2, on_error=policy).then(WrongLibrary()).batch(4)
    with pytest.raises(PluginError, match="two libraries differ") as caught:
        list(pipeline)
    assert caught.value.where.operator == "wrong_library"


@dataclass(frozen=True, kw_only=True)
class Forgetful(Operator):
    """Makes its rows from scratch."""

    name: ClassVar[str] = "forgetful"

    def inputs(self) -> tuple[str, ...]:
        return ("id",)

    def bind(self) -> Any:
        return lambda group: group.select(["id"])


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_operator_that_loses_where_rows_came_from_is_named(policy: str, runner: str) -> None:
    pipeline = pipeline_over(9, runner=runner, workers=2, on_error=policy).then(Forgetful()).batch(4)
    with pytest.raises(PluginError, match=r"(?s)forgetful left out the provenance column .*carry_provenance") as caught:
        list(pipeline)
    assert caught.value.where.operator == "forgetful"


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("word", [KeyboardInterrupt, SystemExit])
def test_user_code_that_ends_the_program_is_not_a_bad_record(word: type[BaseException], policy: str, runner: str) -> None:
    def end(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] == 37:
            raise word(3) if word is SystemExit else word()
        return record

    pipeline = pipeline_over(100, runner=runner, workers=2, on_error=policy).map(end).batch(4)
    with pytest.raises(word) as caught:
        list(pipeline)
    assert type(caught.value) is word
    assert getattr(caught.value, "code", 3) == 3


def test_sys_exit_in_a_worker_ends_the_program_with_its_code_and_leaves_nothing_behind(runner: str) -> None:
    script = """
    import sys
    from zephon import Dataset, Pipeline

    def end(record):
        sys.exit(7)

    if __name__ == "__main__":
        for batch in Pipeline(Dataset.from_records("d", [{"id": 1}])).map(end).batch(1).options(runner=RUNNER, workers=2):
            pass
    """
    code = textwrap.dedent(script).replace("RUNNER", repr(runner))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")

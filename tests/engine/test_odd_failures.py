"""Failures that aren't one bad record: values that don't go together, a library that is wrong, user code that ends the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from strategies import rows_of

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.errors import DataError, PluginError
from zephon.plugin import Drops, Operator, Outcome


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


@dataclass(frozen=True, kw_only=True)
class Speechless(Operator):
    """Returns something else."""

    name: ClassVar[str] = "speechless"

    def bind(self) -> Any:
        return lambda group: None


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_an_operator_that_returns_no_group_is_named_and_no_record_left_out_for_it(policy: str) -> None:
    with pytest.raises(PluginError, match="speechless returned NoneType; it must return a RecordBatch or an Outcome"):
        list(pipeline_over(9, runner="inline", on_error=policy).then(Speechless()).batch(4))


@dataclass(frozen=True, kw_only=True)
class Twice(Operator):
    """Says that it drops a row, and hands it on."""

    name: ClassVar[str] = "twice"

    def bind(self) -> Any:
        return lambda group: Outcome(group, Drops(rows={"no good": np.array([0])}))


def test_the_accounts_balance_whatever_an_operator_says_of_its_drops() -> None:
    pipeline = pipeline_over(9, runner="inline").then(Twice()).batch(4)
    assert sum(map(len, pipeline)) == 9
    rows = pipeline.accounting()["rows"]
    assert (rows["in"], rows["added"], rows["out"], rows["in_flight"]) == (9, 1, 9, 0)


class OddNumberError(DataError):
    """With arguments of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{number} is odd")


def test_an_error_of_the_users_with_arguments_of_its_own_keeps_its_text_and_place(runner: str) -> None:
    def check(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] % 2:
            raise OddNumberError(record["id"])
        return record

    with pytest.raises(DataError, match="1 is odd") as caught:
        list(pipeline_over(9, runner=runner, workers=2).map(check).batch(4))
    assert (caught.value.where.dataset, caught.value.where.row, caught.value.where.operator) == ("d", 1, "map")
    assert type(caught.value).__name__ == "OddNumberError"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_the_next_batch_in_a_forks_child_is_refused_and_not_waited_for(runner: str) -> None:
    script = """
    import os, time
    from zephon import Dataset, Pipeline
    from zephon.errors import RunnerError

    def slow(record):
        time.sleep(0.001)
        return record

    if __name__ == "__main__":
        data = Dataset.from_records("d", [{"id": i} for i in range(3000)])
        batches = iter(Pipeline(data).map(slow).batch(4).options(runner=RUNNER, workers=2, prefetch_batches=2))
        next(batches)
        child = os.fork()
        if not child:
            try:
                for _ in range(200):
                    next(batches)
            except RunnerError as error:
                os._exit(5 if "another process" in str(error) else 6)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert len(next(batches)) == 4
    """
    code = textwrap.dedent(script).replace("RUNNER", repr(runner))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


@pytest.mark.parametrize(("given", "wanted"), [(7, 7), ("", 0)])
def test_sys_exit_in_a_worker_ends_the_program_with_its_code_and_leaves_nothing_behind(
    given: Any, wanted: int, runner: str
) -> None:
    script = """
    import sys
    from zephon import Dataset, Pipeline

    def end(record):
        sys.exit(GIVEN)

    if __name__ == "__main__":
        for batch in Pipeline(Dataset.from_records("d", [{"id": 1}])).map(end).batch(1).options(runner=RUNNER, workers=2):
            pass
    """
    code = textwrap.dedent(script).replace("RUNNER", repr(runner)).replace("GIVEN", str(given))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (wanted, "")

"""Shards that are damaged, gone, replaced, empty or strangely named: a clear error or a counted drop, never a hang, never a wrong row."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import mds_data, writers_litdata
from formats.test_arrow import write_stream
from formats.test_conformance import lines_of
from formats.test_csv import write_csv
from formats.test_vortex import write as write_vortex
from stores.conftest import Place, make_place
from stores.formats import FORMATS, Rows

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.errors import DataError, RecipeError, ZephonError
from zephon.plugin import Shard

COUNT, SHARDS, EACH = 40, 4, 10
IN_FILES = [name for name, made in FORMATS.items() if made.suffix]
CHECKED = [name for name, made in FORMATS.items() if made.checks]


@pytest.fixture(autouse=True)
def never_a_hang() -> Iterator[None]:
    """A test that waits for longer than this has met a hang."""

    def over(number: int, frame: Any) -> None:
        raise TimeoutError("90 s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, 90)  # importing a format's own library takes half a minute on a busy machine
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["local", "memory"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, request, tmp_path)


def pipeline(dataset: Dataset, **options: Any) -> Pipeline:
    """One lane that reads shard by shard."""
    source = StaticMixtureWorkSource([dataset], seed=1, chunk_size=5, shuffle_block_size=5, stop_after_passes=1)
    return Pipeline(source).batch(1).options(lanes=1, **{"runner": "inline", "workers": 2, **options})


def row_of(batch: Any) -> str:
    (row,) = batch.group.to_pylist()
    return json.dumps({name: value for name, value in row.items() if name not in groups.PROVENANCE})


def outcome(made: Pipeline) -> tuple[list[str], DataError | None]:
    """All rows of a run, or the error that ended it."""
    try:
        return list(map(row_of, made)), None
    except DataError as error:
        return [], error


def rows_of(dataset: Dataset) -> Rows:
    return [row for unit in range(len(dataset.units.rows)) for batch in dataset.read(unit, None) for row in batch.to_pylist()]


def others(rows: Rows) -> Rows:
    """Rows that take as many bytes, and are not these."""
    return [
        {
            name: value.replace("row", "ROW")
            if name in ("text", "txt")
            else [t + 1 for t in value]
            if name == "input_ids"
            else value
            for name, value in row.items()
        }
        for row in rows
    ]


def data_of(shard: Shard) -> str:
    """The file that holds a shard's rows."""
    return str(shard.extra.get("bin", shard.path))


def harm(how: str, place: Place, victim: str, name: str, scratch: Path) -> None:
    """Delete, replace or cut a file, or put another one of its size in its place."""
    if how == "same size":
        made = FORMATS[name]
        (scratch / "all").mkdir(parents=True)
        made.write(scratch / "all", [others(made.rows(COUNT)[i : i + EACH]) for i in range(0, COUNT, EACH)])
        number = [data_of(s) for s in place.dataset().shards].index(victim)
        data = Path(data_of(Dataset.from_path("other", scratch / "all").shards[number])).read_bytes()
        assert len(data) == place.fs.size(victim)
        assert data != place.fs.cat_file(victim)
        place.fs.pipe_file(victim, data)
        return
    if how == "deleted":
        place.fs.rm_file(victim)
        return
    data = bytes(place.fs.cat_file(victim))
    if how == "replaced":
        FORMATS[name].write_rows(scratch, 100, 1)
        data = Path(data_of(Dataset.from_path("other", scratch).shards[0])).read_bytes()
        assert len(data) != place.fs.size(victim)
    else:
        data = data[: len(data) // 2]
    place.fs.pipe_file(victim, data)


# ------------------------------------------------------------------------------------------------------ during the run


@pytest.mark.parametrize("how", ["deleted", "replaced", "cut", "same size"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_shard_that_changes_during_a_run_is_an_error_that_names_it_or_drops_its_rows(
    name: str, how: str, here: Place, tmp_path: Path
) -> None:
    check_change(name, how, here, tmp_path)


@pytest.mark.parametrize(
    ("name", "how"), [("parquet", "replaced"), ("text", "replaced"), ("megatron", "replaced"), ("text", "same size")]
)
def test_an_object_of_s3_that_is_replaced_during_a_run_gives_no_wrong_row(
    name: str, how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    check_change(name, how, make_place("s3", request, tmp_path), tmp_path)


def check_change(name: str, how: str, here: Place, tmp_path: Path) -> None:
    rows = {json.dumps(row) for row in FORMATS[name].write_rows(tmp_path / "new", COUNT, SHARDS)}
    here.put(tmp_path / "new")
    victim = data_of(here.dataset().shards[2])
    whole = bytes(here.fs.cat_file(victim))
    runs = [
        pipeline(here.dataset("corpus"), on_error=policy, runner=runner)
        for policy, runner in (("raise", "inline"), ("raise", "threads"), ("skip", "threads"))
    ]
    for made in runs:
        made.explain()  # it has planned, and opened all shards
    harm(how, here, victim, name, tmp_path / "other")

    for made in runs[:2]:
        found, error = outcome(made)
        if error is not None:
            assert "'corpus'" in str(error)
            assert victim in str(error)
        else:  # the reader holds the file, or what was read of it is all there still
            assert (set(found), len(found)) == (rows, COUNT)
    found = list(map(row_of, runs[2]))
    report = runs[2].accounting()["rows"]
    assert (report["in"], report["out"]) == (COUNT, len(found))
    assert sum(report["dropped"].values()) == COUNT - len(found)
    assert len(found) == len(set(found))
    assert set(found) <= rows
    assert len(found) >= COUNT - EACH

    here.fs.pipe_file(victim, whole)
    assert {row_of(batch) for batch in pipeline(here.dataset())} == rows


# ------------------------------------------------------------------------------------------------------ before the run


@pytest.mark.parametrize("name", CHECKED)
def test_a_cut_shard_is_an_error_that_names_it_before_anything_is_delivered(name: str, here: Place, tmp_path: Path) -> None:
    FORMATS[name].write_rows(tmp_path / "new", COUNT, SHARDS)
    here.put(tmp_path / "new")
    victim = here.dataset().shards[2]
    data = bytes(here.fs.cat_file(data_of(victim)))
    for size in (1, 7, len(data) // 3, len(data) * 2 // 3):
        here.fs.pipe_file(data_of(victim), data[:size])
        with pytest.raises(DataError) as caught:
            list(pipeline(here.dataset("corpus")))
        assert "'corpus'" in str(caught.value)
        assert data_of(victim).rpartition("/")[2] in str(caught.value)


@pytest.mark.parametrize("name", IN_FILES)
def test_a_file_of_no_bytes_beside_good_ones_is_named_or_has_no_rows(name: str, here: Place, tmp_path: Path) -> None:
    rows = FORMATS[name].write_rows(tmp_path / "new", COUNT, SHARDS)
    here.put(tmp_path / "new")
    here.write(f"/part-1x{FORMATS[name].suffix}", b"")
    if name == "megatron":
        here.write("/part-1x.bin", b"")
    if name in ("csv", "text", "jsonl"):  # in which it holds no rows
        assert rows_of(here.dataset()) == rows
        return
    with pytest.raises(DataError, match=r"0 bytes") as caught:
        rows_of(here.dataset("corpus"))
    assert "'corpus'" in str(caught.value)
    assert f"part-1x{FORMATS[name].suffix}" in str(caught.value)


@pytest.mark.parametrize("name", IN_FILES)
def test_shards_without_rows_between_full_ones_count_for_nothing(name: str, here: Place, tmp_path: Path) -> None:
    made = FORMATS[name]
    rows = made.rows(20)
    (tmp_path / "new").mkdir()
    made.write(tmp_path / "new", [[], rows[:7], [], [], rows[7:], []])
    here.put(tmp_path / "new")
    dataset = here.dataset()
    assert len(dataset.shards) == 6
    assert rows_of(dataset) == rows
    assert sorted(map(row_of, pipeline(dataset))) == sorted(map(json.dumps, rows))


@pytest.mark.parametrize("name", IN_FILES)
def test_a_data_set_of_shards_without_rows_is_refused_by_name(name: str, here: Place, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    FORMATS[name].write(tmp_path / "new", [[], []])
    here.put(tmp_path / "new")
    with pytest.raises(RecipeError, match=r"'corpus'.*no (records|rows)|empty"):
        next(iter(pipeline(here.dataset("corpus"))))


# ------------------------------------------------------------------------------------------------------------- schemas

Write = Callable[[Path, int, pa.Table], None]


def _mds(folder: Path, number: int, table: pa.Table) -> None:
    kinds = {pa.int32(): "int32", pa.int64(): "int64", pa.string(): "str"}
    columns = {field.name: kinds[field.type] for field in table.schema}
    rows = [{n: np.dtype(k).type(v) if k != "str" else v for (n, k), v in zip(columns.items(), r.values(), strict=True)}
            for r in table.to_pylist()]  # fmt: skip
    mds_data.write(folder / f"s{number}", rows, columns)


def _lance(folder: Path, number: int, table: pa.Table) -> None:
    import lance

    lance.write_dataset(table, str(folder / f"{number}.lance"))


def _litdata(folder: Path, number: int, table: pa.Table) -> None:
    writers_litdata.write(folder / f"s{number}", table.to_pylist())


TYPED: dict[str, Write] = {
    "parquet": lambda folder, number, table: pq.write_table(table, folder / f"{number}.parquet"),
    "arrow": lambda folder, number, table: write_stream(folder / f"{number}.arrows", table),
    "vortex": lambda folder, number, table: write_vortex(folder / f"{number}.vortex", table) and None,
    "mds": _mds,
    "lance": _lance,
}
GUESSED: dict[str, Write] = {
    "jsonl": lambda folder, number, table: (folder / f"{number}.jsonl").write_bytes(lines_of(table.to_pylist())) and None,
    "csv": lambda folder, number, table: (
        (folder / f"{number}.csv").write_bytes(write_csv(table.to_pylist(), ",", "\n")) and None
    ),
    "litdata": _litdata,
}


def numbers(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"n": pa.array(values, kind), "text": [f"t{v}" for v in values]})


@pytest.mark.parametrize("name", TYPED)
def test_integers_of_two_widths_are_read_as_the_wider(name: str, here: Place, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    TYPED[name](tmp_path / "new", 0, numbers(pa.int32(), [1, 2, 3]))
    TYPED[name](tmp_path / "new", 1, numbers(pa.int64(), [2**40, -5]))
    here.put(tmp_path / "new")
    dataset = here.dataset()
    assert dataset.schema.field("n").type == pa.int64()
    made = pa.Table.from_batches([b.group for b in pipeline(dataset)])
    assert made.schema.field("n").type == pa.int64()
    assert sorted(made.column("n").to_pylist()) == [-5, 1, 2, 3, 2**40]


@pytest.mark.parametrize("name", TYPED | GUESSED)
def test_numbers_here_and_text_there_is_an_error_that_names_both_files(name: str, here: Place, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    write = (TYPED | GUESSED)[name]
    write(tmp_path / "new", 0, numbers(pa.int64(), [1, 2, 3]))
    write(tmp_path / "new", 1, numbers(pa.int64(), [4]))
    write(tmp_path / "new", 2, numbers(pa.string(), ["a", "b"]))
    here.put(tmp_path / "new")
    with pytest.raises(ZephonError) as caught:
        next(iter(pipeline(here.dataset("corpus"))))
    first, _, last = here.dataset().shards
    assert first.path in str(caught.value)
    assert last.path in str(caught.value)
    assert "'corpus'" in str(caught.value)
    assert "n" in str(caught.value)


@pytest.mark.parametrize("name", TYPED)
def test_a_column_that_a_shard_lacks_is_null_there(name: str, here: Place, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    TYPED[name](tmp_path / "new", 0, numbers(pa.int64(), [1, 2]))
    TYPED[name](tmp_path / "new", 1, numbers(pa.int64(), [3]).select(["n"]))
    here.put(tmp_path / "new")
    found = sorted(map(row_of, pipeline(here.dataset())))
    assert found == [json.dumps({"n": n, "text": t}) for n, t in ((1, "t1"), (2, "t2"), (3, None))]


# --------------------------------------------------------------------------------------------------------------- names

ODD = ["a b", "50%25", "x#y", "日本ü", "q?v=1", "[x]", "{a,b}", "a+b&c", "*"]


@pytest.mark.parametrize("name", FORMATS)
def test_any_letter_in_a_path_means_itself(name: str, place: Place, tmp_path: Path) -> None:
    rows = FORMATS[name].write_rows(tmp_path / "new", 8, 2)
    for path in sorted((tmp_path / "new").rglob("*")):
        if path.is_file():
            inner = path.relative_to(tmp_path / "new").as_posix()
            odd = inner.replace("part-", "part %20#ü?") if FORMATS[name].suffix else inner
            place.write(f"/a b/50%25#x/日本ü {{1,2}}[3]/{odd}", path.read_bytes())
    assert rows_of(place.dataset(path="/a b/50%25#x/日本ü {1,2}[3]")) == rows
    assert rows_of(place.dataset(path="/a b")) == rows


@pytest.mark.parametrize("odd", ODD)
def test_a_file_of_any_name_is_found_and_named_in_errors(odd: str, here: Place, tmp_path: Path) -> None:
    rows = FORMATS["parquet"].write_rows(tmp_path / "new", 4, 1)
    here.write(f"/{odd}/{odd}.parquet", (tmp_path / "new" / "part-0.parquet").read_bytes())
    for path in (f"/{odd}/{odd}.parquet", f"/{odd}"):
        assert rows_of(here.dataset(path=path)) == rows
    here.write(f"/{odd}/{odd}.parquet", b"PAR1 and no more")
    with pytest.raises(DataError) as caught:
        rows_of(here.dataset(path=f"/{odd}"))
    assert f"{odd}.parquet" in str(caught.value)

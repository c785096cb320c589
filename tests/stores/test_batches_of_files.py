"""Batches that show text and bytes where they lie in mapped files: the same values, never a wrong row, copies where these are wanted."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats.test_vortex import write as write_vortex

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError
from zephon.registry import load

ROWS = 40


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    """Payloads of some KB and of a few bytes, as photographs and their captions. (Of record batches that are much smaller the reader joins
    several, in memory of its own.)"""
    draw = np.random.default_rng(first)
    return [
        {
            "image": draw.bytes(int(draw.integers(0, 40_000))),
            "text": f"row {first + i}" * int(draw.integers(1, 4)),
            "id": first + i,
        }
        for i in range(count)
    ]


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema({"image": pa.binary(), "text": pa.string(), "id": pa.int64()}))


def write(name: str, folder: Path, rows: list[dict[str, Any]], part: int = 0) -> Path:
    """One file of the format, or a folder of them."""
    path = folder
    folder.mkdir(parents=True, exist_ok=True)
    table = table_of(rows)
    if name == "arrow":
        path = folder / f"{part}.arrow"
        with pa.ipc.new_file(path, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=20):
                writer.write_batch(batch)
    elif name == "parquet":
        pq.write_table(table, path := folder / f"{part}.parquet", row_group_size=9)
    elif name == "vortex":
        write_vortex(path := folder / f"{part}.vortex", table)
    else:
        reader = load("zephon.formats", name)()
        writer = reader.writer(str(folder / f"{part}{reader.part_suffix}"), table.schema)
        writer.write(table.combine_chunks().to_batches()[0])
        writer.close()
        reader.finish(str(folder))
    return path


def pipeline(*datasets: Dataset, shuffle: int = 0, thirds: bool = False, **options: Any) -> Pipeline:
    source = StaticMixtureWorkSource(
        list(datasets), {d.name: 1 for d in datasets}, seed=1, chunk_size=11, shuffle_block_size=17, stop_after_passes=1
    )
    made = Pipeline(source)
    made = made.filter(lambda record: record["id"] % 3 > 0) if thirds else made
    made = made.shuffle(buffer_size=shuffle) if shuffle else made
    return made.batch(4).options(lanes=2, **{"runner": "inline", "flush_every_chunks": 2, **options})


def payloads(batch: Any) -> list[dict[str, Any]]:
    return [dict(record.payload) for record in batch.records]


@pytest.mark.parametrize("shuffle", [0, 13])
@pytest.mark.parametrize("runner", ["inline", "threads"])
@pytest.mark.parametrize("kinds", [("arrow", "memory", "parquet"), ("litdata",), ("vortex",)])
def test_they_are_what_copies_are(kinds: tuple[str, ...], runner: str, shuffle: int, tmp_path: Path) -> None:
    """Rows, types, tensors, hashes and states, whatever the batches are made of."""
    datasets = []
    for number, kind in enumerate(kinds):
        rows = rows_of(100 * number, ROWS)
        if kind == "memory":
            datasets.append(Dataset.from_records(kind, table_of(rows)))
            continue
        write(kind, tmp_path / kind, rows)
        datasets.append(Dataset.from_path(kind, tmp_path / kind))
    views, copies = (pipeline(*datasets, shuffle=shuffle, runner=runner, copy=copy) for copy in (False, True))
    seen = 0
    for one, other in zip(views, copies, strict=True):
        seen += len(one)
        assert payloads(one) == payloads(other)
        assert one.to_pydict() == other.to_pydict()
        assert (one.group.schema, one.group.to_pylist()) == (other.group.schema, other.group.to_pylist())
        assert one.column("image").equals(other.group.column(0))
        for name in ("image", "text"):
            shown = [bytes(value) for value in one.buffers(name)]
            assert (
                shown
                == [bytes(value) for value in other.buffers(name)]
                == [v.as_buffer().to_pybytes() for v in one.column(name)]
            )
        assert one.ids == other.ids
        assert one.sha256() == other.sha256()
        assert pickle.loads(pickle.dumps(one)).group.equals(one.group)
        assert views.checkpoint() == copies.checkpoint()
    assert seen >= ROWS * len(kinds)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("operator", [False, True])
def test_rows_of_bundles_that_are_too_large_for_one_piece_are_the_same(copy: bool, operator: bool, tmp_path: Path) -> None:
    """Of 256 MB and more a bundle stays in the pieces that it was read in."""
    datasets = [Dataset.from_records("memory", table_of(rows_of(0, ROWS)))]
    for number, kind in enumerate(("arrow", "litdata", "parquet")):
        write(kind, tmp_path / kind, rows_of(100 * number, ROWS))
        datasets.append(Dataset.from_path(kind, tmp_path / kind))

    def run(one_piece: int) -> list[list[dict[str, Any]]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("zephon.engine.fetch._ONE_PIECE", one_piece)
            return [payloads(batch) for batch in pipeline(*datasets, shuffle=13, thirds=operator, copy=copy)]

    assert run(1) == run(256 << 20)


def test_lanes_without_rows_have_the_same_columns(tmp_path: Path) -> None:
    write("arrow", tmp_path, rows_of(0, 3))
    source = StaticMixtureWorkSource([Dataset.from_path("a", tmp_path)], seed=1, shuffle_block_size=2, stop_after_passes=1)
    batches = list(Pipeline(source).batch(1).options(lanes=4, runner="inline"))
    assert min(len(b) for b in batches) == 0
    assert sum(map(len, batches)) == 3
    assert {batch.group.schema.field("image").type for batch in batches} == {pa.binary()}
    assert all(batch.group.to_pylist() == [] for batch in batches if not len(batch))


def test_functions_of_users_see_ordinary_columns(tmp_path: Path) -> None:
    write("arrow", tmp_path, rows_of(0, ROWS))
    types: set[Any] = set()

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        types.add((batch.schema.field("image").type, batch.schema.field("text").type))
        return batch

    source = StaticMixtureWorkSource([Dataset.from_path("a", tmp_path)], seed=1, stop_after_passes=1)
    batches = list(Pipeline(source).map_batches(look).batch(4).options(runner="inline"))
    assert types == {(pa.binary(), pa.string())}
    assert sum(map(len, batches)) == ROWS


def test_values_of_fields_and_nulls(tmp_path: Path) -> None:
    """As Hugging Face stores images."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": bytes([i]) * 3_000, "path": None if i % 3 else f"{i}.jpg"} for i in range(20)]
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema({"image": kind})) as writer:
        writer.write_table(pa.table({"image": pa.array(rows, kind)}))
    source = StaticMixtureWorkSource([Dataset.from_path("a", tmp_path)], seed=1, stop_after_passes=1)
    for batch in Pipeline(source).batch(5).options(runner="inline"):
        given = [record.payload["image"] for record in batch.records]
        assert [bytes(v) for v in batch.buffers("image.bytes") if v is not None] == [g["bytes"] for g in given]
        assert [v if v is None else bytes(v).decode() for v in batch.buffers("image.path")] == [g["path"] for g in given]
        with pytest.raises(DataError, match="no field 'size'"):
            batch.buffers("image.size")
        with pytest.raises(DataError, match="text or bytes"):
            batch.buffers("image")


def start(path: Path, **options: Any) -> tuple[Pipeline, Iterator[Any], Any]:
    """The first batch of a run whose second one was fetched along with it."""
    made = pipeline(Dataset.from_path("corpus", path), **options)
    batches = iter(made)
    return made, batches, next(batches)


def spoil(victim: Path) -> None:
    """Other bytes, in place."""
    with victim.open("r+b") as file:
        file.write(bytes(victim.stat().st_size))
    os.utime(victim, ns=(1, 1))  # whatever the clock's grain is


@pytest.mark.parametrize("shuffle", [0, 13])
def test_a_batch_of_a_file_that_was_written_to_is_not_given_out(shuffle: int, tmp_path: Path) -> None:
    victim = write("arrow", tmp_path, rows_of(0, ROWS))
    made, batches, _ = start(tmp_path, shuffle=shuffle)
    state = made.checkpoint()
    spoil(victim)
    with pytest.raises(DataError, match="changed or replaced") as raised:
        next(batches)
    assert "'corpus'" in str(raised.value)
    assert str(victim) in str(raised.value)
    assert made.checkpoint() == state


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_rows_of_one_that_was_written_to_are_left_out_where_the_policy_says_so(runner: str, tmp_path: Path) -> None:
    """And those of its neighbours come, though they are in bundles with them."""
    for part in range(3):
        write("arrow", tmp_path, rows_of(part * ROWS, ROWS), part)
    source = StaticMixtureWorkSource([Dataset.from_path("corpus", tmp_path)], seed=1, stop_after_passes=1)
    made = Pipeline(source).batch(8).options(runner=runner, lanes=1, on_error="skip")
    batches = iter(made)
    spoil(tmp_path / "1.arrow")
    ids = sorted(record.payload["id"] for batch in batches for record in batch.records)
    assert ids == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]
    assert made.accounting()["rows"]["dropped"] == {"source: unreadable": ROWS}


def test_that_of_another_file_is(tmp_path: Path) -> None:
    """Only the files that a batch is of count."""
    for part in range(2):
        write("arrow", tmp_path, rows_of(part * ROWS, ROWS), part)
    made, batches, first = start(tmp_path, max_bytes=1 << 20)
    given = {record.meta.sample_id[1] for record in first.records}
    assert len(given) == 1
    spoil(tmp_path / f"{1 - given.pop()}.arrow")
    del made
    rows = {row["id"]: row for row in rows_of(0, ROWS) + rows_of(ROWS, ROWS)}
    found = payloads(first)
    with pytest.raises(DataError, match="changed or replaced"):
        for batch in batches:
            found += payloads(batch)
    assert all(row == rows[row["id"]] for row in found)


@pytest.mark.parametrize("replaced", [False, True])
def test_one_that_is_out_outlives_its_file(replaced: bool, tmp_path: Path) -> None:
    """Deleted, or another in its place: a map keeps the file that it is of."""
    victim = write("arrow", tmp_path / "a", rows_of(0, ROWS))
    _, batches, first = start(tmp_path / "a")
    values = [bytes(v) for v in first.buffers("image")]
    shown = first.buffers("image")
    if replaced:
        os.replace(write("arrow", tmp_path / "b", rows_of(500, ROWS)), victim)
    else:
        victim.unlink()
    batches.close()  # type: ignore[attr-defined]
    assert [bytes(v) for v in shown] == values
    known = {row["id"]: row for row in rows_of(0, ROWS)}
    assert all(row == known[row["id"]] for row in payloads(first))


@pytest.mark.parametrize("copy", [False, True])
def test_copies_are_nobody_elses(copy: bool, tmp_path: Path) -> None:
    victim = write("arrow", tmp_path, [{"image": b"a" * 20_000, "text": "t", "id": i} for i in range(ROWS)])
    _, _, first = start(tmp_path, copy=copy)
    shown = first.buffers("image")
    spoil(victim)
    assert all(bytes(value) == (b"a" * 20_000 if copy else bytes(20_000)) for value in shown)

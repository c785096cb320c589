"""Vortex as `vortex-data` writes it, and what it gave other readers to stumble over (numbers: the cases under shared/cases)."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import vortex
from formats.reading import open_file, read_rows
from formats.tables import NESTED, NESTED_ROWS, check_reads_from_threads, wide
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, PluginError, RecipeError
from zephon.plugin import Shard
from zephon.storage import LocalStore
from zephon.testing import CountingStore, check_format
from zephon_formats.vortex import Vortex, unit_borders


def write(path: Path, table: pa.Table, chunk: int | None = None) -> Path:
    vortex.io.write(table if chunk is None else table.to_reader(max_chunksize=chunk), str(path))
    return path


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
    table = pa.Table.from_pylist(rows) if rows else pa.table({"id": pa.array([], pa.int64())})
    half = len(rows) // 2
    return [write(folder / "a.vortex", table.slice(0, half)), write(folder / "b.vtx", table.slice(half))]


@pytest.mark.parametrize("unit_bytes", [256 << 20, 2000])
def test_vortex_conforms(unit_bytes: int) -> None:
    check_format(Vortex(unit_bytes=unit_bytes), write_rows)


@settings(max_examples=examples(25), deadline=None)
@given(rows=st.lists(NESTED_ROWS, max_size=30), columns=st.none() | st.permutations("isbl").map(lambda p: p[:2]))
def test_rows_come_back_as_vortex_wrote_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], columns: Any
) -> None:
    path = write(tmp_path_factory.mktemp("v") / "a.vortex", pa.Table.from_pylist(rows, NESTED))
    expected = rows if columns is None else [{c: row[c] for c in columns} for row in rows]
    assert read_rows(open_file(Vortex(), path), columns) == expected
    assert vortex.open(str(path)).to_arrow().read_all().to_pylist() == rows


def test_types_are_the_ordinary_ones_and_values_those_that_vortex_reads(tmp_path: Path) -> None:
    """73: text and bytes come as views, and dictionaries as text."""
    day = datetime.datetime(2020, 2, 29, 1, 2, 3)
    table = pa.table(
        {
            "i8": pa.array([1, None, -3], pa.int8()),
            "u64": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "f16": pa.array(np.array([1.5, 0, -2], np.float16)),
            "flag": [True, None, False],
            "nothing": pa.nulls(3),
            "word": pa.array(["x", None, "x"]).dictionary_encode(),
            "large": pa.array(["a" * 40, None, ""], pa.large_string()),
            "bytes": pa.array([b"\0\xff", None, b""], pa.large_binary()),
            "price": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(-3)], pa.decimal128(10, 2)),
            "time": pa.array([day, None, day], pa.timestamp("us")),
            "zoned": pa.array([day, None, day], pa.timestamp("ns", "Europe/Berlin")),
            "date": pa.array([day.date(), None, day.date()]),
            "clock": pa.array([day.time(), None, day.time()]),
            "fixed": pa.array([[1, None], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "map": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
            "deep": pa.array([{"l": [{"b": [b"1", None]}, None]}, None, {"l": None}]),
            "json": pa.array(["{}", None, "1"], pa.json_()),
        }
    )
    opened = open_file(Vortex(), write(tmp_path / "a.vortex", table))
    assert opened.schema.types == [
        pa.int8(), pa.uint64(), pa.float16(), pa.bool_(), pa.null(), pa.string(), pa.string(), pa.binary(), pa.decimal128(10, 2),
        pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"), pa.date32(), pa.time64("us"), pa.list_(pa.int32(), 2),
        pa.map_(pa.string(), pa.string()), pa.struct([("l", pa.list_(pa.struct([("b", pa.list_(pa.binary()))])))]), pa.string(),
    ]  # fmt: skip
    assert read_rows(opened) == table.to_pylist() == vortex.open(str(tmp_path / "a.vortex")).to_arrow().read_all().to_pylist()


def test_a_file_of_several_splits_has_a_unit_for_each_and_keeps_the_order(tmp_path: Path) -> None:
    table = wide(20_000, 40)
    path = write(tmp_path / "a.vortex", table, chunk=777)
    opened = open_file(Vortex(), path)
    assert len(opened.units().rows) > 1
    assert opened.units().rows.sum() == 20_000
    assert opened.units().nbytes.sum() >= path.stat().st_size
    assert (
        pa.Table.from_batches([b for u, n in enumerate(opened.units().rows.tolist()) for b in opened.read(u, None, 0, n)])
        == table
    )


def test_a_large_split_is_read_in_even_parts_and_small_ones_together() -> None:
    assert unit_borders([(0, 8192), (8192, 10_000)], 10_000, 10_000_000, 4_000_000).tolist() == [0, 2730, 5461, 8192, 10_000]
    assert unit_borders([(i, i + 10) for i in range(0, 3000, 10)], 3000, 3000, 1 << 30).tolist() == [0, 1030, 2060, 3000]
    assert unit_borders([(i, i + 1) for i in range(4)], 4, 8 << 20, 1 << 30).tolist() == [0, 1, 2, 3, 4]
    assert unit_borders([(0, 3)], 3, 1 << 40, 1).tolist() == [0, 1, 2, 3]
    assert unit_borders([], 0, 1000, 1).tolist() == [0]


def test_text_beyond_what_one_array_takes_comes_in_several_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small: the limit of 2 GiB is lowered. Arrow's own cast of views gives offsets that have wrapped around."""
    monkeypatch.setattr("zephon_formats._ordinary._MOST_BYTES", 5000)
    texts = [f"{i:04d}" * (1 + i % 30) for i in range(900)]
    table = pa.table({"t": texts, "n": [{"x": [t, None]} for t in texts], "i": range(900)})
    opened = open_file(Vortex(), write(tmp_path / "a.vortex", table))
    assert len(opened.read(0, None, 0, 900)) > 3
    assert read_rows(opened) == table.to_pylist()


def test_only_the_columns_asked_for_are_fetched(tmp_path: Path) -> None:
    path = write(tmp_path / "a.vortex", wide(3000, 1000))
    store = CountingStore(LocalStore(), local=False)
    opened = open_file(Vortex(), path, store=store)
    assert [row["n"] for row in read_rows(opened, ["n", "nothing"])] == list(range(3000))
    assert [(b.num_rows, b.num_columns) for b in opened.read(0, [], 3, 10)] == [(7, 0)]
    assert store.total < 300_000 < path.stat().st_size


@pytest.mark.parametrize("name", ["a.b", "", "*", "$x", "sélect", "a b"])
def test_any_column_name_is_only_a_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "a.vortex", pa.table({name: [1, 2], "a": [{"b": 3}, {"b": 4}]}))
    assert read_rows(open_file(Vortex(), path), [name]) == [{name: 1}, {name: 2}]


def test_a_row_that_is_null_as_a_whole_has_nulls_in_every_column(tmp_path: Path) -> None:
    vortex.io.write(vortex.array([{"a": 1, "b": "x"}, None, {"a": 3, "b": None}]), str(tmp_path / "a.vortex"))
    assert read_rows(open_file(Vortex(), tmp_path / "a.vortex")) == [
        {"a": 1, "b": "x"},
        {"a": None, "b": None},
        {"a": 3, "b": None},
    ]


def test_a_file_without_columns_is_refused_and_says_what_it_holds(tmp_path: Path) -> None:
    vortex.io.write(vortex.array([1, 2, 3]), str(tmp_path / "a.vortex"))
    with pytest.raises(DataError, match="no columns"):
        open_file(Vortex(), tmp_path / "a.vortex")


def test_a_path_is_never_taken_for_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "50% #1? é {a,b}"
    folder.mkdir()
    path = write(tmp_path / "a.vortex", pa.table({"n": [1]})).rename(folder / "a %20.vortex")
    opened = Vortex().open(LocalStore(), Shard(str(path), path.stat().st_size))
    assert read_rows(opened) == [{"n": 1}]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("damage", ["magic", "cut", "zero", "tiny", "middle", "noise"])
def test_damage_is_a_data_error_that_names_the_shard(tmp_path: Path, damage: str, local: bool) -> None:
    path = write(tmp_path / "part-7.vortex", wide(3000, 30))
    data = bytearray(path.read_bytes())
    noise = np.random.default_rng(3).bytes(len(data))
    middle = data[:100] + noise[: len(data) * 3 // 4] + data[100 + len(data) * 3 // 4 :]
    path.write_bytes(
        {"magic": data[:-4] + b"PAR1", "cut": data[:-1000], "zero": b"", "tiny": b"VTXF", "middle": middle, "noise": noise}[
            damage
        ]
    )
    store = CountingStore(LocalStore(), local=local)
    with pytest.raises(DataError, match=r"part-7\.vortex") as caught:
        read_rows(open_file(Vortex(), path, store=store))
    assert "acktrace" not in caught.value.message


@pytest.mark.parametrize("local", [True, False])
def test_a_file_that_changes_size_during_the_run_is_refused_not_mapped(tmp_path: Path, local: bool) -> None:
    path = write(tmp_path / "a.vortex", wide(500, 1000))  # the end of the file is read, and kept, at once
    opened = open_file(Vortex(), path, store=CountingStore(LocalStore(), local=local))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:50])
    with pytest.raises(DataError, match=r"50 bytes" if local else "when it was listed|can't be read"):
        opened.read(0, None, 0, 10)
    with pytest.raises(DataError, match="when it was listed"):
        Vortex().open(LocalStore(), Shard(str(path), len(data)))


class _Failing(CountingStore):
    """A store that fails in the middle of a run."""

    def __init__(self) -> None:
        super().__init__(LocalStore(), local=False)
        self.fails = False

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if self.fails:
            raise DataError("no answer after 5 tries", hint="try later")
        return super().read(path, start, stop)


def test_what_a_store_raises_is_what_the_caller_gets(tmp_path: Path) -> None:
    store = _Failing()
    opened = open_file(Vortex(), write(tmp_path / "a.vortex", wide(3000, 100)), store=store)
    store.fails = True
    with pytest.raises(DataError, match=r"a\.vortex") as caught:
        opened.read(0, ["blob"], 0, 10)
    assert caught.value.message == "no answer after 5 tries"
    assert caught.value.hint == "try later"
    store.fails = False
    assert opened.read(0, ["n"], 0, 2)[0].to_pylist() == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("local", [True, False])
def test_reads_from_many_threads_are_those_of_one(tmp_path: Path, local: bool) -> None:
    table = wide(20_000, 60)
    path = write(tmp_path / "a.vortex", table)
    opened = open_file(Vortex(unit_bytes=100_000), path, store=CountingStore(LocalStore(), local=local))
    check_reads_from_threads(opened, table)


def test_a_group_outlives_its_shard(tmp_path: Path) -> None:
    table = wide(500, 1000)
    opened = open_file(Vortex(), write(tmp_path / "a.vortex", table))
    batches = opened.read(0, None, 100, 500)
    opened.close()
    del opened
    assert pa.Table.from_batches(batches) == table.slice(100)


def test_a_process_that_stops_in_the_middle_ends_at_once(tmp_path: Path) -> None:
    """Threads that are joined before the interpreter goes, as the runners' are; Vortex ends a process whose daemons still read."""
    path = write(tmp_path / "a.vortex", wide(20_000, 60))
    code = f"""
import os
from concurrent.futures import ThreadPoolExecutor
from zephon.plugin import Shard
from zephon.storage import LocalStore
from zephon.testing import CountingStore
from zephon_formats.vortex import Vortex
path = {str(path)!r}
pool = ThreadPoolExecutor(4)
for local in (True, False):
    opened = Vortex(unit_bytes=100_000).open(CountingStore(LocalStore(), local=local), Shard(path, os.path.getsize(path)))
    tasks = [pool.submit(opened.read, unit, None, 0, 100) for unit in range(8)]
print(len(tasks[0].result()))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (out.returncode, out.stdout) == (0, "1\n"), out.stderr


def test_what_the_writer_writes_is_read_back_and_what_vortex_cannot_hold_is_refused(tmp_path: Path) -> None:
    table = wide(300, 50)
    made = Vortex().writer(str(tmp_path / "a.vortex"), table.schema)
    for batch in table.to_batches(max_chunksize=70):
        made.write(batch)
    made.close()
    assert read_rows(open_file(Vortex(), tmp_path / "a.vortex")) == table.to_pylist()
    for kind in (pa.binary(4), pa.list_(pa.struct([("d", pa.duration("s"))]))):
        with pytest.raises(RecipeError, match="'x'"):
            Vortex().writer(str(tmp_path / "b.vortex"), pa.schema([("x", kind)]))


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.vortex", pa.table({"n": [1]}))
    monkeypatch.setitem(sys.modules, "vortex", None)
    with pytest.raises(PluginError, match=r"vortex-data") as caught:
        open_file(Vortex(), path)
    assert "zephon[vortex]" in str(caught.value)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(RecipeError, match="unit_bytes"):
        Vortex(unit_bytes=0)

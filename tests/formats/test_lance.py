"""Lance data sets as `pylance` writes and changes them."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import lance
import numpy as np
import pyarrow as pa
import pytest
from formats.reading import read_rows
from formats.tables import check_reads_from_threads, wide
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, PluginError, RecipeError
from zephon.plugin import Shard, Store
from zephon.storage import LocalStore, expand, open_store
from zephon.testing import CountingStore, check_format
from zephon_formats._lance_mirror import manifest_of
from zephon_formats.lance import Lance

ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=20),
        "b": st.none() | st.binary(max_size=20),
        "l": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3),
    }
)
SCHEMA = pa.schema([("i", pa.int64()), ("s", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.int8()))])


def remote() -> Store:
    return CountingStore(LocalStore(), local=False)


def read_all(root: Path, reader: Lance | None = None, columns: Sequence[str] | None = None, store: Store | None = None) -> Any:
    """The rows of the data sets at or below `root`."""
    reader, store = reader or Lance(), store or LocalStore()
    rows: list[dict[str, Any]] = []
    for shard in reader.shards(store, expand(LocalStore(), str(root))):
        opened = reader.open(store, shard)
        rows += read_rows(opened, columns)
        opened.close()
    return rows


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
    if not rows:
        return []  # a data set without rows has no data file
    made = lance.write_dataset(pa.Table.from_pylist(rows), str(folder / "d.lance"), max_rows_per_file=70)
    return [folder / "d.lance" / "data" / f.data_files()[0].path for f in made.get_fragments()]


@pytest.mark.parametrize("unit_bytes", [32 << 20, 500])
def test_lance_conforms(unit_bytes: int) -> None:
    check_format(Lance(unit_bytes=unit_bytes), write_rows)


@settings(max_examples=examples(20), deadline=None)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=30),
    columns=st.none() | st.permutations("isbl").map(lambda p: p[:2]),
    drop=st.sets(st.integers(0, 29)),
)
def test_rows_come_back_as_lance_reads_them_without_the_deleted_ones(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], columns: Any, drop: set[int]
) -> None:
    root = tmp_path_factory.mktemp("l") / "a.lance"
    table = pa.Table.from_pylist(rows, SCHEMA).append_column("number", pa.array(range(len(rows))))
    made = lance.write_dataset(table, str(root), max_rows_per_file=9)
    if drop:
        made.delete(f"number in ({', '.join(map(str, sorted(drop)))})")
    left = [row for number, row in enumerate(rows) if number not in drop]
    expected = [{c: row[c] for c in columns or "isbl"} for row in left]
    got = read_all(root, Lance(unit_bytes=200), columns)
    assert [{c: row[c] for c in columns or "isbl"} for row in got] == expected
    assert lance.dataset(str(root)).to_table(columns=list(columns or "isbl")).to_pylist() == expected


@pytest.mark.parametrize("storage", ["legacy", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize("local", [True, False])
def test_every_storage_version_is_read_in_every_state(tmp_path: Path, storage: str, local: bool) -> None:
    """Several fragments, rows appended, deleted and changed."""
    root = tmp_path / "a.lance"
    made = lance.write_dataset(wide(900, 30), str(root), max_rows_per_file=400, data_storage_version=storage)
    made = lance.write_dataset(wide(100, 30), str(root), mode="append")
    made.delete("n % 7 = 3")
    made.delete("n >= 400 and n < 800")
    made.update({"text": "'changed'"}, where="n = 5")
    expected = lance.dataset(str(root)).to_table().to_pylist()
    assert 0 < len(expected) < 1000
    assert read_all(root, store=None if local else remote()) == expected
    assert read_all(root, Lance(unit_bytes=3000), ["blob", "n"], None if local else remote()) == [
        {"blob": r["blob"], "n": r["n"]} for r in expected
    ]


def test_types_are_the_ordinary_ones_and_values_those_that_lance_reads(tmp_path: Path) -> None:
    day = datetime.datetime(2020, 2, 29, 1, 2, 3)
    table = pa.table(
        {
            "u64": pa.array([2**64 - 1, None, 0], pa.uint64()),
            "f16": pa.array(np.array([1.5, 0, -2], np.float16)),
            "flag": [True, None, False],
            "nothing": pa.nulls(3),
            "word": pa.array(["x", None, "x"]).dictionary_encode(),
            "large": pa.array(["a" * 40, None, ""], pa.large_string()),
            "pair": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "price": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal(-3)], pa.decimal128(10, 2)),
            "zoned": pa.array([day, None, day], pa.timestamp("us", "Europe/Berlin")),
            "span": pa.array([datetime.timedelta(1), None, datetime.timedelta(0)], pa.duration("us")),
            "fixed": pa.array([[1, None], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "map": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
            "deep": pa.array([{"l": [{"b": [b"1", None]}, None]}, None, {"l": None}]),
            "json": pa.array(["{}", None, "1"], pa.json_()),
        }
    )
    made = lance.write_dataset(table, str(tmp_path / "a.lance"))
    (shard,) = Lance().shards(LocalStore(), expand(LocalStore(), str(tmp_path / "a.lance")))
    opened = Lance().open(LocalStore(), shard)
    assert opened.schema.types == [
        pa.uint64(), pa.float16(), pa.bool_(), pa.null(), pa.string(), pa.large_string(), pa.binary(2), pa.decimal128(10, 2),
        pa.timestamp("us", "Europe/Berlin"), pa.duration("us"), pa.list_(pa.int32(), 2), pa.map_(pa.string(), pa.string()),
        pa.struct([("l", pa.list_(pa.struct([("b", pa.list_(pa.binary()))])))]), pa.string(),
    ]  # fmt: skip
    assert opened.schema.metadata is None
    assert read_rows(opened) == table.to_pylist() == made.to_table().to_pylist()


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("kind", ["2.0", "2.1", "2.2", "v2"])
def test_blob_columns_hold_their_bytes(tmp_path: Path, kind: str, local: bool) -> None:
    blobs = [b"x" * 200_000, None, b"", b"y" * 3_000_000, b"z"]
    root = str(tmp_path / "a.lance")
    if kind == "v2":
        schema = pa.schema([pa.field("n", pa.int64()), lance.blob_field("blob")])
        table = pa.table({"n": range(5), "blob": lance.blob_array(blobs)}, schema=schema)
        lance.write_dataset(table, root, data_storage_version="2.2")
    else:
        blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        table = pa.table({"n": range(5), "blob": blobs}, schema=pa.schema([pa.field("n", pa.int64()), blob]))
        lance.write_dataset(table, root, data_storage_version=kind)
    store = LocalStore() if local else remote()
    (shard,) = Lance().shards(store, expand(LocalStore(), root))
    opened = Lance().open(store, shard)
    assert opened.schema == pa.schema([("n", pa.int64()), ("blob", pa.large_binary())])
    assert read_rows(opened, ["blob"]) == [{"blob": b} for b in blobs]
    assert opened.read(0, None, 3, 5)[-1].to_pylist()[-1] == {"n": 4, "blob": b"z"}
    assert shard.size > 3_000_000


def test_columns_that_were_added_dropped_and_rewritten_are_those_of_the_version(tmp_path: Path) -> None:
    root = str(tmp_path / "a.lance")
    made = lance.write_dataset(wide(300, 10), root, max_rows_per_file=100)
    made.add_columns({"double": "n * 2"})
    made.drop_columns(["text"])
    expected = made.to_table().to_pylist()
    assert list(expected[0]) == ["n", "blob", "double"]
    assert read_all(tmp_path) == expected
    assert read_all(tmp_path, store=remote()) == expected
    assert read_all(tmp_path, columns=["double", "text"]) == [{"double": r["double"]} for r in expected]


@pytest.mark.parametrize("local", [True, False])
def test_a_version_is_pinned_by_number_or_tag_and_the_latest_is_read_without(tmp_path: Path, local: bool) -> None:
    root = tmp_path / "a.lance"
    made = lance.write_dataset(wide(50, 10), str(root))
    made.tags.create("first", 1)
    made = lance.write_dataset(wide(20, 10), str(root), mode="append")
    made.delete("n < 10")
    store = None if local else remote()
    latest, first = read_all(root, Lance(), ["n"], store), [{"n": n} for n in range(50)]
    assert latest == made.to_table(["n"]).to_pylist()
    assert read_all(root, Lance(version=1), ["n"], store) == first == read_all(root, Lance(version="first"), ["n"], store)
    assert len(read_all(root, Lance(version=2), ["n"], store)) == 70
    for absent in (9, "none"):
        with pytest.raises(DataError, match=r"a\.lance"):
            read_all(root, Lance(version=absent), ["n"], store)


def test_shards_say_what_changed_and_stay_readable_after_it(tmp_path: Path) -> None:
    root = tmp_path / "a.lance"
    store = LocalStore()
    made = lance.write_dataset(wide(300, 10), str(root), max_rows_per_file=100)
    before = Lance().shards(store, store.files(str(root)))
    lance.write_dataset(wide(20, 10), str(root), mode="append")
    grown = Lance().shards(store, store.files(str(root)))
    assert [s.etag for s in grown[:3]] == [s.etag for s in before]
    made = lance.dataset(str(root))
    made.delete("n = 150")
    smaller = Lance().shards(store, store.files(str(root)))
    assert [a.etag == b.etag for a, b in zip(smaller, grown, strict=True)] == [True, False, True, True]
    assert [s.extra["rows"] for s in smaller] == [100, 99, 100, 20]
    made.optimize.compact_files()
    assert len(Lance().shards(store, store.files(str(root)))) == 1
    kept = [row for shard in pickle.loads(pickle.dumps(before)) for row in read_rows(Lance().open(store, shard), ["n"])]
    assert kept == [{"n": n} for n in range(300)]


def test_several_data_sets_below_one_directory_are_read_one_after_the_other(tmp_path: Path) -> None:
    for name in ("b", "a.lance"):
        lance.write_dataset(pa.table({"from": [name] * 2}), str(tmp_path / name))
    (tmp_path / "README.md").write_text("notes")
    assert [row["from"] for row in read_all(tmp_path)] == ["a.lance", "a.lance", "b", "b"]


def test_old_data_files_of_an_overwritten_set_are_left_aside(tmp_path: Path) -> None:
    lance.write_dataset(wide(50, 10), str(tmp_path / "a.lance"))
    lance.write_dataset(pa.table({"x": [1]}), str(tmp_path / "a.lance"), mode="overwrite")
    assert read_all(tmp_path) == [{"x": 1}]


@pytest.mark.parametrize("name", ["A", "a", "a b", "a-b", "$x", "é", "select", '"q"'])
def test_any_column_name_is_only_a_name(tmp_path: Path, name: str) -> None:
    other = {"A": "a", "a": "A"}.get(name, "z")
    lance.write_dataset(pa.table({name: [1, 2], other: [5, 6]}), str(tmp_path / "a.lance"))
    assert read_all(tmp_path, columns=[name]) == [{name: 1}, {name: 2}]


@pytest.mark.parametrize("name", ["", "a`b"])
def test_a_column_that_lance_cannot_scan_is_named(tmp_path: Path, name: str) -> None:
    lance.write_dataset(pa.table({name: [1, 2], "z": [5, 6]}), str(tmp_path / "a.lance"))
    with pytest.raises(DataError, match=f"No field named .*{name}"):
        read_all(tmp_path)


@pytest.mark.parametrize("local", [True, False])
def test_a_path_is_never_taken_for_an_address(tmp_path: Path, local: bool) -> None:
    folder = tmp_path / "50% #1? é {a,b} %20"
    lance.write_dataset(pa.table({"n": [1]}), str(tmp_path / "a.lance"))
    folder.mkdir()
    shutil.move(tmp_path / "a.lance", folder / "a b?c#d%41.lance")
    assert read_all(folder, store=None if local else remote()) == [{"n": 1}]


def test_a_data_set_in_a_store_that_lance_does_not_know_is_read(tmp_path: Path) -> None:
    made = lance.write_dataset(wide(300, 10), str(tmp_path / "a.lance"), max_rows_per_file=100)
    made.delete("n = 150")
    fs = fsspec.filesystem("memory")
    fs.put(str(tmp_path / "a.lance"), "/lance-test/a.lance", recursive=True)
    try:
        store, path = open_store("memory://lance-test/a.lance")
        shards = Lance().shards(store, expand(store, path))
        rows = [row for shard in shards for row in read_rows(Lance().open(store, shard))]
        assert rows == made.to_table().to_pylist()
    finally:
        fs.rm("/lance-test", recursive=True)


def test_a_remote_fragment_is_fetched_when_it_is_read_and_only_then(tmp_path: Path) -> None:
    lance.write_dataset(wide(300, 3000), str(tmp_path / "a.lance"), max_rows_per_file=100)
    store = CountingStore(LocalStore(), local=False)
    shards = Lance().shards(store, expand(LocalStore(), str(tmp_path)))
    opened = [Lance().open(store, shard) for shard in shards]
    assert [o.units().rows.tolist() for o in opened] == [[100]] * 3
    assert store.total < 30_000
    for _ in range(3):
        opened[1].read(0, ["n"], 0, 10)
    assert sum(1 for path in store.nbytes if path.endswith(".lance")) == 1
    assert store.total < 30_000 + shards[1].size


def test_manifests_of_both_spellings_are_found(tmp_path: Path) -> None:
    store = LocalStore()
    for number, v2 in enumerate((True, False)):
        root = tmp_path / f"{number}.lance"
        lance.write_dataset(pa.table({"n": [1]}), str(root), enable_v2_manifest_paths=v2)
        lance.write_dataset(pa.table({"n": [2]}), str(root), mode="append")
        name, version = manifest_of(store, str(root), None)
        assert version == 2
        assert (root / name).exists()
        assert read_all(root, Lance(version=1), store=remote()) == [{"n": 1}]


def test_a_part_of_a_data_set_is_refused(tmp_path: Path) -> None:
    made = lance.write_dataset(wide(300, 10), str(tmp_path / "a.lance"), max_rows_per_file=100)
    one = tmp_path / "a.lance" / "data" / made.get_fragments()[1].data_files()[0].path
    with pytest.raises(RecipeError, match="as a whole") as caught:
        read_all(one)
    assert "directory" in str(caught.value)


def test_files_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.lance").write_bytes(b"LANC" * 10)
    with pytest.raises(DataError, match="no Lance data set"):
        read_all(tmp_path)
    with pytest.raises(DataError, match="data set"):
        Lance().open(LocalStore(), Shard(str(tmp_path / "x.lance"), 40))


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("victim", "damage"),
    [
        *(("data", damage) for damage in ("cut", "zero", "noise", "gone")),
        *(("_deletions", damage) for damage in ("noise", "gone")),
        *(("_versions", damage) for damage in ("cut", "noise", "gone")),
    ],
)
def test_damage_is_a_data_error_that_names_the_data_set(tmp_path: Path, victim: str, damage: str, local: bool) -> None:
    root = tmp_path / "part-7.lance"
    lance.write_dataset(wide(3000, 30), str(root)).delete("n = 5")
    for path in (root / victim).iterdir():
        data = path.read_bytes()
        made = {"cut": data[: len(data) // 2], "zero": b"", "noise": np.random.default_rng(3).bytes(len(data)), "gone": None}[
            damage
        ]
        path.unlink()
        if made is not None:
            path.write_bytes(made)
    with pytest.raises((DataError, RecipeError), match=r"part-7\.lance|there is no data file") as caught:
        read_all(root, store=None if local else remote())
    assert ".rs:" not in str(caught.value)


@pytest.mark.parametrize("local", [True, False])
def test_a_fragment_that_changes_during_the_run_is_refused(tmp_path: Path, local: bool) -> None:
    root = tmp_path / "a.lance"
    lance.write_dataset(wide(500, 100), str(root))
    store = LocalStore() if local else remote()
    (shard,) = Lance().shards(store, expand(LocalStore(), str(root)))
    opened = Lance().open(store, shard)
    data = Path(shard.path).read_bytes()
    Path(shard.path).write_bytes(data[:-50])
    with pytest.raises(DataError, match=f"{len(data) - 50} bytes"):
        opened.read(0, None, 0, 10)
    Path(shard.path).unlink()
    with pytest.raises(DataError, match=r"\.lance"):
        opened.read(0, None, 0, 10)


def test_a_shallow_copy_is_read_from_local_disk_and_refused_elsewhere(tmp_path: Path) -> None:
    made = lance.write_dataset(wide(100, 10), str(tmp_path / "origin.lance"))
    made.tags.create("v", 1)
    made.shallow_clone(str(tmp_path / "copy.lance"), "v")
    lance.write_dataset(wide(5, 10), str(tmp_path / "copy.lance"), mode="append")
    expected = lance.dataset(str(tmp_path / "copy.lance")).to_table().to_pylist()
    assert len(expected) == 105
    assert read_all(tmp_path / "copy.lance") == expected
    with pytest.raises(DataError, match="shallow copy"):
        read_all(tmp_path / "copy.lance", store=remote())


@pytest.mark.parametrize("local", [True, False])
def test_reads_from_many_threads_are_those_of_one(tmp_path: Path, local: bool) -> None:
    table = wide(5000, 60)
    lance.write_dataset(table, str(tmp_path / "a.lance"))
    store = LocalStore() if local else remote()
    (shard,) = Lance().shards(store, expand(LocalStore(), str(tmp_path)))
    opened = Lance(unit_bytes=50_000).open(store, shard)
    check_reads_from_threads(opened, table)


def test_nothing_is_left_on_disk_when_shards_are_closed_or_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lance.write_dataset(wide(300, 10), str(tmp_path / "a.lance"), max_rows_per_file=100)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    store = remote()
    shards = Lance().shards(store, expand(LocalStore(), str(tmp_path / "a.lance")))
    opened = [Lance().open(store, shard) for shard in shards]
    for one in opened:
        one.read(0, None, 0, 10)
    assert len(os.listdir(scratch)) == 3
    opened.pop().close()
    del opened, one
    assert os.listdir(scratch) == []


def test_shards_of_one_data_set_share_its_manifest(tmp_path: Path) -> None:
    lance.write_dataset(wide(300, 10), str(tmp_path / "a.lance"), max_rows_per_file=10)
    reader, store = Lance(), LocalStore()
    opened: list[Any] = [reader.open(store, s) for s in reader.shards(store, expand(store, str(tmp_path)))]
    assert len({id(o._fragment._ds) for o in opened}) == 1
    again = pickle.loads(pickle.dumps(reader))
    assert again == reader
    assert vars(again) == {"version": None, "unit_bytes": 32 << 20}


def test_a_process_that_stops_in_the_middle_ends_at_once(tmp_path: Path) -> None:
    lance.write_dataset(wide(5000, 60), str(tmp_path / "a.lance"))
    code = f"""
from concurrent.futures import ThreadPoolExecutor
from zephon.storage import LocalStore
from zephon.testing import CountingStore
from zephon_formats.lance import Lance
pool = ThreadPoolExecutor(4)
for local in (True, False):
    store = CountingStore(LocalStore(), local=local)
    (shard,) = Lance().shards(store, store.files({str(tmp_path)!r}))
    opened = Lance(unit_bytes=50_000).open(store, shard)
    tasks = [pool.submit(opened.read, unit, None, 0, 100) for unit in range(6)]
print(len(tasks[0].result()))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (out.returncode, out.stdout) == (0, "1\n"), out.stderr


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lance.write_dataset(pa.table({"n": [1]}), str(tmp_path / "a.lance"))
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(PluginError, match="pylance") as caught:
        read_all(tmp_path)
    assert "zephon[lance]" in str(caught.value)


@pytest.mark.parametrize("options", [{"unit_bytes": 0}, {"version": 0}, {"version": ""}, {"version": True}])
def test_settings_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(options))):
        Lance(**options)

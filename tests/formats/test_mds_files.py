"""MDS streams, indices and shards that are elsewhere, partly there, damaged or not MDS at all (numbers: the cases under shared/cases)."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.mds_data import (
    ENCODINGS,
    found,
    numbered,
    open_all,
    picture,
    row,
    theirs,
    write,
)
from formats.reading import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError
from zephon.storage import LocalStore, expand, open_store
from zephon.testing import CountingStore
from zephon_formats.mds import Mds

# ----------------------------------------------------------------------------------------------- streams and files


def test_several_streams_are_one_data_set_in_the_order_of_their_paths(tmp_path: Path) -> None:
    numbered(tmp_path / "b é %20#" / "deep", range(10, 20), size_limit=200)
    numbered(tmp_path / "a", range(10), size_limit=200, compression="zstd")
    assert found(tmp_path) == list(range(20))


def test_a_merged_index_does_not_count_its_streams_twice(tmp_path: Path) -> None:
    numbered(tmp_path / "x", range(10), size_limit=200)
    numbered(tmp_path / "y", range(10, 20), size_limit=200)
    shards = []
    for name in ("y", "x"):  # as streaming.base.util.merge_index writes it
        for entry in json.loads((tmp_path / name / "index.json").read_text())["shards"]:
            entry["raw_data"]["basename"] = f"{name}/{entry['raw_data']['basename']}"
            shards.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    assert found(tmp_path) == [*range(10, 20), *range(10)]
    shards[0]["samples"] += 1
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    with pytest.raises(DataError, match="says something else"):
        found(tmp_path)


def test_the_index_by_itself_and_shards_by_themselves_are_enough(tmp_path: Path) -> None:
    numbered(tmp_path / "s", range(30), size_limit=240)
    assert found(tmp_path / "s" / "index.json") == list(range(30))
    shards = sorted((tmp_path / "s").glob("*.mds"))
    assert found(shards[2]) == found(tmp_path)[2 * len(found(shards[0])) :][: len(found(shards[2]))]
    assert found(*shards) == list(range(30))
    stray = tmp_path / "s" / "stray.mds"
    shutil.copy(shards[0], stray)
    with pytest.raises(DataError, match=r"stray\.mds"):
        found(stray)


def test_streams_in_an_object_store_read_the_same(tmp_path: Path) -> None:
    import fsspec

    numbered(tmp_path / "a", range(30), size_limit=240)
    numbered(tmp_path / "b", range(30, 60), size_limit=240, compression="zstd")
    fsspec.filesystem("memory").put(str(tmp_path) + "/", "memory://mds-test/é #", recursive=True)
    for inner, want in (("", range(60)), ("/b/index.json", range(30, 60)), ("/a/*.mds", range(30))):
        store, path = open_store("memory://mds-test/é #" + inner)
        reader = Mds(unit_bytes=100)
        rows = [r for s in reader.shards(store, expand(store, path)) for r in read_rows(reader.open(store, s))]
        assert [r["a"] for r in rows] == list(want)
    fsspec.filesystem("memory").rm("/mds-test", recursive=True)


def test_shards_that_no_index_names_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbered(tmp_path / "s", range(5))
    shutil.copy(tmp_path / "s" / "shard.00000.mds", tmp_path / "s" / "old.mds")
    with caplog.at_level(logging.WARNING, "zephon.formats.mds"):
        assert found(tmp_path) == list(range(5))
    assert "old.mds" in caplog.text


def test_a_packed_shard_may_lie_unpacked_alone_or_beside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = numbered(tmp_path / "s", range(50), compression="zstd", size_limit=300)
    before = [s.path for s in Mds().shards(LocalStore(), expand(LocalStore(), str(folder)))]
    scratch = tmp_path / "t"
    theirs(folder, scratch)
    for raw in scratch.iterdir():
        shutil.copy(raw, folder)
    assert [s.path for s in Mds().shards(LocalStore(), expand(LocalStore(), str(folder)))] == before
    assert not caplog.text
    for packed in folder.glob("*.zstd"):
        packed.unlink()
    assert found(folder) == list(range(50))


def test_only_the_files_of_mosaicml_are_claimed(tmp_path: Path) -> None:
    store = LocalStore()
    for name, text in (
        ("litdata", '{"chunks": [], "config": {"data_format": ["int"]}}'),
        ("noise", "\0\xff"),
        ("list", "[1]"),
        ("empty", ""),
        ("big", '{"chunks": [' + '{"filename": "chunk-0-0.bin"}, ' * 9000 + "0]}"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").write_text(text, encoding="latin-1")
        assert not Mds.claims(store, expand(store, str(tmp_path / name)))
    numbered(tmp_path / "mds", range(300), size_limit=150)
    assert (tmp_path / "mds" / "index.json").stat().st_size > 64 << 10
    numbered(tmp_path / "small", range(2))
    for name in ("mds", "small"):
        assert Mds.claims(store, expand(store, str(tmp_path / name)))


def test_mosaicmls_other_formats_are_refused_with_a_hint(tmp_path: Path) -> None:
    from streaming.base.format import CSVWriter, JSONWriter, TSVWriter

    for number, (kind, hint) in enumerate(((JSONWriter, "jsonl"), (CSVWriter, "csv"), (TSVWriter, "csv"))):
        with kind(out=str(tmp_path / str(number)), columns={"a": "int"}) as writer:
            writer.write({"a": 1})
        with pytest.raises(DataError, match="does not read") as caught:
            found(tmp_path / str(number))
        assert hint in str(caught.value.hint)
        assert "index.json" in str(caught.value)


def test_a_range_of_a_plain_shard_is_read_without_the_rest(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{"a": rng.bytes(1000)} for _ in range(1000)]
    folder = write(tmp_path / "s", rows, {"a": "bytes"})
    store = CountingStore(LocalStore(), local=False)
    (opened,) = open_all(Mds(unit_bytes=20_000), folder, store=store)
    shard = str(folder / "shard.00000.mds")
    units = opened.units()
    assert len(units.rows) == 51
    assert units.nbytes.sum() == pytest.approx((folder / "shard.00000.mds").stat().st_size, rel=0.01)
    assert shard not in store.nbytes  # row counts and sizes come from the index
    (batch,) = opened.read(30, None, 0, 19)
    first = int(units.rows[:30].sum())
    assert batch.to_pylist() == [{"a": r["a"]} for r in rows[first : first + 19]]
    assert store.nbytes[shard] <= 16_384 + 4004 + 25_000
    before = store.nbytes[shard]
    opened.read(31, None, 5, 6)
    assert store.nbytes[shard] - before == 1004


def test_rows_of_a_packed_shard_one_by_one_unpack_it_once(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "s", range(100), compression="zstd")
    store = CountingStore(LocalStore(), local=False)
    (opened,) = open_all(Mds(), folder, store=store)
    for n in range(100):
        assert opened.read(0, None, n, n + 1)[0].to_pylist() == [{"a": n}]
    assert store.total <= (folder / "shard.00000.mds.zstd").stat().st_size + (folder / "index.json").stat().st_size
    opened.close()


def test_reads_from_many_threads_agree(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row(n).items() if k != "k_pkl"} for n in range(40)]
    columns = {k: v for k, v in ENCODINGS.items() if v != "pkl"}
    folder = write(tmp_path / "s", rows, columns, hashes=["xxh64"])
    want = [b.to_pylist() for b in open_all(Mds(unit_bytes=30_000), folder)[0].read(1, None, 0, 2)]
    (opened,) = open_all(Mds(unit_bytes=30_000, check_hashes=True), folder)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: [b.to_pylist() for b in opened.read(1, None, 0, 2)], range(32)))
    assert all(str(g) == str(want) for g in got)  # NaN is not equal to itself


# ------------------------------------------------------------------------------------------------------- bad input


def test_a_shard_over_4_gib_is_read_by_its_true_offsets(tmp_path: Path) -> None:
    """74: uint32 offsets have wrapped; a sparse file laid out as MDSWriter lays out one without a size limit."""
    folder = write(tmp_path / "s", [{"a": b"x"}], {"a": "bytes"})
    index = json.loads((folder / "index.json").read_text())
    (entry,) = index["shards"]
    config = (folder / "shard.00000.mds").read_bytes()[12 : -(4 + 1)]
    big = 1_800_000_000
    values = {0: b"first", 3: b"in between", 6: b"last"}
    lengths = [len(values.get(i, b"")) if i in values else big for i in range(7)]
    true = np.cumsum([4 + 4 * 8 + len(config), *(4 + n for n in lengths)])
    assert true[-1] > 2**32
    with open(folder / "shard.00000.mds", "wb") as file:
        file.write(np.uint32(7).tobytes() + true.astype(np.uint32).tobytes() + config)
        for i, begin in enumerate(true[:-1].tolist()):
            file.seek(begin)
            file.write(np.uint32(lengths[i]).tobytes() + values.get(i, b""))
        file.truncate(int(true[-1]))
    entry["samples"], entry["raw_data"]["bytes"] = 7, int(true[-1])
    (folder / "index.json").write_text(json.dumps(index))
    (opened,) = open_all(Mds(), folder)
    assert opened.units().rows.tolist() == [1] * 7
    assert {i: opened.read(i, None, 0, 1)[0].to_pylist()[0]["a"] for i in values} == values
    entry["raw_data"]["bytes"] -= 2**32  # what an index would say whose size had wrapped too
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="index promises"):
        open_all(Mds(), folder)


def error_of(call: Callable[[], object]) -> DataError | None:
    try:
        call()
    except DataError as error:
        return error
    return None


def test_missing_empty_cut_and_foreign_shards_are_named(tmp_path: Path) -> None:
    for packing in (None, "zstd", "snappy", "br", "bz2", "gz"):
        folder = numbered(tmp_path / str(packing), range(100), compression=packing, size_limit=500)
        (victim,) = folder.glob("shard.00001*")
        data = victim.read_bytes()
        for bad in (b"", data[:-1], data + b"\0"):
            victim.write_bytes(bad)
            with pytest.raises(DataError, match=f"{len(bad)} bytes") as caught:
                found(folder)
            assert victim.name in str(caught.value)
        noise = np.random.default_rng(1).bytes(len(data))
        for bad in (noise, bytes(len(data)), data[: len(data) // 2] + noise[len(data) // 2 :]):
            victim.write_bytes(bad)
            error = error_of(partial(found, folder))
            assert victim.name in str(error) if error else packing is None  # plain numbers have no redundancy
        victim.unlink()
        with pytest.raises(DataError, match=victim.name):
            found(folder)


def test_a_shard_that_changes_after_it_was_listed_is_noticed(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "s", range(100))
    path = folder / "shard.00000.mds"
    (opened,) = open_all(Mds(unit_bytes=100), folder)
    opened.read(0, None, 0, 1)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="when it was listed"):
        opened.read(0, None, 0, 1)
    path.unlink()
    with pytest.raises(DataError, match=r"shard\.00000"):
        opened.read(0, None, 0, 1)


def edit_index(folder: Path, change: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def first(**values: Any) -> Any:
    return lambda index: index["shards"][0].update(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (first(samples=11), "has 10 samples where its index promises 11"),
        (first(samples=9), "has 10 samples where its index promises 9"),
        (first(samples=-1), "samples = -1"),
        (first(samples=10**9), "not an MDS shard of 1000000000 samples"),
        (first(samples=True), "no count"),
        (first(samples=10**20), "no count"),
        (first(samples=2**32 - 1), "not an MDS shard of 4294967295 samples"),
        (first(version=1), "version 1"),
        (first(format="parquet"), "does not read"),
        (first(column_names=["b"]), "has the columns"),
        (first(column_names=["a", "a"]), "2 column names"),
        (first(column_names=["a", "a"], column_encodings=["int", "int"], column_sizes=[8, 8]), "two columns of one name"),
        (first(column_names=[1]), "not text"),
        (first(column_names=None), "no lists"),
        (first(column_encodings=["int512"]), "int512"),
        (first(column_encodings=["int:4"]), "unknown"),
        (first(column_encodings=["ndarray:complex64"]), "complex64"),
        (first(column_encodings=["ndarray:int8:0,x"]), "shape"),
        (first(column_sizes=[None]), "instead of 8"),
        (first(column_sizes=["8"]), "no count"),
        (first(raw_data=None), "raw_data"),
        (first(raw_data={"basename": "../x.mds", "bytes": 1}), "not below the index"),
        (first(raw_data={"basename": "/etc/passwd", "bytes": 1}), "not below the index"),
        (first(raw_data={"basename": "shard.00000.mds", "bytes": 1, "hashes": []}), "1"),
        (first(raw_data={"basename": "shard.00000.mds", "bytes": 1, "hashes": [1]}), "hashes"),
        (first(raw_data={"basename": "absent.mds", "bytes": 1, "hashes": {}}), "absent.mds"),
        (lambda index: index.update(version=3), "version 3"),
        (lambda index: index.update(shards=None), "no list of shards"),
        (lambda index: index["shards"].append(None), "no JSON object"),
    ],
)
def test_an_index_that_is_wrong_says_what_and_where(tmp_path: Path, change: Any, says: str) -> None:
    folder = numbered(tmp_path / "s", range(10))
    edit_index(folder, change)
    with pytest.raises(DataError, match=says) as caught:
        found(folder)
    assert str(folder) in str(caught.value)


def test_an_index_that_is_no_json_is_named(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "s", range(10))
    for text in ("", '{"version": 2, "shards": [{', "\xff\xfe"):
        (folder / "index.json").write_text(text, encoding="latin-1")
        with pytest.raises(DataError, match=r"not JSON.*index\.json"):
            found(folder)


def test_an_unknown_packing_is_named(tmp_path: Path) -> None:
    folder = numbered(tmp_path / "s", range(10), compression="zstd")
    (folder / "shard.00000.mds.zstd").rename(folder / "shard.00000.mds.zip")
    edit_index(folder, first(compression="zip:3", zip_data={"basename": "shard.00000.mds.zip", "bytes": 1, "hashes": {}}))
    with pytest.raises(DataError, match="'zip', which is unknown"):
        found(folder)


def test_a_stream_of_no_rows_has_none(tmp_path: Path) -> None:
    assert found(numbered(tmp_path / "s", [])) == []
    folder = numbered(tmp_path / "t", [1])
    data = (folder / "shard.00000.mds").read_bytes()
    config = data[12:-8]
    empty = np.array([0, 8 + len(config)], np.uint32).tobytes() + config
    (folder / "shard.00000.mds").write_bytes(empty)
    edit_index(folder, first(samples=0, raw_data={"basename": "shard.00000.mds", "bytes": len(empty), "hashes": {}}))
    assert found(folder) == []
    edit_index(folder, first(column_encodings=["json"], column_sizes=[None]))
    (opened,) = open_all(Mds(), folder)
    assert opened.units().rows.tolist() == []


def test_a_bad_row_is_named_and_the_others_still_read(tmp_path: Path) -> None:
    for kind, bad in (("str", b"\xff\xfe"), ("str_float", b"1.2.3"), ("ndarray", b"\x07\x04\x01x"), ("ndarray:int8", b"\x08\x02"),
                      ("ndarray:int8", b""), ("ndarray:int16", b"\x04\x02abc"), ("list[png]", b"\0\0\0\0\xff\xff\xff\xff"),
                      ("jpeg_array", b"\1\0"), ("list[jpeg]", b"\0\0\0\0\1\0\0\0\5\0\0\0abc"), ("pil", b"abc"),
                      ("pil", np.array([2, 2, 1], "<u4").tobytes() + b"L123"), ("pil", bytes(12))):  # fmt: skip
        good = {"str": "x", "str_float": 1.0, "pil": picture(1, "L"), "jpeg_array": [b"x"]}
        one = good.get(kind, np.zeros(3, kind.partition(":")[2] or "int8") if "array" in kind else [])
        folder = tmp_path / f"{kind}{len(list(tmp_path.iterdir()))}"
        write(folder, [{"a": i, "x": bad if i == 37 else one} for i in range(50)], {"a": "int", "x": kind})
        (opened,) = open_all(Mds(), folder)
        with pytest.raises(DataError, match="'x'") as caught:
            opened.read(0, None, 0, 50)
        assert caught.value.where.row == 37, (kind, bad)
        assert len(opened.read(0, None, 0, 37)[0]) == 37
        assert [b["a"] for b in opened.read(0, ["a"], 30, 50)[0].to_pylist()] == list(range(30, 50))


def test_sizes_that_do_not_add_up_name_the_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [{"a": b"abcdef", "b": b"123"}] * 20, {"a": "bytes", "b": "bytes"})
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    offsets = np.frombuffer(data, "<u4", 21, 4).tolist()
    data[offsets[13]] = 7
    path.write_bytes(data)
    with pytest.raises(DataError, match="don't add up") as caught:
        found(folder)
    assert caught.value.where.row == 13


@settings(max_examples=examples(60), deadline=None)
@given(place=st.integers(0, 10**6), value=st.binary(min_size=1, max_size=6), unit=st.sampled_from([500, 10**6]))
def test_damage_anywhere_is_an_error_or_a_value_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: bytes, unit: int
) -> None:
    columns = {k: v for k, v in ENCODINGS.items() if v != "pkl"}
    root = tmp_path_factory.getbasetemp() / "damage"
    if not root.exists():
        write(root, [{k: v for k, v in row(n).items() if k != "k_pkl"} for n in range(12)], columns)
    path = root / "shard.00000.mds"
    data = path.read_bytes()
    place %= len(data) - len(value)
    path.write_bytes(data[:place] + value + data[place + len(value) :])

    def read() -> None:
        (opened,) = open_all(Mds(unit_bytes=unit), root)
        assert sum(len(b) for u, n in enumerate(opened.units().rows) for b in opened.read(u, None, 0, int(n))) == 12

    error = error_of(read)
    path.write_bytes(data)
    if error is not None:
        assert "shard.00000.mds" in str(error)
        assert not error.trace, error.trace  # nothing foreign came through

"""Parquet as pyarrow writes it, and the files that broke other readers (numbers: the cases under shared/cases)."""

from __future__ import annotations

import logging
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from formats.reading import open_file, read_rows
from formats.tables import NESTED, NESTED_ROWS
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import Dataset
from zephon.errors import DataError, RecipeError
from zephon.plugin import Shard
from zephon.storage import LocalStore
from zephon.testing import CountingStore
from zephon_formats.parquet import Parquet


@settings(max_examples=examples(30), deadline=None)
@given(
    rows=st.lists(NESTED_ROWS, max_size=40),
    group=st.integers(1, 50),
    columns=st.none() | st.permutations("isbl").map(lambda p: p[:2]),
)
def test_rows_come_back_as_pyarrow_wrote_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], group: int, columns: Any
) -> None:
    path = tmp_path_factory.mktemp("p") / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, NESTED), path, row_group_size=group)
    expected = rows if columns is None else [{c: row[c] for c in columns} for row in rows]
    assert read_rows(open_file(Parquet(), path), columns) == expected


def test_unequal_and_empty_row_groups_keep_every_row_in_its_place(tmp_path: Path) -> None:
    """65: 793 rows in groups of 0, 128 × 6, 14, 0 and 11."""
    sizes = [0, *[128] * 6, 14, 0, 11]
    table = pa.table({"n": np.arange(793)})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        at = 0
        for size in sizes:
            writer.write_table(table.slice(at, size))
            at += size
    opened = open_file(Parquet(), tmp_path / "a.parquet")
    assert opened.units().rows.sum() == 793
    assert [r["n"] for r in read_rows(opened)] == list(range(793))
    assert [len(b) for b in opened.read(1, None, 0, 0)] == [0]


def test_null_empty_and_missing_lists_stay_apart(tmp_path: Path) -> None:
    """67 and 68, with a field that is always null."""
    lists = [None, [{"test": 1}], []]
    odd = [[{"b": None, "g": "x"}, None], None, []]
    kind = pa.list_(pa.struct([("b", pa.null()), ("g", pa.string())]))
    pq.write_table(
        pa.table(
            {"a": lists, "o": pa.array(odd, kind), "large": pa.array(lists, pa.large_list(pa.struct([("test", pa.int64())])))}
        ),
        tmp_path / "a.parquet",
    )
    rows = read_rows(open_file(Parquet(), tmp_path / "a.parquet"))
    assert rows == [{"a": a, "o": o, "large": a} for a, o in zip(lists, odd, strict=True)]


def test_special_types_become_ordinary_ones(tmp_path: Path) -> None:
    table = pa.table(
        {
            "view": pa.array(["a", None, "c" * 40], pa.string_view()),
            "bytes": pa.array([b"a", None, b"c" * 40], pa.binary_view()),
            "words": pa.array(["x", None, "x"]).dictionary_encode(),
            "deep": pa.array(
                [{"d": [{"v": "x"}]}, None, {"d": None}],
                pa.struct([("d", pa.list_(pa.struct([("v", pa.dictionary(pa.int32(), pa.string()))])))]),
            ),
            "json": pa.array(["{}", None, "1"], pa.json_()),
            "strict": pa.array([[1], [], [2]], pa.list_(pa.field("element", pa.int64(), nullable=False))),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "large": pa.array(["a", None, ""], pa.large_string()),
        }
    ).replace_schema_metadata({"huggingface": '{"info": {"features": {"view": {"_type": "Image"}}}}', "pandas": "{}"})
    pq.write_table(table, tmp_path / "a.parquet")
    opened = open_file(Parquet(), tmp_path / "a.parquet")
    deep = pa.struct([("d", pa.list_(pa.struct([("v", pa.string())])))])
    assert opened.schema.types == [
        pa.string(), pa.binary(), pa.string(), deep, pa.string(), pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), pa.large_string(),
    ]  # fmt: skip
    assert opened.schema.metadata is None
    assert read_rows(opened) == table.to_pylist()


def test_a_group_larger_than_a_batch_comes_in_several_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64, in small: the size from which a group is read in pieces is lowered; nested text too."""
    monkeypatch.setattr("zephon_formats.parquet._BATCH_BYTES", 50_000)
    texts = [f"{i:04d}" * (1 + i % 300) for i in range(900)]
    table = pa.table({"t": texts, "n": [{"x": [t, None]} for t in texts], "w": pa.array(texts).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet")
    opened = open_file(Parquet(), tmp_path / "a.parquet")
    assert len(opened.read(0, None, 0, 900)) > 3
    assert read_rows(opened) == table.to_pylist()
    part = [row for batch in opened.read(0, ["t"], 250, 611) for row in batch.to_pylist()]
    assert part == [{"t": t} for t in texts[250:611]]


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    table = pa.table(
        {
            "small": np.arange(1000),
            "a": [{"b": i} for i in range(1000)],
            "a.b": np.arange(1000),
            "big": [noise.bytes(1000) for _ in range(1000)],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    store = CountingStore(LocalStore(), local=False)
    opened = open_file(Parquet(), tmp_path / "a.parquet", store=store)
    assert read_rows(opened, ["a.b"]) == [{"a.b": i} for i in range(1000)]
    assert read_rows(opened, ["a", "nothing"]) == [{"a": {"b": i}} for i in range(1000)]
    assert [len(b) for b in opened.read(0, [], 0, 10)] == [10]
    assert store.total < 200_000


def test_many_tiny_groups_are_read_and_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """70."""
    pq.write_table(pa.table({"n": np.arange(10_500)}), tmp_path / "a.parquet", row_group_size=1, write_statistics=False)
    with caplog.at_level(logging.WARNING):
        opened = open_file(Parquet(), tmp_path / "a.parquet")
    assert "10500 row groups of 1 rows" in caplog.text
    assert len(opened.units().rows) == 10_500
    assert opened.read(10_007, None, 0, 1)[0].to_pylist() == [{"n": 10_007}]


@pytest.mark.parametrize("damage", ["footer", "page", "cut", "zero", "tail"])
def test_damage_is_a_data_error_that_names_the_shard(tmp_path: Path, damage: str) -> None:
    """86."""
    path = tmp_path / "part-7.parquet"
    pq.write_table(pa.table({"s": [f"text {i}" for i in range(2000)]}), path, compression="zstd", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    if damage == "footer":
        begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        data[begin : begin + 30] = bytes([0xFF]) * 30
    elif damage == "page":
        data[200] ^= 0xFF
    elif damage == "tail":
        data += b"more"
    path.write_bytes({"cut": data[: len(data) // 2], "zero": b""}.get(damage, data))
    with pytest.raises(DataError, match=r"part-7\.parquet"):
        read_rows(open_file(Parquet(), path))


def test_a_file_that_changes_size_during_the_run_is_refused_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(100)}), path)
    opened = open_file(Parquet(), path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match="50 bytes"):
        opened.read(0, None, 0, 10)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="'x'"):
        open_file(Parquet(), tmp_path / "a.parquet")


def test_reading_many_groups_holds_one_at_a_time(tmp_path: Path) -> None:
    """37: the peak over 50 groups of 2 MB stays far below the 100 MB that they have together."""
    group = pa.table({"b": [bytes([i]) * 2000 for i in range(256)] * 4})
    with pq.ParquetWriter(tmp_path / "a.parquet", group.schema, use_dictionary=False, compression="none") as writer:
        for _ in range(50):
            writer.write_table(group)
    code = f"""
import pyarrow as pa
import pyarrow.compute as pc
from zephon.storage import LocalStore
from zephon.plugin import Shard
from zephon_formats.parquet import Parquet
import os
path = {str(tmp_path / "a.parquet")!r}
opened = Parquet().open(LocalStore(), Shard(path, os.path.getsize(path)))
rows = sum(len(b) for u in range(50) for b in opened.read(u, None, 0, 1024))
print(rows, pa.default_memory_pool().max_memory() // 1_000_000)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert out[0] == "51200"
    assert int(out[1]) < 20


def test_the_second_pass_over_a_shard_equals_the_first(tmp_path: Path) -> None:
    """8."""
    pq.write_table(pa.table({"n": np.arange(100)}), tmp_path / "a.parquet", row_group_size=30)
    opened = open_file(Parquet(), tmp_path / "a.parquet")
    assert read_rows(opened) == read_rows(opened) == [{"n": i} for i in range(100)]


def test_a_shard_listed_with_another_size_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="when it was listed"):
        Parquet().open(LocalStore(), Shard(str(tmp_path / "a.parquet"), 5))


# ----------------------------------------------------------------------------------------------------- hive partitions


def test_hive_partitions_are_columns_as_pyarrow_reads_them(tmp_path: Path) -> None:
    import pyarrow.dataset as pads

    rows = [{"v": 1, "year": 2024, "k": "a b/c"}, {"v": 2, "year": 2024, "k": "ü=%"}, {"v": 3, "year": None, "k": "7"}]
    table = pa.Table.from_pylist(rows)
    pads.write_dataset(table, tmp_path / "d", format="parquet", partitioning=["year", "k"], partitioning_flavor="hive")
    made = Dataset.from_path("d", tmp_path / "d", hive=True)
    kinds = [("v", pa.int64()), ("year", pa.int64()), ("k", pa.string())]
    assert made.schema == pa.schema(kinds)
    theirs = pads.dataset(tmp_path / "d", partitioning=pads.partitioning(pa.schema(kinds[1:]), flavor="hive")).to_table()
    read = [row for unit in range(len(made.units)) for batch in made.read(unit, None) for row in batch.to_pylist()]
    assert sorted(read, key=str) == sorted(theirs.to_pylist(), key=str) == sorted(rows, key=str)
    only = [row for unit in range(len(made.units)) for batch in made.read(unit, ["k"]) for row in batch.to_pylist()]
    assert sorted(row["k"] for row in only) == ["7", "a b/c", "ü=%"]
    assert len(Dataset.from_path("d", tmp_path / "d", hive=True, filter=pc.field("year") == 2024)) == 2


def test_partitions_that_nobody_asked_for_are_told_and_those_that_differ_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("year=1/a.parquet", "month=1/a.parquet"):
        (tmp_path / name).parent.mkdir()
        pq.write_table(pa.table({"v": [1]}), tmp_path / name)
    assert Dataset.from_path("d", tmp_path).schema.names == ["v"]
    assert "hive=True does" in caplog.text
    with pytest.raises(RecipeError, match=r"partitions differ: .*\['month'\].*\['year'\]"):
        Dataset.from_path("d", tmp_path, hive=True).units  # noqa: B018
    pq.write_table(pa.table({"v": [1]}), tmp_path / "b.parquet")
    with pytest.raises(RecipeError, match="no directory of .* is called column=value"):
        Dataset.from_path("d", tmp_path / "b.parquet", hive=True).units  # noqa: B018


def text_of(values: list[bytes | None]) -> pa.Array[Any]:
    """These bytes as text, which nobody checked."""
    made = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), made.buffers())


def unchecked_text() -> tuple[pa.Table, list[dict[str, Any]]]:
    """Text that is not UTF-8 at the top, in structs, in lists and in maps; and the same with U+FFFD."""
    values = [b"fine", b"caf\xe9", None, "日本".encode(), b"\xff\xfe"] * 3
    said = [None if v is None else v.decode("utf-8", "replace") for v in values]
    ends = pa.array([0, 2, 2, *range(3, 15), 15], pa.int32())
    chat = pa.StructArray.from_arrays([text_of(values), pa.array(range(15))], ["content", "n"])
    table = pa.table(
        {
            "text": text_of(values),
            "long": text_of(values).cast(pa.large_binary()).view(pa.large_string()),
            "chat": pa.ListArray.from_arrays(ends, chat),
            "map": pa.MapArray.from_arrays(pa.array([*range(15), 15], pa.int32()), pa.array(["k"] * 15), text_of(values)),
            "blob": pa.array(values, pa.binary()),
        }
    )
    turns = [{"content": content, "n": n} for n, content in enumerate(said)]
    lists = [turns[a:b] for a, b in pairwise(ends.to_pylist())]
    rows = [
        {"text": t, "long": t, "chat": c, "map": [("k", t)], "blob": v} for t, c, v in zip(said, lists, values, strict=True)
    ]
    return table, rows


def test_text_that_is_not_utf_8_is_replaced_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, rows = unchecked_text()
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    opened = open_file(Parquet(), tmp_path / "a.parquet")
    with caplog.at_level(logging.WARNING, "zephon.formats"):
        assert read_rows(opened) == rows
        assert read_rows(opened) == rows
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [str(tmp_path / "a.parquet")]
    assert opened.read(1, ["text", "chat"], 1, 3)[0].to_pylist() == [{k: r[k] for k in ("text", "chat")} for r in rows[5:7]]


def test_text_that_is_not_utf_8_is_refused_by_row(tmp_path: Path) -> None:
    table, rows = unchecked_text()
    for column, row in (("text", 1), ("long", 1), ("chat", 0), ("map", 1)):
        pq.write_table(table.select([column, "blob"]), tmp_path / "a.parquet", row_group_size=4)
        opened = open_file(Parquet(bad_text="error"), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=f"column '{column}' has text that is not UTF-8") as caught:
            opened.read(0, None, 0, 4)
        assert caught.value.where.row == row
        assert opened.read(0, ["blob"], 0, 4)[0].to_pylist() == [{"blob": r["blob"]} for r in rows[:4]]
    with pytest.raises(RecipeError, match="bad_text must be 'replace' or 'error'"):
        Parquet(bad_text="ignore")  # type: ignore[arg-type]

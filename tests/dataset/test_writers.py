"""What our writers write, each format's own library reads back."""

from __future__ import annotations

import datetime
import decimal
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from formats.test_webdataset import their_rows

from zephon import Dataset
from zephon.plugin import DataError, PluginError, RecipeError, ShardWriter
from zephon_formats._write_arrow import ArrowWriter
from zephon_formats._write_csv import CsvWriter
from zephon_formats._write_jsonl import JsonlWriter
from zephon_formats._write_litdata import LitDataWriter, merge_litdata
from zephon_formats._write_mds import MdsWriter, merge_mds
from zephon_formats._write_parquet import ParquetWriter
from zephon_formats._write_tar import TarWriter
from zephon_formats._write_vortex import VortexWriter
from zephon_formats.lance import Lance

NESTED = pa.table(
    {
        "id": pa.array(range(500), pa.int32()),
        "text": [None if i % 9 == 1 else f"ünï {i}\n" * (i % 4) for i in range(500)],
        "tags": [None if i % 7 == 2 else [f"t{i}"] * (i % 3) for i in range(500)],
        "meta": [{"a": i, "b": None} for i in range(500)],
        "when": pa.array(
            [datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=i) for i in range(500)], pa.timestamp("us")
        ),
    }
)
FULL = pa.table(
    {
        "text": [f"ünï {i}" * (i % 4) for i in range(50)],
        "blob": [bytes([i]) * (i % 3) for i in range(50)],
        "i32": pa.array(range(50), pa.int32()),
        "f32": pa.array([i / 8 for i in range(50)], pa.float32()),
        "flag": [i % 3 == 0 for i in range(50)],
        "ids": pa.array([list(range(i % 5 + 1)) for i in range(50)], pa.list_(pa.int32())),
    }
)


def write(writer: ShardWriter, table: pa.Table, at_once: int = 7) -> None:
    try:
        for batch in table.to_batches(max_chunksize=at_once):
            writer.write(batch)
    except DataError:
        writer.abort()
        raise
    writer.close()


def test_parquet_keeps_rows_and_types(tmp_path: Path) -> None:
    write(ParquetWriter(str(tmp_path / "a.parquet"), NESTED.schema), NESTED)
    assert pq.read_table(tmp_path / "a.parquet").equals(NESTED)


def test_parquet_row_groups_are_bounded_in_bytes(tmp_path: Path) -> None:
    table = pa.table({"text": ["x" * 1_000_000] * 100})
    write(ParquetWriter(str(tmp_path / "a.parquet"), table.schema), table, at_once=100)
    groups = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert groups.num_rows == 100
    assert 2 <= groups.num_row_groups <= 4


def test_arrow_keeps_rows_and_types_and_joins_small_groups(tmp_path: Path) -> None:
    write(ArrowWriter(str(tmp_path / "a.arrow"), NESTED.schema), NESTED)
    with pa.ipc.open_file(str(tmp_path / "a.arrow")) as file:
        assert file.read_all().equals(NESTED)
        assert file.num_record_batches == 1


def test_vortex_keeps_rows(tmp_path: Path) -> None:
    import vortex

    write(VortexWriter(str(tmp_path / "a.vortex"), NESTED.schema), NESTED)
    assert vortex.open(str(tmp_path / "a.vortex")).scan().read_all().to_arrow_table().to_pylist() == NESTED.to_pylist()


def test_jsonl_is_one_object_a_line(tmp_path: Path) -> None:
    write(JsonlWriter(str(tmp_path / "a.jsonl"), NESTED.schema), NESTED)
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    want = [row | {"when": row["when"].isoformat()} for row in NESTED.to_pylist()]
    assert lines == want


def test_jsonl_writes_decimals_and_maps_and_refuses_what_json_has_not(tmp_path: Path) -> None:
    table = pa.table(
        {"d": [decimal.Decimal("1.50")], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "big": [2**63 - 1]}
    )
    write(JsonlWriter(str(tmp_path / "a.jsonl"), table.schema), table)
    assert (tmp_path / "a.jsonl").read_text() == '{"d":"1.50","m":{"k":1},"big":9223372036854775807}\n'
    for bad in ({"x": [float("inf")]}, {"x": pa.array([1], pa.duration("s"))}):
        made = pa.table(bad)
        with pytest.raises(DataError, match="row 0"):
            write(JsonlWriter(str(tmp_path / "b.jsonl"), made.schema), made)
    with pytest.raises(RecipeError, match="'x' .* holds bytes"):
        JsonlWriter(str(tmp_path / "c.jsonl"), pa.schema([("x", pa.list_(pa.struct([("y", pa.binary())])))]))


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_csv_tells_null_from_an_empty_text(tmp_path: Path, delimiter: str) -> None:
    table = pa.table({"a": ["x", "", None, 'q"u,o\tte', "two\nlines"], "n": [1, 2, None, 4, 5]})
    write(CsvWriter(str(tmp_path / "a.csv"), table.schema, delimiter=delimiter), table)
    back = pc.read_csv(
        tmp_path / "a.csv",
        parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pc.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
    )
    assert back.equals(table)
    with pytest.raises(RecipeError, match="can't be kept in CSV"):
        CsvWriter(str(tmp_path / "b.csv"), NESTED.schema)
    with pytest.raises(RecipeError, match="without a name"):
        CsvWriter(str(tmp_path / "b.csv"), pa.schema([("", pa.int64())]))


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return bytes(value) if isinstance(value, memoryview) else value.item() if isinstance(value, np.generic) else value


def test_litdata_reads_the_parts_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ünï 1").write_text("a file whose name is a text of the data")
    for part in range(3):
        table = FULL.slice(part * 20, 20)
        write(LitDataWriter(f"made/part-{part}", table.schema), table)
    merge_litdata("made")
    merge_litdata("made")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        from litdata import StreamingDataset

        made = StreamingDataset("made")
        rows = [{name: plain(value) for name, value in made[i].items()} for i in range(len(made))]
    assert rows == FULL.to_pylist()
    assert sorted(p.name for p in Path("made").iterdir()) == ["index.json", *(f"part-{i}.chunk-0-0.bin" for i in range(3))]


def test_mds_reads_the_parts_as_one(tmp_path: Path) -> None:
    table = FULL.append_column("meta", pa.array([{"a": i, "b": [None]} for i in range(50)]))
    for part in range(3):
        write(MdsWriter(str(tmp_path / f"part-{part}"), table.schema), table.slice(part * 20, 20))
    merge_mds(str(tmp_path))
    merge_mds(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        from streaming.base.format import reader_from_json

        rows = []
        for shard in json.loads((tmp_path / "index.json").read_text())["shards"]:
            reader = reader_from_json(str(tmp_path), None, shard)
            rows += [{name: plain(value) for name, value in reader[i].items()} for i in range(len(reader))]
    assert rows == [dict(sorted(row.items())) | {"flag": int(row["flag"])} for row in table.to_pylist()]
    assert len(list(tmp_path.rglob("index.json"))) == 1


def test_lance_reads_each_part_and_we_read_them_all(tmp_path: Path) -> None:
    import lance

    for part in range(2):
        write(Lance().writer(str(tmp_path / f"part-{part}.lance"), NESTED.schema), NESTED.slice(part * 250, 250))
        assert lance.dataset(str(tmp_path / f"part-{part}.lance")).to_table().equals(NESTED.slice(part * 250, 250))
    made = Dataset.from_path("d", tmp_path)
    found = [row for unit in range(len(made.units)) for batch in made.read(unit, None) for row in batch.to_pylist()]
    assert found == NESTED.to_pylist()
    with pytest.raises(DataError, match="zero rows"):
        write(Lance().writer(str(tmp_path / "empty.lance"), NESTED.schema), NESTED.slice(0, 0))
    writer = Lance().writer(str(tmp_path / "aborted.lance"), NESTED.schema)
    writer.write(NESTED.to_batches()[0])
    writer.abort()
    assert not (tmp_path / "aborted.lance").exists()


def test_a_tar_is_read_by_webdataset_and_by_us(tmp_path: Path) -> None:
    rows = [
        {
            "__key__": f"a/{i:03d}ü",
            "jpg": None if i % 5 == 4 else {"bytes": bytes([255, i]) * i, "path": "x.jpg"},
            "txt": f"ünï {i}",
            "cls": i - 3,
            "json": {"n": [i, None]},
        }
        for i in range(20)
    ]
    table = pa.Table.from_pylist(rows)
    write(TarWriter(str(tmp_path / "a.tar"), table.schema), table)
    theirs = their_rows(tmp_path / "a.tar")
    assert [(t["__key__"], t["txt"].decode(), int(t["cls"]), json.loads(t["json"]), t.get("jpg")) for t in theirs] == [
        (r["__key__"], r["txt"], r["cls"], r["json"], r["jpg"] and r["jpg"]["bytes"]) for r in rows
    ]
    made = Dataset.from_path("d", tmp_path / "a.tar")
    ours = [row for unit in range(len(made.units)) for batch in made.read(unit, None) for row in batch.to_pylist()]
    assert [(o["__key__"], o["txt"], o["cls"], json.loads(o["json"]), o["jpg"] and o["jpg"]["bytes"]) for o in ours] == [
        (r["__key__"], r["txt"], r["cls"], r["json"], r["jpg"] and r["jpg"]["bytes"]) for r in rows
    ]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"txt": ["a", None]}, "row 1 of the part is null in every column"),
        ({"__key__": ["a", "a"], "txt": ["1", "2"]}, "the key 'a' comes twice"),
        ({"__key__": ["a.b"], "txt": ["1"]}, "can't be a key"),
        ({"jpg": [{"bytes": None, "path": "x.jpg"}]}, "a path and no bytes"),
        ({"x": pa.array([1], pa.timestamp("s"))}, "can't be written as JSON"),
        ({"My Text": ["a"]}, "'My Text' can't be the extension"),
        ({"x": pa.array([[b"a"]])}, "has no form in a tar"),
        ({"__key__": ["a"]}, "needs a column beside"),
        ({"txt": ["a"], "x": pa.nulls(1)}, "column 'x' has no values, and a tar no nulls"),
    ],
)
def test_what_a_tar_cannot_hold_is_refused(table: dict[str, Any], says: str, tmp_path: Path) -> None:
    made = pa.table(table)
    with pytest.raises((DataError, RecipeError), match=says):
        write(TarWriter(str(tmp_path / "a.tar"), made.schema), made)
    assert not (tmp_path / "a.tar").exists()


def test_a_name_with_a_dot_is_refused_by_lance(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'a\.b' can't be kept in Lance"):
        Lance().writer(str(tmp_path / "x"), pa.schema([("a.b", pa.int64())]))


@pytest.mark.parametrize("kind", [MdsWriter, LitDataWriter])
def test_a_null_names_the_row(tmp_path: Path, kind: Callable[..., ShardWriter]) -> None:
    table = pa.table({"text": ["a"] * 9 + [None]})
    writer = kind(str(tmp_path / "x"), table.schema)
    with pytest.raises(DataError, match="column 'text' is null in row 9"):
        write(writer, table, at_once=4)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", [ArrowWriter, JsonlWriter, ParquetWriter, VortexWriter])
def test_an_aborted_file_is_gone(tmp_path: Path, kind: Callable[..., ShardWriter]) -> None:
    writer = kind(str(tmp_path / "x"), NESTED.schema)
    writer.write(NESTED.to_batches()[0])
    writer.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [ArrowWriter, JsonlWriter, ParquetWriter, VortexWriter])
def test_a_file_may_have_no_rows(tmp_path: Path, kind: Callable[..., ShardWriter]) -> None:
    write(kind(str(tmp_path / "x"), NESTED.schema), NESTED.slice(0, 0))
    assert (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        (VortexWriter, "vortex", "vortex-data"),
        (MdsWriter, "streaming", "mosaicml-streaming"),
        (LitDataWriter, "litdata.streaming.writer", "litdata"),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path, kind: Callable[..., ShardWriter], module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError, match=package):
        kind(str(tmp_path / "x"), FULL.schema)

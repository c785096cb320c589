"""Sets of LitData on disk: what belongs to one, what is refused, and what is damaged."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from formats.reading import read_rows
from formats.writers_litdata import PACKINGS, opened, plain, read_back, rows_of, shard_of, tokens, write

from zephon.errors import DataError
from zephon.plugin import Shard
from zephon.storage import LocalStore, expand
from zephon.testing import CountingStore
from zephon_formats import _litdata_open
from zephon_formats.litdata import LitData

# --------------------------------------------------------------------------------------------------- what makes a set


def test_optimize_with_a_worker_makes_a_set_that_is_read(tmp_path: Path) -> None:
    from formats.writers_litdata import fields
    from litdata import optimize

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimize(fields, list(range(1, 30)), output_dir=str(tmp_path / "set"), chunk_size=10, num_workers=1, verbose=False)
    assert rows_of(tmp_path / "set") == [plain(fields(i)) for i in range(1, 30)]


def test_directories_with_an_index_each_are_read_in_path_order(tmp_path: Path) -> None:
    for place, value in (("b", 3), ("a/y", 2), ("a/x", 1)):
        write(tmp_path / "set" / place, [{"i": value * 10 + k} for k in range(3)], chunk_size=2)
    assert [row["i"] for row in rows_of(tmp_path / "set")] == [10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_a_chunk_by_itself_is_read_with_the_index_beside_it(tmp_path: Path) -> None:
    chunks = write(tmp_path / "set", [{"i": i} for i in range(10)])
    assert [row["i"] for row in rows_of(chunks[1])] == [4, 5, 6, 7]


def test_an_index_of_mds_is_not_claimed(tmp_path: Path) -> None:
    store = LocalStore()
    for name, content in (("mds", '{"version": 2, "shards": []}'), ("broken", '{"chunks": ['), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.json").write_text(content)
        assert not LitData.claims(store, expand(store, str(tmp_path / name)))
        with pytest.raises(DataError, match=r"not an index of LitData|not JSON"):
            shard_of(tmp_path / name)
    write(tmp_path / "ours", [{"i": 1}])
    assert LitData.claims(store, expand(store, str(tmp_path / "ours")))


def test_a_set_that_was_not_merged_says_so(tmp_path: Path) -> None:
    write(tmp_path / "set", [{"i": 1}])
    (tmp_path / "set" / "index.json").rename(tmp_path / "set" / "0.index.json")
    with pytest.raises(DataError, match=r"not merged[^→]*→ let litdata finish"):
        shard_of(tmp_path / "set")


def test_parquet_files_with_an_index_are_read(tmp_path: Path) -> None:
    from litdata.utilities.parquet import get_parquet_indexer_cls

    tables = [
        pa.table({"i": range(n, n + 50), "s": pa.array([f"{k}" for k in range(50)]).dictionary_encode()}) for n in (0, 50)
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=20)
    found = get_parquet_indexer_cls(str(tmp_path))  # what index_parquet_dataset does, which asks for polars
    found.files.sort()
    chunks = [
        {"chunk_bytes": m["file_size"], "chunk_size": m["num_rows"], "filename": m["file_name"], "dim": None} for m, _ in found
    ]
    config = {"item_loader": "ParquetLoader", "data_format": ["int64", "string"], "data_spec": None, "encryption": None}
    found.write_index(chunks, {**config, "compression": None, "chunk_size": None, "chunk_bytes": None, "types": None})
    shards = opened(tmp_path)
    assert [row for shard in shards for row in read_rows(shard)] == [row for t in tables for row in t.to_pylist()]
    assert shards[0].read(1, ["s"], 3, 5)[0].to_pylist() == [{"s": "23"}, {"s": "24"}]
    pq.write_table(tables[0].slice(1), tmp_path / "0.parquet")
    with pytest.raises(DataError, match="49 rows, its index says 50"):
        opened(tmp_path)


def test_planning_reads_the_index_only_and_a_unit_its_own_range(tmp_path: Path) -> None:
    chunks = write(tmp_path / "set", [{"i": i, "v": np.full(5000, i, dtype=np.uint8)} for i in range(100)], chunk_size=100)
    store, reader = CountingStore(LocalStore(), local=False), LitData(unit_bytes=50_000)
    (shard,) = reader.shards(store, expand(LocalStore(), str(tmp_path / "set")))
    made = reader.open(store, shard)
    assert made.units().rows.tolist() == [9] * 11 + [1]
    assert made.units().nbytes.sum() == pytest.approx(chunks[0].stat().st_size, rel=0.01)
    assert store.nbytes.get(str(chunks[0]), 0) == 0
    assert [row["i"] for row in made.read(3, ["i"], 2, 4)[0].to_pylist()] == [29, 30]
    assert store.nbytes[str(chunks[0])] < 2 * 5050 + 17_000


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_that_are_too_large_for_one_group_come_in_several(
    tmp_path: Path, packing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_litdata_open, "PIECE_BYTES", 2000)
    items = [{"i": i, "v": np.full(i % 9 * 100, i, dtype=np.uint8)} for i in range(50)]
    write(tmp_path / "set", items, chunk_size=50, **packing)
    (shard,) = opened(tmp_path / "set")
    assert len(shard.read(0, None, 0, 50)) > 1 or packing.get("compression_level") == "sample"
    assert read_rows(shard) == [plain(item) for item in items]


def test_a_shard_needs_what_its_index_says() -> None:
    with pytest.raises(DataError, match="without what its index says"):
        LitData().open(LocalStore(), Shard(path="x", size=1))


def test_an_older_index_is_read(tmp_path: Path) -> None:
    """Before 0.2.40 or so, `chunk_bytes` did not count the table of offsets, and several keys were missing."""
    items = [{"i": i, "v": np.arange(i)} for i in range(10)]
    write(tmp_path / "set", items)
    path = tmp_path / "set" / "index.json"
    index = json.loads(path.read_text())
    for chunk in index["chunks"]:
        chunk["chunk_bytes"] -= 4 + 4 * (chunk["chunk_size"] + 1)
    for name in ("types", "item_loader", "compression_level", "compression_batch_size", "ipc_compression", "encryption"):
        del index["config"][name]
    path.write_text(json.dumps(index))
    assert rows_of(tmp_path / "set") == [plain(item) for item in items]


def test_an_arrow_part_in_stream_form_is_read(tmp_path: Path) -> None:
    """As written before it became a file; it stands behind items that are there as well."""
    items = [{"i": i, "s": f"{i}"} for i in range(4)]
    (path,) = write(tmp_path / "set", items)
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(items)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    ipc = sink.getvalue().to_pybytes()
    path.write_bytes(path.read_bytes()[:24] + ipc + struct.pack("<I", len(ipc)) + b"LDARW01\0")
    _change_index(tmp_path / "set", chunk_bytes=path.stat().st_size)
    assert rows_of(tmp_path / "set") == items


# -------------------------------------------------------------------------------------------------------- what is refused


class _Bomb:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('a pickle was run')",))


def test_pickles_are_refused_without_being_run(tmp_path: Path) -> None:
    write(tmp_path / "set", [{"i": i, "odd": _Bomb(), "v": np.arange(i)} for i in range(3)])
    with pytest.raises(DataError, match=r"'odd' holds Python pickles[^→]*→ allow_pickle=True"):
        shard_of(tmp_path / "set")


def test_pickles_are_loaded_where_the_user_allows_it(tmp_path: Path) -> None:
    items = [
        {"label": np.int64(i), "set": {3, 1}, "none": None, "maybe": "x" if i % 2 else None, "v": np.arange(i)}
        for i in range(9)
    ]
    write(tmp_path / "set", items)
    expected = [{**plain(item), "set": [1, 3]} for item in read_back(tmp_path / "set")]
    assert rows_of(tmp_path / "set", LitData(allow_pickle=True)) == expected
    assert [row["label"] for row in expected] == list(range(9))


def test_rows_of_plain_values_need_no_permission_where_the_first_is_null(tmp_path: Path) -> None:
    """The index then says "pickle", but the values are in an Arrow table."""
    items: list[dict[str, Any]] = [{"a": None, "b": 1}, {"a": "x", "b": 2}]
    write(tmp_path / "set", items)
    assert "pickle" in (tmp_path / "set" / "index.json").read_text()
    assert rows_of(tmp_path / "set") == items


@pytest.mark.parametrize("level", ["sample", "chunk"])
def test_encrypted_sets_are_refused(tmp_path: Path, level: Any) -> None:
    from litdata.utilities.encryption import FernetEncryption

    write(tmp_path / "set", [{"v": np.arange(3)}], encryption=FernetEncryption("secret", level))
    with pytest.raises(DataError, match=f"encrypted .fernet, by {level}"):
        shard_of(tmp_path / "set")


# ------------------------------------------------------------------------------------------------------------ bad input


def _change_index(folder: Path, **values: Any) -> None:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    index["chunks"][0].update(values)
    path.write_text(json.dumps(index))


def _make(folder: Path, kind: str, packing: dict[str, Any]) -> tuple[Path, list[Any]]:
    items: list[Any] = [{"i": i, "s": f"row {i}"} for i in range(20)]
    if kind == "items":
        items = [{**item, "v": np.arange(item["i"]), "t": torch.ones(2, 2)} for item in items]
    if kind == "tokens":
        items = [torch.arange(i, dtype=torch.int32) for i in range(13)]
        packing = {**tokens(), **packing}
    (path,) = write(folder, items, **{"chunk_size": 20, **packing})
    return path, items


CHUNKS = [
    *(("items", p) for p in PACKINGS),
    ("arrow", {}),
    ("arrow", {"compression": "zstd"}),
    ("tokens", {}),
]


@pytest.mark.parametrize(("kind", "packing"), CHUNKS)
def test_a_chunk_that_is_cut_anywhere_is_an_error_that_names_it(tmp_path: Path, kind: str, packing: dict[str, Any]) -> None:
    path, _ = _make(tmp_path / "set", kind, packing)
    whole = path.read_bytes()
    for size in {0, 1, 3, 7, 23, 40, 84, len(whole) // 2, len(whole) - 12, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError) as caught:
            rows_of(tmp_path / "set")
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("rows", [0, 1, 19, 21, 10**6, 2**32 - 1])
@pytest.mark.parametrize(("kind", "packing"), CHUNKS)
def test_an_index_that_counts_other_rows_than_the_chunk_is_an_error(
    tmp_path: Path, kind: str, packing: dict[str, Any], rows: int
) -> None:
    path, _ = _make(tmp_path / "set", kind, packing)
    _change_index(tmp_path / "set", chunk_size=rows)
    if rows == 0:  # nothing is asked of it
        assert rows_of(tmp_path / "set") == []
        return
    with pytest.raises(DataError, match=rf"rows[^→]*{path.name}"):
        rows_of(tmp_path / "set")


@pytest.mark.parametrize(("kind", "packing"), CHUNKS)
def test_a_chunk_with_a_changed_byte_is_read_or_an_error_but_never_more(
    tmp_path: Path, kind: str, packing: dict[str, Any]
) -> None:
    path, items = _make(tmp_path / "set", kind, packing)
    whole = path.read_bytes()
    shards = [shard_of(tmp_path / "set")]
    reader, store = LitData(), LocalStore()
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        with contextlib.suppress(DataError):
            assert len(read_rows(reader.open(store, shards[0]))) == len(items)


def test_a_chunk_that_grew_or_is_another_is_an_error(tmp_path: Path) -> None:
    path, _ = _make(tmp_path / "set", "items", {})
    made = opened(tmp_path / "set")[0]
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(DataError, match="when it was listed"):
        read_rows(made)
    with pytest.raises(DataError, match="4 bytes after its last item"):
        rows_of(tmp_path / "set")


def test_a_chunk_that_is_missing_is_an_error(tmp_path: Path) -> None:
    chunks = write(tmp_path / "set", [{"i": i} for i in range(10)])
    chunks[1].unlink()
    with pytest.raises(DataError, match=f"lists the chunk '{chunks[1].name}', which isn't there"):
        rows_of(tmp_path / "set")


def test_a_row_that_is_at_fault_is_named(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "set", [{"s": f"text {i}", "v": np.arange(i)} for i in range(20)], chunk_size=20)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"text 13", b"te\xfft 13"))
    made = opened(tmp_path / "set")[0]
    with pytest.raises(DataError, match="not UTF-8") as caught:
        made.read(0, None, 5, 20)
    assert caught.value.where.row == 13
    assert made.read(0, None, 0, 13)[0].num_rows == 13
    at = data.index(b"text 7") - 8
    path.write_bytes(data[:at] + struct.pack("<I", 7) + data[at + 4 :])
    with pytest.raises(DataError, match="don't add up") as caught:
        made.read(0, ["v"], 0, 20)
    assert caught.value.where.row == 7


def test_offsets_that_wrapped_beyond_4_gib_are_an_error(tmp_path: Path) -> None:
    """74: a writer whose uint32 offsets overflowed."""
    (path,) = write(tmp_path / "set", [{"v": np.arange(i)} for i in range(4)])
    data = path.read_bytes()
    path.write_bytes(data[:16] + struct.pack("<I", 25) + data[20:])
    with pytest.raises(DataError, match="don't ascend") as caught:
        rows_of(tmp_path / "set")
    assert caught.value.where.row == 2


def test_readers_and_shards_pickle(tmp_path: Path) -> None:
    write(tmp_path / "set", [{"v": torch.ones(2, 2), "i": i} for i in range(4)])
    shard = shard_of(tmp_path / "set")
    assert pickle.loads(pickle.dumps(shard)) == shard
    assert json.loads(json.dumps(dict(shard.extra))) == shard.extra

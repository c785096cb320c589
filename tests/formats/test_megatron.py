"""Megatron's pairs of .idx and .bin: as Megatron itself wrote them (`golden/megatron`), and as a small writer of the layout does."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from formats.reading import open_file, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import Dataset
from zephon.errors import DataError, RecipeError
from zephon.plugin import Shard
from zephon.storage import LocalStore, expand
from zephon.testing import CountingStore, check_format
from zephon_formats import megatron as module
from zephon_formats.megatron import Megatron

GOLDEN = Path(__file__).parent / "golden" / "megatron"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}


def write_pair(
    path: Path,
    sequences: Sequence[Sequence[int]],
    *,
    dtype: str = "u2",
    documents: Sequence[int] | None = None,
    modes: Sequence[int] | None = None,
    pointers: Sequence[int] | None = None,
) -> Path:
    """The layout, as the reader's docstring has it; returns the path of the index."""
    lengths = [len(s) for s in sequences]
    width = np.dtype(dtype).itemsize
    begins = np.cumsum([0, *lengths])[:-1] * width if pointers is None else pointers
    borders = list(range(len(sequences) + 1)) if documents is None else documents
    path.with_suffix(".bin").write_bytes(b"".join(np.array(s, dtype="<" + dtype).tobytes() for s in sequences))
    path.write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(borders))
        + np.array(lengths, "<i4").tobytes()
        + np.array(begins, "<i8").tobytes()
        + np.array(borders, "<i8").tobytes()
        + (b"" if modes is None else np.array(modes, np.int8).tobytes())
    )
    return path


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    opened = open_file(Megatron(**options), path)
    try:
        return read_rows(opened)
    finally:
        opened.close()


def ids(rows: list[dict[str, Any]]) -> list[list[int]]:
    return [row["input_ids"] for row in rows]


def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
    half = len(rows) // 2
    return [
        write_pair(folder / f"{name}.idx", [row["input_ids"] for row in part])
        for name, part in (("a", rows[:half]), ("b", rows[half:]))
    ]


@pytest.mark.parametrize("rows", ["sequence", "document"])
def test_it_conforms(rows: Any) -> None:
    given = [{"input_ids": list(range(i, i + i * 13 % 60))} for i in range(120)]
    check_format(Megatron(rows=rows, unit_bytes=1000), write, rows=given)


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("local", [True, False])
def test_what_megatron_wrote_comes_back_as_megatron_reads_it(name: str, local: bool, tmp_path: Path) -> None:
    want = EXPECTED[name]
    store = CountingStore(LocalStore(str(tmp_path)), local=local)
    opened = open_file(Megatron(unit_bytes=40), GOLDEN / f"{name}.idx", store=store)
    assert opened.schema.field("input_ids").type == pa.list_(pa.int32())
    rows = read_rows(opened)
    assert ids(rows) == want["sequences"]
    assert want["modes"] == ([row["mode"] for row in rows] if "mode" in opened.schema.names else None)
    whole = open_file(Megatron(rows="document", unit_bytes=40), GOLDEN / f"{name}.idx", store=store)
    borders = want["documents"]
    assert whole.schema.names == ["input_ids"]
    assert ids(read_rows(whole)) == [[token for s in want["sequences"][a:b] for token in s] for a, b in pairwise(borders)]
    opened.close()
    whole.close()


@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core isn't installed")
def test_the_installed_megatron_writes_the_golden_files_and_reads_ours(tmp_path: Path) -> None:
    """It takes 10 s to import, which is why the golden files are there. Of 0.12.0 and 0.16.1 they are the same."""
    rows = [[3, 1], [], list(range(40)), [7]]
    write_pair(tmp_path / "ours.idx", rows, dtype="i4")
    program = f"""
import runpy, sys, pathlib
made = runpy.run_path({str(GOLDEN.parent / "write_megatron.py")!r})
made["write"](pathlib.Path({str(tmp_path)!r}))
read = made["IndexedDataset"]({str(tmp_path / "ours")!r})
print([read[i].tolist() for i in range(len(read))])
"""
    printed = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == rows
    for path in GOLDEN.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@settings(max_examples=examples(40), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    dtype=st.sampled_from(["u1", "i1", "i2", "i4", "i8", "u2"]),
    cuts=st.lists(st.integers(0, 40), max_size=10),
    unit=st.sampled_from([1, 64, 1 << 20]),
    at_once=st.sampled_from([1, 3, 1000]),
    local=st.booleans(),
)
def test_every_row_comes_back_whatever_the_type_and_the_units(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    dtype: str,
    cuts: list[int],
    unit: int,
    at_once: int,
    local: bool,
) -> None:
    limits = np.iinfo(np.dtype(dtype) if dtype != "i8" else np.int32)
    draw = np.random.default_rng(len(lengths))
    sequences = [draw.integers(limits.min, limits.max, n, endpoint=True).tolist() for n in lengths]
    borders = [0, *sorted(c for c in cuts if c <= len(lengths)), len(lengths)]
    path = write_pair(tmp_path_factory.mktemp("m") / "a.idx", sequences, dtype=dtype, documents=borders)
    store = CountingStore(LocalStore(), local=local)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHECKED_AT_ONCE", at_once)
        opened = open_file(Megatron(unit_bytes=unit), path, store=store)
        whole = open_file(Megatron(unit_bytes=unit, rows="document"), path, store=store)
    assert ids(read_rows(opened)) == sequences
    joined = [[t for s in sequences[a:b] for t in s] for a, b in pairwise(borders)]
    assert ids(read_rows(whole)) == joined
    if unit == 1 << 20:
        assert len(opened.units().rows) <= 1


def test_sequences_that_do_not_lie_end_to_end_are_found_where_the_index_says_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = [[1, 2, 3], [], [4], [5, 6], [7]]
    path = write_pair(tmp_path / "a.idx", sequences, dtype="i4", pointers=[4, 0, 24, 16, 20])
    flat = [1, 2, 3, 4, 5, 6, 7]
    want = [flat[1:4], [], [7], [5, 6], [6]]
    assert ids(rows_of(path)) == want
    assert "do not lie end to end" in caplog.text
    assert ids(rows_of(path, unit_bytes=8)) == want
    assert ids(rows_of(path, rows="document", unit_bytes=8)) == want


def test_local_int32_tokens_are_not_copied_and_outlive_the_shard(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a.idx", [list(range(i, i + 1000)) for i in range(500)], dtype="i4")
    opened = open_file(Megatron(), path)
    before = pa.total_allocated_bytes()
    (batch,) = opened.read(0, None, 0, 500)
    assert pa.total_allocated_bytes() - before < 100_000
    opened.close()
    assert batch.column(0)[499].as_py() == list(range(499, 1499))


def test_a_part_of_a_unit_costs_that_part_and_an_index_is_read_once(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a.idx", [[7] * 1000] * 1000)
    store = CountingStore(LocalStore(), local=False)
    opened = open_file(Megatron(), path, store=store)
    assert len(opened.units().rows) == 1
    assert store.total <= path.stat().st_size
    before = store.total
    opened.read(0, None, 400, 410)
    assert store.total - before == 10 * 2000


def test_a_large_index_of_a_remote_store_is_kept_on_disk_while_the_shard_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IN_MEMORY", 100)
    sequences = [[i] * (i % 7) for i in range(100)]
    path = write_pair(tmp_path / "a.idx", sequences)
    store = CountingStore(LocalStore(), local=False)
    opened = open_file(Megatron(unit_bytes=50), path, store=store)
    assert ids(read_rows(opened)) == sequences
    opened.close()
    opened.close()


def test_long_groups_come_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_TOKENS", 50)
    sequences = [[i] * (i % 30) for i in range(60)]
    path = write_pair(tmp_path / "a.idx", sequences, modes=[i % 5 for i in range(60)])
    opened = open_file(Megatron(), path)
    assert len(opened.read(0, None, 0, 60)) > 10
    assert read_rows(opened) == [{"input_ids": s, "mode": i % 5} for i, s in enumerate(sequences)]


def test_a_document_beyond_two_billion_tokens_is_refused_by_row(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a.idx", [[1], [2], [3]], dtype="u1", documents=[0, 1, 3])
    data = bytearray(path.read_bytes())
    data[34:46] = np.array([1, 2**31 - 1, 3], "<i4").tobytes()
    data[46:70] = np.array([0, 1, 2**31], "<i8").tobytes()
    path.write_bytes(data)
    with path.with_suffix(".bin").open("r+b") as file:
        file.truncate(2**31 + 3)
    opened = open_file(Megatron(rows="document"), path)
    assert opened.read(0, None, 0, 1)[0].to_pylist() == [{"input_ids": [1]}]
    with pytest.raises(DataError, match="2147483650 tokens") as caught:
        read_rows(opened)
    assert caught.value.where.row == 1


# ------------------------------------------------------------------------------------------------------- what is refused


def refused(path: Path, says: str, **options: Any) -> DataError:
    with pytest.raises(DataError, match=says) as caught:
        rows_of(path, **options)
    assert path.stem in str(caught.value)
    return caught.value


def test_an_index_that_is_cut_anywhere_or_too_long_is_refused(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "part-7.idx", [[1, 2], [3], [4, 5, 6]])
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        refused(path, r"cut short|empty|no Megatron index")
    path.write_bytes(whole + b"12")
    refused(path, "damaged")
    path.write_bytes(whole + b"123")  # as many as there are sequences: modes
    assert [r["mode"] for r in rows_of(path)] == [49, 50, 51]


def test_a_data_file_that_is_shorter_than_its_index_says_is_refused_by_row(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "part-7.idx", [[1, 2], [3], [4, 5, 6]])
    data = path.with_suffix(".bin")
    data.write_bytes(data.read_bytes()[:-1])
    error = refused(path, "3 tokens at byte 6")
    assert error.where.row == 2
    data.write_bytes(b"")
    assert refused(path, "0 bytes").where.row == 0
    data.unlink()
    refused(path, "part-7.bin")


def test_a_longer_data_file_is_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_pair(tmp_path / "a.idx", [[1, 2], [3]])
    with path.with_suffix(".bin").open("ab") as file:
        file.write(b"more")
    assert ids(rows_of(path)) == [[1, 2], [3]]
    assert "4 bytes after the last sequence" in caplog.text


@pytest.mark.parametrize(
    ("place", "data", "says"),
    [
        (0, b"TNTIDX\0\0\1", "old layout"),
        (0, b"other", "no Megatron index"),
        (9, struct.pack("<Q", 2), "version 2"),
        (17, b"\x09", "type 9"),
        (17, b"\x06", "float64"),
        (18, struct.pack("<Q", 2**60), "cut short"),
        (18, struct.pack("<Q", 2), "damaged"),
        (34, struct.pack("<i", -1), "-1 tokens"),
        (46, struct.pack("<q", -8), "at byte -8"),
        (70, struct.pack("<q", 1), "borders"),
        (78, struct.pack("<q", 3), "borders"),
        (94, struct.pack("<q", 4), "borders"),
    ],
)
def test_damage_in_the_index_is_named(tmp_path: Path, place: int, data: bytes, says: str) -> None:
    path = write_pair(tmp_path / "part-7.idx", [[1, 2], [3], [4, 5, 6]])
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + data + whole[place + len(data) :])
    refused(path, says)


def test_tokens_beyond_int32_name_the_row(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a.idx", [[1], [], [2, 2**31], [3]], dtype="i8")
    assert refused(path, "2147483648 is beyond int32").where.row == 2
    opened = open_file(Megatron(), path)
    assert opened.read(0, None, 3, 4)[0].to_pylist() == [{"input_ids": [3]}]
    low = write_pair(tmp_path / "b.idx", [[1], [-(2**31), -(2**31) - 1]], dtype="i8")
    assert refused(low, "beyond int32", rows="document").where.row == 1


def test_sequences_outside_of_documents_are_refused_as_documents_only(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "a.idx", [[1], [2], [3]], documents=[0, 2])
    refused(path, "belong to no document", rows="document")
    assert ids(rows_of(path)) == [[1], [2], [3]]
    assert rows_of(write_pair(tmp_path / "b.idx", [], documents=[0]), rows="document") == []
    assert rows_of(write_pair(tmp_path / "c.idx", [], documents=[])) == []


def test_a_pair_that_changes_during_the_run_is_refused_not_mapped(tmp_path: Path) -> None:
    for name in ("a.idx", "a.bin"):
        path = write_pair(tmp_path / "a.idx", [[1, 2]] * 5000)
        opened = open_file(Megatron(), path)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
        with pytest.raises(DataError, match="has changed: 100 bytes"):
            read_rows(opened)
    path = write_pair(tmp_path / "a.idx", [[1, 2]] * 5000)
    shard = Shard(str(path), path.stat().st_size, "", {"bin": str(tmp_path / "a.bin"), "bin_size": 10})
    with pytest.raises(DataError, match="when it was listed"):
        Megatron().open(LocalStore(), shard)


def test_a_wrong_setting_is_refused_at_once() -> None:
    with pytest.raises(RecipeError, match="'document'"):
        Megatron(rows="docs")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="unit_bytes"):
        Megatron(unit_bytes=0)


# -------------------------------------------------------------------------------------------------------- which files


def test_a_pair_is_one_shard_however_it_is_named(tmp_path: Path) -> None:
    write_pair(tmp_path / "a.idx", [[1]])
    write_pair(tmp_path / "b b#%.idx", [[2]])
    store = LocalStore()
    reader = Megatron()
    listed = reader.shards(store, expand(store, str(tmp_path)))
    assert [Path(s.path).name for s in listed] == ["a.idx", "b b#%.idx"]
    alone = [reader.shards(store, expand(store, str(tmp_path / name))) for name in ("a.idx", "a.bin")]
    assert alone == [listed[:1], listed[:1]]
    before = listed[0].etag
    write_pair(tmp_path / "a.idx", [[1, 2]])
    assert reader.shards(store, expand(store, str(tmp_path)))[0].etag != before


def test_an_idx_file_of_another_program_is_not_claimed(tmp_path: Path) -> None:
    store = LocalStore()
    (tmp_path / "a.idx").write_bytes(b"v1.2 64\n")
    (tmp_path / "a.tar").write_bytes(b"")
    assert not Megatron.claims(store, expand(store, str(tmp_path)))
    write_pair(tmp_path / "a.idx", [[1]])
    assert Megatron.claims(store, expand(store, str(tmp_path)))
    (tmp_path / "a.bin").unlink()
    assert Megatron.claims(store, expand(store, str(tmp_path / "a.idx")))


def test_a_bin_without_its_idx_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_pair(tmp_path / "a.idx", [[1], [2, 3]])
    (tmp_path / "b.bin").write_bytes(b"12")
    assert len(Dataset.from_path("d", tmp_path)) == 2
    assert "1 .bin files without an .idx are left out" in caplog.text
    assert str(tmp_path / "b.bin") in caplog.text


def test_a_data_set_of_pairs_is_found_by_suffix(tmp_path: Path) -> None:
    write_pair(tmp_path / "a.idx", [[1], [2, 3]])
    write_pair(tmp_path / "b.idx", [[4]], dtype="i4")
    data = Dataset.from_path("d", tmp_path)
    assert len(data) == 3
    assert data.schema.names == ["input_ids"]


# -------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize(("name", "kind"), [("uint16", pa.uint16()), ("int32", pa.int32()), ("int64", pa.int64())])
def test_the_writer_makes_the_bytes_that_megatron_makes(name: str, kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"input_ids": pa.array(EXPECTED[name]["sequences"], pa.list_(kind))})
    writer = Megatron().writer(str(tmp_path / "made"), table.schema)
    for batch in table.to_batches(max_chunksize=3):
        writer.write(batch)
    writer.close()
    for end in ("bin", "idx"):
        assert (tmp_path / "made" / f"tokens.{end}").read_bytes() == (GOLDEN / f"{name}.{end}").read_bytes()
    assert len(Dataset.from_path("d", tmp_path)) == len(table)


def test_what_megatron_cannot_hold_is_refused(tmp_path: Path) -> None:
    for table in ({"input_ids": ["a"]}, {"input_ids": [[1]], "x": [1]}, {"ids": [[1]]}, {"input_ids": [[1.5]]}):
        with pytest.raises(RecipeError, match="one column 'input_ids' of token lists"):
            Megatron().writer(str(tmp_path / "a"), pa.table(table).schema)
    for rows in ([[1], None], [[1], [2, None]]):
        made = pa.record_batch({"input_ids": rows})
        writer = Megatron().writer(str(tmp_path / "a"), made.schema)
        with pytest.raises(DataError, match="row 1 of the part"):
            writer.write(made)
        writer.abort()
        assert list(tmp_path.iterdir()) == []


def test_a_bin_that_was_replaced_by_one_of_its_size_is_filtered_anew(tmp_path: Path) -> None:
    """What a filter left is kept beside the indices, for these versions of both files."""
    import pyarrow.compute as pc

    def left() -> list[list[int]]:
        first = pc.list_element(pc.field("input_ids"), 0)
        made = Dataset.from_path("d", tmp_path / "data", filter=first > 5, cache_dir=str(tmp_path / "cache"))
        return [
            row["input_ids"] for unit in range(len(made.units)) for batch in made.read(unit, None) for row in batch.to_pylist()
        ]

    (tmp_path / "data").mkdir()
    write_pair(tmp_path / "data" / "a.idx", [[1, 2], [9, 8], [7, 7]])
    assert left() == [[9, 8], [7, 7]]
    kept = (tmp_path / "data" / "a.idx").stat()
    write_pair(tmp_path / "data" / "a.idx", [[9, 2], [1, 8], [7, 7]])
    os.utime(tmp_path / "data" / "a.idx", ns=(kept.st_mtime_ns, kept.st_mtime_ns))  # only the .bin is another one
    assert left() == [[9, 2], [7, 7]]

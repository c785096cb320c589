"""Arrow IPC files and streams, and folders of Hugging Face, read as their own libraries read them."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from formats.reading import open_file, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, RecipeError
from zephon.plugin import OpenShard, Shard
from zephon.storage import LocalStore
from zephon.testing import CountingStore, check_format
from zephon_formats._arrow_index import cut_units
from zephon_formats._arrow_ranges import nodes_of
from zephon_formats.arrow import Arrow

Write = Callable[[Path, pa.Table], None]


def write_stream(path: Path, table: pa.Table, **options: Any) -> None:
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=17)


def write_file(path: Path, table: pa.Table, **options: Any) -> None:
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=17)


def two_files(write: Write, suffix: str) -> Callable[[Path, list[dict[str, Any]]], Sequence[Path]]:
    def both(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
        table = pa.Table.from_pylist(rows) if rows else pa.table({"id": pa.array([], pa.int64())})
        half = len(rows) // 2
        for name, part in (("a", table.slice(0, half)), ("b", table.slice(half))):
            write(folder / f"{name}{suffix}", part)
        return [folder / f"a{suffix}", folder / f"b{suffix}"]

    return both


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize(("write", "suffix"), [(write_stream, ".arrows"), (write_file, ".arrow")])
def test_arrow_conforms(write: Any, suffix: str, compression: str | None) -> None:
    def one(path: Path, table: pa.Table) -> None:
        write(path, table, compression=compression)

    check_format(Arrow(unit_bytes=3000), two_files(one, suffix))


def test_feather_conforms() -> None:
    check_format(Arrow(unit_bytes=1000), two_files(lambda path, table: feather.write_feather(table, str(path)), ".feather"))


def rich_table(rows: int = 300) -> pa.Table:
    """Columns of every kind that a batch can hold, with nulls."""
    pick = random.Random(4)

    def maybe(make: Callable[[int], Any]) -> list[Any]:
        return [None if pick.random() < 0.2 else make(i) for i in range(rows)]

    words = ["a", "", "ü日", "x" * 30]
    return pa.table(
        {
            "int": pa.array(maybe(lambda i: i), pa.int32()),
            "bool": pa.array(maybe(lambda i: i % 3 == 0)),
            "half": pa.array(maybe(float), pa.float16()),
            "decimal": pa.array(maybe(lambda i: i), pa.decimal128(9, 2)),
            "time": pa.array(maybe(lambda i: i * 1000), pa.timestamp("us", tz="UTC")),
            "null": pa.nulls(rows),
            "text": pa.array(maybe(lambda i: words[i % 4])),
            "large": pa.array(maybe(lambda i: words[i % 3]), pa.large_string()),
            "fixed": pa.array(maybe(lambda i: b"%03d" % (i % 1000)), pa.binary(3)),
            "list": pa.array(maybe(lambda i: [words[j % 4] for j in range(i % 5)])),
            "nested": pa.array(maybe(lambda i: [[j, None] for j in range(i % 3)]), pa.large_list(pa.list_(pa.int16()))),
            "vector": pa.array(maybe(lambda i: [i, i + 1, None]), pa.list_(pa.float32(), 3)),
            "struct": pa.array(maybe(lambda i: {"a": i, "b": [{"c": words[i % 4]}]})),
            "map": pa.array(maybe(lambda i: [(words[i % 4], i)] * (i % 3)), pa.map_(pa.string(), pa.int64())),
            "view": pa.array(maybe(lambda i: words[i % 4]), pa.string_view()),
            "listview": pa.array(maybe(lambda i: [i] * (i % 4)), pa.list_view(pa.int64())),
            "dict": pa.array(maybe(lambda i: words[i % 4])).dictionary_encode(),
            "dicts": pa.array(maybe(lambda i: [words[i % 4]] * (i % 3)), pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            "runs": pa.RunEndEncodedArray.from_arrays(pa.array([rows // 2, rows], pa.int32()), pa.array(["p", "q"])),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"%016d" % i for i in range(rows)], pa.binary(16))),
        }
    )


def remote(path: Path) -> CountingStore:
    return CountingStore(LocalStore(str(path.parent / ".cache")), local=False)


def open_remote(reader: Arrow, path: Path) -> tuple[CountingStore, OpenShard]:
    store = remote(path)
    return store, open_file(reader, path, store=store)


@pytest.mark.parametrize("chunk", [7, 60, 1000])
@pytest.mark.parametrize("unit_bytes", [300, 2000, 4 << 20])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_type_is_read_as_arrow_reads_it_whole_and_in_parts(
    tmp_path: Path, chunk: int, unit_bytes: int, compression: str | None
) -> None:
    table = rich_table(110)
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    expected = table.to_pylist()
    for row in expected:
        row["uuid"] = row["uuid"].bytes
    for store in (LocalStore(str(tmp_path)), remote(path)):
        opened = open_file(Arrow(unit_bytes=unit_bytes), path, store=store)
        assert read_rows(opened) == expected
        for names in (["text", "int"], ["nested"], ["dict", "list"], ["runs", "view"]):
            assert read_rows(opened, names) == [{n: row[n] for n in names} for row in expected]


@pytest.fixture
def any_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are fetched like large ones, so that small tests show how."""
    monkeypatch.setattr("zephon_formats._arrow_read._WORTH", 0)
    monkeypatch.setattr("zephon_formats._arrow_ranges._GAP", 0)


@pytest.mark.usefixtures("any_size_counts")
def test_rows_of_a_large_remote_batch_are_fetched_alone(tmp_path: Path) -> None:
    table = rich_table(2000).drop_columns(["view", "listview", "dict", "dicts", "runs"])
    path = tmp_path / "a.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    expected = table.to_pylist()
    for row in expected:
        row["uuid"] = row["uuid"].bytes
    store, opened = open_remote(Arrow(unit_bytes=20_000), path)
    rows = opened.units().rows.tolist()
    assert len(rows) > 10
    size = path.stat().st_size
    before = store.total
    assert read_rows(opened) == expected
    assert store.total - before < 2 * size
    at = 0
    for unit, count in enumerate(rows):
        for name in table.schema.names:
            before = store.total
            (batch,) = opened.read(unit, [name], count // 2, count // 2 + 3)
            assert batch.to_pylist() == [{name: row[name]} for row in expected[at + count // 2 : at + count // 2 + 3]]
            assert store.total - before < 6000  # the header of the batch, and three rows
        at += count


@pytest.mark.usefixtures("any_size_counts")
def test_only_the_columns_that_are_asked_for_are_fetched(tmp_path: Path) -> None:
    table = pa.table({"big": ["x" * 1000] * 3000, "id": pa.array(range(3000), pa.int32())})
    for path, write in ((tmp_path / "a.arrow", write_stream), (tmp_path / "b.arrow", write_file)):
        write(path, table)
        store, opened = open_remote(Arrow(), path)
        before = store.total
        assert read_rows(opened, ["id"]) == [{"id": i} for i in range(3000)]
        assert store.total - before < 200_000


@pytest.mark.usefixtures("any_size_counts")
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_part_of_any_columns_equals_the_part_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    table = rich_table(200)
    path = tmp_path_factory.getbasetemp() / "parts.arrow"
    if not path.exists():
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=90)
    names = data.draw(
        st.lists(st.sampled_from([n for n in table.schema.names if n != "uuid"]), min_size=1, max_size=4, unique=True)
    )
    start = data.draw(st.integers(0, 199))
    stop = data.draw(st.integers(start, 200))
    for store in (LocalStore(), remote(path)):
        opened = open_file(Arrow(unit_bytes=10**9), path, store=store)
        found = [row for b in opened.read(0, names, start, stop) for row in b.to_pylist()]
        assert found == table.select(names).slice(start, stop - start).to_pylist()


def test_local_shards_are_not_copied(tmp_path: Path) -> None:
    table = pa.table({"data": [b"x" * 10_000] * 1000})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    opened = open_file(Arrow(), tmp_path / "a.arrow")
    before = pa.total_allocated_bytes()
    kept = [b for u, n in enumerate(opened.units().rows.tolist()) for b in opened.read(u, None, 0, n)]
    assert sum(len(b) for b in kept) == 1000
    assert pa.total_allocated_bytes() - before < 1_000_000
    opened.close()
    assert kept[-1].column(0)[-1].as_py() == b"x" * 10_000


def test_the_index_of_a_remote_stream_is_made_once_from_headers_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"data": [b"x" * 300_000] * 60})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    first, opened = open_remote(Arrow(), path)
    assert first.total < path.stat().st_size / 4
    second, again = open_remote(Arrow(), path)
    assert second.total < 10_000
    assert again.units().rows.tolist() == opened.units().rows.tolist()
    assert read_rows(again) == table.to_pylist()
    sidecar = tmp_path / "a.arrow.ipc.zidx"
    sidecar.write_bytes(sidecar.read_bytes()[:-8])
    _, third = open_remote(Arrow(), path)
    assert read_rows(third) == table.to_pylist()
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table.slice(3), max_chunksize=3)
    assert read_rows(open_remote(Arrow(), path)[1]) == table.slice(3).to_pylist()


def test_dictionaries_that_grow_or_are_replaced_count_from_where_they_stand(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    batches = [
        pa.record_batch(
            {"n": [k] * 3, "d": pa.DictionaryArray.from_arrays(pa.array([0, k % 3, None], pa.int8()), pa.array(values))}
        )
        for k, values in enumerate([["a", "b"], ["a", "b", "c"], ["a", "b", "c"], ["x", "y", "z"], ["x", "y", "z", "a", "q"]])
    ]
    schema = pa.schema([("n", pa.int64()), ("d", kind)])
    path = tmp_path / "a.arrow"
    for deltas in (False, True):
        with pa.ipc.new_stream(path, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)) as writer:
            for batch in batches:
                writer.write_batch(batch)
        expected = pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
        for store, unit_bytes in itertools.product((LocalStore(str(tmp_path)), remote(path)), (1, 10**9)):
            opened = open_file(Arrow(unit_bytes=unit_bytes), path, store=store)
            assert read_rows(opened) == expected
            assert read_rows(opened, ["n"]) == [{"n": row["n"]} for row in expected]
    with pa.ipc.new_file(tmp_path / "b.arrow", schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as file:
        for batch in batches[:3]:
            file.write_batch(batch)
    expected = pa.ipc.open_file(tmp_path / "b.arrow").read_all().to_pylist()
    assert read_rows(open_file(Arrow(unit_bytes=1), tmp_path / "b.arrow")) == expected


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("version", [pa.MetadataVersion.V4, pa.MetadataVersion.V5])
def test_streams_of_earlier_versions_are_read(tmp_path: Path, legacy: bool, version: Any) -> None:
    table = rich_table(40).drop_columns(["view", "listview", "runs", "uuid"])
    write_stream(tmp_path / "a.arrow", table, use_legacy_format=legacy, metadata_version=version)
    write_file(tmp_path / "b.arrow", table, use_legacy_format=legacy, metadata_version=version)
    for name in ("a.arrow", "b.arrow"):
        assert read_rows(open_file(Arrow(), tmp_path / name)) == table.to_pylist()
        assert read_rows(open_remote(Arrow(), tmp_path / name)[1], ["struct"]) == table.select(["struct"]).to_pylist()


def test_batches_of_any_size_become_units_that_cover_each_row_once(tmp_path: Path) -> None:
    sizes = [0, 3, 0, 0, 1, 500, 0, 1, 1, 2000, 0]
    table = pa.table({"id": list(range(sum(sizes))), "text": [str(i) * (i % 9) for i in range(sum(sizes))]})
    path, at = tmp_path / "a.arrow", 0
    with pa.ipc.new_file(path, table.schema) as writer:
        for size in sizes:
            writer.write_batch(pa.RecordBatch.from_pylist(table.slice(at, size).to_pylist(), schema=table.schema))
            at += size
    for unit_bytes in (1, 300, 5000, 10**6):
        opened = open_file(Arrow(unit_bytes=unit_bytes), path)
        assert (opened.units().rows > 0).all()
        assert read_rows(opened) == table.to_pylist()
    assert len(open_file(Arrow(unit_bytes=5000), path).units().rows) > 5


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000), st.integers(0, 1)), max_size=30),
    unit_bytes=st.integers(1, 3000),
)
def test_units_have_all_rows_and_none_is_much_larger_than_asked(batches: list[tuple[int, int, int]], unit_bytes: int) -> None:
    table = np.zeros((len(batches), 6), dtype=np.int64)
    for i, (rows, nbytes, packed) in enumerate(batches):
        table[i] = (0, 0, nbytes, rows, packed, 0)
    units, nbytes = cut_units(table, unit_bytes)
    assert units[0] == 0
    assert units[-1] == sum(rows for rows, _, _ in batches)
    assert (np.diff(units) > 0).all()
    assert (nbytes > 0).all()
    assert len(nbytes) == len(units) - 1


def test_many_batches_of_one_row_come_as_one_group(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(500))})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    opened = open_file(Arrow(), tmp_path / "a.arrow")
    (batch,) = opened.read(0, None, 100, 400)
    assert batch.column(0).to_pylist() == list(range(100, 400))


# ------------------------------------------------------------------------------------------------------------ bad files


def damaged(path: Path, write: Any) -> bytes:
    write(path, pa.table({"id": list(range(200)), "text": ["word"] * 200}))
    return path.read_bytes()


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("write", [write_stream, write_file])
def test_a_file_cut_anywhere_is_an_error_or_the_rows_before_a_message_border(tmp_path: Path, write: Any, local: bool) -> None:
    path = tmp_path / "a.arrow"
    data = damaged(path, write)
    for cut in range(0, len(data) - 8, 83):
        path.write_bytes(data[:cut])
        store = LocalStore(str(tmp_path / ".cache")) if local else remote(path)
        try:
            rows = [row["id"] for row in read_rows(open_file(Arrow(), path, store=store))]
        except DataError as error:
            assert "a.arrow" in str(error)  # noqa: PT017 - there may be no error
        else:
            assert write is write_stream
            assert rows == list(range(len(rows)))
            assert len(rows) % 17 == 0


def test_a_stream_that_stops_between_two_messages_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The format allows it, so it can't be an error."""
    path = tmp_path / "a.arrow"
    data = damaged(path, write_stream)
    path.write_bytes(data[:-8])
    assert len(read_rows(open_file(Arrow(), path))) == 200
    assert "no end mark" in caplog.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes"),
        (b"FEA1" + bytes(100), "Feather version 1"),
        (b"PAR1" + bytes(100), "not Arrow IPC"),
        (b"ARROW1\0\0", "no footer"),
        (b"ARROW1\0\0" + bytes(100), "no footer"),
        (b"\xff\xff\xff\xff", "not Arrow IPC|ends at byte"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 64) + bytes(64), "damaged"),
        (b"\xff\xff\xff\xff" + b"\xff" * 100, "no Arrow message"),
        (b"\xff\xff\xff\xff" + bytes(4), "does not begin with a schema"),
        (b'{"a": 1}\n', "not Arrow IPC"),
    ],
)
def test_what_is_not_arrow_is_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    for store in (LocalStore(), remote(path)):
        with pytest.raises(DataError, match=f"({says}).*a\\.arrow"):
            open_file(Arrow(), path, store=store)


@pytest.mark.parametrize("write", [write_stream, write_file])
def test_no_flipped_byte_crashes_or_hangs(tmp_path: Path, write: Any) -> None:
    """What is damaged is an error, or other values of the right type; never a crash."""
    path = tmp_path / "a.arrow"
    table = rich_table(60)
    write(path, table)
    data = bytearray(path.read_bytes())
    pick = random.Random(11)
    errors = 0
    for round_number in range(160):
        broken = bytearray(data)
        for _ in range(4):
            broken[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
        path.write_bytes(broken)
        store = LocalStore(str(tmp_path / ".cache")) if round_number % 2 else remote(path)
        try:
            opened = open_file(Arrow(), path, store=store)
            for unit, rows in enumerate(opened.units().rows.tolist()):
                for batch in [*opened.read(unit, None, 0, rows), *opened.read(unit, ["list", "map"], rows // 2, rows // 2 + 1)]:
                    batch.validate(full=True)
        except DataError:
            errors += 1
    assert errors > 15


def test_text_that_is_not_utf_8_is_an_error_of_its_rows(tmp_path: Path) -> None:
    bad = pa.array([b"fine", b"\xff\xfe", b"fine"])
    text = pa.Array.from_buffers(pa.string(), 3, bad.buffers())
    with pa.ipc.new_stream(tmp_path / "a.arrow", pa.schema([("text", pa.string())])) as writer:
        writer.write_batch(pa.record_batch({"text": text}))
    opened = open_file(Arrow(), tmp_path / "a.arrow")
    with pytest.raises(DataError, match="UTF8"):
        opened.read(0, None, 0, 3)
    assert opened.read(0, None, 2, 3)[0].to_pylist() == [{"text": "fine"}]


def test_bytes_after_the_end_of_a_stream_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    data = damaged(path, write_stream)
    path.write_bytes(data + data)
    with pytest.raises(DataError, match="follow the end of the stream"):
        open_file(Arrow(), path)
    path.write_bytes(data + bytes(56))
    assert len(read_rows(open_file(Arrow(), path))) == 200


def test_a_file_that_changes_size_or_is_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    data = damaged(path, write_file)
    opened = open_file(Arrow(), path)
    with pytest.raises(DataError, match="had 3 when it was listed"):
        Arrow().open(LocalStore(), Shard(str(path), 3))
    other = path.with_suffix(".new")
    other.write_bytes(data + b"\0")
    other.rename(path)
    with pytest.raises(DataError, match="changed after it was opened"):
        opened.read(0, None, 0, 1)
    path.unlink()
    with pytest.raises(DataError, match=r"a\.arrow"):
        opened.read(0, None, 0, 1)
    store = remote(path)
    path.write_bytes(data[:-50])
    with pytest.raises(DataError, match=r"a\.arrow"):
        Arrow().open(store, Shard(str(path), len(data)))


def test_two_columns_of_one_name_and_unions_are_refused(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    write_file(tmp_path / "a.arrow", twice)
    with pytest.raises(DataError, match="several columns of the name 'a'"):
        open_file(Arrow(), tmp_path / "a.arrow")
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    write_file(tmp_path / "b.arrow", pa.table({"u": union, "n": [1, 2]}))
    opened = open_file(Arrow(), tmp_path / "b.arrow")
    assert read_rows(opened, ["n"]) == [{"n": 1}, {"n": 2}]
    with pytest.raises(DataError, match="union"):
        opened.read(0, ["u"], 0, 2)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match="unit_bytes"):
        Arrow(unit_bytes=0)


def test_every_buffer_of_a_batch_is_given_to_one_column() -> None:
    """The places of buffers are worked out from the schema: they must be as many as the header has."""
    from zephon_formats._arrow_messages import Window, message_at

    table = rich_table(20)
    batch = table.combine_chunks().to_batches()[0]
    union = pa.UnionArray.from_dense(
        pa.array([0, 1] * 10, pa.int8()),
        pa.array(sorted([*range(10)] * 2), pa.int32()),
        [pa.array(range(10)), pa.array(["a"] * 10)],
    )
    batch = batch.append_column("union", union)
    data = batch.serialize().to_pybytes()
    message = message_at(Window(lambda a, b: data[a:b], len(data)), 0)
    assert message is not None
    nodes = nodes_of(message, batch.schema)
    assert nodes is not None
    assert sum(len(list(node.everything())) for node in nodes) == len(message.buffers)


def test_types_that_arrow_can_not_cast_are_decoded(tmp_path: Path) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", None]))
    words = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]).dictionary_encode())
    table = pa.table(
        {
            "views": pa.array([["a"], None, []], pa.list_view(pa.string_view())),
            "wide": pa.array([[[1]], None, [None, []]], pa.large_list_view(pa.list_view(pa.int8()))),
            "struct": pa.StructArray.from_arrays([runs], ["r"], mask=pa.array([False, True, False])),
            "lists": pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([["a"], None])),
            "words": words,
        }
    )
    write_file(tmp_path / "a.arrow", table)
    assert read_rows(open_file(Arrow(), tmp_path / "a.arrow")) == table.to_pylist()

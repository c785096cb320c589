"""CSV and TSV are read as Python's `csv` reads them, in units of whole records, with types from a sample."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
import zstandard
from formats.reading import open_file, read_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, RecipeError
from zephon.plugin import DataError as PluginDataError
from zephon.storage import LocalStore
from zephon.testing import SAMPLE_ROWS, CountingStore, check_format
from zephon_formats._csv_split import RecordStarts, plain_field, raw_fields
from zephon_formats.csv import Csv

FLAT_ROWS = [{name: row[name] for name in ("id", "text", "score", "flag")} for row in SAMPLE_ROWS]


def write_csv(rows: list[dict[str, Any]], delimiter: str, line_end: str) -> bytes:
    """By pyarrow: nulls are empty, empty strings are quoted."""
    table = pa.Table.from_pylist(rows) if rows else pa.table({"id": pa.array([], pa.int64())})
    out = io.BytesIO()
    options = pacsv.WriteOptions(delimiter=delimiter, quoting_style="needed")
    pacsv.write_csv(table, out, options)
    return out.getvalue() if line_end == "\n" else out.getvalue().replace(b"\n", line_end.encode())


def writer(
    suffix: str, pack: Callable[[bytes], bytes], delimiter: str
) -> Callable[[Path, list[dict[str, Any]]], Sequence[Path]]:
    def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
        half = len(rows) // 2
        paths = [folder / f"a{suffix}", folder / f"b{suffix}"]
        for path, part in zip(paths, (rows[:half], rows[half:]), strict=True):
            path.write_bytes(pack(write_csv(part, delimiter, "\n")))
        return paths

    return write


@pytest.mark.parametrize(
    ("suffix", "pack", "delimiter"),
    [
        (".csv", bytes, ","),
        (".tsv", bytes, "\t"),
        (".csv.gz", gzip.compress, ","),
        (".tsv.zst", zstandard.ZstdCompressor().compress, "\t"),
    ],
)
def test_csv_conforms(suffix: str, pack: Callable[[bytes], bytes], delimiter: str) -> None:
    check_format(Csv(unit_bytes=1000), writer(suffix, pack, delimiter), rows=FLAT_ROWS)


def rows_of(path: Path, data: bytes, **options: Any) -> list[dict[str, Any]]:
    path.write_bytes(data)
    return read_rows(open_file(Csv(**options), path))


# ------------------------------------------------------------------------------------------------------------- records


TEXTS = st.text(st.sampled_from('a",\r\n ü\t'), max_size=8)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.lists(st.lists(TEXTS, min_size=2, max_size=2), max_size=12),
    # with other line ends QUOTE_MINIMAL doesn't quote the line ends that these are not
    style=st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\n", csv.QUOTE_ALL), ("\r", csv.QUOTE_NONNUMERIC)]),
    unit_bytes=st.integers(1, 60),
)
def test_what_pythons_writer_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], style: Any, unit_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=style[0], quoting=style[1]).writerows([["x", "y"], *rows])
    path.with_name("a.csv.2c221.csv.zidx").unlink(missing_ok=True)
    opened = open_file(Csv(unit_bytes=unit_bytes, schema={"x": "string", "y": "string"}, null_values=()), path)
    assert [list(row.values()) for row in read_rows(opened)] == rows


@settings(max_examples=examples(300), deadline=None)
@given(
    text=st.text(st.sampled_from('a",\r\n'), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    header=st.booleans(),
)
@example(text='a"b,"c\n"d\n', cuts=[], header=False)
@example(text='"a""\n"b\n,"c"\n', cuts=[4], header=False)
@example(text='""""""\n"', cuts=[1, 2, 3], header=True)
@example(text="\r\n\r\n\ra\r", cuts=[1, 4], header=False)
def test_records_begin_where_pythons_reader_begins_them_however_the_bytes_come(
    text: str, cuts: list[int], header: bool
) -> None:
    data = text.encode()
    found = RecordStarts(3, delimiter=ord(","), quote=ord('"'), header=header)
    borders = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    for begin, end in itertools.pairwise(borders):
        found.feed(data[begin:end])
    expected = python_starts(text)
    if expected is None:
        with pytest.raises(DataError, match="never closed"):
            found.finish()
        return
    starts = [3 + s for s in expected]
    assert found.finish().tolist() == [*(starts[1:] if header else starts), 3 + len(data)]


def python_starts(text: str) -> list[int] | None:
    """Where records with fields begin, by the states of Python's `csv`; None: the text ends inside quotes."""
    starts, state, at = [], "start", 0
    record = 0
    while at < len(text):
        c = text[at]
        if state == "quoted":
            state = "quote in quoted" if c == '"' else "quoted"
        elif c in "\r\n":
            if at > record:
                starts.append(record)
            at += c == "\r" and text[at + 1 : at + 2] == "\n"
            record, state = at + 1, "start"
        elif c == '"' and state in ("start", "quote in quoted"):
            state = "quoted"
        else:
            state = "start" if c == "," else "field"
        at += 1
    if state == "quoted":
        return None
    return [*starts, record] if record < len(text) else starts


@settings(max_examples=examples(200), deadline=None)
@given(record=st.text(st.sampled_from('a",'), min_size=1, max_size=20))
def test_fields_are_those_of_pythons_reader(record: str) -> None:
    expected = next(csv.reader([record]))
    assert [plain_field(f, b'"').decode() for f in raw_fields(record.encode(), b",", b'"')] == expected


def test_quotes_that_open_no_field_are_text(tmp_path: Path) -> None:
    data = b'a,b\n5" disk,say "x"\n"q,",x"y\n1,"""z"\n'
    assert rows_of(tmp_path / "a.csv", data) == [
        {"a": '5" disk', "b": 'say "x"'},
        {"a": "q,", "b": 'x"y'},
        {"a": "1", "b": '"z'},
    ]
    assert rows_of(tmp_path / "b.tsv", b'a\tb\n"x\ty\n', quote=None) == [{"a": '"x', "b": "y"}]


def test_marks_blank_lines_and_line_ends_of_all_kinds(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf\r\n"a",b\r\n\r\n1,"x\r\ny"\r\n\n2,y\r3,z'
    assert rows_of(tmp_path / "a.csv", data) == [{"a": 1, "b": "x\r\ny"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]


def test_text_of_many_blocks_is_cut_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_formats._bytes.BLOCK", 7)
    rows = [{"a": i, "b": f'x"{i},\n' * (i % 3)} for i in range(50)]
    out = io.StringIO(newline="")
    made = csv.DictWriter(out, ["a", "b"], lineterminator="\r\n")
    made.writeheader()
    made.writerows(rows)
    assert rows_of(tmp_path / "a.csv", out.getvalue().encode(), null_values=()) == rows


@pytest.mark.parametrize("local", [True, False])
def test_a_file_is_scanned_once_and_a_part_is_read_by_its_bytes(tmp_path: Path, local: bool) -> None:
    path = tmp_path / "a.csv"
    data = b"id,text\n" + b"".join(b'%d,"text\n%d"\n' % (i, i) for i in range(20_000))
    path.write_bytes(data)
    first, second = (CountingStore(LocalStore(str(tmp_path / ".cache")), local=local) for _ in range(2))
    reader = Csv(unit_bytes=10_000, sample_bytes=1000)
    open_file(reader, path, store=first)
    assert first.total < 1.5 * len(data)
    opened = open_file(reader, path, store=second)
    assert second.total < 20_000
    before = second.total
    (batch,) = opened.read(7, ["text"], 5, 6)
    assert second.total - before < 100
    assert batch.num_rows == 1
    assert read_rows(opened) == [{"id": i, "text": f"text\n{i}"} for i in range(20_000)]


def test_other_dialects_of_one_file_have_other_indices(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a;b\n"1;2\n3";4\n')
    assert read_rows(open_file(Csv(delimiter=";"), path)) == [{"a": "1;2\n3", "b": 4}]
    assert read_rows(open_file(Csv(delimiter=";", quote=None), path)) == [{"a": '"1', "b": 2}, {"a": '3"', "b": 4}]
    assert read_rows(open_file(Csv(delimiter=";"), path)) == [{"a": "1;2\n3", "b": 4}]
    assert open_file(Csv(delimiter=";", header=False), path).schema.names == ["f0", "f1"]


# ------------------------------------------------------------------------------------------------------ names and types


def test_names_come_from_the_header_or_the_user(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert rows_of(path, b"1,2\n3,4\n", header=False) == [{"f0": 1, "f1": 2}, {"f0": 3, "f1": 4}]
    assert rows_of(path, b"1,2\n3,4\n", column_names=["x", "y"]) == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert rows_of(path, b"a,b\n3,4\n", column_names=["x", "y"], header=True) == [{"x": 3, "y": 4}]
    assert rows_of(path, b',"n ""q""",b\n3,4,5\n') == [{"Unnamed: 0": 3, 'n "q"': 4, "b": 5}]
    with pytest.raises(DataError, match="several columns of the name 'a'"):
        rows_of(path, b"a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="2 fields, and column_names 3"):
        rows_of(path, b"1,2\n3,4\n", column_names=["x", "y", "z"])


@pytest.mark.parametrize(
    ("values", "kind", "first"),
    [
        (["1", "-2", ""], pa.int64(), 1),
        (["1", "2.5"], pa.float64(), 1.0),
        (["true", "False"], pa.bool_(), True),
        (["2024-01-01", "2024-01-02"], pa.string(), "2024-01-01"),
        (["12:30:00"], pa.string(), "12:30:00"),
        (["2024-01-01 10:00:00"], pa.string(), "2024-01-01 10:00:00"),
        (["007", "8"], pa.string(), "007"),
        (["0x1f"], pa.string(), "0x1f"),
        (["0", "0.5"], pa.float64(), 0.0),
        (["12345678901234567890"], pa.string(), "12345678901234567890"),
        (["1234567890123456789", "0.5"], pa.string(), "1234567890123456789"),
        (["1234567890123456789"], pa.int64(), 1234567890123456789),
        (["1", "x"], pa.string(), "1"),
        (["NA", "1"], pa.string(), "NA"),
        (["", ""], pa.null(), None),
    ],
)
def test_types_that_lose_nothing_are_found(tmp_path: Path, values: list[str], kind: pa.DataType, first: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,v\n" + "".join(f"0,{v}\n" for v in values))
    opened = open_file(Csv(), path)
    assert opened.schema.field("v").type == kind
    assert read_rows(opened)[0]["v"] == first


def test_types_hold_for_the_whole_file_and_a_value_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    data = b"id,v,w\n" + b"1,2,x\n" * 5000 + b"1,oops,x\n" + b"1,2,x\n" * 5000
    path.write_bytes(data)
    opened = open_file(Csv(sample_bytes=100), path)
    assert opened.schema.field("v").type == pa.int64()
    with pytest.raises(DataError, match=r"column 'v'.*'oops'(.|\n)*row 5000(.|\n)*schema=\{'v': 'string'\}") as caught:
        read_rows(opened, ["w", "v"])
    assert caught.value.where.row == 5000
    assert len(read_rows(opened, ["w", "id"])) == 10_001
    assert read_rows(open_file(Csv(sample_bytes=None), path))[5000]["v"] == "oops"
    assert read_rows(open_file(Csv(sample_bytes=100, schema={"v": "string"}), path))[5000]["v"] == "oops"


def test_a_type_from_the_middle_of_a_long_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"v\n" + b"1\n" * 30_000 + b"1.5\n" * 30_000)
    assert open_file(Csv(sample_bytes=100), path).schema.field("v").type == pa.float64()


def test_declared_types_are_used_and_wrong_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    schema = {"n": "float", "t": "timestamp[s]", "d": pa.decimal128(5, 2), "b": "binary"}
    (row,) = rows_of(path, b"n,t,d,b\n1,2024-01-02 03:04:05,1.25,\xff\n", schema=schema)
    assert str(row["t"]) == "2024-01-02 03:04:05"
    assert str(row["d"]) == "1.25"
    assert row["b"] == b"\xff"
    with pytest.raises(DataError, match="names the column 'x'; the file has n, t, d, b"):
        open_file(Csv(schema={"x": "int64"}), path)
    for kind in ("json", "list<int64>", "struct<a: int64>", "wrong"):
        with pytest.raises(RecipeError, match="schema"):
            Csv(schema={"n": kind})


def test_only_an_unquoted_empty_field_is_null(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert rows_of(path, b'a,b\n1,\n2,""\n,x\n') == [{"a": 1, "b": None}, {"a": 2, "b": ""}, {"a": None, "b": "x"}]
    assert rows_of(path, b'a,b\n1,NA\nNA,"NA"\n', null_values=("", "NA")) == [{"a": 1, "b": None}, {"a": None, "b": "NA"}]
    assert rows_of(path, b'a,b\n"1",""\n"","x"\n', quoted_nulls=True) == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_what_pandas_writes_is_what_pandas_reads(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "id": np.arange(500),
            "x": rng.normal(size=500),
            "text": [None if i % 7 == 0 else f'word, "{i}"\nline' for i in range(500)],
            "flag": rng.random(500) > 0.5,
        }
    )
    for suffix, line_end in ((".csv", "\n"), (".csv.gz", "\r\n"), (".tsv", "\n")):
        path = tmp_path / f"a{suffix}"
        frame.to_csv(path, sep="\t" if "tsv" in suffix else ",", lineterminator=line_end)
        expected = pd.read_csv(path, sep="\t" if "tsv" in suffix else ",")
        found = read_rows(open_file(Csv(unit_bytes=2000), path))
        assert found == expected.astype(object).where(expected.notna(), None).to_dict("records")


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_ragged_record_is_an_error_with_its_row_or_padded(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    data = b'a,b,c\n1,2,3\n\n4,"5,\n"\n6,7,8\n9,,1,"x,y"\n'
    path.write_bytes(data)
    opened = open_file(Csv(schema={"b": "string"}), path)
    with pytest.raises(DataError, match=r"Expected 3 columns, got 2(.|\n)*byte 13(.|\n)*row 1\b") as caught:
        opened.read(0, None, 0, 4)
    assert caught.value.where.row == 1
    with pytest.raises(DataError, match="row 3") as caught:
        opened.read(0, ["a"], 2, 4)
    assert opened.read(0, None, 2, 3)[0].to_pylist() == [{"a": 6, "b": "7", "c": 8}]
    assert rows_of(path, data, ragged="pad", schema={"b": "string"}) == [
        {"a": 1, "b": "2", "c": 3},
        {"a": 4, "b": "5,\n", "c": None},
        {"a": 6, "b": "7", "c": 8},
        {"a": 9, "b": None, "c": 1},
    ]


def test_a_quote_that_is_never_closed_is_an_error_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with pytest.raises(DataError, match=r"the quote at byte 6 is never closed.*a\.csv"):
        rows_of(path, b'a,b\n1,"2\n3,4\n')
    assert not list(tmp_path.rglob("*.zidx"))


def test_bytes_that_are_not_utf_8_follow_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    data = b"a,b\n1,fine\n2,caf\xe9\n3,\xc3\xa9\n4,nul\0\n5,\xff\xfe\n"
    assert [r["b"] for r in rows_of(path, data)] == ["fine", "caf\ufffd", "é", "nul\ufffd", "\ufffd\ufffd"]
    path.write_bytes(data)
    opened = open_file(Csv(bad_text="error"), path)
    for row, says in ((1, "UTF8"), (3, "NUL")):
        with pytest.raises(DataError, match=rf"{says}(.|\n)*row {row}") as caught:
            opened.read(0, None, row, 5)
        assert caught.value.where.row == row
    assert opened.read(0, ["a"], 0, 5)[0].num_rows == 5
    with pytest.raises(PluginDataError, match="name of column 0 is not UTF-8"):
        rows_of(path, b"\xff,b\n1,2\n", bad_text="error")
    with pytest.raises(DataError, match="UTF-16"):
        rows_of(path, "a,b\n1,2\n".encode("utf-16"))


@pytest.mark.parametrize("data", [b"", b"\n\r\n", b"\xef\xbb\xbf", b"a,b\n", b"a,b", b'"a\n",b\r\n\r\n'])
def test_a_file_without_records_has_no_rows(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(data)
    opened = open_file(Csv(), path)
    assert opened.units().rows.sum() == 0
    assert len(opened.schema) == (2 if b"b" in data and b"," in data else 0)
    assert read_rows(opened) == []


def test_a_changed_file_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a\n1\n2\n")
    opened = open_file(Csv(), path)
    path.write_bytes(b"b\n1\n2\n3\n")
    with pytest.raises(DataError, match="changed after it was indexed"):
        opened.read(0, None, 0, 2)
    assert read_rows(open_file(Csv(), path)) == [{"b": 1}, {"b": 2}, {"b": 3}]


def test_a_record_longer_than_a_unit_and_a_range_longer_than_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    data = b"a,b\n" + b"".join(b'%d,"%s"\n' % (i, b"x\n" * 3000) for i in range(10))
    path.write_bytes(data)
    assert len(read_rows(open_file(Csv(unit_bytes=100), path))) == 10
    monkeypatch.setattr("zephon_formats._lines._MAX_PIECE", 20_000)
    opened = open_file(Csv(), path)
    batches = opened.read(0, None, 0, 10)
    assert [len(b) for b in batches] == [3, 3, 3, 1]
    monkeypatch.setattr("zephon_formats._lines._MAX_PIECE", 2000)
    with pytest.raises(DataError, match="row 0"):
        opened.read(0, None, 0, 10)


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": ""},
        {"delimiter": ",,"},
        {"delimiter": "\n"},
        {"delimiter": "→"},
        {"quote": "''"},
        {"quote": ","} | {"delimiter": ","},
        {"ragged": "skip"},
        {"bad_text": "ignore"},
        {"column_names": "ab"},
        {"column_names": ["a", "a"]},
        {"null_values": "NA"},
        {"unit_bytes": 0},
        {"sample_bytes": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Csv(**options)

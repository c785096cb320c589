"""JSON lines against the `json` module, and the texts that broke other readers (numbers: the cases under shared/cases)."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from formats.reading import open_file, read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.errors import DataError, RecipeError
from zephon_formats.jsonl import Jsonl

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | TEXT,
            "b": st.none() | st.booleans(),
            "l": st.none() | st.lists(st.none() | TEXT, max_size=3),
            "d": st.none()
            | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9), "y": st.lists(st.integers(0, 9), max_size=2)}),
            "clé": st.none() | TEXT,
        },
    ),
    max_size=30,
)
END = st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n", " \n", "\n  "])


def filled(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in names} for row in rows]


def write(tmp_path: Path, *lines: str | bytes, name: str = "a.jsonl") -> Path:
    data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n"
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@settings(max_examples=examples(80), deadline=None)
@given(
    rows=ROWS,
    ends=st.lists(END, min_size=30, max_size=30),
    bom=st.booleans(),
    last=st.booleans(),
    unit=st.sampled_from([1, 40, 10_000]),
    ascii_only=st.booleans(),
)
def test_rows_come_back_as_json_wrote_them(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    ends: list[str],
    bom: bool,
    last: bool,
    unit: int,
    ascii_only: bool,
) -> None:
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + end for row, end in zip(rows, ends, strict=False))
    data = (codecs.BOM_UTF8 if bom else b"") + (text if last else text.rstrip()).encode()
    path = tmp_path_factory.mktemp("j") / "a.jsonl"
    path.write_bytes(data)
    opened = open_file(Jsonl(unit_bytes=unit, sample_bytes=None), path)
    got = read_rows(opened)
    assert got == filled(rows, opened.schema.names)
    assert {name for row in rows for name in row} == set(opened.schema.names)
    assert opened.units().rows.sum() == len(rows)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=ROWS.filter(bool),
    odd=st.sampled_from([None, '{"s": "\\ud800", "i": 3}', '{"f": 1, "f": NaN}', '{"i": 1, "s": "\x00\xff"}']),
    data=st.data(),
)
def test_a_row_does_not_depend_on_the_rows_read_with_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], odd: str | None, data: st.DataObject
) -> None:
    """A row that only the slow way can read must not change its neighbours, nor their types."""
    lines = [json.dumps(row) for row in rows]
    if odd is not None:
        lines.insert(data.draw(st.integers(0, len(lines))), odd)
    path = tmp_path_factory.mktemp("j") / "a.jsonl"
    path.write_bytes("\n".join(lines).encode("latin-1"))
    opened = open_file(Jsonl(sample_bytes=None), path)
    start = data.draw(st.integers(0, len(lines) - 1))
    stop = data.draw(st.integers(start + 1, len(lines)))
    (part,) = opened.read(0, None, start, stop)
    singles = [opened.read(0, None, i, i + 1)[0] for i in range(start, stop)]
    assert all(single.schema == part.schema == opened.schema for single in singles)
    assert pa.Table.from_batches(singles).to_pydict().__repr__() == part.to_pydict().__repr__()  # repr: NaN is NaN


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\n\t\n", codecs.BOM_UTF8, codecs.BOM_UTF8 + b"\n\n"])
def test_a_file_without_lines_has_zero_rows(tmp_path: Path, content: bytes) -> None:
    """85."""
    (tmp_path / "a.jsonl").write_bytes(content)
    opened = open_file(Jsonl(), tmp_path / "a.jsonl")
    assert opened.units().rows.sum() == 0
    assert opened.schema == pa.schema([])


def test_strings_stay_strings_whatever_they_look_like(tmp_path: Path) -> None:
    row = {"a": "2020-01-01 00:00:00", "b": "2020-01-01T00:00:00Z", "c": [{"d": "2020-01-01"}], "e": "12", "f": "true"}
    opened = open_file(Jsonl(), write(tmp_path, json.dumps(row)))
    assert opened.schema.types == [
        pa.string(),
        pa.string(),
        pa.list_(pa.struct([("d", pa.string())])),
        pa.string(),
        pa.string(),
    ]
    assert read_rows(opened) == [row]


def test_null_missing_and_empty_stay_apart(tmp_path: Path) -> None:
    """67 and 68."""
    nulls = [{"a": [None, None]}, {"a": [None]}, {"a": []}, {"a": None}]
    assert read_rows(open_file(Jsonl(), write(tmp_path, *map(json.dumps, nulls), name="nulls.jsonl"))) == nulls
    rows = [{"a": None}, {"a": []}, {}, {"a": [{"b": None, "g": "x"}, None]}, {"a": [{}]}]
    opened = open_file(Jsonl(), write(tmp_path, *map(json.dumps, rows)))
    assert [r["a"] for r in read_rows(opened)] == [None, [], None, [{"b": None, "g": "x"}, None], [{"b": None, "g": None}]]


def test_values_of_no_common_type_are_kept_as_json_text(tmp_path: Path) -> None:
    """79."""
    rows = [{"n": [[0, 4, "P"]], "id": 1}, {"n": None, "id": "1"}, {"n": 1.50, "id": {"é": [True, None]}}]
    opened = open_file(Jsonl(), write(tmp_path, *(json.dumps(r) for r in rows)))
    assert read_rows(opened) == [
        {"n": '[[0,4,"P"]]', "id": "1"},
        {"n": None, "id": '"1"'},
        {"n": "1.5", "id": '{"é":[true,null]}'},
    ]


@pytest.mark.parametrize("value", ['"1"', "1.5", "9223372036854775808", "true", "[1]", "1e3"])
def test_a_later_value_of_another_type_is_an_error_with_row_and_byte(tmp_path: Path, value: str) -> None:
    """79 and 86."""
    lines = ['{"id": 1}'] * 50
    path = write(tmp_path, *lines, "", f'{{"id": {value}, "x": 2}}', *lines * 80)
    opened = open_file(Jsonl(sample_bytes=100), path)
    with pytest.raises(DataError, match=r"column 'id'.*does not fit.*int64.*byte 501.*a\.jsonl.*row 50") as caught:
        read_rows(opened, ["id"])
    assert caught.value.where.row == 50
    assert read_rows(open_file(Jsonl(sample_bytes=100, schema={"id": "string"}), path), ["id"])[49:52] == [
        {"id": "1"},
        {"id": value.strip('"')},
        {"id": "1"},
    ]
    assert opened.read(0, ["id"], 51, 53)[0].to_pylist() == [{"id": 1}] * 2


def test_integers_keep_every_digit_or_are_refused(tmp_path: Path) -> None:
    big = {"u": 2**64 - 1, "n": -(2**63), "deep": [{"u": 2**63}], "f": 0.1}
    opened = open_file(Jsonl(), write(tmp_path, json.dumps(big)))
    assert opened.schema.field("u").type == pa.uint64()
    assert read_rows(opened) == [big]
    beyond = open_file(
        Jsonl(),
        write(
            tmp_path, '{"x": 1e5, "y": 123456789012345678901234567890}', '{"x": 12345678901234567890, "y": 1}', name="b.jsonl"
        ),
    )
    assert read_rows(beyond) == [{"x": 1e5, "y": 123456789012345678901234567890.0}, {"x": 12345678901234567890.0, "y": 1.0}]


def test_declared_types_are_used(tmp_path: Path) -> None:
    lines = ['{"id": 1, "t": "2020-01-01", "m": {"a": 1}, "raw": "x"}', '{"id": 1.50, "late": [1], "m": {"b": 2}}']
    declared = {
        "id": "string",
        "t": "timestamp[s]",
        "late": "list<double>",
        "m": "map<string, int64>",
        "raw": "json",
        "s": "struct<a: int64, b: list<string>>",
    }
    opened = open_file(Jsonl(schema=declared), write(tmp_path, *lines))
    assert opened.schema.field("s").type == pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    first, second = (dict(r) for r in read_rows(opened))
    assert first["t"].isoformat() == "2020-01-01T00:00:00"
    assert (first["id"], first["m"], first["raw"], first["s"]) == ("1", [("a", 1)], '"x"', None)
    assert (second["id"], second["late"], second["m"], second["raw"]) == ("1.50", [1.0], [("b", 2)], None)


@pytest.mark.parametrize(
    "options", [{"schema": {"a": "strin"}}, {"bad_text": "drop"}, {"unit_bytes": 0}, {"schema": {"a": 3}}, {"sample_bytes": 0}]
)
def test_wrong_settings_are_refused_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        Jsonl(**options)


@pytest.mark.parametrize("late", ['"x"', "[1]", '{"a": "2020-01-01"}', '"2020-01-01"'])
def test_columns_that_the_sample_does_not_show_can_be_read_by_name(tmp_path: Path, late: str) -> None:
    path = write(
        tmp_path, *['{"id": 1, "only_null": null}'] * 300, f'{{"id": 2, "spät": {late}, "only_null": {late}}}', '{"id": 3}'
    )
    opened = open_file(Jsonl(sample_bytes=10), path)
    assert opened.schema.names == ["id", "only_null"]
    got = read_rows(opened, ["spät", "id", "only_null"])
    assert got[299:] == [
        {"spät": None, "id": 1, "only_null": None},
        {"spät": json.loads(late), "id": 2, "only_null": json.loads(late)},
        {"spät": None, "id": 3, "only_null": None},
    ]
    assert opened.read(0, ["spät"], 0, 10)[0].schema.names == []
    assert len(opened.read(0, ["spät"], 0, 10)[0]) == 10


def test_the_sample_looks_at_the_whole_file_in_places(tmp_path: Path) -> None:
    """71: what only the middle or the end has is a column too."""
    lines = ['{"id": 1, "x": null}'] * 5000 + ['{"id": 1.5, "x": ["a"], "late": 1}'] * 5000
    opened = open_file(Jsonl(sample_bytes=1000), write(tmp_path, *lines))
    assert opened.schema == pa.schema([("id", pa.float64()), ("x", pa.list_(pa.string())), ("late", pa.int64())])
    assert read_rows(opened)[4999:5001] == [{"id": 1.0, "x": None, "late": None}, {"id": 1.5, "x": ["a"], "late": 1}]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'"a\\ud800b"', "a\ufffdb"),
        (b'"a\\udfffb\\ud83d\\ude00"', "a\ufffdb😀"),
        (b'"caf\xe9 x"', "caf\ufffd x"),
        (b'"a\xff\xfeb"', "a\ufffd\ufffdb"),
        (b'"a\0b"', "a\ufffdb"),
        (b'"\xed\xa0\x80"', "\ufffd" * 3),
    ],
)
def test_bad_text_becomes_a_replacement_character_or_an_error(tmp_path: Path, raw: bytes, expected: str) -> None:
    """82."""
    path = write(tmp_path, '{"text": "good", "n": 1}', b'{"text": ' + raw + b', "n": 2}', '{"text": "é", "n": 3}')
    assert read_rows(open_file(Jsonl(), path)) == [{"text": "good", "n": 1}, {"text": expected, "n": 2}, {"text": "é", "n": 3}]
    strict = open_file(Jsonl(bad_text="error"), path)
    with pytest.raises(DataError) as caught:
        read_rows(strict, ["text"])
    assert caught.value.where.row == 1
    assert strict.read(0, ["text"], 2, 3)[0].to_pylist() == [{"text": "é"}]


def test_an_escaped_nul_is_text(tmp_path: Path) -> None:
    assert read_rows(open_file(Jsonl(), write(tmp_path, '{"t": "a\\u0000b"}'))) == [{"t": "a\0b"}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_an_error_that_says_so(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"a": 1}\n'.encode(encoding))
    with pytest.raises(DataError, match="UTF-16"):
        open_file(Jsonl(), tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1',
        "[1]",
        "3",
        "null",
        '{"a": 1}{"a": 2}',
        '{"a": 1},',
        "{'a': 1}",
        '{"a": 1} {',
        '{"a": 007}',
        '{"a":',
        "\0\0\0",
        '{"a": tru}',
        '{"a": 1e999}',
        "}{",
    ],
)
def test_a_line_that_is_not_one_object_is_an_error_of_its_row_alone(tmp_path: Path, line: str) -> None:
    good = ['{"a": 1.5}'] * 3
    opened = open_file(Jsonl(), write(tmp_path, *good, line, *good))
    with pytest.raises(DataError, match="byte 33") as caught:
        read_rows(opened)
    assert caught.value.where.row == 3
    assert sum(len(b) for b in opened.read(0, None, 0, 3)) == 3
    assert opened.read(0, None, 4, 7)[0].to_pylist() == [{"a": 1.5}] * 3


def test_objects_over_several_lines_never_shift_the_rows_after_them(tmp_path: Path) -> None:
    """Two lines that make one object and one line with two: a parser that ignores line ends finds as many rows as lines."""
    opened = open_file(Jsonl(), write(tmp_path, '{"a":', '{"b": 1}}', '{"a": {"b": 2}}{"a": {"b": 3}}', '{"a": {"b": 4}}'))
    with pytest.raises(DataError) as caught:
        read_rows(opened)
    assert caught.value.where.row == 0
    assert opened.read(0, None, 3, 4)[0].to_pylist() == [{"a": {"b": 4}}]


def test_a_file_without_any_object_is_refused_when_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not valid JSON.*a\.jsonl.*row 0"):
        open_file(Jsonl(), write(tmp_path, "id,text", "1,hello"))


def test_repeated_keys_keep_the_last_and_nan_is_a_number(tmp_path: Path) -> None:
    rows = read_rows(open_file(Jsonl(), write(tmp_path, '{"a": 1, "a": 2, "f": NaN}', '{"a": 3, "f": -Infinity}', '{"f": 1}')))
    assert repr(rows) == "[{'a': 2, 'f': nan}, {'a': 3, 'f': -inf}, {'a': None, 'f': 1.0}]"


def test_deep_nesting_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    deep = '{"a": "x", "b": ' + "[" * 3000 + "]" * 3000 + "}"
    path = write(tmp_path, '{"a": "x", "b": []}', deep)
    assert read_rows(open_file(Jsonl(sample_bytes=10), path), ["a"]) == [{"a": "x"}] * 2


def test_a_giant_line_and_many_tiny_ones_share_a_file(tmp_path: Path) -> None:
    giant = "x" * 30_000_000
    opened = open_file(Jsonl(), write(tmp_path, *['{"t": "a"}'] * 10, json.dumps({"t": giant}), *['{"t": "b"}'] * 10))
    rows = read_rows(opened)
    assert [len(r["t"]) for r in rows] == [1] * 10 + [len(giant)] + [1] * 10
    assert opened.read(1, None, 0, 1)[0].to_pylist() == [{"t": "b"}]


def test_reads_outside_a_unit_are_refused(tmp_path: Path) -> None:
    opened = open_file(Jsonl(), write(tmp_path, '{"a": 1}'))
    with pytest.raises(DataError, match="which has 1"):
        opened.read(0, None, 0, 2)


def test_types_that_clash_only_between_samples_give_json_text_for_the_whole_file(tmp_path: Path) -> None:
    lines = ['{"id": 1}'] * 2000 + ['{"id": "1"}'] * 2000 + ['{"id": 1}'] * 2000
    opened = open_file(Jsonl(sample_bytes=100), write(tmp_path, *lines))
    assert [r["id"] for r in read_rows(opened)] == ["1"] * 2000 + ['"1"'] * 2000 + ["1"] * 2000


# ----------------------------------------------------------------------------------------------- what is said in the log


@pytest.mark.parametrize("text", [b'{"a": "x\xffy"}', b'{"a": "x\0y"}', rb'{"a": "x\ud800y"}'])
def test_replaced_text_is_told_once_for_a_file(text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": "fine \xef\xbf\xbd \\ud83d\\ude00"}\n' + text + b"\n")
    for _ in range(2):
        opened = open_file(Jsonl(unit_bytes=1), path)
        opened.read(0, None, 0, 1)
        assert read_rows(opened)[1] == {"a": "x\ufffdy"}
    assert caplog.text.count("U+FFFD stands in its place") == 1
    assert str(path) in caplog.text


@pytest.mark.parametrize("columns", [None, ["m"]])
@pytest.mark.parametrize(
    ("late", "name"), [({"m": [{"r": "u", "late": 1}]}, "m.late"), ({"m": [{"r": None, "q": {"w": 2}}], "n": 1}, "m.q.w")]
)
def test_a_deeper_key_that_the_sample_does_not_show_is_told(
    late: dict[str, Any], name: str, columns: list[str] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    early = {"m": [{"r": "u", "q": {"v": 1}}], "n": 0}
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in [*[early] * 16, late]))
    opened = open_file(Jsonl(sample_bytes=1), path)
    opened.read(0, columns, 0, 16)
    assert "is not in the sample" not in caplog.text
    (got,) = opened.read(0, columns, 16, 17)
    assert len(got) == 1
    assert f"the key {name!r}" in caplog.text


def test_a_later_top_level_key_is_told_where_all_columns_with_depth_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"m": {"r": 1}}\n' * 16 + b'{"m": {"r": 1}, "new": 2}\n')
    read_rows(open_file(Jsonl(sample_bytes=1), path))
    assert "the key 'new'" in caplog.text

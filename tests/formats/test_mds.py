"""MDS as mosaicml-streaming writes it: every encoding and packing, equal to what its own reader returns row by row."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from formats.mds_data import (
    ENCODINGS,
    as_array,
    assert_equal,
    open_all,
    ours,
    picture,
    row,
    theirs,
    write,
)
from formats.reading import read_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from thoroughness import examples

from zephon.errors import DataError, RecipeError
from zephon.testing import check_format
from zephon_formats.mds import Mds

GOLDEN = Path(__file__).parent / "golden"
PACKINGS = (None, "zstd", "zstd:1", "gz:1", "br:1", "bz2:1", "snappy")


# ---------------------------------------------------------------------------------------------------- what is read


def test_the_encodings_are_all_that_streaming_has() -> None:
    # not above: it loads transformers, in each worker that collects this file
    from streaming.base.format.mds.encodings import _encodings

    assert {encoding.partition(":")[0] for encoding in ENCODINGS.values()} == set(_encodings)


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_encoding_and_packing_reads_as_streaming_reads_it(tmp_path: Path, packing: str | None) -> None:
    folder = write(tmp_path / "s", [row(n) for n in range(26)], ENCODINGS, packing, size_limit=30_000)
    opened = open_all(Mds(allow_pickle=True, unit_bytes=5000), folder)
    assert len(opened) > 2
    assert max(len(o.units().rows) for o in opened) == (1 if packing else 5)
    got = [each for one in opened for each in read_rows(one)]
    assert_equal(got, theirs(folder, tmp_path / "t"), ENCODINGS)


def test_the_types_are_the_natural_ones(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [row(0)], {k: v for k, v in ENCODINGS.items() if v != "pkl"})
    (opened,) = open_all(Mds(), folder)
    picture_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    found = {field.name: field.type for field in opened.schema}
    assert found["c_int"] == found["d_int64"] == found["f_int"] == pa.int64()
    assert found["d_uint8"] == pa.uint8()
    assert found["e_float16"] == pa.float16()
    assert found["f_float"] == pa.float64()
    assert found["f_decimal"] == found["g_json"] == found["a_str"] == pa.string()
    assert found["h_jpeg"] == found["h_png"] == found["h_pil"] == picture_type
    assert found["i_jpeg"] == found["i_jpeg_array"] == found["i_pil"] == pa.list_(picture_type)
    assert found["j_fixed"] == pa.list_(pa.list_(pa.list_(pa.float32(), 1), 3), 2)
    assert found["j_shape"] == pa.struct([("data", pa.list_(pa.int16())), ("shape", pa.list_(pa.int64()))])
    assert found["j_free"] == pa.struct([("data", pa.binary()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64()))])


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
VALUES = st.fixed_dictionaries(
    {
        "s": st.text(max_size=8),
        "b": st.binary(max_size=20),
        "i": st.integers(-(2**63), 2**63 - 1),
        "t": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(allow_nan=False),
        "j": st.recursive(st.none() | st.booleans() | st.text(max_size=3), st.lists, max_leaves=4),
        "a": SHAPES.map(lambda shape: np.arange(np.prod(shape), dtype=np.uint32).reshape(shape)),
    }
)
KINDS = {"s": "str", "b": "bytes", "i": "int", "t": "str_int", "f": "str_float", "j": "json", "a": "ndarray:uint32"}


@settings(max_examples=examples(25), deadline=None)
@given(
    rows=st.lists(VALUES, min_size=1, max_size=30),
    names=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True),
    packing=st.sampled_from([None, "zstd", "snappy"]),
    unit=st.sampled_from([1, 100, 10_000]),
    limit=st.sampled_from([400, 1000, 10_000]),
)
def test_any_rows_in_any_cut_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, names: list[str], packing: Any, unit: int, limit: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("m")
    columns = {name: KINDS[name] for name in names}
    folder = write(tmp_path / "s", [{n: r[n] for n in names} for r in rows], columns, packing, size_limit=limit)
    for each in ours(Mds(unit_bytes=unit), folder), ours(Mds(unit_bytes=unit), folder, columns=names):
        for got, want in zip(each, rows, strict=True):
            for name in names:
                if name == "a":
                    assert as_array(got[name], "ndarray:uint32") == ("uint32", list(want[name].shape), want[name].tobytes())
                else:
                    assert (json.loads(got[name]) if name == "j" else got[name]) == want[name]


def kit_writer(packing: str | None, limit: int) -> Any:
    columns = {"id": "int", "text": "str", "score": "float64", "data": "bytes", "flag": "uint8"}

    def write_rows(folder: Path, rows: list[dict[str, Any]]) -> list[Path]:
        stream = write(folder / "stream", rows, columns, packing, size_limit=limit)
        return sorted(p for p in stream.iterdir() if p.name != "index.json") or [stream / "index.json"]

    return write_rows


@pytest.mark.parametrize("packing", [None, "zstd", "br:1", "bz2", "gz", "snappy"])
def test_mds_conforms(packing: str | None) -> None:
    rows = [
        {"id": i, "text": ["", "plain", "ünï → 日本語 😀"][i % 3], "score": i / 8, "data": bytes([i]) * i, "flag": i % 2}
        for i in range(150)
    ]
    check_format(Mds(unit_bytes=1500), kit_writer(packing, 8000), rows=rows)


def test_golden_files_of_release_0_6_0_read_as_they_were_written() -> None:
    sys.path.insert(0, str(GOLDEN))
    try:
        from write_mds import COLUMNS, rows
    finally:
        sys.path.remove(str(GOLDEN))
    got = ours(Mds(check_hashes=True), GOLDEN / "mds_0_6_0")
    want = rows()
    for mine, other in zip(got, want, strict=True):
        assert json.loads(mine["json"]) == other["json"]
        assert np.abs(np.array(Image.open(io.BytesIO(mine["jpeg"]["bytes"]))) - np.array(other["jpeg"], int)).max() < 8
    assert_equal(got, want, {k: v for k, v in COLUMNS.items() if v not in ("json", "jpeg")})


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16", "CMYK", "I", "F"])
def test_raw_pixels_open_in_pillow_as_they_were(tmp_path: Path, mode: str) -> None:
    big = np.arange(13 * 9, dtype=np.uint16).reshape(9, 13) * 500
    made = Image.fromarray(big) if mode == "I;16" else Image.effect_mandelbrot((13, 9), (-2, -1, 1, 1), 50).convert(mode)
    folder = write(tmp_path / "s", [{"x": made}], {"x": "pil"})
    (got,), (want,) = ours(Mds(), folder), theirs(folder, tmp_path / "t")
    with Image.open(io.BytesIO(got["x"]["bytes"])) as opened:
        assert (opened.mode, opened.size, opened.tobytes()) == (mode, made.size, made.tobytes())
        if mode not in ("I;16", "P"):  # which have other colours, or, since MDS loses palettes, none
            assert opened.convert("RGB").tobytes() == want["x"].convert("RGB").tobytes()


def test_an_image_mode_without_a_container_says_so_with_its_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [{"x": picture(1)}, {"x": picture(1, "HSV")}], {"x": "pil"})
    with pytest.raises(DataError, match="HSV") as caught:
        ours(Mds(), folder)
    assert caught.value.where.row == 1


# --------------------------------------------------------------------------------------------------------- options


def test_pickles_are_refused_unless_allowed_or_left_out(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    folder = write(tmp_path / "s", [{"a": 1, "p": pickle.dumps(Harm())}], {"a": "int", "p": "pkl"})
    with pytest.raises(DataError, match="runs code") as caught:
        open_all(Mds(), folder)
    assert "allow_pickle" in str(caught.value)
    assert "shard.00000.mds" in str(caught.value)
    assert ours(Mds(leave_out=["p"]), folder) == [{"a": 1}]
    assert not (tmp_path / "harm").exists()
    open_all(Mds(allow_pickle=True), folder)
    assert (tmp_path / "harm").exists()


def test_pickles_that_are_no_columns_say_which_row(tmp_path: Path) -> None:
    values: list[Any] = [{"a": 1}] * 300 + [{"a": 1, "b": 2}]
    folder = write(tmp_path / "s", [{"p": v} for v in values], {"p": "pkl"})
    with pytest.raises(DataError, match="does not fit") as caught:
        ours(Mds(allow_pickle=True), folder)
    assert caught.value.where.row == 300
    folder = write(tmp_path / "t", [{"p": 1}, {"p": b"not a pickle"}], {"p": "pkl"})
    with pytest.raises(DataError, match="UnpicklingError") as caught:
        ours(Mds(allow_pickle=True), folder)
    assert caught.value.where.row == 1
    folder = write(tmp_path / "u", [{"p": 1}, {"p": {1, 2}}], {"p": "pkl"})
    with pytest.raises(DataError, match="set has no order"):
        ours(Mds(allow_pickle=True), folder)


def test_json_may_be_parsed_and_then_has_one_type(tmp_path: Path) -> None:
    rows = [{"j": {"a": i, "b": ["x"] * (i % 2)}} for i in range(600)]
    for packing in (None, "zstd"):
        folder = write(tmp_path / str(packing), rows, {"j": "json"}, packing)
        assert ours(Mds(json="parsed", unit_bytes=2000), folder) == rows
    (opened,) = open_all(Mds(json="parsed"), write(tmp_path / "null", [{"j": None}], {"j": "json"}))
    assert opened.schema.types == [pa.null()]
    folder = write(tmp_path / "odd", [*rows, {"j": {"a": "one"}}], {"j": "json"})
    with pytest.raises(DataError, match="'j'") as caught:
        ours(Mds(json="parsed"), folder)
    assert caught.value.where.row == 600


def test_numbers_as_digits_keep_what_no_integer_holds(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [{"i": 5}, {"i": 10**30}], {"i": "str_int"})
    assert ours(Mds(numbers="text"), folder) == [{"i": "5"}, {"i": str(10**30)}]
    with pytest.raises(DataError, match="int64") as caught:
        ours(Mds(), folder)
    assert caught.value.where.row == 1
    assert "numbers='text'" in str(caught.value)


def test_arrays_may_be_flat_and_dtypes_given(tmp_path: Path) -> None:
    tokens = [np.arange(n + 1, dtype=np.int64) for n in range(9)]
    rows = [{"a": t, "b": t.tobytes(), "c": t.astype(np.uint16), "d": t} for t in tokens]
    folder = write(tmp_path / "s", rows, {"a": "ndarray:int64", "b": "bytes", "c": "ndarray", "d": "ndarray"})
    reader = Mds(arrays="flat", dtypes={"b": "int64", "c": "uint16"}, unit_bytes=200)
    (opened,) = open_all(reader, folder)
    assert opened.schema.types[:3] == [pa.list_(pa.int64()), pa.list_(pa.int64()), pa.list_(pa.uint16())]
    for got, want in zip(read_rows(opened), tokens, strict=True):
        assert got["a"] == got["b"] == got["c"] == want.tolist()
        assert np.frombuffer(got["d"]["data"], got["d"]["dtype"]).tolist() == want.tolist()
    assert [r["c"]["shape"] for r in ours(Mds(dtypes={"c": "uint16"}), folder)] == [[n + 1] for n in range(9)]
    with pytest.raises(DataError, match="array of uint16, where dtypes says int32"):
        ours(Mds(dtypes={"c": "int32"}), folder)
    folded = write(tmp_path / "t", [{"a": t.reshape(1, -1)} for t in tokens], {"a": "ndarray:int64"})
    with pytest.raises(DataError, match="one dimension"):
        ours(Mds(arrays="flat"), folded)
    odd = write(tmp_path / "u", [{"b": b"12345678"}, {"b": b"123"}], {"b": "bytes"})
    with pytest.raises(DataError, match="3 bytes") as caught:
        ours(Mds(dtypes={"b": "int64"}), odd)
    assert caught.value.where.row == 1


@pytest.mark.parametrize(
    "options",
    [
        {"json": "yes"},
        {"numbers": "no"},
        {"arrays": "1d"},
        {"dtypes": {"a": "complex64"}},
        {"leave_out": "a"},
        {"unit_bytes": 0},
    ],
)
def test_a_setting_that_does_not_exist_is_refused(options: Any) -> None:
    with pytest.raises(RecipeError):
        Mds(**options)


def test_a_setting_for_a_column_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [{"a": 1}], {"a": "int"})
    for options in ({"dtypes": {"b": "int8"}}, {"leave_out": ["b"]}, {"dtypes": {"a": "int8"}}):
        with pytest.raises(RecipeError):
            open_all(Mds(**options), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("packing", [None, "gz"])
def test_hashes_are_compared_on_request_and_a_wrong_one_is_named(tmp_path: Path, packing: str | None) -> None:
    rows = [{"a": i, "b": bytes(100)} for i in range(100)]
    hashes = ["blake2b", "md5", "sha1", "sha3_256", "xxh128", "xxh3_64", "xxh64"]
    folder = write(tmp_path / "s", rows, {"a": "int", "b": "bytes"}, packing, hashes=hashes, size_limit=4000)
    for unit in (100_000, 700):
        assert ours(Mds(check_hashes=True, unit_bytes=unit), folder) == rows
    index = json.loads((folder / "index.json").read_text())
    index["shards"][1]["zip_data" if packing else "raw_data"]["hashes"]["sha1"] = "0" * 40
    (folder / "index.json").write_text(json.dumps(index))
    assert ours(Mds(), folder) == rows
    for unit in (100_000, 700):
        with pytest.raises(DataError, match=r"sha1 hash.*shard\.00001"):
            ours(Mds(check_hashes=True, unit_bytes=unit), folder)
    if packing:  # of the unpacked bytes, too
        shutil.rmtree(folder)
        write(folder, rows, {"a": "int", "b": "bytes"}, packing, hashes=["xxh64"])
        text = (folder / "index.json").read_text()
        right = json.loads(text)["shards"][0]["raw_data"]["hashes"]["xxh64"]
        (folder / "index.json").write_text(text.replace(right, "f" * 16))
        with pytest.raises(DataError, match="xxh64 hash"):
            ours(Mds(check_hashes=True), folder)


def test_hashes_that_are_not_there_or_unknown_cannot_be_checked(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", [{"a": 1}], {"a": "int"})
    with pytest.raises(DataError, match="has no hashes"):
        ours(Mds(check_hashes=True), folder)
    index = (folder / "index.json").read_text()
    (folder / "index.json").write_text(index.replace('"hashes": {}', '"hashes": {"crc7": "00"}'))
    with pytest.raises(DataError, match="crc7"):
        ours(Mds(check_hashes=True), folder)

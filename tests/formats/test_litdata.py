"""LitData sets as litdata writes them come back as litdata reads them; what is damaged or refused says so."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from formats.reading import read_rows
from formats.writers_litdata import PACKINGS, opened, plain, read_back, rows_of, tokens, write, writer
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from thoroughness import examples

from zephon.errors import DataError, RecipeError
from zephon.testing import check_format
from zephon_formats._litdata_index import NUMPY_DTYPES, TORCH_DTYPES
from zephon_formats.litdata import LitData


def jpeg(seed: int, size: tuple[int, int] = (16, 12)) -> bytes:
    file = io.BytesIO()
    pixels = np.random.Generator(np.random.Philox(seed)).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


# ------------------------------------------------------------------------------------------------------- conformance


@pytest.mark.parametrize("packing", PACKINGS[:2])
def test_rows_of_plain_values_conform(packing: dict[str, Any]) -> None:
    check_format(LitData(unit_bytes=600), writer(chunk_size=70, **packing))


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_with_arrays_conform(packing: dict[str, Any]) -> None:
    rows = [
        {"id": i, "raw": b"\0" * (i % 4), "text": "ünï" * (i % 3), "tags": ["a", "b"] * (i % 2), "v": list(range(i % 5))}
        for i in range(40)
    ]
    convert = lambda row: {**row, "v": np.array(row["v"], dtype=np.int16)}  # noqa: E731
    check_format(LitData(unit_bytes=600), writer(convert, chunk_size=25, **packing), rows=rows)


@pytest.mark.parametrize("packing", [{}, PACKINGS[2]])
def test_tokens_conform(packing: dict[str, Any]) -> None:
    rows = [{"input_ids": list(range(i, i + i % 7))} for i in range(60)]
    convert = lambda row: torch.tensor(row["input_ids"], dtype=torch.int32)  # noqa: E731
    check_format(LitData(unit_bytes=200), writer(convert, **tokens(**packing)), rows=rows)


def test_temporal_sets_conform() -> None:
    from litdata.streaming.temporal import TemporalArrayLoader

    rows = [
        {"xy": [[float(i), 0.5]] * (1 + i % 4), "score": [i / 2] * (1 + i % 4), "valid": [i % 3 == 0] * (1 + i % 4)}
        for i in range(40)
    ]

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        score = torch.tensor(row["score"], dtype=torch.float32)
        return {"xy": np.array(row["xy"], dtype=">f8"), "score": score, "valid": np.array(row["valid"])}

    def save(folder: Path, some: list[dict[str, Any]]) -> Any:
        loader = TemporalArrayLoader(field_groups=[["score", "valid"]])
        return write(folder, [convert(row) for row in some], chunk_size=15, item_loader=loader)

    check_format(LitData(unit_bytes=200), save, rows=rows)


# ---------------------------------------------------------------------------------------------- values, row by row

ITEMS: dict[str, Callable[[int], Any]] = {
    "scalars": lambda i: {"i": i - 2**62, "f": i / 3, "b": i % 2 == 0, "s": f"é{i}", "raw": bytes([i])},
    "only a string": lambda i: f"row {i}",
    "only bytes": lambda i: b"x" * i,
    "only a dict of one array": lambda i: {"x": np.arange(i)},
    "a list": lambda i: [i, f"a{i}", 0.5],
    "a tuple with an array": lambda i: (np.arange(i, dtype=np.uint16), i),
    "nested": lambda i: {"a": {"b": i, "c": {"d": f"{i}", "x": np.arange(3) * i}}, "z": np.ones(i % 3, dtype=np.float16)},
    "nested plain values": lambda i: {"a": {"b": i, "c": {"d": f"{i}"}}, "l": [{"k": i, "v": [float(i)]}] * (i % 3)},
    "every numpy dtype": lambda i: {name: np.arange(i).astype(name) for name in NUMPY_DTYPES},
    "every torch dtype": lambda i: {
        name: torch.arange(i).to(getattr(torch, name))
        for name in set(TORCH_DTYPES) - {"bfloat16"}  # numpy has none, so litdata can't write it
    },
    "arrays of any shape": lambda i: {"n": np.ones((i % 3, 2, i), dtype=np.float32), "t": torch.ones(2, i, dtype=torch.int16)},
    "scalars as tensors": lambda i: {"label": torch.tensor(i), "f": torch.tensor(i / 2), "b": torch.tensor(i % 2 == 0), "i": i},
    "nested JSON beside an array": lambda i: {
        "x": np.arange(i),
        "strings": [f"{k}" for k in range(i % 4)],
        "ints": list(range(i % 3)),
        "floats": [k / 2 for k in range(i % 3)],
        "bools": [True, False] * (i % 2),
        "records": [{"from": "human", "value": f"é{k}", "n": k, "f": 0.5, "t": True, "none": None} for k in range(i % 3)],
        "deep": [[1, 2], [3] * (i % 3)],
        "uneven": [{"a": 1}, {"a": i, "b": "x"}],
    },
    "nothing": lambda i: {"empty": {}, "i": torch.tensor([i]), "none": []},
    "an ordered dict": lambda i: __import__("collections").OrderedDict(b=i, a=np.arange(i)),
}


@pytest.mark.parametrize("name", ITEMS)
def test_values_come_back_as_litdata_reads_them(tmp_path: Path, name: str) -> None:
    items = [ITEMS[name](i) for i in range(10)]
    for number, packing in enumerate(PACKINGS):
        folder = tmp_path / str(number)
        write(folder, items, **packing)
        if number == 0 or (number == 1 and name not in LITDATA_CANNOT_UNPACK):
            expected = [plain(item) for item in read_back(folder)]
        found = rows_of(folder, LitData(unit_bytes=50))
        assert len(found) == len(expected) == 10
        for row, want in zip(found, expected, strict=True):
            assert _same(row, want if isinstance(want, dict) else _by_position(row, want))


LITDATA_CANNOT_UNPACK = ("a list",)
"""It writes them as they are, and an index that says that they're packed."""


def _by_position(row: dict[str, Any], want: Any) -> dict[str, Any]:
    return dict(zip(row, want if isinstance(want, list) else [want], strict=True))


def _same(row: Any, want: Any) -> bool:
    """Equal, where a key that a dict lacks is null in its column."""
    if isinstance(row, dict) and isinstance(want, dict):
        return not want.keys() - row.keys() and all(_same(value, want.get(name)) for name, value in row.items())
    if isinstance(row, list) and isinstance(want, list):
        return len(row) == len(want) and all(map(_same, row, want))
    return type(row) is type(want) and bool(row == want)


LEAVES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "str": st.text(max_size=6),
    "bytes": st.binary(max_size=6),
    "bool": st.booleans(),
    "ints": st.lists(st.integers(-100, 100), max_size=4).map(lambda v: np.array(v, dtype=np.int32)),
    "list": st.lists(st.text(max_size=3), max_size=3),
}


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_any_mixture_of_values_comes_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, unique=True))
    items = data.draw(st.lists(st.fixed_dictionaries({n: LEAVES[n] for n in names}), min_size=1, max_size=12))
    folder = tmp_path_factory.mktemp("mixture") / "set"
    write(folder, items, chunk_size=data.draw(st.integers(1, 12)), **data.draw(st.sampled_from(PACKINGS)))
    assert rows_of(folder, LitData(unit_bytes=data.draw(st.integers(1, 200)))) == [plain(item) for item in items]


def test_more_rows_than_a_frame_or_batch_holds_come_back_by_any_unit(tmp_path: Path) -> None:
    items = [{"i": i, "s": "x" * (i % 9)} for i in range(1000)]
    for number, packing in enumerate(PACKINGS):
        for kind, convert in (("arrow", dict), ("items", lambda item: {**item, "v": np.arange(item["i"] % 3)})):
            folder = tmp_path / f"{kind}{number}"
            write(folder, [convert(item) for item in items], chunk_size=700, **packing)
            for unit_bytes in (200, 3000, 1 << 20):
                found = rows_of(folder, LitData(unit_bytes=unit_bytes))
                assert [(row["i"], row["s"]) for row in found] == [(item["i"], item["s"]) for item in items]


def test_arrays_may_differ_in_rank_where_the_first_is_no_scalar(tmp_path: Path) -> None:
    items = [torch.full([2] * (3 - i % 3), i) for i in range(9)]
    write(tmp_path / "set", [{"t": item} for item in items])
    for row, item in zip(rows_of(tmp_path / "set"), items, strict=True):
        array = row["t"]
        assert np.array_equal(np.frombuffer(array["data"], array["dtype"]).reshape(array["shape"]), item.numpy())
    write(tmp_path / "scalars", [{"t": torch.tensor(1)}, {"t": torch.tensor([[1]])}, {"t": torch.tensor(2)}])
    with pytest.raises(DataError, match="no scalar") as caught:
        rows_of(tmp_path / "scalars")
    assert caught.value.where.row == 1


def test_keys_that_only_some_rows_have_are_null_in_the_others(tmp_path: Path) -> None:
    items = [{"a": 1}, {"a": 2, "b": "x"}, {"b": "y", "c": [1, 2]}, {"a": None, "b": None}, {"a": 5}]
    write(tmp_path / "set", items, chunk_size=2)
    assert rows_of(tmp_path / "set") == [{"a": i.get("a"), "b": i.get("b"), "c": i.get("c")} for i in items]


def test_values_without_a_common_type_are_their_json_text(tmp_path: Path) -> None:
    items = [{"x": np.arange(2), "m": value} for value in ([1, "a"], [{"k": 1}, [2]], [None, 2.5])]
    write(tmp_path / "set", items)
    assert [row["m"] for row in rows_of(tmp_path / "set")] == [["1", "a"], ['{"k":1}', "[2]"], [None, "2.5"]]


def test_all_chunks_of_a_set_have_one_schema(tmp_path: Path) -> None:
    """What Arrow would infer from one chunk alone (null, list<null>) must not differ from the next chunk's."""
    write(tmp_path / "set", [{"a": None, "l": [], "i": 1}] * 4 + [{"a": "x", "l": [{"k": 1}], "i": 2}] * 4)
    first, second = opened(tmp_path / "set")
    assert first.schema == second.schema
    assert first.read(0, None, 0, 4)[0].schema == second.read(0, None, 0, 4)[0].schema == first.schema
    assert first.schema.field("l").type == pa.list_(pa.struct([("k", pa.int64())]))


# ------------------------------------------------------------------------------------------------------------- images


def test_files_keep_their_bytes_in_hugging_face_structs(tmp_path: Path) -> None:
    from litdata.types import Audio, File, Jpeg, JpegArray, Pdf, Tiff, Video
    from litdata.types import Image as LitImage

    files = [jpeg(i) for i in range(6)]
    items = [
        {
            "jpeg": Jpeg(bytes=raw),
            "image": LitImage(bytes=raw, path="a.png"),
            "file": File(bytes=raw),
            "audio": Audio(bytes=raw),
            "video": Video(bytes=raw),
            "pdf": Pdf(bytes=raw),
            "tiff": Tiff(bytes=raw),
            "several": JpegArray(images=[Jpeg(bytes=f) for f in files[: 1 + i % 3]]),
            "talk": [{"from": "user", "value": f"turn {k}"} for k in range(i % 3)],
            "id": i,
        }
        for i, raw in enumerate(files)
    ]
    for number, packing in enumerate(PACKINGS):
        folder = tmp_path / str(number)
        write(folder, items, **packing)
        for i, row in enumerate(rows_of(folder, LitData(unit_bytes=5000))):
            of = lambda data: {"bytes": data, "path": None}  # noqa: E731
            assert row["several"] == [of(f) for f in files[: 1 + i % 3]]
            assert [row[n] for n in ("jpeg", "image", "file", "audio", "video", "pdf", "tiff")] == [of(files[i])] * 7
            assert row["talk"] == items[i]["talk"]
            assert row["id"] == i


def test_images_from_disk_keep_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    with Image.open(tmp_path / "a.jpg") as image:
        write(tmp_path / "set", [{"x": image, "text": "one"}])
    (shard,) = opened(tmp_path / "set")
    assert shard.schema.field("x").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert read_rows(shard) == [{"x": {"bytes": jpeg(1), "path": None}, "text": "one"}]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK", "I", "F"])
def test_raw_images_become_files_with_the_same_pixels(tmp_path: Path, mode: str) -> None:
    generator = np.random.Generator(np.random.Philox(3))
    images = []
    for width, height in ((13, 7), (1, 1), (8, 3)):
        raw = generator.integers(0, 256, Image.new(mode, (width, height)).tobytes().__len__(), dtype=np.uint8).tobytes()
        images.append(Image.frombytes(mode, (width, height), Image.frombytes(mode, (width, height), raw).tobytes()))
    write(tmp_path / "set", [{"image": image} for image in images])
    for row, theirs in zip(rows_of(tmp_path / "set"), read_back(tmp_path / "set"), strict=True):
        ours = Image.open(io.BytesIO(row["image"]["bytes"]))
        assert ours.size == theirs["image"].size
        assert np.array_equal(np.asarray(ours), np.asarray(theirs["image"]), equal_nan=mode == "F")


def test_raw_images_without_a_container_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    write(tmp_path / "set", [{"image": Image.new(mode, (2, 2))} for mode in ("RGB", "L", "HSV")])
    with pytest.raises(DataError, match="the mode 'HSV'") as caught:
        rows_of(tmp_path / "set")
    assert caught.value.where.row == 2


# -------------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("block_size", [1, 3, 8, 23])
@pytest.mark.parametrize("packing", [{}, PACKINGS[2]])
def test_blocks_of_tokens_are_those_of_litdata(tmp_path: Path, block_size: int, packing: dict[str, Any]) -> None:
    documents = [np.arange(i * 100, i * 100 + 1 + i % 11, dtype=np.uint16) for i in range(40)]
    write(tmp_path / "set", documents, **tokens(chunk_size=61, **packing))
    expected = [row.tolist() for row in read_back(tmp_path / "set", block_size)]
    for unit_bytes in (1, 40, 1 << 20):
        found = rows_of(tmp_path / "set", LitData(block_size=block_size, unit_bytes=unit_bytes))
        assert [row["input_ids"] for row in found] == expected


@pytest.mark.parametrize("packing", [{}, PACKINGS[2]])
def test_blocks_are_found_where_the_index_does_not_count_tokens(tmp_path: Path, packing: dict[str, Any]) -> None:
    """litdata leaves the count out where a chunk begins with an empty document, and then fails to read it."""
    write(tmp_path / "set", [torch.arange(i, dtype=torch.int32) for i in range(5)], **tokens(**packing))
    assert '"dim": null' in (tmp_path / "set" / "index.json").read_text()
    assert [row["input_ids"] for row in rows_of(tmp_path / "set", LitData(block_size=4))] == [[0, 0, 1, 0], [1, 2, 0, 1]]


def test_documents_of_tokens_come_as_they_were_written(tmp_path: Path) -> None:
    documents = [torch.arange(i, dtype=torch.int64) for i in range(1, 20)]
    write(tmp_path / "set", documents, **tokens(chunk_size=30))
    shards = opened(tmp_path / "set")
    assert shards[0].schema == pa.schema([("input_ids", pa.list_(pa.int32()))])
    assert [row["input_ids"] for shard in shards for row in read_rows(shard)] == [d.tolist() for d in documents]


def test_a_token_beyond_int32_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "set", [torch.tensor([1, 2**31])], **tokens())
    with pytest.raises(DataError, match="does not fit int32"):
        rows_of(tmp_path / "set")


def test_blocks_of_something_else_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "set", [{"a": 1}])
    with pytest.raises(DataError, match="not a set of tokens"):
        rows_of(tmp_path / "set", LitData(block_size=4))
    with pytest.raises(RecipeError, match="block_size"):
        LitData(block_size=0)


@pytest.mark.parametrize("arrow", [True, False])
def test_values_of_a_mapped_chunk_are_shown_where_they_are(arrow: bool, tmp_path: Path) -> None:
    """Bytes beside other values are no column without a copy, so they come as views; an Arrow chunk's are columns as they are."""
    extra = {} if arrow else {"size": 1.5, "array": np.arange(3)}
    write(tmp_path, [{"image": bytes([i]) * 500, "text": f"row {i}", **extra} for i in range(9)], chunk_size=9)
    (chunk,) = opened(tmp_path)
    begin, size = chunk.mapped  # type: ignore[attr-defined]
    (group,) = chunk.views(0, ["image", "text"])  # type: ignore[attr-defined]
    rows = pa.Table.from_batches(chunk.read(0, ["image", "text"], 0, 9)).to_pylist()
    assert group.to_pylist() == rows
    assert [row["image"] for row in rows] == [bytes([i]) * 500 for i in range(9)]
    values = group.column(0).buffers()[2]
    assert begin <= values.address < begin + size

"""`probe_images` says what decoding would find, for every layout of image columns, and drops what it is told to drop."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from vision.pictures import Picture, exif, jpeg, scene
from vision.rows import images_array

from zephon.errors import DataError, RecipeError
from zephon.plugin import Outcome
from zephon.recipe import operator_fingerprint
from zephon.testing import check_operator
from zephon_vision import columns
from zephon_vision._decoders_source import load_bytes
from zephon_vision.decoders import decode
from zephon_vision.probe_images import ProbeImages

TURNED = jpeg(scene(20, 30), exif=exif(6))
PLAIN = jpeg(scene(20, 30))


def probe(group: pa.RecordBatch, **settings: Any) -> Outcome:
    return ProbeImages(**settings).bind()(group)  # type: ignore[return-value]


def infos(group: pa.RecordBatch) -> list[list[dict[str, Any]]]:
    return group.column(columns.IMAGE_INFO).to_pylist()  # type: ignore[no-any-return]


def group_of(rows: list[list[bytes | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([images_array(rows), pa.array(range(len(rows)))], names=[columns.IMAGES, "n"])


def test_sizes_are_those_of_the_upright_picture(tricky_pictures: list[Picture]) -> None:
    rows = [[p.data for p in tricky_pictures[i : i + 3]] for i in range(0, len(tricky_pictures), 3)]
    made = probe(group_of(rows)).group
    flat = [info for row in infos(made) for info in row]
    for picture, info in zip(tricky_pictures, flat, strict=True):
        if picture.rgb is not None:
            assert (info["height"], info["width"]) == decode(picture.data).shape[:2]
            assert info["error"] is None
        elif picture.early:
            assert info["error"]
            assert (info["height"], info["width"], info["format"]) == (0, 0, None)
    assert made.schema.field(columns.IMAGE_INFO).type == columns.IMAGE_INFO_TYPE


def _layouts() -> dict[str, Any]:
    structs = [{"bytes": TURNED, "path": "x.jpg"}, None, {"bytes": None, "path": None}]
    swapped = pa.struct([pa.field("path", pa.string()), pa.field("bytes", pa.large_binary())])
    return {
        "struct": pa.array(structs, type=columns.IMAGE_REF),
        "fields in another order": pa.array(structs, type=swapped),
        "binary": pa.array([TURNED, None, b""], type=pa.binary()),
        "large binary": pa.array([TURNED, None, b""], type=pa.large_binary()),
        "binary view": pa.array([TURNED, b"x", b""], type=pa.binary_view()),
        "list of struct": pa.array([[s] for s in structs], type=columns.IMAGES_TYPE),
        "large list of binary": pa.array([[TURNED], [None], [b""]], type=pa.large_list(pa.binary())),
        "struct with bytes only": pa.array(
            [{"bytes": TURNED}, None, {"bytes": b""}], type=pa.struct([pa.field("bytes", pa.binary())])
        ),
    }


@pytest.mark.parametrize("layout", sorted(_layouts()))
def test_every_layout_of_columns_works(layout: str) -> None:
    array = _layouts()[layout]
    group = pa.RecordBatch.from_arrays([array], names=["image"])
    made = check_operator(ProbeImages(column="image"), [group, group.slice(1), group.slice(0, 1)])
    first, *others = infos(made[0])
    assert [(i["height"], i["width"], i["orientation"]) for i in first] == [(30, 20, 6)]
    for other in others:
        assert [bool(i["error"]) for i in other] == [True]


def test_lists_may_be_null_empty_and_sliced() -> None:
    array = pa.array([[{"bytes": PLAIN}], None, [], [{"bytes": TURNED}, {"bytes": b"<html>"}]], type=columns.IMAGES_TYPE)
    group = pa.RecordBatch.from_arrays([array, pa.array(range(4))], names=[columns.IMAGES, "n"])
    made = check_operator(ProbeImages(), [group, group.slice(2)])
    assert [len(row) for row in infos(made[0])] == [1, 0, 0, 2]
    assert [len(row) for row in infos(made[1])] == [0, 2]
    assert infos(made[1])[1][1]["error"] == "an HTML page, not an image"


def test_paths_stay_under_the_media_root(tmp_path: Path) -> None:
    (tmp_path / "media" / "a b").mkdir(parents=True)
    (tmp_path / "media" / "a b" / "ü.jpg").write_bytes(TURNED)
    (tmp_path / "secret.jpg").write_bytes(PLAIN)
    (tmp_path / "media" / "empty.jpg").write_bytes(b"")
    (tmp_path / "media2").mkdir()
    (tmp_path / "media2" / "x.jpg").write_bytes(PLAIN)
    url = "data:image/jpeg;base64," + base64.encodebytes(PLAIN).decode()
    paths = {
        "a b/ü.jpg": None,
        str(tmp_path / "media" / "a b" / "ü.jpg"): None,
        f"file://{tmp_path}/media/a b/ü.jpg": None,
        f"file://{tmp_path}/media/a%20b/%C3%BC.jpg": None,
        f"FILE://LocalHost{tmp_path}/media/a%20b/ü.jpg": None,
        "file://a%20b/ü.jpg": None,
        "a%20b/ü.jpg": "No such file",  # no URL: the name may have escapes of its own
        "file://%2e%2e%2fsecret.jpg": "outside",
        f"file://localhost{tmp_path}/media/%2E%2E/secret.jpg": "outside",
        "file://a%00b": "NUL",
        "file://%FF.jpg": "not UTF-8",
        "file://somewhere/x.jpg": "No such file",
        url: None,
        "data:image/jpeg;base64,%%%": "unreadable",
        "../secret.jpg": "outside",
        "../media2/x.jpg": "outside",
        "/etc/hostname": "outside",
        "a b": "unreadable",
        "none.jpg": "No such file",
        "empty.jpg": "empty",
        "https://example.com/x.jpg": "network",
        "s3://bucket/x.jpg": "network",
        "x\0y": "NUL",
    }
    group = pa.RecordBatch.from_arrays([pa.array(list(paths))], names=["image"])
    made = check_operator(ProbeImages(column="image", media_root=str(tmp_path / "media")), [group])[0]
    for (path, words), (info,) in zip(paths.items(), infos(made), strict=True):
        assert (info["error"] is None) == (words is None), (path, info)
        assert words is None or words in info["error"]
    without = probe(group, column="image").group
    assert "is a path" in infos(without)[0][0]["error"]
    assert infos(without)[list(paths).index(url)][0]["error"] is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_images_is_a_bad_image_and_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    outcome = probe(
        pa.RecordBatch.from_arrays([pa.array(["x.jpg"])], names=["image"]), column="image", media_root=str(tmp_path)
    )
    assert infos(outcome.group)[0][0]["error"] == "unreadable: 'x.jpg' is a pipe or a device"
    with pytest.raises(DataError, match="is a pipe or a device"):
        load_bytes((None, "x.jpg"), str(tmp_path))


def test_limits_make_bad_images() -> None:
    group = group_of([[PLAIN]])
    for settings, words in (
        ({"max_pixels": 599}, "too large"),
        ({"min_side": 21}, "too small"),
        ({"max_aspect": 1.4}, "too long"),
    ):
        assert infos(probe(group, **settings).group)[0][0]["error"].startswith(words)
    assert infos(probe(group, max_pixels=600, min_side=20, max_aspect=1.5).group)[0][0]["error"] is None
    assert infos(probe(group, max_pixels=None).group)[0][0]["error"] is None


ROWS: list[list[bytes | None]] = [
    [PLAIN],
    [b"<html>", PLAIN],
    [],
    [PLAIN, None],
    [b"", TURNED, b"<html>"],
    [TURNED, TURNED],
    [b"", b""],
]


def test_samples_are_dropped_and_counted_by_reason() -> None:
    made = probe(group_of(ROWS), on_bad_image="drop_sample")
    assert made.group.column("n").to_pylist() == [0, 2, 5]
    counted = {reason: rows.tolist() for reason, rows in made.drops.rows.items()}
    assert counted == {
        "bad image: an HTML page, not an image": [1],
        "bad image: missing": [3],
        "bad image: an empty file": [4, 6],
    }
    check_operator(ProbeImages(on_bad_image="drop_sample"), [group_of(ROWS), group_of(ROWS[3:])])
    assert not ProbeImages(on_bad_image="drop_sample").keeps_rows
    assert ProbeImages().keeps_rows


def test_images_are_dropped_with_their_segments_and_the_others_are_numbered_anew() -> None:
    segments = []
    for row in ROWS:
        segments.append([{"kind": 0, "text": "begin", "role": None, "turn": 0, "train": True, "image": None}])
        for number in [*range(len(row)), *range(len(row))]:
            segments[-1].append({"kind": 1, "text": None, "role": "user", "turn": 1, "train": False, "image": number})
            segments[-1].append({"kind": 0, "text": f"after {number}", "role": None, "turn": 1, "train": True, "image": None})
    group = group_of(ROWS).append_column(columns.SEGMENTS, pa.array(segments, type=columns.SEGMENTS_TYPE))
    made = check_operator(ProbeImages(on_bad_image="drop_image"), [group, group.slice(4)])[0]
    assert [[i["bytes"] for i in row] for row in made.column(columns.IMAGES).to_pylist()] == [
        [PLAIN],
        [PLAIN],
        [],
        [PLAIN],
        [TURNED],
        [TURNED, TURNED],
        [],
    ]
    assert [len(row) for row in infos(made)] == [1, 1, 0, 1, 1, 2, 0]
    shown = [[s["image"] for s in row if s["kind"] == 1] for row in made.column(columns.SEGMENTS).to_pylist()]
    assert shown == [[0, 0], [0, 0], [], [0, 0], [0, 0], [0, 1, 0, 1], []]
    texts = [[s["text"] for s in row if s["kind"] == 0] for row in made.column(columns.SEGMENTS).to_pylist()]
    assert texts == [[s["text"] for s in row if s["kind"] == 0] for row in segments]
    assert made.schema.field(columns.SEGMENTS).type == columns.SEGMENTS_TYPE


def test_an_error_says_where() -> None:
    group = group_of(ROWS).append_column("_row", pa.array([10 * n for n in range(len(ROWS))], type=pa.int64()))
    with pytest.raises(DataError, match="^an image can't be used: image 0 of 'images': an HTML page") as caught:
        probe(group, on_bad_image="error")
    assert caught.value.where.row == 10
    check_operator(ProbeImages(on_bad_image="error"), [group_of([[PLAIN], [], [TURNED]])])


def test_wrong_settings_and_columns_are_said_before_the_run() -> None:
    for settings, words in (
        ({"on_bad_image": "drop"}, "did you mean"),
        ({"max_pixels": 0}, "above 0"),
        ({"max_aspect": -1}, "above 0"),
    ):
        with pytest.raises(RecipeError, match=words):
            ProbeImages(**settings)
    schema = pa.schema([("images", pa.list_(pa.int32())), ("image", columns.IMAGE_REF)])
    with pytest.raises(RecipeError, match="not images"):
        ProbeImages().output_schema(schema)
    with pytest.raises(RecipeError, match="did you mean 'images'"):
        ProbeImages(column="imagess").output_schema(schema)
    with pytest.raises(RecipeError, match="drop_sample"):
        ProbeImages(column="image", on_bad_image="drop_image").output_schema(schema)


def test_where_the_files_are_has_no_part_in_the_recipe() -> None:
    assert operator_fingerprint(ProbeImages(media_root="/a")) == operator_fingerprint(ProbeImages(media_root="/b"))
    assert operator_fingerprint(ProbeImages(min_side=3)) != operator_fingerprint(ProbeImages(min_side=4))

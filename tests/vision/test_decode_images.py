"""`decode_images` makes the pixels that were planned, whatever the grouping, and keeps the layout where an image fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from vision.pictures import Array, Picture, damaged_jpeg, exif, jpeg, save, scene
from vision.rows import images_array, planned, policy_spec, with_column

from zephon import groups
from zephon.errors import DataError, PluginError, RecipeError
from zephon.plugin import Outcome
from zephon.recipe import operator_fingerprint
from zephon.testing import check_operator
from zephon_vision import columns, decode_images
from zephon_vision.decode_images import DecodeImages, Raw
from zephon_vision.decoders import decode
from zephon_vision.policies.base import Plan, load
from zephon_vision.resize import make_resize

BACKENDS = ("torch", "pil", "cykooz")
PHOTO = scene(100, 150)
GOOD = jpeg(PHOTO)
TURNED = jpeg(scene(70, 40), exif=exif(6))
HTML = b"<html>"


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    return policy_spec(tmp_path, "Qwen2VLImageProcessor", min_pixels=56 * 56, max_pixels=28 * 28 * 30)


@pytest.fixture
def clip(tmp_path: Path) -> str:
    return policy_spec(tmp_path, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def run(group: pa.RecordBatch, **settings: Any) -> pa.RecordBatch:
    outcome = DecodeImages(**settings).bind()(group)
    assert isinstance(outcome, Outcome)
    return outcome.group


def pixels(group: pa.RecordBatch) -> list[list[Array | None]]:
    """The blocks of each image."""
    return [
        [None if data is None else np.frombuffer(data, np.uint8).reshape(shape) for data, shape in zip(*row, strict=True)]
        for row in zip(group.column(columns.PIXELS).to_pylist(), group.column(columns.PIXEL_SHAPES).to_pylist(), strict=True)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_are_the_policys_own(qwen: str, backend: str) -> None:
    rows: list[list[bytes | None]] = [[GOOD, TURNED], [], [TURNED], [GOOD, GOOD, GOOD]]
    made = check_operator(DecodeImages(backend=backend), [planned(rows, qwen), planned(rows[2:], qwen)])[0]  # type: ignore[arg-type]
    policy, resize = load(qwen), make_resize(backend)
    for row, files in zip(pixels(made), rows, strict=True):
        for blocks, data in zip(row, files, strict=True):
            rgb = decode(data or b"")
            plan = policy.plan(*rgb.shape[:2])
            assert blocks is not None
            assert np.array_equal(blocks, policy.render(rgb, plan, resize))
    assert columns.IMAGES not in made.schema.names
    assert made.schema.field(columns.PIXELS).type == columns.PIXELS_TYPE
    assert made.schema.field(columns.PIXEL_SHAPES).type == columns.PIXEL_SHAPES_TYPE


def test_every_good_picture_is_decoded_and_every_bad_one_is_blank(tricky_pictures: list[Picture], qwen: str) -> None:
    known = [p for p in tricky_pictures if p.rgb is None or max(p.rgb.shape[:2]) <= 200 * min(p.rgb.shape[:2])]
    group = planned([[p.data for p in known[i : i + 5]] for i in range(0, len(known), 5)], qwen)
    flat = [b for row in pixels(run(group, max_bad_ratio=None)) for b in row]
    for picture, blocks in zip(known, flat, strict=True):
        assert (blocks is None) == (picture.rgb is None), picture.name
    assert max(len(s) for row in run(group, max_bad_ratio=None).column(columns.PIXEL_SHAPES).to_pylist() for s in row) == 2


@pytest.mark.parametrize("settings", [{}, {"scaled_decode": "gap2"}, {"decoder": "pillow"}, {"backend": "pil"}])
@pytest.mark.parametrize("kind", ["qwen", "clip", "siglip"])
def test_how_many_pictures_are_decoded_at_once_changes_nothing(
    qwen: str, clip: str, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad one in between, also one that is found to be bad after others were decoded, spoils no other."""
    spec = {"qwen": qwen, "clip": clip, "siglip": 'siglip{"size": 28}'}[kind]
    photos = [jpeg(scene(90 + 40 * n, 200 - 20 * n, seed=n)) for n in range(7)]
    rows: list[list[bytes | None]] = [
        [photos[0], HTML, photos[1]],
        [],
        [damaged_jpeg(), TURNED, photos[2], None],
        [*photos[3:]],
    ]
    group = planned(rows, spec)
    bound = DecodeImages(max_bad_ratio=None, **settings).bind()  # its memory is used again, and grows
    made = []
    for together in (0, 1 << 16, 1 << 18, 1 << 30):
        monkeypatch.setattr(decode_images, "_TOGETHER", together)
        outcome = bound(group)
        assert isinstance(outcome, Outcome)
        made.append((outcome.group.to_pylist(), outcome.drops.parts))
    assert all(one == made[0] for one in made)
    good = [sum(b is not None for b in row) for row in pixels(run(group, max_bad_ratio=None, **settings))]
    assert good == [2, 0, 3 if "decoder" in settings else 2, 4]  # Pillow shows the damaged one


def _packed(spec: str, rows: list[list[bytes | None]], lengths: list[list[int]]) -> pa.RecordBatch:
    group = planned(rows, spec)
    group = with_column(group, groups.LENGTHS, lengths, pa.list_(pa.int32()))
    tokens = [list(range(sum(row) + 2)) for row in lengths]
    group = with_column(group, groups.TOKENS, tokens, pa.list_(pa.int32()))
    return with_column(group, groups.LOSS_MASK, [[1] * len(t) for t in tokens], pa.list_(pa.uint8()))


def test_only_the_document_of_a_bad_image_loses_its_loss(qwen: str) -> None:
    group = _packed(qwen, [[GOOD, GOOD], [GOOD, HTML, GOOD], [None]], [[5, 3], [4, 6, 2], [3, 4]])
    owners = with_column(group, columns.IMAGE_DOCUMENT, [[0, 1], [0, 1, 2], [1]], columns_int())
    spans = [
        [{"start": 1, "stop": 3, "image": 0}, {"start": 6, "stop": 8, "image": 1}],
        [{"start": 0, "stop": 2, "image": 0}, {"start": 5, "stop": 9, "image": 1}, {"start": 10, "stop": 11, "image": 2}],
        [{"start": 3, "stop": 5, "image": 0}],
    ]
    by_span = with_column(group, columns.IMAGE_SPANS, spans, columns.IMAGE_SPANS_TYPE)
    expected = [[1] * 10, [1] * 4 + [0] * 6 + [1] * 4, [1] * 3 + [0] * 4 + [1] * 2]
    for given in (owners, by_span):
        made = check_operator(DecodeImages(), [given, given.slice(1), given.slice(1, 1)])
        assert made[0].column(groups.LOSS_MASK).to_pylist() == expected
        assert made[1].column(groups.LOSS_MASK).to_pylist() == expected[1:]
        assert [[b is None for b in row] for row in pixels(made[0])] == [[False] * 2, [False, True, False], [True]]
        assert made[0].column(groups.TOKENS).equals(given.column(groups.TOKENS))
    unknown = run(group).column(groups.LOSS_MASK).to_pylist()
    assert unknown == [[1] * 10, [0] * 14, [0] * 9]


def columns_int() -> Any:
    return pa.list_(pa.int32())


def test_a_blank_image_has_the_planned_shape(qwen: str) -> None:
    good = run(planned([[GOOD]], qwen))
    plan = planned([[GOOD]], qwen).column(columns.IMAGE_PLANS)
    damaged = pa.RecordBatch.from_arrays(
        [images_array([[damaged_jpeg()[:-400]]]), plan], names=[columns.IMAGES, columns.IMAGE_PLANS]
    )
    made = run(damaged)
    assert made.column(columns.PIXEL_SHAPES).equals(good.column(columns.PIXEL_SHAPES))
    assert pixels(made) == [[None]]


def test_a_mask_is_made_where_there_are_tokens_without_one(qwen: str) -> None:
    group = with_column(planned([[GOOD], [HTML]], qwen), groups.TOKENS, [[1, 2, 3], [4, 5]], columns_int())
    made = check_operator(DecodeImages(), [group])[0]
    assert made.column(groups.LOSS_MASK).to_pylist() == [[1, 1, 1], [0, 0]]


def test_an_image_of_another_size_than_planned_is_bad(qwen: str) -> None:
    plan = planned([[GOOD]], qwen).column(columns.IMAGE_PLANS)
    group = pa.RecordBatch.from_arrays([images_array([[TURNED]]), plan], names=[columns.IMAGES, columns.IMAGE_PLANS])
    assert pixels(run(group)) == [[None]]
    with pytest.raises(DataError, match="planned: as 150 × 100 pixels, and has 70 × 40"):
        run(group, on_bad_image="error")


def test_an_error_says_where_and_which(qwen: str) -> None:
    group = with_column(planned([[GOOD], [GOOD, HTML]], qwen), groups.ROW, [7, 8], pa.int64())
    with pytest.raises(DataError, match="^an image can't be used: image 1 of 'images': an HTML page") as caught:
        run(group, on_bad_image="error")
    assert caught.value.where.row == 8


def test_each_kind_of_bad_image_is_logged_once(qwen: str, caplog: pytest.LogCaptureFixture) -> None:
    apply = DecodeImages().bind()
    for _ in range(3):
        apply(planned([[HTML, HTML, b""]], qwen))
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "bad image: an HTML page, not an image",
        "bad image: an empty file",
    ]


def test_the_log_says_where_the_first_of_a_kind_is(qwen: str, caplog: pytest.LogCaptureFixture) -> None:
    group = with_column(planned([[GOOD], [GOOD, HTML]], qwen), groups.ROW, [7, 8], pa.int64())
    run(with_column(group, groups.SHARD, [3, 4], pa.int32()))
    assert [record.message for record in caplog.records] == [
        "bad image: an HTML page, not an image [shard 4, row 8]; others of this kind are not reported"
    ]


def test_too_many_bad_images_are_an_error_and_a_few_are_not(qwen: str) -> None:
    bad, good = planned([[HTML] * 10], qwen), planned([[jpeg(scene(8, 8))] * 90], qwen)
    apply = DecodeImages(max_bad_ratio=0.2).bind()
    for _ in range(15):
        apply(bad)
        apply(good)
    apply = DecodeImages(max_bad_ratio=0.05).bind()
    with pytest.raises(DataError, match=r"images can't be used, the last one because: an HTML page"):
        for _ in range(15):
            apply(good)
            apply(bad)
    apply = DecodeImages(max_bad_ratio=None).bind()
    for _ in range(110):
        apply(bad)


def test_plans_that_are_not_parallel_to_images_are_an_error(qwen: str) -> None:
    one, two = planned([[GOOD]], qwen), planned([[GOOD, GOOD]], qwen)
    group = pa.RecordBatch.from_arrays([one.column(0), two.column(1)], names=[columns.IMAGES, columns.IMAGE_PLANS])
    with pytest.raises(DataError, match="not parallel"):
        run(group)


def test_files_are_read_from_the_media_root(tmp_path: Path, qwen: str) -> None:
    (tmp_path / "x.jpg").write_bytes(GOOD)
    plan = planned([[GOOD, GOOD]], qwen).column(columns.IMAGE_PLANS)
    refs = pa.array([[{"bytes": None, "path": "x.jpg"}, {"bytes": None, "path": "../y.jpg"}]], type=columns.IMAGES_TYPE)
    group = pa.RecordBatch.from_arrays([refs, plan], names=[columns.IMAGES, columns.IMAGE_PLANS])
    made = pixels(run(group, media_root=str(tmp_path)))
    assert made[0][0] is not None
    assert made[0][1] is None
    assert np.array_equal(made[0][0], pixels(run(planned([[GOOD]], qwen)))[0][0])


def test_images_stay_where_that_is_asked(qwen: str) -> None:
    group = planned([[GOOD], [HTML]], qwen)
    made = check_operator(DecodeImages(keep_images=True), [group])[0]
    assert made.column(columns.IMAGES).equals(group.column(columns.IMAGES))


# ------------------------------------------------------------------------------------------------ without plans


@pytest.mark.parametrize("layout", ["list", "struct", "binary"])
def test_with_a_policy_it_plans_by_itself(clip: str, layout: str) -> None:
    files = [GOOD, TURNED, jpeg(scene(9, 9))]
    array = {
        "list": images_array([[f] for f in files]),
        "struct": pa.array([{"bytes": f, "path": None} for f in files], type=columns.IMAGE_REF),
        "binary": pa.array(files),
    }[layout]
    group = pa.RecordBatch.from_arrays([array, pa.array(["a", "b", "c"])], names=["image", "text"])
    made = check_operator(DecodeImages(policy=clip, column="image"), [group, group.slice(1)])[0]
    policy = load(clip)
    for (blocks,), data in zip(pixels(made), files, strict=True):
        rgb = decode(data)
        assert blocks is not None
        assert np.array_equal(blocks, policy.render(rgb, policy.plan(*rgb.shape[:2]), make_resize("auto")))
    assert made.column("text").to_pylist() == ["a", "b", "c"]
    assert Plan.unpack(made.column(columns.IMAGE_PLANS)[1].as_py()[0]["numbers"]) == policy.plan(40, 70)


def test_with_a_policy_bad_samples_are_dropped_and_counted(clip: str) -> None:
    group = pa.RecordBatch.from_arrays(
        [images_array([[GOOD], [HTML], [GOOD, None], [b""], [GOOD, GOOD]])], names=[columns.IMAGES]
    )
    outcome = DecodeImages(policy=clip).bind()(group)
    assert {k: v.tolist() for k, v in outcome.drops.rows.items()} == {
        "bad image: an HTML page, not an image": [1],
        "bad image: missing": [2],
        "bad image: an empty file": [3],
    }
    assert [len(row) for row in pixels(outcome.group)] == [1, 2]
    check_operator(DecodeImages(policy=clip), [group, group.slice(2)])
    blank = check_operator(DecodeImages(policy=clip, on_bad_image="blank"), [group])[0]
    assert [[b is None for b in row] for row in pixels(blank)] == [[False], [True], [False, True], [True], [False, False]]
    assert blank.column(columns.PIXEL_SHAPES)[1].as_py() == [[1, 3, 32, 32]]
    with pytest.raises(DataError, match="HTML"):
        run(group, policy=clip, on_bad_image="error")


def test_raw_pixels_are_the_image_itself() -> None:
    rgb = scene(13, 17)
    group = pa.RecordBatch.from_arrays([pa.array([save_png(rgb), GOOD])], names=["image"])
    made = check_operator(DecodeImages(policy="raw", column="image"), [group])[0]
    first = pixels(made)[0][0]
    assert first is not None
    assert first.shape == (1, 3, 13, 17)
    assert np.array_equal(first[0].transpose(1, 2, 0), rgb)
    assert Raw().spec() == "raw"


def save_png(rgb: Array) -> bytes:
    from PIL import Image

    return save(Image.fromarray(rgb), "PNG")


# ------------------------------------------------------------------------------------------------ scaled decoding


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["clip", "qwen"])
def test_scaled_decoding_is_close_and_off_by_default(tmp_path: Path, backend: str, kind: str) -> None:
    from skimage import data

    spec = (
        policy_spec(tmp_path, "CLIPImageProcessor", size={"shortest_edge": 60}, crop_size={"height": 60, "width": 60})
        if kind == "clip"
        else policy_spec(tmp_path, "Qwen2VLImageProcessor", min_pixels=56 * 56, max_pixels=28 * 28 * 9)
    )
    photos = [jpeg(data.astronaut()[:-3, :-5], quality=90), jpeg(data.chelsea(), quality=90)]
    group = planned([photos], spec)
    full, scaled = (pixels(run(group, backend=backend, scaled_decode=mode))[0] for mode in ("off", "gap2"))
    for one, two in zip(full, scaled, strict=True):
        assert one is not None
        assert two is not None
        difference = np.abs(one.astype(int) - two)
        assert 0 < difference.max() <= 20
        assert 10 * np.log10(255**2 / np.square(difference).mean()) > 42
    assert np.array_equal(pixels(run(group, backend=backend))[0][0], full[0])
    by_pillow = pixels(run(group, backend=backend, scaled_decode="gap2", decoder="pillow"))[0]
    assert np.array_equal(by_pillow[0], scaled[0])


def test_scaled_decoding_leaves_alone_what_it_can_not_do_exactly(tmp_path: Path) -> None:
    square = policy_spec(tmp_path, "LlavaImageProcessor", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    clip = policy_spec(tmp_path, "CLIPImageProcessor", size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20})
    from PIL import Image

    png = save(Image.fromarray(PHOTO), "PNG")
    for spec, file in ((square, GOOD), (clip, png), (clip, TURNED), (clip, jpeg(scene(30, 30)))):
        group = planned([[file]], spec)
        one, two = (pixels(run(group, scaled_decode=mode)) for mode in ("off", "gap2"))
        assert np.array_equal(one[0][0], two[0][0])


# ------------------------------------------------------------------------------------------------ the recipe


def test_what_changes_pixels_is_in_the_recipe_and_nothing_else(tmp_path: Path, clip: str) -> None:
    base = operator_fingerprint(DecodeImages(decoder="simplejpeg"))
    assert operator_fingerprint(DecodeImages(media_root="/somewhere")) == base
    assert operator_fingerprint(DecodeImages(decoder="auto")) == base
    assert operator_fingerprint(DecodeImages(dtype="float32", max_bad_ratio=None)) == base
    for settings in ({"scaled_decode": "gap2"}, {"backend": "pil"}, {"salvage": True}, {"decoder": "pillow"}):
        assert operator_fingerprint(DecodeImages(**settings)) != base
    parts = DecodeImages(backend="pil", policy=clip).fingerprint_parts()
    assert parts["policy"].startswith("clip")
    assert parts["resize"].startswith("pil ")


def test_a_backend_of_auto_is_the_one_that_it_comes_down_to() -> None:
    assert DecodeImages().fingerprint_parts() == DecodeImages(backend="torch").fingerprint_parts()


def test_wrong_settings_and_columns_are_said_before_the_run(qwen: str) -> None:
    for settings, words in (
        ({"backend": "tourch"}, "did you mean 'torch'"),
        ({"decoder": "jpeg"}, "decoder"),
        ({"on_bad_image": "skip"}, "on_bad_image"),
        ({"on_bad_image": "drop_sample"}, "after packing"),
        ({"scaled_decode": "on"}, "scaled_decode"),
        ({"dtype": "float31"}, "did you mean 'float32'"),
    ):
        with pytest.raises(RecipeError, match=words):
            DecodeImages(**settings)
    schema = planned([[GOOD]], qwen).schema
    with pytest.raises(RecipeError, match="plan images first"):
        DecodeImages().output_schema(pa.schema([schema.field(columns.IMAGES)]))
    with pytest.raises(RecipeError, match="did you mean 'images'"):
        DecodeImages(column="imagess").output_schema(schema)
    with pytest.raises(RecipeError, match="image policy"):
        DecodeImages(policy="no such policy").bind()


def test_a_policy_that_breaks_its_word_is_told_so(qwen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Raw, "block_shape", lambda self, plan: (1, 3, 5, 5))
    group = pa.RecordBatch.from_arrays([images_array([[GOOD]])], names=[columns.IMAGES])
    with pytest.raises(PluginError, match="instead of uint8"):
        run(group, policy="raw")


def test_a_task_makes_no_more_pixels_than_lanes_may_hold_ready() -> None:
    """Single images of a megapixel: never above 16 MB, and not one by one where they are small."""
    for policy, bytes_each in (('siglip{"size": 384}', 3 * 384**2), ("qwen2_5_vl", 3 * 1008**2), ("raw", 3_000_000)):
        rows = DecodeImages(policy=policy).max_rows
        assert rows is not None
        assert rows * bytes_each <= 16 << 20 < 4 * rows * bytes_each or rows == 16

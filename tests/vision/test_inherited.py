"""What is said once holds for the operators that follow: where the files are, and whether EXIF turns images."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import exif, jpeg, save, scene

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.batch import Batch
from zephon.errors import RecipeError
from zephon.recipe import operator_fingerprint
from zephon_vision.decode_images import DecodeImages
from zephon_vision.decoders import Decoder, decode
from zephon_vision.headers import read_header
from zephon_vision.probe_images import ProbeImages
from zephon_vision.tokenize_interleaved import TokenizeInterleaved

POLICY = 'qwen2_5_vl{"max_pixels": 12544, "min_pixels": 3136}'
FILES = {f"sub/{n}.jpg": jpeg(scene(60 + 28 * n, 90), exif=exif(n)) for n in range(1, 9)}


def _plain(data: bytes) -> bytes:
    """The same JPEG without its EXIF block."""
    start = data.index(b"\xff\xe1")
    size = int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + data[start + 2 + size :]


def run(images: dict[str, Any], *, probe: dict[str, Any] | None = None, **settings: Any) -> Pipeline:
    """Documents with an image each, given by path or bytes; `probe`: settings of `probe_images`, None: there is none."""
    rows = [{"images": [image, None], "texts": [None, f"picture {name}"]} for name, image in images.items()]
    pipeline = Pipeline(StaticMixtureWorkSource(Dataset.from_records("d", rows), stop_after_passes=1, seed=3, chunk_size=2))
    pipeline.interleave(**settings)
    if probe is not None:
        pipeline.probe_images(**probe)
    pipeline.tokenize_interleaved(tokenizer=fast(QWEN), images=POLICY, pad_token_id=0)
    return pipeline.pack_multimodal(max_length=64, max_patches=256).decode_images().batch(1).options(runner="inline")


def hashes(pipeline: Pipeline) -> list[str]:
    return [batch.sha256() for batch in pipeline]


def counts(pipeline: Pipeline) -> tuple[int, dict[str, int]]:
    """Images that were decoded, and documents that were dropped."""
    shown = 0
    for batch in pipeline:
        assert isinstance(batch, Batch)
        shown += sum(data is not None for row in batch.group.column("pixel_values").to_pylist() for data in row)
    return shown, pipeline.accounting()["rows"]["dropped"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "media" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("probe", [None, {}], ids=["tokenize reads headers", "probed"])
@pytest.mark.parametrize("root", ["{}/media", "media", "./media/../media/", "media/sub/.."])
def test_the_media_root_of_interleave_is_that_of_all_that_follow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, root: str, probe: dict[str, Any] | None
) -> None:
    monkeypatch.chdir(folder)
    inline = hashes(run(FILES, probe=probe))
    by_path = run({name: name for name in FILES}, probe=probe, media_root=root.format(folder))
    assert counts(by_path) == (len(FILES), {})
    assert len(inline) == len(hashes(by_path))
    assert inline == hashes(by_path)


def test_the_folder_itself_may_be_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "media")
    assert counts(run({name: name for name in FILES}, media_root=".", probe={}))[0] == len(FILES)


def test_absolute_paths_under_the_media_root_are_read(folder: Path) -> None:
    names = {name: str(folder / "media" / name) for name in FILES}
    assert counts(run(names, media_root=str(folder), probe={}))[0] == len(FILES)


def test_a_run_goes_on_after_its_files_moved(folder: Path) -> None:
    whole = hashes(run({name: name for name in FILES}, probe={}, media_root=str(folder / "media")))
    begun = run({name: name for name in FILES}, probe={}, media_root=str(folder / "media"))
    iterator = iter(begun)
    first = [next(iterator).sha256() for _ in range(2)]
    state = begun.state_dict()
    iterator.close()
    os.rename(folder / "media", folder / "elsewhere")
    moved = run({name: name for name in FILES}, probe={}, media_root=str(folder / "elsewhere"))
    moved.load_state_dict(state)
    assert first + hashes(moved) == whole


def test_what_is_said_at_an_operator_counts_more(folder: Path) -> None:
    assert (
        counts(run({name: name for name in FILES}, media_root="/nowhere", probe={"media_root": str(folder / "media")}))[0] == 8
    )
    given = Pipeline(Dataset.from_records("d", [{"image": b""}])).probe_images(column="image", exif="ignore", media_root="/a")
    made = given.decode_images(column="image", policy="raw", exif="apply").explain()
    assert "exif='apply'" in made
    assert made.count("media_root='/a'") == 2


def test_without_a_probe_nothing_outside_of_the_media_root_is_read_and_the_limit_holds(folder: Path) -> None:
    huge = BytesIO()
    Image.new("1", (20000, 20000)).save(huge, "PNG")
    shown, dropped = counts(
        run({"outside": str(folder / "media/sub/1.jpg"), "huge": huge.getvalue(), "good": FILES["sub/1.jpg"]})
    )
    assert shown == 1
    assert sum(dropped.values()) == 0  # documents go on without their images


# ------------------------------------------------------------------------------------------------------ EXIF (case 89)

STORED = scene(24, 16)


@pytest.mark.parametrize("decoder", ["pillow", "simplejpeg"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_pixels_come_as_they_are_stored_where_that_is_asked(kind: str, orientation: int, decoder: Decoder) -> None:
    options: dict[str, Any] = {"WEBP": {"lossless": True}, "AVIF": {"quality": 90}}.get(kind, {})
    image = Image.fromarray(STORED)
    turned = save(image, kind, exif=exif(orientation), **options)
    want = decode(save(image, kind, **options), decoder=decoder)
    head = read_header(turned)
    assert head.orientation == orientation
    assert head.stored == STORED.shape[:2]
    assert np.array_equal(decode(turned, upright=False, decoder=decoder), want)
    assert decode(turned, decoder=decoder).shape[:2] == (head.height, head.width)


@pytest.mark.parametrize("probe", [None, {"exif": "ignore"}], ids=["tokenize reads headers", "probed"])
def test_a_run_that_ignores_exif_is_that_of_files_without_it(probe: dict[str, Any] | None) -> None:
    def made(files: dict[str, bytes], exif: str | None) -> list[str]:
        rows = [{"images": [data, None], "texts": [None, name]} for name, data in files.items()]
        pipeline = Pipeline(StaticMixtureWorkSource(Dataset.from_records("d", rows), stop_after_passes=1, seed=3)).interleave()
        if probe is not None:
            pipeline.probe_images(exif=exif)
            exif = None
        pipeline.tokenize_interleaved(tokenizer=fast(QWEN), images=POLICY, pad_token_id=0, exif=exif)
        return hashes(pipeline.pack_multimodal(max_length=256).decode_images().batch(1).options(runner="inline"))

    plain = {name: _plain(data) for name, data in FILES.items()}
    assert made(FILES, "ignore") == made(plain, None)
    assert made(FILES, None) != made(plain, None)


def test_the_probe_tells_what_was_ignored() -> None:
    rows = Pipeline(StaticMixtureWorkSource(Dataset.from_records("d", [{"image": FILES["sub/6.jpg"]}]), stop_after_passes=1))
    (batch,) = list(rows.probe_images(column="image", exif="ignore").batch(1).options(runner="inline"))
    (info,) = batch.to_pydict()["image_info"][0]
    assert (info["height"], info["width"], info["orientation"]) == (60 + 28 * 6, 90, 6)


def test_only_ignoring_exif_is_in_the_recipe() -> None:
    for kind, settings in (
        (ProbeImages, {}),
        (DecodeImages, {"policy": "siglip"}),
        (TokenizeInterleaved, {"tokenizer": fast(QWEN)}),
    ):
        prints = {way: operator_fingerprint(kind(**settings, exif=way)) for way in (None, "apply", "ignore")}
        assert prints[None] == prints["apply"] != prints["ignore"]
        with pytest.raises(RecipeError, match="did you mean 'ignore'"):
            kind(**settings, exif="ignored")

"""Every decoder gives the same right pixels, or the same refusal, for every file that is known to break decoders."""

from __future__ import annotations

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile
from thoroughness import examples
from vision.pictures import Array, Picture, by_pillow, damaged_jpeg, exif, frame_at, jpeg, scene, tricky, upright

from zephon.errors import DataError, PluginError, RecipeError
from zephon_vision import decoders
from zephon_vision.decoders import check_decoder, decode, refuses_damaged_jpeg
from zephon_vision.headers import read_header

DECODERS = ("pillow", "simplejpeg")


@pytest.mark.parametrize("decoder", DECODERS)
def test_good_files_give_the_right_pixels(good: Picture, decoder: decoders.Decoder) -> None:
    rgb = decode(good.data, decoder=decoder)
    assert good.rgb is not None
    assert rgb.dtype == np.uint8
    assert rgb.shape == good.rgb.shape
    assert int(np.abs(rgb.astype(int) - good.rgb).max()) <= good.close
    assert rgb.flags.writeable
    assert rgb.flags.c_contiguous


@pytest.mark.parametrize("decoder", DECODERS)
def test_bad_files_are_refused(bad: Picture, decoder: decoders.Decoder) -> None:
    with pytest.raises(DataError) as caught:
        decode(bad.data, decoder=decoder)
    assert len(caught.value.message) < 160


def test_decoders_agree_bit_by_bit(good: Picture) -> None:
    assert np.array_equal(decode(good.data, decoder="pillow"), decode(good.data, decoder="simplejpeg"))


def photographs() -> list[Array]:
    """Real ones."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    return [data.astronaut(), data.chelsea(), data.coffee(), data.rocket(), *load_sample_images().images]


def test_decoders_agree_on_real_photographs() -> None:
    for photo in photographs():
        for options in ({"quality": 75}, {"quality": 95, "subsampling": 0}, {"quality": 60, "progressive": True}):
            data = jpeg(photo, **options)
            one, two = decode(data, decoder="pillow"), decode(data, decoder="simplejpeg")
            assert np.array_equal(one, two)
            assert np.array_equal(one, by_pillow(data))


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_decoders_agree_on_scaled_photographs(scale: int) -> None:
    for photo in [*photographs()[:2], scene(97, 131), scene(9, 200)]:
        data = jpeg(photo)
        one = decode(data, decoder="pillow", scale=scale)
        assert one.shape[:2] == tuple(-(-side // scale) for side in photo.shape[:2])
        assert np.array_equal(one, decode(data, decoder="simplejpeg", scale=scale))


def test_an_unusual_subsampling_is_decoded_by_whoever_can() -> None:
    data = jpeg(scene(), subsampling=0)
    at = frame_at(data) + 11
    odd = (
        data[:at] + b"\x31" + data[at + 1 :]
    )  # luma 3 × 1, which TurboJPEG has no name for: the pixels are nonsense, but the same
    assert np.array_equal(_or_error(odd, "pillow"), _or_error(odd, "simplejpeg"))


def _or_error(data: bytes, decoder: decoders.Decoder) -> Array:
    try:
        return decode(data, decoder=decoder)
    except DataError:
        return np.zeros(0)


def test_only_simplejpeg_sees_damage_in_the_middle_of_a_jpeg() -> None:
    assert decode(damaged_jpeg(), decoder="pillow").shape == scene().shape
    with pytest.raises(DataError, match="undecodable"):
        decode(damaged_jpeg(), decoder="simplejpeg")
    assert refuses_damaged_jpeg("simplejpeg")
    assert refuses_damaged_jpeg("auto")
    assert not refuses_damaged_jpeg("pillow")


@pytest.mark.parametrize("decoder", DECODERS)
def test_salvage_shows_what_is_there(decoder: decoders.Decoder) -> None:
    whole = jpeg(scene(), quality=92)
    full = decode(whole)
    assert np.array_equal(decode(whole[:-2], salvage=True, decoder=decoder), full)
    most = decode(whole[: len(whole) * 3 // 4], salvage=True, decoder=decoder)
    assert np.array_equal(most[:8], full[:8])
    assert (most[-8:] == most[-1, -1]).all()  # one grey
    assert decode(damaged_jpeg(), salvage=True, decoder=decoder).shape == full.shape
    with pytest.raises(DataError):
        decode(b"<html>", salvage=True, decoder=decoder)


def test_salvaged_pixels_are_the_same_by_either_decoder() -> None:
    whole = jpeg(scene(), quality=92, progressive=True)
    for cut in range(700, len(whole), 97):
        one, two = (_salvaged(whole[:cut], decoder) for decoder in DECODERS)
        assert np.array_equal(one, two)


def _salvaged(data: bytes, decoder: str) -> Array:
    try:
        return decode(data, salvage=True, decoder=decoder)  # type: ignore[arg-type]
    except DataError:
        return np.zeros(0)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "name",
    ["bomb: png 30000² of 1 bit", "bomb: png header 60000²", "bomb: png with 60 MB of text", "bomb: jpeg header 65500²"],
)
def test_bombs_are_refused_in_little_memory(
    tricky_pictures: list[Picture], tmp_path: Path, name: str, decoder: decoders.Decoder
) -> None:
    (tmp_path / "bomb").write_bytes(next(p.data for p in tricky_pictures if p.name == name))
    (tmp_path / "good").write_bytes(jpeg(scene()))
    job = [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("decode_job.py"))]
    done = subprocess.run(
        [*job, str(tmp_path / "bomb"), str(tmp_path / "good"), decoder, "64"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    verdict, cost = done.stdout.splitlines()
    assert verdict.startswith("refused")
    assert int(cost.split()[0]) < 50


@pytest.mark.parametrize("decoder", DECODERS)
def test_no_file_crashes_a_process_or_takes_its_memory(tricky_pictures: list[Picture], tmp_path: Path, decoder: str) -> None:
    """All that is known to break decoders, in one process of little memory, with the verdict that each file should have."""
    (tmp_path / "good").write_bytes(jpeg(scene()))
    folder = tmp_path / "files"
    folder.mkdir()
    for number, picture in enumerate(tricky_pictures):
        (folder / f"{number:04}").write_bytes(picture.data)
    job = [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("decode_job.py"))]
    done = subprocess.run(
        [*job, str(folder), str(tmp_path / "good"), decoder, "256"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *verdicts, cost = done.stdout.splitlines()
    for picture, verdict in zip(tricky_pictures, verdicts, strict=True):
        expected = "refused" if picture.rgb is None else f"shape {picture.rgb.shape}"
        assert verdict.startswith(expected), (picture.name, verdict)
    assert int(cost.split()[0]) < 200


def test_a_decoder_that_gets_no_memory_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(jpeg(np.zeros((9000, 9000, 3), np.uint8)))
    (tmp_path / "good").write_bytes(jpeg(scene()))
    job = [sys.executable, str(Path(__file__).with_name("decode_job.py"))]
    for decoder in DECODERS:
        done = subprocess.run(
            [*job, str(tmp_path / "large"), str(tmp_path / "good"), decoder, "40"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("refused"), done.stdout


_SEEDS = [p.data for p in tricky() if 100 < len(p.data) < 50_000]


@given(st.sampled_from(_SEEDS), st.data())
@settings(max_examples=examples(200))
def test_damage_never_raises_anything_but_our_error(data: bytes, draws: st.DataObject) -> None:
    broken = bytearray(data)
    for place, value in draws.draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=20)):
        broken[place] = value
    file = bytes(broken[: draws.draw(st.one_of(st.just(len(broken)), st.integers(0, len(broken))))])
    for decoder in DECODERS:
        try:
            rgb = decode(file, max_pixels=1_000_000, decoder=decoder)  # type: ignore[arg-type]
        except DataError:
            continue
        header = read_header(file)
        assert rgb.shape == (header.height, header.width, 3)


@pytest.mark.parametrize("decoder", DECODERS)
def test_threads_decode_the_same_as_one(tricky_pictures: list[Picture], decoder: decoders.Decoder) -> None:
    good = [p for p in tricky_pictures if p.rgb is not None and p.close == 0]
    with ThreadPoolExecutor(4) as pool:
        for picture, rgb in zip(good, pool.map(lambda p: decode(p.data, decoder=decoder), good), strict=True):
            assert np.array_equal(rgb, picture.rgb), picture.name


def test_odd_metadata_do_not_depend_on_how_warnings_are_filtered() -> None:
    data = jpeg(scene())
    odd = data[:2] + b"\xff\xe1\x00\x0eExif\0\0II*\0\x08\0" + data[2:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(decode(odd, decoder="pillow"), decode(data))


def test_the_limit_is_ours_and_not_pillows() -> None:
    large = jpeg(np.zeros((100, 100, 3), np.uint8))
    with pytest.raises(DataError, match="too large"):
        decode(large, max_pixels=9_999)
    before = Image.MAX_IMAGE_PIXELS
    try:
        Image.MAX_IMAGE_PIXELS = 10
        assert decode(large, decoder="pillow").shape == (100, 100, 3)
    finally:
        Image.MAX_IMAGE_PIXELS = before


def test_no_global_of_pillow_is_touched(tricky_pictures: list[Picture]) -> None:
    before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
    for picture in tricky_pictures[::7]:
        _or_error(picture.data, "pillow")
    assert before == (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS)


@pytest.mark.parametrize("decoder", DECODERS)
def test_an_image_that_pillow_keeps_in_pieces_is_whole(decoder: decoders.Decoder) -> None:
    rgb = np.tile(scene(), (50, 30, 1))  # 23 MB in Pillow
    data = jpeg(rgb)
    assert np.array_equal(decode(data, decoder=decoder), by_pillow(data))


@pytest.mark.parametrize("decoder", DECODERS)
def test_memory_of_signed_bytes_is_read_as_bytes(decoder: decoders.Decoder) -> None:
    data = jpeg(scene(), exif=exif(8))
    assert np.array_equal(decode(memoryview(pa.py_buffer(data)), decoder=decoder), decode(data))
    assert read_header(memoryview(pa.py_buffer(data))) == read_header(data)


def test_a_header_that_is_known_is_not_read_again() -> None:
    data = jpeg(scene(), exif=exif(6))
    header = read_header(data)
    assert np.array_equal(decode(memoryview(data), header), upright(by_pillow(data), 6))
    with pytest.raises(DataError, match="header says"):
        decode(data, header._replace(width=header.width + 1))


def test_unknown_and_missing_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    check_decoder("auto")
    with pytest.raises(RecipeError, match="pillow"):
        check_decoder("pilow")
    monkeypatch.setattr(decoders, "_simplejpeg", lambda: None)
    with pytest.raises(PluginError, match="simplejpeg"):
        check_decoder("simplejpeg")
    assert np.array_equal(decode(jpeg(scene())), by_pillow(jpeg(scene())))

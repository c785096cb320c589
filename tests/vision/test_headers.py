"""Headers say what decoding would show, and refuse in a few bytes what must not be decoded."""

from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from thoroughness import examples
from vision.pictures import Picture, exif, scene, tricky, upright

from zephon.errors import DataError
from zephon_vision.headers import MAX_PIXELS, Header, check_size, read_header

MODES = {
    "JPEG": ("L", "RGB", "CMYK"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P",),
    "AVIF": ("RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"),
    "BMP": ("RGB", "P"),
}
TURNS = ("JPEG", "PNG", "WEBP", "AVIF", "TIFF")


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, str, int]:
    """`(file, kind, orientation)`."""
    kind = draw(st.sampled_from(sorted(MODES)))
    mode = draw(st.sampled_from(MODES[kind]))
    width, height = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    image = Image.fromarray(scene(height, width))
    image = image.convert("L").convert(mode) if mode == "I;16" else image.convert(mode)
    orientation = draw(st.integers(1, 8)) if kind in TURNS else 1
    options: dict[str, object] = {}
    if orientation != 1 or (kind in TURNS and draw(st.booleans())):
        options["exif"] = exif(orientation)
    if kind == "JPEG":
        options |= {"progressive": draw(st.booleans()), "icc_profile": bytes(draw(st.sampled_from([0, 100, 70_000])))}
    if kind == "WEBP":
        options["lossless"] = draw(st.booleans())
    # Pillow 13 crashes when it writes (not: reads) an animated AVIF that is turned
    if (kind in ("GIF", "WEBP", "TIFF") or (kind == "AVIF" and not options)) and draw(st.booleans()):
        more = [Image.fromarray(scene(height, width, seed=n)).convert(mode if mode != "I;16" else "L") for n in (1, 2)]
        options |= {"save_all": True, "append_images": more}
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue(), kind, orientation


@given(files())
@settings(max_examples=examples(150))
def test_a_header_says_what_pillow_says_after_turning(file: tuple[bytes, str, int]) -> None:
    data, kind, orientation = file
    with Image.open(io.BytesIO(data)) as image:
        frames, mode = getattr(image, "n_frames", 1), image.mode
        size = ImageOps.exif_transpose(image).size
    header = read_header(data)
    assert (header.width, header.height) == size
    assert (header.format, header.orientation, header.frames) == (kind, orientation, frames)
    # Pillow makes grey of a palette that is grey, and shows YCbCr as RGB
    assert header.mode == mode or (header.mode, mode) in {("P", "L"), ("P", "RGB"), ("YCbCr", "RGB"), ("P", "1")}
    assert read_header(memoryview(data)) == header


def test_a_header_has_the_size_of_the_picture_that_is_shown(good: Picture) -> None:
    header = read_header(good.data)
    assert good.rgb is not None
    assert (header.height, header.width) == good.rgb.shape[:2]
    assert sorted(header.stored) == sorted((header.height, header.width))
    assert header.pixels == header.height * header.width


def test_what_can_be_refused_from_the_header_is(picture: Picture) -> None:
    if picture.early:
        with pytest.raises(DataError) as caught:
            check_size(read_header(picture.data))
        assert len(caught.value.message) < 90
        assert "\n" not in caught.value.message
    else:
        check_size(read_header(picture.data))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty", "empty"),
        ("html", "HTML"),
        ("html with a byte order mark", "HTML"),
        ("svg", "SVG"),
        ("eps", "EPS"),
        ("pdf", "PDF"),
        ("heic", "heic"),
        ("lfs", "LFS"),
        ("json", "known kind"),
        ("jpeg cut at a tenth", "truncated"),
        ("png 20 bytes", "truncated"),
        ("png no width", "damaged"),
        ("jpeg of 12 bits", "12 bits"),
        ("bomb: jpeg header 65500²", "too large"),
    ],
)
def test_an_error_says_what_the_file_is(tricky_pictures: list[Picture], name: str, words: str) -> None:
    data = next(p.data for p in tricky_pictures if p.name == name)
    with pytest.raises(DataError, match=words):
        check_size(read_header(data))


def test_limits_are_exact() -> None:
    header = Header(100, 200, "PNG", "RGB")
    check_size(header, max_pixels=20_000, min_side=100, max_aspect=2)
    for limits, words in (
        ({"max_pixels": 19_999}, "too large"),
        ({"min_side": 101}, "too small"),
        ({"max_aspect": 1.99}, "too long"),
    ):
        with pytest.raises(DataError, match=words):
            check_size(header, **limits)
    assert MAX_PIXELS == 2 * Image.MAX_IMAGE_PIXELS  # type: ignore[operator]


_SEEDS = [p.data for p in tricky() if 20 < len(p.data) < 100_000]


@given(st.sampled_from(_SEEDS), st.data())
@settings(max_examples=examples(300))
def test_damage_is_an_error_of_ours_or_another_header(data: bytes, draws: st.DataObject) -> None:
    broken = bytearray(data)
    head = min(len(broken), 600)
    for place, value in draws.draw(st.lists(st.tuples(st.integers(0, head - 1), st.integers(0, 255)), max_size=12)):
        broken[place] = value
    file = bytes(broken[: draws.draw(st.integers(0, len(broken)))])
    try:
        header = read_header(file)
    except DataError:
        return
    assert 0 < header.height < 2**32
    assert 0 < header.width < 2**32
    assert 1 <= header.orientation <= 8
    assert header.frames >= 1


def test_a_chain_of_pages_that_bites_its_tail_ends() -> None:
    entries = [(256, 4, 1, 9), (257, 4, 1, 7), (262, 3, 1, 1)]
    body = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries) + struct.pack("<I", 8)
    header = read_header(b"II*\0\x08\0\0\0" + body)
    assert (header.height, header.width, header.frames) == (7, 9, 1)


def test_a_gif_of_endless_blocks_costs_bounded_work() -> None:
    head = b"GIF89a" + struct.pack("<HHBBB", 5, 5, 0, 0, 0)
    picture = b"," + struct.pack("<HHHHB", 0, 0, 5, 5, 0) + b"\x02"
    lines: list[int] = []
    data = head + picture + b"\1\0" * 1_000_000

    def count(frame: object, event: str, arg: object) -> object:
        lines.append(1)
        return count

    sys.settrace(count)  # type: ignore[arg-type]
    try:
        assert read_header(data).frames == 1
    finally:
        sys.settrace(None)
    assert len(lines) < 1_200_000


def test_a_first_frame_beyond_the_screen_enlarges_the_gif() -> None:
    head = b"GIF89a" + struct.pack("<HHBBB", 5, 5, 0x80, 0, 0) + bytes(6)
    data = head + b"," + struct.pack("<HHHHB", 3, 2, 9, 4, 0) + b"\x02\x02\x4c\x01\0;"
    assert read_header(data)[:2] == (6, 12)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations_turn_as_pillow_turns(orientation: int) -> None:
    from zephon_vision._decoders_rgb import turn

    stored = scene(7, 11)
    file = io.BytesIO()
    Image.fromarray(stored).save(file, "PNG", exif=exif(orientation))
    with Image.open(file) as image:
        expected = np.array(ImageOps.exif_transpose(image))
    assert np.array_equal(turn(stored, orientation), expected)
    assert np.array_equal(upright(stored, orientation), expected)

"""Image files of every kind that decoders stumble over, made here: what each must become, or that it must be refused."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[Any]
HEIGHT, WIDTH = 48, 80


@dataclass(frozen=True)
class Picture:
    """A file, and the pixels uint8[h, w, 3] that are right within `close` units per value; `rgb` None: it must be refused."""

    name: str
    data: bytes
    rgb: Array | None = None
    close: int = 0
    early: bool = False
    """Whether the header alone is enough to refuse it."""


GOLDEN = Path(__file__).with_name("golden")


def scene(height: int = HEIGHT, width: int = WIDTH, *, seed: int = 0) -> Array:
    """A smooth picture without symmetry and with some noise: uint8[h, w, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        120 + 90 * np.sin(x / 9 + y / 23),
        100 + 0.9 * x + 40 * np.cos(y / 7),
        200 - 1.5 * y + 30 * np.sin((x + y) / 11),
    ]
    noise = np.random.default_rng(seed).normal(0, 3, (height, width, 3))
    return np.clip(np.stack(waves, axis=-1) + noise, 0, 255).astype(np.uint8)


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(rgb: Array, **options: Any) -> bytes:
    return save(Image.fromarray(rgb), "JPEG", **options)


def by_pillow(data: bytes) -> Array:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


_TURNED: dict[int, Any] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


def upright(stored: Array, orientation: int) -> Array:
    """What a viewer shows of these stored pixels."""
    return np.ascontiguousarray(_TURNED[orientation](stored))


# ------------------------------------------------------------------------------------------------------------ PNG


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n"


def png(
    width: int, height: int, bits: int, colour: int, rows: bytes, *extra: bytes, after: bytes = b"", level: int = 6
) -> bytes:
    """A PNG out of rows that have no filter bytes; `extra` chunks stand before the pixels."""
    wide = len(rows) // height
    filtered = b"".join(b"\0" + rows[i * wide : (i + 1) * wide] for i in range(height))
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"".join(
        [PNG, chunk(b"IHDR", head), *extra, chunk(b"IDAT", zlib.compress(filtered, level)), after, chunk(b"IEND", b"")]
    )


def interlaced(rgb: Array) -> bytes:
    """An 8-bit RGB PNG in the seven passes of Adam7."""
    height, width = rgb.shape[:2]
    data = b""
    for x, y, right, down in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = rgb[y::down, x::right]
        if part.shape[0] and part.shape[1]:
            data += b"".join(b"\0" + row.tobytes() for row in part)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    return PNG + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def packed_bits(values: Array, bits: int) -> bytes:
    """Rows of values below 2**bits, each row padded to whole bytes."""
    rows = []
    for row in values:
        text = "".join(format(int(v), f"0{bits}b") for v in row)
        text += "0" * (-len(text) % 8)
        rows.append(int(text, 2).to_bytes(len(text) // 8, "big"))
    return b"".join(rows)


def blank_png(width: int, height: int) -> bytes:
    """A 1-bit PNG of any size, in little space and memory."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    block = row * 64
    data = b"".join(
        [packer.compress(block) for _ in range(height // 64)] + [packer.compress(row * (height % 64)), packer.flush()]
    )
    return (
        PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def grey(values: Array) -> Array:
    return np.repeat(np.asarray(values, dtype=np.uint8)[:, :, None], 3, axis=2)


def on_white(rgb: Array, alpha: Array) -> Array:
    share = alpha.astype(np.float64)[:, :, None] / 255
    return np.rint(rgb * share + 255 * (1 - share)).astype(np.uint8)


def _pngs() -> Iterator[Picture]:
    rgb = scene()
    ramp = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
    yield Picture("png rgb", save(Image.fromarray(rgb), "PNG"), rgb)
    yield Picture("png named .jpg", save(Image.fromarray(rgb), "PNG"), rgb)
    for bits in (1, 2, 4, 8):
        values = ramp % (1 << bits)
        scaled = grey(values * (255 // ((1 << bits) - 1)))
        rows = packed_bits(values, bits)
        yield Picture(f"png grey {bits} bits", png(WIDTH, HEIGHT, bits, 0, rows), scaled)
        keyed = scaled.copy()
        keyed[values == 1] = 255
        yield Picture(f"png grey {bits} bits with a key", png(WIDTH, HEIGHT, bits, 0, rows, chunk(b"tRNS", b"\0\1")), keyed)
        palette = np.stack(
            [np.arange(1 << bits) * 37 % 256, np.arange(1 << bits) * 91 % 256, 200 - np.arange(1 << bits) % 200], axis=1
        )
        plte = chunk(b"PLTE", palette.astype(np.uint8).tobytes())
        colours = palette.astype(np.uint8)[values]
        yield Picture(f"png palette {bits} bits", png(WIDTH, HEIGHT, bits, 3, rows, plte), colours)
        alphas = np.full(1 << bits, 255)
        alphas[0], alphas[-1] = 0, 128
        clear = chunk(b"tRNS", alphas.astype(np.uint8).tobytes())
        white = on_white(colours, alphas[values])
        yield Picture(f"png palette {bits} bits with alpha", png(WIDTH, HEIGHT, bits, 3, rows, plte, clear), white, 1)
    yield from _wide_pngs(rgb, ramp)
    yield from _clear_pngs(rgb, ramp)
    yield Picture("png turned by eXIf", save(Image.fromarray(rgb), "PNG", exif=exif(6)), upright(rgb, 6))
    late = png(WIDTH, HEIGHT, 8, 2, rgb.tobytes(), after=chunk(b"eXIf", exif(8).tobytes()[6:]))
    yield Picture("png turned by eXIf behind the pixels", late, upright(rgb, 8))
    packet = b'XML:com.adobe.xmp\0\0\0\0\0<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    yield Picture("png turned by XMP", png(WIDTH, HEIGHT, 8, 2, rgb.tobytes(), chunk(b"iTXt", packet)), upright(rgb, 6))
    frames = [Image.fromarray(scene(seed=n)) for n in (0, 5, 6)]
    apng = save(frames[0], "PNG", save_all=True, append_images=frames[1:])
    yield Picture("apng", apng, rgb)
    for level in (0, 9):
        yield Picture(f"png compressed {level}", png(WIDTH, HEIGHT, 8, 2, rgb.tobytes(), level=level), rgb)
    yield Picture("png interlaced", interlaced(rgb), rgb)
    yield Picture("png interlaced, tiny", interlaced(rgb[:3, :2]), rgb[:3, :2])
    yield from _bad_pngs(rgb)


def _wide_pngs(rgb: Array, ramp: Array) -> Iterator[Picture]:
    """16 bits a value, and colours that stand for white."""
    base = rgb[:, :, 0]
    words = (ramp * 17 % 65536).astype(">u2")
    yield Picture("png grey 16 bits", png(WIDTH, HEIGHT, 16, 0, words.tobytes()), grey(words.astype(int) // 257), 1)
    exact = (base.astype(np.uint16) * 257).astype(">u2")
    yield Picture("png grey 16 bits, multiples of 257", png(WIDTH, HEIGHT, 16, 0, exact.tobytes()), grey(base))
    keyed = grey(base)
    keyed[base == base[5, 5]] = 255
    key = chunk(b"tRNS", exact[5:6, 5].tobytes())
    yield Picture("png grey 16 bits with a key", png(WIDTH, HEIGHT, 16, 0, exact.tobytes(), key), keyed)
    wide = (rgb.astype(np.uint16) * 257).astype(">u2")
    yield Picture("png rgb 16 bits", png(WIDTH, HEIGHT, 16, 2, wide.tobytes()), rgb)
    key = chunk(b"tRNS", wide[7, 9].tobytes())
    keyed = rgb.copy()
    keyed[(rgb == rgb[7, 9]).all(axis=2)] = 255
    yield Picture("png rgb 16 bits with a key", png(WIDTH, HEIGHT, 16, 2, wide.tobytes(), key), keyed)
    small = chunk(b"tRNS", rgb[7, 9].astype(">u2").tobytes())
    yield Picture("png rgb with a key", png(WIDTH, HEIGHT, 8, 2, rgb.tobytes(), small), keyed)


def _clear_pngs(rgb: Array, ramp: Array) -> Iterator[Picture]:
    base = rgb[:, :, 0]
    alpha = (ramp % 256).astype(np.uint8)
    alpha[:10] = 0
    la = np.stack([base, alpha], axis=2)
    yield Picture("png grey with alpha", save(Image.fromarray(la, "LA"), "PNG"), on_white(grey(base), alpha), 1)
    rgba = np.concatenate([rgb, alpha[:, :, None]], axis=2)
    yield Picture("png rgba", save(Image.fromarray(rgba), "PNG"), on_white(rgb, alpha), 1)
    hidden = rgba.copy()
    hidden[:10, :, :3] = 0
    yield Picture(
        "png rgba with black under alpha 0", save(Image.fromarray(hidden), "PNG"), on_white(hidden[:, :, :3], alpha), 1
    )
    rgba16 = (rgba.astype(np.uint16) * 257).astype(">u2")
    yield Picture("png rgba 16 bits", png(WIDTH, HEIGHT, 16, 6, rgba16.tobytes()), on_white(rgb, alpha), 1)


def _bad_pngs(rgb: Array) -> Iterator[Picture]:
    good = save(Image.fromarray(rgb), "PNG")
    middle = len(good) // 2
    yield Picture("png cut in half", good[:middle])
    yield Picture("png header only", good[:33])
    yield Picture("png 20 bytes", good[:20], early=True)
    yield Picture("png bad crc of pixels", good[:-20] + bytes([good[-20] ^ 255]) + good[-19:])
    yield Picture(
        "png damaged pixels", good[:middle] + bytes(b ^ 0x5A for b in good[middle : middle + 40]) + good[middle + 40 :]
    )
    yield Picture(
        "png no such colour type", PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 5, 0, 0, 0)) + good[33:], early=True
    )
    yield Picture("png no width", PNG + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 8, 8, 2, 0, 0, 0)) + good[33:], early=True)
    yield Picture("bomb: png 30000² of 1 bit", blank_png(30000, 30000), early=True)
    lie = good[:16] + struct.pack(">II", 60000, 60000) + good[24:29]
    yield Picture("bomb: png header 60000²", lie + struct.pack(">I", zlib.crc32(lie[12:])) + good[33:], early=True)
    packer = zlib.compressobj(9)
    text = b"".join([packer.compress(bytes(1 << 20)) for _ in range(60)] + [packer.flush()])
    yield Picture("bomb: png with 60 MB of text", png(8, 8, 8, 0, bytes(64), chunk(b"zTXt", b"Comment\0\0" + text)))


# ----------------------------------------------------------------------------------------------------------- JPEG


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """`(marker, start, stop)` of the segments up to the scan."""
    at = 2
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], at, at + 2 + length
        at += 2 + length


def frame_at(data: bytes) -> int:
    """Where the frame header of a JPEG starts."""
    return next(start for marker, start, _ in _segments(data) if 0xC0 <= marker <= 0xC2)


def with_segment(data: bytes, marker: int, body: bytes) -> bytes:
    """A segment more, straight behind the start."""
    return data[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body + data[2:]


def _jpegs() -> Iterator[Picture]:
    rgb = scene()
    image = Image.fromarray(rgb)
    kinds: dict[str, bytes] = {
        "baseline": jpeg(rgb, quality=92),
        "4:4:4": jpeg(rgb, subsampling=0),
        "4:2:2": jpeg(rgb, subsampling=1),
        "4:1:1": jpeg(rgb, subsampling="4:1:1"),
        "progressive": jpeg(rgb, progressive=True),
        "optimised": jpeg(rgb, optimize=True),
        "grey": save(image.convert("L"), "JPEG"),
        "restart markers": jpeg(rgb, restart_marker_blocks=3),
        "rgb without transform": jpeg(rgb, keep_rgb=True),
        "quality 5": jpeg(rgb, quality=5),
        "one pixel": jpeg(rgb[:1, :1]),
        "1 × 3000": jpeg(np.repeat(rgb[:1], 38, axis=1)[:, :3000]),
        "3000 × 1": jpeg(np.repeat(rgb[:, :1], 63, axis=0)[:3000]),
        "icc profile": jpeg(rgb, icc_profile=bytes(200_000)),
        "fill bytes": jpeg(rgb)[:2] + b"\xff\xff\xff" + jpeg(rgb)[2:],
        "trailing bytes": jpeg(rgb) + b"<html>" * 100,
        "comment": with_segment(jpeg(rgb), 0xFE, b"x" * 1000),
    }
    for name, data in kinds.items():
        yield Picture(f"jpeg {name}", data, by_pillow(data))
    gray = kinds["grey"]
    at = frame_at(gray) + 11
    odd = gray[:at] + b"\x22" + gray[at + 1 :]
    yield Picture("jpeg grey that says 2×2", odd, by_pillow(odd))
    second = Image.fromarray(scene(seed=3))
    mpo = save(image, "MPO", save_all=True, append_images=[second])
    yield Picture("mpo", mpo, by_pillow(mpo))
    cmyk = Image.fromarray(rgb).convert("CMYK")
    for name, options in {"cmyk": {}, "cmyk progressive": {"progressive": True}}.items():
        yield Picture(f"jpeg {name}", save(cmyk, "JPEG", quality=100, subsampling=0, **options), rgb, 8)
    yield Picture("jpeg ycck", _ycck(rgb), rgb, 8)
    for path in sorted(GOLDEN.glob("arithmetic*.jpg")):
        # by `cjpeg -arithmetic [-progressive] -quality 90` of libjpeg-turbo 2.1.5, from `scene()`
        yield Picture(f"jpeg {path.stem}", path.read_bytes(), by_pillow(path.read_bytes()))
    pure = save(Image.new("CMYK", (WIDTH, HEIGHT), (255, 0, 0, 0)), "JPEG")
    yield Picture("jpeg pure cyan", pure, np.tile(np.array([0, 255, 255], np.uint8), (HEIGHT, WIDTH, 1)), 2)
    yield from _turned_jpegs(rgb)
    yield from _bad_jpegs(rgb)


def _turned_jpegs(rgb: Array) -> Iterator[Picture]:
    plain = by_pillow(jpeg(rgb))
    for orientation in range(1, 9):
        yield Picture(f"jpeg orientation {orientation}", jpeg(rgb, exif=exif(orientation)), upright(plain, orientation))
    for orientation in (0, 9, 65535):
        yield Picture(f"jpeg orientation {orientation}", jpeg(rgb, exif=exif(orientation)), plain)
    base = jpeg(rgb)
    whole = b"Exif\0\0" + exif(6).tobytes().removeprefix(b"Exif\0\0")
    for cut in (6, 8, 12, 15, 20):
        yield Picture(f"jpeg exif cut to {cut}", with_segment(base, 0xE1, whole[:cut]), plain)
    for name, body in {
        "nonsense": b"\xde\xad\xbe\xef" * 9,
        "far away": b"II*\0\xff\xff\xff\x7f",
        "no order": b"XX*\0\x08\0\0\0",
    }.items():
        yield Picture(f"jpeg exif {name}", with_segment(base, 0xE1, b"Exif\0\0" + body), plain)
    big = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0\0\0\0\0"
    yield Picture("jpeg exif big endian", with_segment(base, 0xE1, big), upright(plain, 8))
    xmp = b"http://ns.adobe.com/xap/1.0/\0<x><tiff:Orientation>3</tiff:Orientation></x>"
    yield Picture("jpeg turned by XMP", with_segment(base, 0xE1, xmp), upright(plain, 3))
    yield Picture("jpeg XMP against exif", with_segment(with_segment(base, 0xE1, xmp), 0xE1, big), upright(plain, 8))


def _ycck(rgb: Array) -> bytes:
    """As Photoshop writes it: luma and chroma of the negative, black inverted, and an Adobe segment that says so."""
    negative = np.array(Image.fromarray(255 - rgb).convert("YCbCr"))
    stored = np.concatenate([negative, np.full((*rgb.shape[:2], 1), 255, np.uint8)], axis=2)
    # Pillow inverts what it writes, and says that nothing was transformed
    data = save(
        Image.frombytes("CMYK", (rgb.shape[1], rgb.shape[0]), (255 - stored).tobytes()), "JPEG", quality=100, subsampling=0
    )
    flag = data.index(b"Adobe") + 11
    assert data[flag] == 0
    return data[:flag] + b"\x02" + data[flag + 1 :]


def _bad_jpegs(rgb: Array) -> Iterator[Picture]:
    base = jpeg(rgb, quality=92)
    middle = len(base) // 2
    yield Picture("jpeg without end", base[:-2])
    yield Picture("jpeg cut in half", base[:middle])
    yield Picture("jpeg cut at a tenth", base[: len(base) // 10], early=True)
    yield Picture("jpeg two bytes", base[:2], early=True)
    yield Picture("jpeg only the header", base[: frame_at(base) + 19])
    yield Picture("jpeg behind junk", b"junk" + base, early=True)
    yield Picture("jpeg without a frame", b"\xff\xd8\xff\xd9" + bytes(20), early=True)
    at = frame_at(base)
    yield Picture("bomb: jpeg header 65500²", base[: at + 5] + struct.pack(">HH", 65500, 65500) + base[at + 9 :], early=True)
    yield Picture("jpeg of 12 bits", base[: at + 4] + b"\x0c" + base[at + 5 :], early=True)
    yield Picture("jpeg no height", base[: at + 5] + b"\0\0" + base[at + 7 :], early=True)


def damaged_jpeg() -> bytes:
    """A JPEG whose data end too early, which Pillow shows without a word (libjpeg only warns), and simplejpeg refuses."""
    base = jpeg(scene(), quality=92)
    middle = len(base) // 2
    return base[:middle] + b"\xff\xd9" + base[middle + 2 :]


# ----------------------------------------------------------------------------------------------------------- others


def _others() -> Iterator[Picture]:
    rgb = scene()
    image = Image.fromarray(rgb)
    alpha = (np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 256).astype(np.uint8)
    alpha[:10] = 0
    rgba = Image.fromarray(np.concatenate([rgb, alpha[:, :, None]], axis=2))
    lossy = save(image, "WEBP", quality=80)
    yield Picture("webp lossy", lossy, by_pillow(lossy))
    yield Picture("webp lossless", save(image, "WEBP", lossless=True), rgb)
    yield Picture("webp alpha", save(rgba, "WEBP", lossless=True, exact=True), on_white(rgb, alpha), 1)
    yield Picture("webp orientation 6", save(image, "WEBP", lossless=True, exif=exif(6)), upright(rgb, 6))
    moving = save(image, "WEBP", lossless=True, save_all=True, append_images=[Image.fromarray(scene(seed=4))])
    yield Picture("webp animated", moving, rgb)
    yield Picture("webp cut", lossy[: len(lossy) // 2])
    yield Picture("webp damaged", lossy[:23] + b"\0\0\0" + lossy[26:], early=True)
    flat = image.quantize(64)
    shown = np.array(flat.convert("RGB"))
    yield Picture("gif", save(flat, "GIF"), shown)
    loop = save(flat, "GIF", save_all=True, append_images=[Image.fromarray(scene(seed=4)).quantize(64)])
    yield Picture("gif animated", loop, shown)
    clear = shown.copy()
    clear[np.array(flat) == 3] = 255
    yield Picture("gif transparent", save(flat, "GIF", transparency=3), clear)
    yield Picture("gif cut", save(flat, "GIF")[:-300])
    yield Picture("gif without a picture", save(flat, "GIF")[:13] + b";", early=True)
    for name, options in {"": {}, " 4:4:4": {"subsampling": "4:4:4"}}.items():
        data = save(image, "AVIF", quality=90, **options)
        yield Picture(f"avif{name}", data, by_pillow(data))
        for orientation in range(2, 9):
            turned = save(image, "AVIF", quality=90, exif=exif(orientation), **options)
            yield Picture(f"avif{name} orientation {orientation}", turned, upright(by_pillow(data), orientation))
    yield Picture("avif alpha", save(rgba, "AVIF", quality=100, subsampling="4:4:4"), on_white(rgb, alpha), 6)
    films = save(image, "AVIF", save_all=True, append_images=[Image.fromarray(scene(seed=4))])
    yield Picture("avif animated", films, by_pillow(films))
    yield Picture("avif cut", data[: len(data) - 200])
    yield Picture("avif header cut", data[:60], early=True)
    yield Picture("heic", b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(100), early=True)
    for name, picture in {"rgb": image, "grey": image.convert("L"), "1 bit": image.convert("1"), "palette": flat}.items():
        yield Picture(f"bmp {name}", save(picture, "BMP"), np.array(picture.convert("RGB")))
    yield Picture("bmp 32 bits", save(rgba, "BMP"), rgb)
    yield Picture("bmp alpha", _bmp_with_alpha(np.array(rgba)), on_white(rgb, alpha), 1)
    yield Picture("bmp from the top", _bmp_with_alpha(np.array(rgba), down=True), on_white(rgb, alpha), 1)
    yield Picture("bmp cut", save(image, "BMP")[:-500])
    yield from _tiffs(rgb, rgba, alpha)
    yield from _strangers()


def _bmp_with_alpha(rgba: Array, *, down: bool = False) -> bytes:
    """With a version 4 header, whose masks name alpha."""
    height, width = rgba.shape[:2]
    head = struct.pack("<IiiHHIIiiII", 108, width, -height if down else height, 1, 32, 3, 0, 0, 0, 0, 0)
    head += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) + b"BGRs" + bytes(48)
    pixels = (rgba if down else rgba[::-1])[:, :, [2, 1, 0, 3]].tobytes()
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


def _tiffs(rgb: Array, rgba: Image.Image, alpha: Array) -> Iterator[Picture]:
    image = Image.fromarray(rgb)
    for method in ("raw", "tiff_lzw", "tiff_deflate", "packbits", "tiff_adobe_deflate"):
        yield Picture(f"tiff {method}", save(image, "TIFF", compression=method), rgb)
    inside = save(image, "TIFF", compression="jpeg", quality=100)
    yield Picture("tiff jpeg", inside, rgb, 40)
    bits = image.convert("1")
    yield Picture("tiff g4", save(bits, "TIFF", compression="group4"), np.array(bits.convert("RGB")))
    yield Picture("tiff cmyk", save(image.convert("CMYK"), "TIFF"), np.array(image.convert("CMYK").convert("RGB")))
    yield Picture("tiff alpha", save(rgba, "TIFF"), on_white(rgb, alpha), 1)
    more = [Image.fromarray(scene(seed=8)), Image.fromarray(scene(20, 30))]
    yield Picture("tiff of 3 pages", save(image, "TIFF", save_all=True, append_images=more), rgb)
    for orientation in range(1, 9):
        yield Picture(f"tiff orientation {orientation}", save(image, "TIFF", exif=exif(orientation)), upright(rgb, orientation))
    base = rgb[:, :, 0]
    words = Image.fromarray(base.astype(np.uint16) * 257)
    yield Picture("tiff 16 bits", save(words, "TIFF"), grey(base))
    yield Picture("tiff float", save(Image.fromarray((base / 255).astype(np.float32)), "TIFF"), grey(base))
    yield Picture("tiff float beyond 1", save(Image.fromarray(base.astype(np.float32)), "TIFF"))
    holes = (base / 255).astype(np.float32)
    holes[3, 3] = np.nan
    yield Picture("tiff float with nan", save(Image.fromarray(holes), "TIFF"))
    yield Picture("tiff 32 bits", save(Image.fromarray(base.astype(np.int32) * 70_000), "TIFF"))
    yield Picture("tiff big", save(image, "TIFF", big_tiff=True), rgb)
    yield Picture("tiff cut", save(image, "TIFF", compression="tiff_lzw")[:400], early=True)


def _strangers() -> Iterator[Picture]:
    for name, data in {
        "empty": b"",
        "one byte": b"\xff",
        "html": b"<!DOCTYPE html><html><body>404</body></html>",
        "html with a byte order mark": b"\xef\xbb\xbf\n <HTML>",
        "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
        "pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
        "json": b'{"error": "not found"}',
        "zeros": bytes(500),
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "jpeg xl": b"\xff\x0a" + bytes(50),
    }.items():
        yield Picture(name, data, early=True)


@functools.cache
def tricky() -> tuple[Picture, ...]:
    """All of them, made once: that takes a second."""
    return (*_pngs(), *_jpegs(), *_others())

"""MDS streams of MosaicML's own writer, what its own reader returns of them, and both readers' values in one form."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from formats.reading import read_rows
from PIL import Image

from zephon.plugin import OpenShard
from zephon.storage import LocalStore, expand
from zephon.testing import CountingStore
from zephon_formats.mds import Mds

ENCODINGS = {
    "a_str": "str",
    "b_bytes": "bytes",
    "c_int": "int",
    **{f"d_{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"e_float{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "f_int": "str_int",
    "f_float": "str_float",
    "f_decimal": "str_decimal",
    "g_json": "json",
    "h_jpeg": "jpeg",
    "h_png": "png",
    "h_pil": "pil",
    "i_jpeg_array": "jpeg_array",
    "i_jpegarray": "jpegarray",
    "i_jpeg": "list[jpeg]",
    "i_png": "list[png]",
    "i_pil": "list[pil]",
    "j_fixed": "ndarray:float32:2,3,1",
    "j_shape": "ndarray:int16",
    "j_free": "ndarray",
    "k_pkl": "pkl",
}


def picture(n: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(n)
    return Image.fromarray(rng.integers(0, 255, (5 + n % 3, 7, 3), dtype=np.uint8)).convert(mode)


def jpeg(n: int) -> bytes:
    out = io.BytesIO()
    picture(n).save(out, "JPEG")
    return out.getvalue()


def row(n: int) -> dict[str, Any]:
    """One value for each of `ENCODINGS`."""
    numbers = {
        f"d_{kind}{bits}": (np.iinfo(f"{kind}{bits}").max, np.iinfo(f"{kind}{bits}").min, n)[n % 3]
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    }
    dtypes = ("uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64")
    return {
        "a_str": ["", "plain", "ünï → 日本語 😀", "two\nlines"][n % 4] * n,
        "b_bytes": bytes(range(n % 256)) * (n % 3),
        "c_int": (-(2**63), 2**63 - 1, n)[n % 3],
        **numbers,
        "e_float16": n / 8,
        "e_float32": (float("inf"), -0.0, n / 3)[n % 3],
        "e_float64": (5e-324, n / 3, float("nan"))[n % 3],
        "f_int": -(10**17) * n,
        "f_float": (float("-inf"), 1e300, n / 7)[n % 3],
        "f_decimal": Decimal(n) / 8 + Decimal("1e30"),
        "g_json": [{"a": [n, None, "ü"]}, [], n, None, "text"][n % 5],
        "h_jpeg": picture(n),
        "h_png": picture(n, ("L", "RGBA", "P")[n % 3]),
        "h_pil": picture(n, ("1", "L", "LA", "RGB", "RGBA", "CMYK", "I", "F")[n % 8]),
        "i_jpeg_array": [jpeg(n + i) for i in range(1 + n % 3)],
        "i_jpegarray": [jpeg(n)],
        "i_jpeg": [picture(n + i) for i in range(n % 4)],
        "i_png": [picture(n + i, "L") for i in range(n % 3)],
        "i_pil": [picture(n + i, ("RGB", "1", "F")[i]) for i in range(n % 4)],
        "j_fixed": np.arange(6, dtype=np.float32).reshape(2, 3, 1) * n,
        "j_shape": np.arange(12, dtype=np.int16).reshape([(12,), (3, 4), (2, 1, 6), (1,) * 9 + (12,)][n % 4]) - n,
        "j_free": np.arange((n % 3 + 1) * 300, dtype=np.float64).astype(dtypes[n % 11]).reshape(-1, (1, 300)[n % 2]),
        "k_pkl": {"n": n, "x": np.arange(n % 3), "t": (n / 2, None)},
    }


def write(
    folder: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], packing: str | None = None, **options: Any
) -> Path:
    """A stream, by MosaicML's writer."""
    from streaming.base.format.mds import MDSWriter

    with MDSWriter(out=str(folder), columns=dict(columns), compression=packing, **options) as writer:
        for each in rows:
            writer.write(dict(each))
    return folder


def theirs(folder: Path, scratch: Path) -> list[dict[str, Any]]:
    """What MosaicML's own reader returns; what is packed is unpacked by its own code."""
    from streaming.base.compression import decompress
    from streaming.base.format import reader_from_json

    scratch.mkdir(parents=True)
    found: list[dict[str, Any]] = []
    for entry in json.loads((folder / "index.json").read_text())["shards"]:
        name = entry["raw_data"]["basename"]
        packed = folder / entry["zip_data"]["basename"] if entry["zip_data"] else None
        data = decompress(entry["compression"], packed.read_bytes()) if packed else (folder / name).read_bytes()
        (scratch / name).write_bytes(data)
        reader = reader_from_json(str(scratch), None, entry)
        found += [reader[i] for i in range(len(reader))]
    return found


def open_all(reader: Mds, *paths: Path, store: CountingStore | None = None) -> list[OpenShard]:
    local = LocalStore()
    files = [info for path in paths for info in expand(local, str(path))]
    return [reader.open(store or local, shard) for shard in reader.shards(store or local, files)]


def ours(reader: Mds, *paths: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    return [each for opened in open_all(reader, *paths) for each in read_rows(opened, columns)]


def image(value: Mapping[str, Any]) -> tuple[Any, ...]:
    assert set(value) == {"bytes", "path"}
    assert value["path"] is None
    with Image.open(io.BytesIO(value["bytes"])) as opened:
        return opened.mode, opened.size, opened.tobytes(), opened.convert("RGB").tobytes()


def comparable(value: Any, encoding: str) -> Any:
    """A value of either reader in one form."""
    if isinstance(value, list) and encoding != "json":
        return [comparable(v, "png") for v in value]
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes(), value.convert("RGB").tobytes()
    if encoding in ("jpeg", "png", "pil"):
        return image(value)
    if encoding == "json":
        return json.loads(value) if isinstance(value, str) and value[:1] in '{["n0123456789' else value
    if isinstance(value, np.ndarray):
        return value.dtype.name, list(value.shape), value.tobytes()
    if encoding == "str_decimal":
        return Decimal(value)
    if isinstance(value, float | np.floating):
        return repr(float(value))
    return value.item() if isinstance(value, np.generic) else value


def as_array(value: Any, encoding: str) -> tuple[str, list[int], bytes]:
    """Our form of an array as the dtype, shape and bytes of MosaicML's."""
    dtype = encoding.split(":")[1] if ":" in encoding else value["dtype"]
    if encoding.count(":") == 2:
        array = np.array(value, dtype=dtype)
        return dtype, list(array.shape), array.tobytes()
    data = value["data"] if isinstance(value["data"], bytes) else np.array(value["data"], dtype=dtype).tobytes()
    return dtype, value["shape"], data


def assert_equal(got: Sequence[Mapping[str, Any]], want: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    assert len(got) == len(want)
    for mine, other in zip(got, want, strict=True):
        for name, encoding in columns.items():
            if encoding.startswith("ndarray"):
                assert as_array(mine[name], encoding) == comparable(other[name], encoding), name
            elif encoding == "pkl":
                assert mine[name] == {"n": other[name]["n"], "x": other[name]["x"].tolist(), "t": list(other[name]["t"])}
            else:
                assert comparable(mine[name], encoding) == comparable(other[name], encoding), name


def numbered(folder: Path, numbers: Sequence[int], **options: Any) -> Path:
    return write(folder, [{"a": n} for n in numbers], {"a": "int"}, options.pop("compression", None), **options)


def found(*paths: Path) -> list[int]:
    return [each["a"] for each in ours(Mds(), *paths)]

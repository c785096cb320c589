"""Images in all the forms that data sets have: structs, bytes, paths, data URLs, base64; to bytes and paths. Nothing is fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from zephon.arrays import from_values, list_sizes, struct_parts, to_arrow, to_numpy
from zephon.encodings import decoded, is_encoded
from zephon.errors import DataError
from zephon.keys import I64
from zephon_vision._decoders_source import data_url_parts, from_base64, is_data_url, path_inside, plain_path
from zephon_vision._taking import taken, together

_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
PLACES = ("path", "base64", "url", "image")
"""Where a struct has an image's path, URL or text; the first that is there counts."""
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class ImageRules:
    """How references to images are read."""

    media_root: str | None = None
    allow_network: bool = False


@dataclass(frozen=True)
class Flat:
    """The images of a group, one after the other; row i has those of [offsets[i], offsets[i+1])."""

    offsets: I64
    data: Any
    """binary or views of it, null where an image has no bytes."""
    path: Any
    """string, null where it has no path."""


def no_images(rows: int) -> Flat:
    """No image in any row."""
    return Flat(np.zeros(rows + 1, dtype=np.int64), pa.nulls(0, pa.binary()), pa.nulls(0, pa.string()))


def read_columns(arrays: list[Any], rules: ImageRules) -> Flat:
    """The images of one or more columns; a row's come in the order of the columns."""
    made = [_read_column(array, rules) for array in arrays]
    if len(made) == 1:
        return made[0]
    counts = [np.diff(flat.offsets) for flat in made]
    offsets = np.concatenate([[0], np.cumsum(np.sum(counts, axis=0))]).astype(np.int64)
    starts = np.cumsum([0, *(len(flat.data) for flat in made)])
    order = np.empty(int(offsets[-1]), dtype=np.int64)
    done = offsets[:-1].copy()
    for flat, count, start in zip(made, counts, starts, strict=False):
        inside = np.arange(len(flat.data)) - np.repeat(flat.offsets[:-1], count)
        order[np.repeat(done, count) + inside] = start + np.arange(len(flat.data))
        done += count
    return Flat(offsets, taken(together([f.data for f in made]), order), taken(pa.concat_arrays([f.path for f in made]), order))


def _read_column(array: Any, rules: ImageRules) -> Flat:
    """One column: a list of images (nested or not), or one image per row; a null row has none."""
    t = pa.types
    array = _plain(array)
    if t.is_string(array.type) and _has_json_lists(array):
        array = _texts_of([_json_list(text) for text in array.to_pylist()])
    if not t.is_list(array.type) and not t.is_large_list(array.type):
        counts = to_numpy(array.is_valid()).astype(np.int64)
        data, path = _leaves(array.drop_null(), rules)
        return Flat(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), data, path)
    ends: I64 = np.arange(len(array) + 1, dtype=np.int64)
    while t.is_list(array.type) or t.is_large_list(array.type):
        inner = np.concatenate([[0], np.cumsum(list_sizes(array))])
        array = _plain(array.flatten())
        ends = inner[ends]
    data, path = _leaves(array, rules)
    return Flat(ends, data, path)


def _plain(array: Any) -> Any:
    """Without dictionaries, views of anything but bytes, and fixed sizes."""
    t = pa.types
    kind = array.type
    if t.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if is_encoded(kind):
        return _plain(decoded(array))
    if t.is_fixed_size_list(kind):
        return array.cast(pa.list_(kind.value_type))
    if t.is_large_string(kind) or t.is_string_view(kind):
        return _cast(array, pa.string())
    if t.is_large_binary(kind):
        return _cast(array, pa.binary())
    return array


def _cast(array: Any, kind: Any) -> Any:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(f"the images of a group can't be held together: {error}", hint="read smaller groups") from error


def _leaves(array: Any, rules: ImageRules) -> tuple[Any, Any]:
    """`(bytes, paths)` of an array with one image each; null where it is missing."""
    t = pa.types
    kind = array.type
    if t.is_null(kind):
        return array.cast(pa.binary()), array.cast(pa.string())
    if t.is_binary(kind) or t.is_binary_view(kind):
        return array, pa.nulls(len(array), pa.string())
    if t.is_string(kind):
        return _from_strings(pa.nulls(len(array), pa.binary()), array, rules)
    return _from_structs(array, rules)


def _from_structs(array: Any, rules: ImageRules) -> tuple[Any, Any]:
    parts = struct_parts(array)
    size = len(array)
    data = _plain(parts["bytes"]) if "bytes" in parts else pa.nulls(size, pa.binary())
    where = next((parts[n] for n in PLACES if n in parts), pa.nulls(size, pa.string()))
    path = _plain(where)
    if pa.types.is_null(data.type):
        data = data.cast(pa.binary())
    if pa.types.is_null(path.type):
        path = path.cast(pa.string())
    if pa.types.is_string(data.type):  # JSON holds no bytes
        return _from_strings(pa.nulls(size, pa.binary()), data.fill_null(path) if data.null_count else data, rules)
    return _from_strings(data, path, rules)


def _from_strings(data: Any, path: Any, rules: ImageRules) -> tuple[Any, Any]:
    """Paths that are base64 become bytes; those beside bytes are only names, and are left as they are."""
    bare = np.flatnonzero(to_numpy(data.is_null()) & to_numpy(path.is_valid()))
    if not len(bare):
        return data, path
    payloads, paths = data.to_pylist(), path.to_pylist()
    for place in bare.tolist():
        payloads[place], paths[place] = read_text(paths[place], rules)
    return from_values(payloads, pa.binary()), from_values(paths, pa.string())


def read_value(value: Any, rules: ImageRules) -> tuple[bytes | None, str | None]:
    """`(bytes, path)` of an image as a Python value, as it stands in chats and JSON. Raises `DataError` for what is no image."""
    if value is None:
        return None, None
    if isinstance(value, bytes):
        return value, None
    if isinstance(value, str):
        return read_text(value, rules)
    if isinstance(value, Mapping):
        payload = value.get("bytes")
        if isinstance(payload, bytes):
            path = value.get("path")
            return payload, path if isinstance(path, str) else None
        for name in ("bytes", "base64", "path", "url", "image", "image_url"):
            if value.get(name) is not None:
                return read_value(value[name], rules)
        return None, None
    raise DataError(f"a {type(value).__name__} is no image", hint="bytes, a path, a data URL and base64 text are")


def read_text(text: str, rules: ImageRules) -> tuple[bytes | None, str | None]:
    """`(bytes, path)` of a data URL, base64 text or path; what claims to be a data URL and is broken stays a path.

    Raises `DataError` for URLs, and for paths outside the media root.
    """
    if is_data_url(text):
        found = _data_url(text)
        return (found, None) if found is not None else (None, text)  # whoever reads it finds a bad image
    scheme = _URL.match(text)
    if scheme is not None:
        return None, _url(text, scheme[1].lower(), rules)
    if _is_base64(text):
        found = from_base64(text)
        return (found, None) if found is not None else (None, f"data:;base64,{text}")  # bad in the same way, and no path
    return (None, _under(text, rules.media_root)) if text.strip() else (None, None)


def _data_url(text: str) -> bytes | None:
    encoded, body = data_url_parts(text) or (False, "")
    return from_base64(body) if encoded else None


def _is_base64(text: str) -> bool:
    """Base64 without a prefix: no path looks like it and starts like an image file, too."""
    if len(text) < 24 or not _BASE64.fullmatch(text):
        return False
    start = from_base64("".join(text[:64].split())[:16])
    return start is not None and (start.startswith(_STARTS) or start[4:8] == b"ftyp")


def _url(text: str, scheme: str, rules: ImageRules) -> str:
    if scheme == "file":
        return _under(plain_path(text), rules.media_root)
    if rules.allow_network:
        return text
    raise DataError(
        f"an image is a URL, and the network is off: {short(text)}",
        hint="download the images first; allow_network=True only keeps the URL as the image's path, it does not fetch it",
    )


def short(value: Any) -> str:
    """As it may stand in a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _under(path: str, root: str | None) -> str:
    if root is None:
        return path
    inside = path_inside(path, root)
    if inside is None:
        raise DataError(f"an image path leads out of media_root: {short(path)}")
    return inside


def _has_json_lists(array: Any) -> bool:
    return any(text is not None and text.lstrip()[:1] == "[" for text in array.to_pylist())


def _texts_of(rows: list[list[str] | None]) -> Any:
    """`list<string>`, without nulls: a null row has no image, as an empty one."""
    ends = np.cumsum([0, *(len(row or ()) for row in rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(to_arrow(ends), from_values([text for row in rows for text in row or ()], pa.string()))


def _json_list(text: str | None) -> list[str] | None:
    if text is None or text.lstrip()[:1] != "[":
        return None if text is None else [text]
    try:
        made = json.loads(text)
    except ValueError:
        return [text]  # a path may begin so
    return made if all(isinstance(v, str) for v in made) else [text]

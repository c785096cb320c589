"""Where an image's bytes come from: an Arrow column of any of the usual layouts, or a file under the media root."""

from __future__ import annotations

import base64
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import unquote, unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.arrays import list_sizes, struct_parts
from zephon.errors import DataError, RecipeError, Where, ZephonError, is_scarcity, wrap
from zephon.plugin import buffers

ArrowArray = Any
# by number: `pyarrow.types` asks a function for each kind
_LISTS = (pa.list_(pa.null()).id, pa.large_list(pa.null()).id)
_BYTES = (pa.binary().id, pa.large_binary().id, pa.binary_view().id, pa.binary(1).id)
_TEXTS = (pa.string().id, pa.large_string().id, pa.string_view().id)
_STRUCT, _NULL = pa.struct([]).id, pa.null().id

Reference = tuple[memoryview | None, str | None]
"""An image as `(bytes, path)`; both None: there is none."""

MISSING = "missing"

_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def check_image_type(kind: Any, column: str) -> None:
    """Raises `RecipeError` where a column of this type holds no images."""
    if not _is_image(kind.value_type if kind.id in _LISTS else kind):
        raise RecipeError(
            f"column {column!r} is {kind}, not images",
            hint="images are struct<bytes, path>, binary (the file) or string (its path), or lists of these",
        )


def check_image_lists(kind: Any, column: str) -> None:
    """The same where it must be lists of images."""
    if kind.id not in _LISTS and kind.id != _NULL:
        raise RecipeError(f"column {column!r} is {kind}, not lists of images", hint="interleave() makes them")
    check_image_type(kind, column)


def _is_image(kind: Any) -> bool:
    if kind.id != _STRUCT:
        return kind.id in _BYTES or kind.id in _TEXTS or kind.id == _NULL
    # by name: the order of the fields differs between data sets
    parts = {field.name: field.type.id for field in kind if field.name in ("bytes", "path")}
    return bool(parts) and parts.get("bytes", _NULL) in (*_BYTES, _NULL) and parts.get("path", _NULL) in (*_TEXTS, _NULL)


def image_parts(array: ArrowArray) -> tuple[ArrowArray, ArrowArray]:
    """`(bytes, path)` of an array of images in any of the forms that `check_image_type` lets pass."""
    parts = struct_parts(array) if array.type.id == _STRUCT else {"path" if array.type.id in _TEXTS else "bytes": array}
    data, path = (parts.get(name, pa.nulls(len(array))) for name in ("bytes", "path"))
    data = data if data.type.id in _BYTES[:3] else data.cast(pa.binary())
    return data, path if path.type.id in _TEXTS else path.cast(pa.string())


class Images:
    """The images of a group's column, flat; row i has the images `offsets[i]:offsets[i+1]`. No image is copied.

    A column of single images counts as one of lists of one.
    """

    def __init__(self, array: ArrowArray, column: str) -> None:
        check_image_type(array.type, column)
        if array.type.id in _LISTS:
            values = array.flatten()
            self.counts: list[int] = list_sizes(array).tolist()
            """Of the images of each row."""
            self.offsets: npt.NDArray[np.int64] = np.cumsum([0, *self.counts], dtype=np.int64)
        else:
            values = array
            self.counts = [1] * len(array)
            self.offsets = np.arange(len(array) + 1)
        self.values: ArrowArray = values
        data, path = image_parts(values)
        self._bytes, self._paths = _blobs(data), _texts(path)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Reference:
        data = self._bytes[index] if self._bytes is not None else None
        path = self._paths[index] if self._paths is not None and data is None else None
        return data, path

    def place(self, index: int) -> tuple[int, int]:
        """`(row, which of its images)`."""
        row = int(np.searchsorted(self.offsets, index, side="right")) - 1
        return row, index - int(self.offsets[row])


def _blobs(array: ArrowArray) -> list[memoryview | None] | None:
    """The values of a binary array as memory, without copies."""
    if array.null_count == len(array):
        return None
    # Arrow's buffers hold signed bytes
    return [None if data is None else data.cast("B") for data in buffers(array)]


def _texts(array: ArrowArray) -> list[str | None] | None:
    if array.null_count == len(array):
        return None
    return array.to_pylist()  # type: ignore[no-any-return]


def load_bytes(reference: Reference, media_root: str | None) -> bytes | memoryview:
    """The whole file.

    Raises:
        DataError: there is none, or it can't be read from the media root; never the network.
    """
    data, path = reference
    if data is not None:
        return data
    if path is None:
        raise DataError(MISSING)
    if is_data_url(path):
        return from_data_url(path)
    try:
        with _opened(path, media_root) as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from error


@contextmanager
def mapped(reference: Reference, media_root: str | None) -> Iterator[bytes | memoryview]:
    """The same for a look at the header: of a file only those pages are read that are looked at."""
    data, path = reference
    if data is not None or path is None or is_data_url(path):
        yield load_bytes(reference, media_root)
        return
    try:
        with _opened(path, media_root) as file:
            if os.fstat(file.fileno()).st_size == 0:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                view: Any = memory  # slices to bytes and indexes to int as bytes do
                yield view
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> ZephonError:
    """A lack of open files or memory is no image's fault."""
    return wrap(error, Where()) if is_scarcity(error) else DataError(f"unreadable: {path!r}: {error.strerror}")


def _opened(path: str, media_root: str | None) -> BinaryIO:
    """The file, to read. Raises `DataError` for a pipe or a device, which would be waited for or read for ever; else `OSError`."""
    file = open(local_path(path, media_root), "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise DataError(f"unreadable: {path!r} is a pipe or a device")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # of a pipe nobody writes into; changes nothing for files


def check_media_root(root: str | None, operator: str) -> None:
    """Raise `RecipeError` where a local media root isn't there: every image would be a bad one, which is noticed only by and by."""
    if root is None or "://" in root or os.path.isdir(os.path.abspath(root)):
        return
    what = "is no folder" if os.path.exists(root) else "doesn't exist"
    raise RecipeError(
        f"media_root of {operator} is {root!r}, which {what}",
        hint=f"workers look for it as {os.path.abspath(root)!r}; leave media_root= out where all images are bytes",
    )


def local_path(path: str, media_root: str | None) -> str:
    """Where an image given by path is. Raises `DataError` for a URL, and for a path that leaves the media root."""
    path = plain_path(path)
    if "://" in path:
        raise DataError(f"unreadable: {path!r} is a URL, and the network is not used")
    if "\0" in path:
        raise DataError("unreadable: a path with a NUL")
    if media_root is None:
        raise DataError(f"unreadable: {path!r} is a path, and no media_root= says where the images are")
    inside = path_inside(path, media_root)
    if inside is None:
        raise DataError(f"unreadable: {path!r} is outside of the media root")
    return os.path.join(os.path.abspath(media_root), inside)


def plain_path(text: str) -> str:
    """What a `file:` URL stands for (RFC 8089), its percent-escapes undone; any other text as it is.

    The URL's host may be empty or `localhost`. `file://images/1.jpg`, which many data sets have, is taken for a relative path. Raises
    `DataError` for escapes that are not UTF-8.
    """
    if text[:7].lower() != "file://":
        return text
    path = text[7:]
    if path[:10].lower() == "localhost/":
        path = path[9:]
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise DataError(f"unreadable: the escapes of {text!r} are not UTF-8") from error


def path_inside(path: str, root: str) -> str | None:
    """A path, relative to `root` or absolute, as a normal one relative to `root`; None where it leads out of it."""
    base = os.path.abspath(root)
    whole = os.path.normpath(os.path.join(base, path))
    if whole == base:
        return os.curdir
    start = base if base.endswith(os.sep) else base + os.sep
    return whole[len(start) :] if whole.startswith(start) else None


def is_data_url(text: str) -> bool:
    """Whether a text claims to be one."""
    return text[:5].lower() == "data:"


def data_url_parts(url: str) -> tuple[bool, str] | None:
    """`(whether it is base64, body)` of a `data:` URL (RFC 2397); None: it has no body."""
    head, comma, body = url.partition(",")
    return (head.rstrip().lower().endswith(";base64"), body) if comma else None


def from_data_url(url: str) -> bytes:
    """What a `data:` URL holds. Raises `DataError` where it can't be decoded."""
    parts = data_url_parts(url)
    if parts is None:
        raise DataError("unreadable: a data URL without data")
    encoded, body = parts
    raw = unquote_to_bytes(body)
    found = from_base64(raw) if encoded else raw
    if found is None:
        raise DataError("unreadable: a data URL that is not base64")
    return found


def from_base64(text: str | bytes) -> bytes | None:
    """What base64 text holds, of the usual alphabet or the one for URLs, with or without white space and padding; None: it is none."""
    try:
        raw = "".join(text.split()).encode() if isinstance(text, str) else b"".join(text.split())
        plain = raw.translate(_URL_SAFE)
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError:  # `binascii.Error` is one
        return None

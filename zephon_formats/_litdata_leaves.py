"""Leaves of LitData's items as Arrow columns: whole ranges of items at once, by their offsets.

An item is `uint32 size` of each leaf and then the leaves' bytes. Each leaf of all items is one scatter of ranges over the same bytes,
which one call of Arrow's gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.errors import Where
from zephon.plugin import DataError
from zephon_formats._litdata_chunk import I64, U8, Items
from zephon_formats._litdata_index import ARRAY, MEDIA, NUMPY_DTYPES, TORCH_DTYPES, Branch, Leaf, dtype_of, key_of, number_type
from zephon_formats._litdata_values import image_bytes, nested, unpickle, values_array

Array = Any
"""A `pyarrow.Array`; the stubs know neither its subclasses nor what their constructors take."""


class Decoder:
    """The leaves of some items. Raises `DataError` where an item's sizes don't add up, with the first row at fault."""

    def __init__(self, items: Items, leaves: int, *, allow_pickle: bool) -> None:
        self.data, self.first, self.allow_pickle = items.data, items.first, allow_pickle
        self.views = False
        """Bytes are shown where they are."""
        begin, end = items.ends[:-1], items.ends[1:]
        self.rows = len(begin)
        head = 4 * leaves
        self.fail(end - begin < head, "the item is too short for the sizes of its {} values", leaves)
        sizes = _fixed(self.data, begin, head).view("<u4").reshape(self.rows, leaves).astype(np.int64)
        stops = np.cumsum(sizes, axis=1) + (begin + head)[:, None]
        self.fail(
            (stops[:, -1] if leaves else begin) != end, "the sizes of the item's {} values don't add up to the item's", leaves
        )
        self._sizes, self._begin = sizes, stops - sizes

    def fail(self, wrong: npt.NDArray[np.bool_], message: str, *parts: object) -> None:
        """Raise where a row is `wrong`."""
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(message.format(*parts), where=Where(row=self.first + row))

    def array(self, node: Leaf | Branch) -> Array:
        """A part of the items as an array of `node.kind`."""
        if isinstance(node, Leaf):
            return self.leaf(node, self._begin[:, node.index], self._sizes[:, node.index])
        parts = [self.array(child) for child in node.children]
        if pa.types.is_struct(node.kind):
            if not parts:
                return pa.array([{}] * self.rows, type=node.kind)
            return pa.StructArray.from_arrays(parts, fields=list(node.kind))
        ends = np.arange(self.rows + 1, dtype=np.int32) * len(parts)
        if not parts:
            return pa.ListArray.from_arrays(pa.array(ends), pa.nulls(0), type=node.kind)
        across = np.arange(self.rows * len(parts)).reshape(len(parts), self.rows).T.ravel()
        return pa.ListArray.from_arrays(pa.array(ends), pa.concat_arrays(parts).take(pa.array(across)), type=node.kind)

    def leaf(self, leaf: Leaf, begin: I64, size: I64) -> Array:
        """The values at these places, by their serializer."""
        key = key_of(leaf.format)
        made = _BY_FORMAT.get(key, _binary)(self, leaf, begin, size)
        return made if key != "json" and key != "pickle" else values_array(made, leaf.kind, self.first)

    def look(self, leaf: Leaf) -> pa.DataType:
        """The type that a leaf's values should have, going by these items."""
        begin, size = self._begin[:, leaf.index], self._sizes[:, leaf.index]
        if key_of(leaf.format) == "pickle":
            values = _pickles(self, leaf, begin, size)
            try:
                kind: pa.DataType = pa.array(values).type
                return kind
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return pa.string()
        whole = self.leaf(leaf, begin[:1], size[:1])
        shape, dtype = whole.field("shape")[0].as_py(), whole.field("dtype")[0].as_py()
        return leaf.kind if shape else number_type(dtype)


# --------------------------------------------------------------------------------------------------------------- gather


def gather(data: U8, begin: I64, size: I64) -> Array:
    """`data[begin[i]:begin[i] + size[i]]` as a binary array. The ranges must ascend and not overlap; data is under 2 GiB.

    Ranges and the gaps between them are the values of a binary array over `data`; `take` of every other one copies them without the
    interpreter lock. No copy where there are no gaps.
    """
    rows = len(begin)
    if not rows:
        return pa.array([], pa.binary())
    buffer: Any = pa.py_buffer(data)  # type: ignore[arg-type]
    ends = np.empty(2 * rows, dtype=np.int32)
    ends[0::2], ends[1::2] = begin, begin + size
    if (ends[2::2] == ends[1:-1:2]).all():
        ends = np.append(ends[0::2], ends[-1])
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), buffer])  # type: ignore[arg-type]
    every = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(ends), buffer])  # type: ignore[arg-type]
    return every.take(pa.array(np.arange(0, 2 * rows, 2)))


def shows(kind: pa.DataType) -> bool:
    """Whether a leaf's array of this type is, or has, what `shown` makes."""
    return bool(pa.types.is_binary_view(kind)) or (
        pa.types.is_struct(kind) and any(pa.types.is_binary_view(f.type) for f in kind)
    )


def shown(data: U8, begin: I64, size: I64) -> Array:
    """The same values as a binary_view, which shows them where they are."""
    rows = len(begin)
    if not rows:
        return pa.array([], pa.binary_view())
    ends = np.empty(2 * rows, dtype=np.int32)
    ends[0::2], ends[1::2] = begin, begin + size
    data_buffer: Any = pa.py_buffer(data)  # type: ignore[arg-type]
    every: Any = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(ends), data_buffer])  # type: ignore[arg-type]
    _, elements, *buffers = every.cast(pa.binary_view()).buffers()
    mine: Any = np.frombuffer(elements, "V16", len(every))[0::2].copy()
    return pa.Array.from_buffers(pa.binary_view(), rows, [None, pa.py_buffer(mine), *buffers])


def gather_flat(data: U8, begin: I64, size: I64) -> U8:
    """The same bytes without their borders, in new memory (so that they are aligned)."""
    total = int(size.sum())
    if not total:
        return np.zeros(0, np.uint8)
    first, last = int(begin[0]), int(begin[-1] + size[-1])
    if last - first == total:
        return data[first:last].copy()
    return np.frombuffer(gather(data, begin, size).buffers()[2], dtype=np.uint8, count=total)


def _fixed(data: U8, begin: I64, width: int) -> U8:
    """`data[begin[i]:begin[i] + width]` as uint8[N, width]."""
    if not len(begin) or not width:
        return np.zeros((len(begin), width), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(data, width)[begin]


def number_array(flat: U8, dtype: str) -> Array:
    """Bytes as an Arrow array of numbers."""
    if dtype == "bool":
        return pa.array(flat != 0)
    if dtype.startswith("complex"):
        part = pa.float32() if dtype == "complex64" else pa.float64()
        values = pa.Array.from_buffers(part, len(flat) * 8 // part.bit_width, [None, pa.py_buffer(flat)])  # type: ignore[arg-type]
        return pa.FixedSizeListArray.from_arrays(values, 2)
    kind: Any = pa.type_for_alias(dtype)  # type: ignore[call-overload]
    return pa.Array.from_buffers(kind, len(flat) * 8 // kind.bit_width, [None, pa.py_buffer(flat)])  # type: ignore[arg-type]


def list_array(size: I64, values: Array) -> Array:
    """Lists of these lengths."""
    ends = np.zeros(len(size) + 1, dtype=np.int32)
    np.cumsum(size, out=ends[1:])
    return pa.ListArray.from_arrays(_plain(ends), values)


def _plain(values: npt.NDArray[Any]) -> Array:
    return pa.array(values)


def text_array(made: Array, first: int) -> Array:
    """Bytes as strings. Raises `DataError` with the first row that is not UTF-8."""
    try:
        return made.cast(pa.string())
    except pa.ArrowInvalid as error:
        for row, value in enumerate(made):
            try:
                value.as_py().decode()
            except UnicodeDecodeError as wrong:
                raise DataError(f"the text is not UTF-8: {wrong}", where=Where(row=first + row)) from error
        raise


# ------------------------------------------------------------------------------------------------------------ by format


def _binary(d: Decoder, _: Leaf, begin: I64, size: I64) -> Array:
    return shown(d.data, begin, size) if d.views else gather(d.data, begin, size)


def _text(d: Decoder, _: Leaf, begin: I64, size: I64) -> Array:
    return text_array(gather(d.data, begin, size), d.first)


def _number(dtype: str) -> Callable[[Decoder, Leaf, I64, I64], Array]:
    width = np.dtype(dtype).itemsize

    def decode(d: Decoder, leaf: Leaf, begin: I64, size: I64) -> Array:
        d.fail(size != width, "a value of the format {!r} has not {} bytes", leaf.format, width)
        return number_array(_fixed(d.data, begin, width).ravel(), dtype)

    return decode


def _media(d: Decoder, leaf: Leaf, begin: I64, size: I64) -> Array:
    return media_array(_binary(d, leaf, begin, size))


def media_array(made: Array) -> Array:
    """Files as Hugging Face keeps them: their bytes, and no path."""
    fields = [MEDIA[0].with_type(made.type), MEDIA[1]]
    return pa.StructArray.from_arrays([made, pa.nulls(len(made), pa.string())], fields=fields)


def _pil(d: Decoder, _: Leaf, begin: I64, size: I64) -> Array:
    made = []
    view = memoryview(d.data)  # type: ignore[arg-type]
    for row, (at, length) in enumerate(zip(begin.tolist(), size.tolist(), strict=True)):
        try:
            made.append(image_bytes(view[at : at + length]))
        except DataError as error:
            error.where = error.where.within(Where(row=d.first + row))
            raise
    return media_array(pa.array(made, pa.binary()))


def _numbers(d: Decoder, leaf: Leaf, begin: I64, size: I64) -> Array:
    dtype = dtype_of(leaf.format)
    width = np.dtype(dtype).itemsize
    d.fail(size % width != 0, "an array of {} has a length that is no multiple of {} bytes", dtype, width)
    return list_array(size // width, number_array(gather_flat(d.data, begin, size), dtype))


def _arrays(dtypes: Sequence[str], order: str) -> Callable[[Decoder, Leaf, I64, I64], Array]:
    """Arrays with a head: number of the dtype, rank, shape (uint32 each, of this byte order), then the elements."""
    known = np.array([*dtypes, ""])
    widths = np.array([2 if name == "bfloat16" else np.dtype(name).itemsize if name else 0 for name in known])

    def decode(d: Decoder, leaf: Leaf, begin: I64, size: I64) -> Array:
        d.fail(size < 8, "an array has no head")
        head = _fixed(d.data, begin, 8).view(order + "u4").astype(np.int64)
        number, rank = np.minimum(head[:, 0], len(dtypes)), head[:, 1]
        d.fail(number == len(dtypes), "an array has a dtype that is not known here")
        d.fail(8 + 4 * rank > size, "an array has no room for its shape")
        shape = gather_flat(d.data, begin + 8, 4 * rank).view(order + "u4").astype(np.int64)
        count = np.ones(len(begin), dtype=np.float64)  # not int64: a damaged shape would wrap around
        np.multiply.at(count, np.repeat(np.arange(len(begin)), rank), shape)
        length = size - 8 - 4 * rank
        d.fail(count * widths[number] != length, "an array's shape does not fit its size")
        if not pa.types.is_struct(leaf.kind):
            d.fail(
                (rank != 0) | (known[number] != str(known[number[0]])), "the array is no scalar of the type of the first row's"
            )
            scalars = number_array(gather_flat(d.data, begin + 8, length), str(known[number[0]]))
            return scalars if scalars.type == leaf.kind else scalars.cast(leaf.kind)
        parts = [
            gather(d.data, begin + 8 + 4 * rank, length),
            pa.array(known[number].tolist(), pa.string()),
            list_array(rank, pa.array(shape)),
        ]
        return pa.StructArray.from_arrays(parts, fields=list(ARRAY))

    return decode


def _jpegs(d: Decoder, _: Leaf, begin: I64, size: I64) -> Array:
    """Lists of images: how many, the size of each, their bytes."""
    d.fail(size < 4, "a list of images has no head")
    count = _fixed(d.data, begin, 4).view("<u4").ravel().astype(np.int64)
    d.fail(4 + 4 * count > size, "a list of images has no room for their sizes")
    sizes = gather_flat(d.data, begin + 4, 4 * count).view("<u4").astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(count)])
    total = np.concatenate([[0], np.cumsum(sizes)])
    d.fail(total[ends[1:]] - total[ends[:-1]] != size - 4 - 4 * count, "the sizes of a list of images don't add up")
    origin = np.repeat(begin + 4 + 4 * count - total[ends[:-1]], count)
    images = gather(d.data, origin + total[:-1], sizes)
    return pa.ListArray.from_arrays(_plain(ends.astype(np.int32)), media_array(images), type=pa.list_(MEDIA))


def _python(load: Callable[[bytes], Any]) -> Callable[[Decoder, Leaf, I64, I64], list[Any]]:
    """Values that only Python can take apart, one by one."""

    def decode(d: Decoder, leaf: Leaf, begin: I64, size: I64) -> list[Any]:
        view = memoryview(d.data)  # type: ignore[arg-type]
        made = []
        for row, (at, length) in enumerate(zip(begin.tolist(), size.tolist(), strict=True)):
            try:
                made.append(load(bytes(view[at : at + length])))
            except Exception as error:
                raise DataError(
                    f"a value of the format {leaf.format!r} can't be read: {type(error).__name__}: {error}",
                    where=Where(row=d.first + row),
                ) from error
        return made

    return decode


def _pickles(d: Decoder, leaf: Leaf, begin: I64, size: I64) -> list[Any]:
    if not d.allow_pickle:
        raise DataError("a value is a Python pickle, and to load one is to run code that the file brings", hint=PICKLE_HINT)
    return _python(unpickle)(d, leaf, begin, size)


PICKLE_HINT = "allow_pickle=True, if you trust whoever wrote the data; else write it anew as int, str, bytes or an array"

_BY_FORMAT: Mapping[str, Callable[[Decoder, Leaf, I64, I64], Any]] = {
    "str": _text,
    "text": _text,
    "int": _number("int64"),
    "float": _number("float64"),
    "bool": _number("bool"),
    **dict.fromkeys(("jpeg", "image", "video", "audio", "file", "tifffile", "tiff", "nifti", "mesh", "pdf"), _media),
    "pil": _pil,
    "jpeg_array": _jpegs,
    "no_header_numpy": _numbers,
    "no_header_tensor": _numbers,
    "numpy": _arrays(NUMPY_DTYPES, "<"),
    "tensor": _arrays(TORCH_DTYPES, ">"),
    "json": _python(nested),
    "pickle": _pickles,
}

"""The encodings of MDS, a whole column of many samples at a time.

Values of one column lie in file order with other columns in between. They become one Arrow array by a single `take` over a binary array
whose offsets point into the file's bytes, which copies each value once and without the interpreter lock.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.errors import DataError, Where
from zephon_formats._images import MODES, image_file, pixel_bytes

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Array = Any
"""A `pyarrow.Array`; the stubs know neither its subclasses' attributes nor what `take` accepts."""

_CODES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32"} | {
    64: "uint64",
    65: "int64",
    66: "float64",
}
"""The number that stands for a dtype in front of an array."""
CODE_OF = {name: code for code, name in _CODES.items()}
DTYPES: dict[str, pa.DataType] = {name: pa.from_numpy_dtype(np.dtype(name)) for name in CODE_OF}
"""The dtypes that MDS has, and their Arrow types."""
FREE_ARRAY = pa.struct([("data", pa.binary()), ("dtype", pa.string()), ("shape", pa.list_(pa.int64()))])
"""An array whose dtype differs from row to row: its bytes in C order."""

_MOST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Values:
    """Where the values of one column are: value i is `data[starts[i]:starts[i] + lengths[i]]`, of row `rows[i]`; starts go up."""

    name: str
    data: pa.Buffer
    starts: I64
    lengths: I64
    rows: I64

    @property
    def view(self) -> U8:
        """The data as uint8."""
        return bytes_of(self.data)

    def wrong(self, bad: Bools, message: str, hint: str | None = None) -> DataError:
        """The error for the first value that is `bad`."""
        return at_row(self.rows, bad, f"column {self.name!r}: {message}", hint)


def bytes_of(data: Any) -> U8:
    """A buffer as uint8; the stubs don't know that a `pyarrow.Buffer` is one."""
    return np.frombuffer(data, dtype=np.uint8)


def at_row(rows: I64, bad: Bools, message: str, hint: str | None = None) -> DataError:
    """The error for the first of `rows` that is `bad`."""
    return DataError(message, where=Where(row=int(rows[int(np.argmax(bad))])), hint=hint)


def uint32s(view: U8, starts: I64, count: int) -> npt.NDArray[np.uint32]:
    """The `count` numbers at each of these places: uint32[N, count]."""
    return view[starts[:, None] + np.arange(4 * count)].view("<u4").reshape(len(starts), count)


# ------------------------------------------------------------------------------------------------------- plain ones


def binary(values: Values, _: Any = None) -> Array:
    """The bytes themselves."""
    count = len(values.starts)
    if not count:
        return pa.array([], pa.binary())
    ends = values.starts + values.lengths
    if ends[-1] > _MOST_BYTES:
        raise values.wrong(ends > _MOST_BYTES, "the sample goes beyond 2 GiB, more than an Arrow value can have")
    edges: Array = np.empty(2 * count, dtype=np.int32)
    edges[0::2], edges[1::2] = values.starts, ends
    everything = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), values.data])
    return everything.take(_array(np.arange(0, 2 * count, 2)))


def _buffers(array: Array) -> tuple[Any, pa.Buffer]:
    """Offsets (from 0) and bytes of what `binary` makes."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: len(array) + 1] if len(array) else np.zeros(1, dtype=np.int32)
    return ends, data if data is not None else pa.py_buffer(b"")


def fixed(values: Values, kind: pa.DataType) -> Array:
    """Numbers, or arrays of a fixed shape: nested lists of fixed size."""
    lists = []
    while pa.types.is_fixed_size_list(kind):
        lists.append(kind)
        kind = kind.value_type
    _, data = _buffers(binary(values))
    array: Array = pa.Array.from_buffers(kind, int(values.lengths.sum()) // (kind.bit_width // 8), [None, data])
    for each in reversed(lists):
        array = pa.FixedSizeListArray.from_arrays(array, type=each)
    return array


def text(values: Values, _: Any = None) -> Array:
    """UTF-8, checked."""
    return _cast(values, binary(values), pa.string(), "not UTF-8")


def text_numbers(values: Values, kind: pa.DataType) -> Array:
    """Numbers that were written as digits; one that has no place in the type is an error."""
    return _cast(values, text(values), kind, f"not a number that {kind} can hold", "numbers='text' gives the digits")


def _cast(values: Values, array: Array, kind: pa.DataType, what: str, hint: str | None = None) -> Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        bad = first_failing(len(array), lambda start, stop: array.slice(start, stop - start).cast(kind))
        shown = repr(array[bad].as_py())[:60]
        raise values.wrong(np.arange(len(array)) == bad, f"{shown} is {what}", hint) from None


def first_failing(count: int, attempt: Callable[[int, int], object]) -> int:
    """The first i for which `attempt(i, i + 1)` raises, when `attempt(0, count)` does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(low, middle)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
            high = middle
        else:
            low = middle
    return low


def number_bytes(values: Values, kind: pa.ListType[Any]) -> Array:
    """Bytes that are an array of numbers, as the user said: a list of them."""
    width = kind.value_type.bit_width // 8
    odd = values.lengths % width != 0
    if odd.any():
        raise values.wrong(odd, f"{int(values.lengths[odd][0])} bytes are no array of {kind.value_type}")
    offsets, data = _buffers(binary(values))
    numbers: Array = pa.Array.from_buffers(kind.value_type, int(offsets[-1]) // width, [None, data])
    return pa.ListArray.from_arrays(_array(offsets // width), numbers, type=kind)


def _array(values: Any) -> Array:
    return pa.array(values)


# ----------------------------------------------------------------------------------------------------------- arrays


def array_type(dtype: pa.DataType, flat: bool) -> pa.DataType:
    """The type of arrays whose shape differs from row to row."""
    return pa.list_(dtype) if flat else pa.struct([("data", pa.list_(dtype)), ("shape", pa.list_(pa.int64()))])


def arrays(values: Values, kind: Any, *, stated: int | None) -> Array:
    """Arrays of one dtype and any shape; `stated`: the code that must stand in front of each, where one does."""
    if stated is not None:
        codes, values = _codes(values)
        other = codes != stated
        if other.any():
            found = _CODES.get(int(codes[other][0]), "unknown")
            raise values.wrong(other, f"an array of {found}, where dtypes says {_CODES[stated]}")
    flat = pa.types.is_list(kind)
    items = kind.value_type if flat else kind.field("data").type.value_type
    shapes, values = _shapes(values, np.full(len(values.starts), items.bit_width // 8))
    if flat:
        folded = np.diff(shapes.offsets.to_numpy()) != 1
        if folded.any():
            raise values.wrong(folded, "an array that does not have one dimension", "arrays='shaped' keeps shapes")
        return number_bytes(values, kind)
    return pa.StructArray.from_arrays([number_bytes(values, kind.field("data").type), shapes], fields=list(kind))


def arrays_of_any_type(values: Values, kind: Any) -> Array:
    """Arrays that name their dtype one by one."""
    codes, values = _codes(values)
    known = np.isin(codes, list(_CODES))
    if not known.all():
        raise values.wrong(~known, f"an array of the unknown dtype number {int(codes[~known][0])}")
    numbers = np.array(list(_CODES))
    which = np.searchsorted(numbers, codes)
    widths = np.array([np.dtype(name).itemsize for name in _CODES.values()])
    shapes, values = _shapes(values, widths[which])
    names = _array(list(_CODES.values())).take(_array(which))
    return pa.StructArray.from_arrays([binary(values), names, shapes], fields=list(kind))


def _after(values: Values, count: Any) -> Values:
    return Values(values.name, values.data, values.starts + count, values.lengths - count, values.rows)


def _codes(values: Values) -> tuple[U8, Values]:
    """The first byte of each value, and what follows it."""
    empty = values.lengths < 1
    if empty.any():
        raise values.wrong(empty, "an array of 0 bytes")
    return values.view[values.starts], _after(values, 1)


def _shapes(values: Values, widths: Any) -> tuple[Array, Values]:
    """The shape in front of each array as `list<int64>`, and the numbers that follow it.

    A byte holds four times the number of dimensions, plus 0 to 3 for dimensions of 1, 2, 4 or 8 bytes; then the dimensions.
    """
    codes, values = _codes(values)
    ndims, logs = (codes >> 2).astype(np.int64), codes & 3
    heads = ndims << logs
    short = values.lengths < heads
    if short.any():
        raise values.wrong(short, "an array that ends within its shape")
    offsets = np.concatenate([[0], np.cumsum(ndims)])
    dims = np.zeros(int(offsets[-1]), dtype=np.int64)
    owner = np.repeat(np.arange(len(ndims)), ndims)
    place = values.starts[owner] + ((np.arange(len(dims)) - offsets[owner]) << logs[owner])
    for byte in range(8):
        here = (1 << logs[owner]) > byte
        dims[here] |= values.view[place[here] + byte].astype(np.int64) << (8 * byte)
    counts, sizes = np.ones(len(ndims), dtype=np.int64), np.ones(len(ndims))
    np.multiply.at(counts, owner, dims)
    with np.errstate(over="ignore"):  # infinite is too large, too; integers would wrap
        np.multiply.at(sizes, owner, dims.astype(np.float64))
    rest = _after(values, heads)
    wrong = (counts * widths != rest.lengths) | (sizes * widths > _MOST_BYTES) | (counts < 0)
    if wrong.any():
        bad = int(np.argmax(wrong))
        shape = dims[offsets[bad] : offsets[bad + 1]].tolist()
        raise values.wrong(wrong, f"{int(rest.lengths[bad])} bytes are no array of the shape {shape}")
    return pa.ListArray.from_arrays(_array(offsets.astype(np.int32)), _array(dims)), rest


# ----------------------------------------------------------------------------------------------------------- images


def images(values: Values, kind: Any) -> Array:
    """Image files as they are, with no path."""
    return _with_paths(binary(values), kind)


def _with_paths(files: Array, kind: Any) -> Array:
    return pa.StructArray.from_arrays([files, pa.nulls(len(files), pa.string())], fields=list(kind))


def image_lists(values: Values, kind: Any, *, head: int, raw: bool = False) -> Array:
    """Lists of images: `head` bytes that mean nothing, their number, their sizes (uint32 each), the images."""
    short = values.lengths < head + 4
    if short.any():
        raise values.wrong(short, f"a list of {int(values.lengths[short][0])} bytes")
    counts = uint32s(values.view, values.starts + head, 1)[:, 0].astype(np.int64)
    long = head + 4 + 4 * counts > values.lengths
    if long.any():
        raise values.wrong(long, f"a list of {int(values.lengths[long][0])} bytes can't hold {int(counts[long][0])} images")
    offsets = np.concatenate([[0], np.cumsum(counts)])
    owner = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(owner)) - offsets[owner]
    lengths = uint32s(values.view, values.starts[owner] + head + 4 + 4 * number, 1)[:, 0].astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    wrong = ends[offsets[1:]] - ends[offsets[:-1]] + head + 4 + 4 * counts != values.lengths
    if wrong.any():
        raise values.wrong(wrong, "the images of a list don't add up to its size")
    first = values.starts + head + 4 + 4 * counts
    starts = first[owner] + ends[:-1] - ends[offsets[owner]]
    items = Values(values.name, values.data, starts, lengths, values.rows[owner])
    made = raw_images(items, kind.value_type) if raw else images(items, kind.value_type)
    return pa.ListArray.from_arrays(_array(offsets.astype(np.int32)), made, type=kind)


def raw_images(values: Values, kind: Any) -> Array:
    """Pixels as Pillow holds them (width, height, length of the mode, mode, pixels) as image files that hold the same."""
    files = [_image_file(values, i) for i in range(len(values.starts))]
    if sum(map(len, files)) > _MOST_BYTES:
        raise DataError(f"column {values.name!r}: more than 2 GiB of images in one batch")
    return _with_paths(pa.array(files, pa.binary()), kind)


def _image_file(values: Values, number: int) -> bytes:
    start, length = int(values.starts[number]), int(values.lengths[number])
    value = values.view[start : start + length]

    def wrong(message: str, hint: str | None = None) -> DataError:
        return values.wrong(np.arange(len(values.rows)) == number, message, hint)

    if length < 12:
        raise wrong(f"an image of {length} bytes")
    width, height, name = np.frombuffer(value[:12], dtype="<u4").tolist()
    mode = value[12 : 12 + name].tobytes().decode("ascii", "replace") if name <= 16 else "?"
    if mode not in MODES:
        raise wrong(f"an image of the mode {mode!r}", f"known: {', '.join(MODES)}; leave the column out with leave_out=")
    pixels = value[12 + name :]
    if not width or not height or len(pixels) != pixel_bytes(width, height, mode):
        raise wrong(f"{len(pixels)} bytes are no {mode} image of {width} × {height}")
    return image_file(width, height, mode, pixels)


# --------------------------------------------------------------------------------------------------- Python objects


def json_values(values: Values, kind: Any) -> Array:
    """JSON, parsed; see `_objects`."""
    return _objects(values, kind, lambda data: json.loads(data))


def pickles(values: Values, kind: Any) -> Array:
    """Pickles, loaded, which runs code; see `_objects`."""
    return _objects(values, kind, lambda data: _without_numpy(pickle.loads(data)))


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _without_numpy(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numpy(inner) for inner in value]
    if isinstance(value, set | frozenset):
        raise TypeError("a set has no order")
    return value


def _objects(values: Values, kind: Any, load: Callable[[bytes], Any]) -> Array:
    """Python objects, one by one. `kind` None: of the type that they show; else of that type, and what it has no place for is an error."""
    view = memoryview(values.data)
    made = []
    for number, (start, length) in enumerate(zip(values.starts.tolist(), values.lengths.tolist(), strict=True)):
        try:
            made.append(load(bytes(view[start : start + length])))
        except Exception as error:  # a pickle may raise anything
            raise values.wrong(np.arange(len(values.rows)) == number, f"{type(error).__name__}: {error}") from error

    def convert(start: int, stop: int) -> Array:
        part = made[start:stop]
        shown = pa.infer_type(part)  # type: ignore[call-arg]
        if (
            kind is not None and _joined(kind, shown) != kind
        ):  # pyarrow leaves out fields that the type hasn't, and says nothing
            raise TypeError(f"{shown} does not fit {kind}")
        return pa.array(part, type=kind if kind is not None else shown)

    try:
        return convert(0, len(made))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError, OverflowError) as error:
        bad = first_failing(len(made), convert)
        hint = "values must be of one type, which the first rows of the shard show; leave_out= leaves the column out"
        raise values.wrong(np.arange(len(made)) == bad, f"{made[bad]!r:.60} does not fit the others: {error}", hint) from error


def _joined(one: Any, other: Any) -> Any:
    schemas = [pa.schema([("", kind)]) for kind in (one, other)]
    return pa.unify_schemas(schemas, promote_options="permissive").field(0).type

"""The image files of documents that wait: each document's in memory of its own, which goes when the last one lets go of it.

They are the weight of what waits. Held in their groups they would have to be copied again and again, or keep these whole; so they are
copied once, when a document comes, and stay where they are, as Arrow's byte views, until `decode_images` has read them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.arrays import list_sizes, to_arrow, to_numpy
from zephon.groups import IN_PLACE
from zephon_vision import columns
from zephon_vision._arena import Pool

Array = Any
"""A `pyarrow.Array`; the stubs don't know nested ones."""
Ints = npt.NDArray[Any]

_SHOWN: Any = columns.SHOWN_IMAGES_TYPE.value_type
_NONE = np.zeros(0, np.uint8)
_MEMORY = Pool(most=256 << 20, waste=1.25)
"""Where files are: memory that is new each time costs the system more than the copy."""


class Files:
    """The images of each document of a group, as `columns.SHOWN_IMAGES_TYPE` has them.

    Args:
        images: of `columns.IMAGES_TYPE`, or shown; a null list is an empty one.
    """

    def __init__(self, images: Array) -> None:
        self._ends: Ints = np.zeros(len(images) + 1, np.int64)
        np.cumsum(list_sizes(images), out=self._ends[1:])
        flat = images.flatten()
        files, self._paths = flat.flatten()
        self._null: Array = flat.is_null() if flat.null_count else None
        self._valid: Any = to_numpy(files.is_valid()) if files.null_count else None
        shown = files if files.type == pa.binary_view() else files.cast(pa.binary_view())
        self._elements = table = _elements(shown)
        large = table[:, 0] > IN_PLACE  # what is short lies in its element
        begin: Ints = np.zeros(len(table) + 1, np.int64)
        np.cumsum(table[:, 0] * large, out=begin[1:])
        bounds = begin[self._ends]
        data = [np.frombuffer(buffer, np.uint8) for buffer in shown.buffers()[2:]]
        files = [data[number][at : at + size] if size > IN_PLACE else _NONE for size, _, number, at in table.tolist()]
        sizes = zip(np.diff(bounds).tolist(), itertools.pairwise(self._ends.tolist()), strict=True)
        self._data = [_own(size, files[first:last]) for size, (first, last) in sizes]
        table[large, 2] = 0
        table[large, 3] = (begin[:-1] - np.repeat(bounds[:-1], np.diff(self._ends)))[large]
        self.sizes: Ints = np.diff(bounds) + 64 * np.diff(self._ends)
        """int64[N]: about how many bytes those of each document take."""

    def drop(self, documents: Ints) -> None:
        """Let go of those of some documents, which nobody will ask for."""
        for document in documents.tolist():
            self._data[document] = _NONE

    def of(self, documents: Sequence[int]) -> Array:
        """The images of some documents, a list each."""
        parts = [self._images(document) for document in documents]
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        make: Any = pa.ListArray.from_arrays
        return make(to_arrow(ends), parts[0] if len(parts) == 1 else pa.concat_arrays(parts))

    def _images(self, document: int) -> Array:
        first, last = int(self._ends[document]), int(self._ends[document + 1])
        size = last - first
        valid = None
        if self._valid is not None:
            bits: Any = np.packbits(self._valid[first:last], bitorder="little")
            valid = pa.py_buffer(bits)
        elements: Any = self._elements[first:last]
        data: Any = self._data[document]
        files = pa.Array.from_buffers(pa.binary_view(), size, [valid, pa.py_buffer(elements), pa.py_buffer(data)])
        null = None if self._null is None else self._null.slice(first, size)
        make: Any = pa.StructArray.from_arrays
        return make([files, self._paths.slice(first, size)], fields=list(_SHOWN), mask=null)


def _own(size: int, files: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """The files of a document one after the other, `size` bytes."""
    if not size:
        return _NONE
    memory = _MEMORY.lease(size)
    at = 0
    for file in files:
        memory[at : at + len(file)] = file
        at += len(file)
    return memory


def _elements(files: Array) -> Ints:
    """int32[N, 4]: the files as elements of a view column, of nulls with length 0."""
    if not len(files):
        return np.zeros((0, 4), np.int32)
    table: Ints = np.frombuffer(files.buffers()[1], np.int32).reshape(-1, 4)[files.offset : files.offset + len(files)].copy()
    if files.null_count:
        table[to_numpy(files.is_null()), 0] = 0
    return table

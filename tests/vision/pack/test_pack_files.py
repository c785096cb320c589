"""Files of documents that wait: each document's in memory of its own, the same files as before."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon.errors import DataError
from zephon.views import buffers
from zephon_vision import _pack_files as pack_files
from zephon_vision import _pack_gather as pack_gather
from zephon_vision import columns
from zephon_vision._pack_files import Files

_FILES = st.one_of(st.none(), st.binary(max_size=40))
_IMAGES = st.one_of(st.none(), st.fixed_dictionaries({"bytes": _FILES, "path": st.one_of(st.none(), st.text(max_size=5))}))
_DOCUMENTS = st.lists(st.one_of(st.none(), st.lists(_IMAGES, max_size=4)), max_size=8)


@given(_DOCUMENTS, st.integers(0, 3), st.booleans())
def test_the_files_of_documents_are_those_that_came(documents: list[Any], start: int, shown: bool) -> None:
    """Also those of slices, nulls, and files so short that a view holds them itself; and those that came as views, of several buffers."""
    if shown:
        halves = (documents[: start + 1], documents[start + 1 :])
        array = pa.concat_arrays([pa.array(half, columns.SHOWN_IMAGES_TYPE) for half in halves]).slice(start)
    else:
        array = pa.array(documents, columns.IMAGES_TYPE).slice(start)
    files = Files(array)
    want = [images or [] for images in documents[start:]]
    for first in range(len(want)):
        made = files.of(range(first, len(want)))
        made.validate(full=True)
        assert made.cast(columns.IMAGES_TYPE).to_pylist() == [
            [image and dict(image) for image in images] for images in want[first:]
        ]


def test_files_stay_where_they_are_until_the_last_one_lets_go() -> None:
    documents = [[{"bytes": bytes([n]) * 70_000, "path": None}] for n in range(4)]
    files = Files(pa.array(documents, columns.IMAGES_TYPE))
    before = pack_files._MEMORY.kept
    one = files.of([2])
    address = np.frombuffer(buffers(one.flatten().field("bytes"))[0], np.uint8).__array_interface__["data"][0]
    joined = pa.concat_arrays([one, files.of([3])])
    again = buffers(joined.flatten().field("bytes"))[0]
    assert np.frombuffer(again, np.uint8).__array_interface__["data"][0] == address
    files.drop(np.arange(4))
    del files, one, again
    gc.collect()
    assert joined.to_pylist() == [[{"bytes": bytes([n]) * 70_000, "path": None}] for n in (2, 3)]
    assert pack_files._MEMORY.kept >= before + 2 * 70_000  # those of the others
    del joined
    gc.collect()
    assert pack_files._MEMORY.kept >= before + 4 * 70_000


def test_files_that_one_column_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's cast of views to bytes doesn't notice that offsets overflow; so the gather looks first."""
    files = Files(pa.array([[{"bytes": b"x" * 100, "path": None}]], columns.IMAGES_TYPE)).of([0]).flatten()
    assert pack_gather._plain(files).type == columns.IMAGE_REF
    monkeypatch.setattr(pack_gather, "_WIDEST", 100)
    with pytest.raises(DataError, match="smaller shuffle buffer"):
        pack_gather._plain(files)

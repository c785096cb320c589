"""What becomes of documents whose image can't be shown: nothing of them is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.errors import Where
from zephon.plugin import place_of
from zephon_vision import columns
from zephon_vision._decoders_source import Images


def without_loss(group: pa.RecordBatch, images: Images, bad: Sequence[int], *, make: bool) -> pa.RecordBatch:
    """Take the documents of the images `bad` out of the loss; `make`: there is no mask yet, and there must be one."""
    if make:
        ends, _ = groups.list_parts(groups.column(group, groups.TOKENS))
        ends = ends - ends[0]
        mask = np.ones(int(ends[-1]), dtype=np.uint8)
    elif not bad or group.schema.get_field_index(groups.LOSS_MASK) < 0:
        return group
    else:
        ends, values = groups.list_parts(groups.column(group, groups.LOSS_MASK))
        mask = values[int(ends[0]) : int(ends[-1])].copy()
        ends = ends - ends[0]
    for index in bad:
        row, number = images.place(index)
        start, stop = _document(group, row, number, int(ends[row + 1] - ends[row]))
        mask[int(ends[row]) + start : int(ends[row]) + stop] = 0
    return groups.set_column(group, groups.LOSS_MASK, groups.make_list(ends, mask))


def _document(group: pa.RecordBatch, row: int, image: int, length: int) -> tuple[int, int]:
    """The tokens [start, stop) of the document that shows this image of the row; all of them where it isn't known."""
    if groups.LENGTHS not in group.schema.names:
        return 0, length
    borders = _borders(group, row)
    number = _number(group, row, image, borders)
    return (0, length) if number is None else (int(borders[number]), int(borders[number + 1]))


def document_place(group: pa.RecordBatch, row: int, image: int) -> Where:
    """Where the document came from that shows this image of the row, as far as it says."""
    names = group.schema.names
    if groups.LENGTHS not in names:
        return place_of(group, row)
    number = _number(group, row, image, _borders(group, row))
    known = {"component": groups.DOC_COMPONENT, "shard": groups.DOC_SHARD, "row": groups.DOC_ROW}
    there = {part: name for part, name in known.items() if number is not None and name in names}
    place: dict[str, Any] = {part: int(groups.column(group, name)[row].as_py()[number]) for part, name in there.items()}
    return Where(**place)


def _borders(group: pa.RecordBatch, row: int) -> npt.NDArray[np.int64]:
    lengths = groups.column(group, groups.LENGTHS)[row].as_py() or []
    return np.cumsum([0, *lengths], dtype=np.int64)


def _number(group: pa.RecordBatch, row: int, image: int, borders: npt.NDArray[np.int64]) -> int | None:
    """Which document of a packed row shows the image."""
    names = group.schema.names
    number = -1
    if columns.IMAGE_DOCUMENT in names:
        number = int(groups.column(group, columns.IMAGE_DOCUMENT)[row].as_py()[image])
    elif columns.IMAGE_SPANS in names:
        spans = groups.column(group, columns.IMAGE_SPANS)[row].as_py() or []
        start = next((span["start"] for span in spans if span["image"] == image), None)
        number = -1 if start is None else int(np.searchsorted(borders, start, side="right")) - 1
    return number if 0 <= number < len(borders) - 1 else None

"""What becomes of documents whose image can't be shown: nothing of them is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from zephon import groups
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
    names = group.schema.names
    if groups.LENGTHS not in names:
        return 0, length
    borders = np.concatenate([[0], np.cumsum(groups.column(group, groups.LENGTHS)[row].as_py() or [])]).astype(np.int64)
    number = -1
    if columns.IMAGE_DOCUMENT in names:
        number = int(groups.column(group, columns.IMAGE_DOCUMENT)[row].as_py()[image])
    elif columns.IMAGE_SPANS in names:
        spans = groups.column(group, columns.IMAGE_SPANS)[row].as_py() or []
        start = next((span["start"] for span in spans if span["image"] == image), None)
        number = -1 if start is None else int(np.searchsorted(borders, start, side="right")) - 1
    if not 0 <= number < len(borders) - 1:
        return 0, length
    return int(borders[number]), int(borders[number + 1])

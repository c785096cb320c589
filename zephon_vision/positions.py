"""Three-dimensional positions (M-RoPE) of packed documents, as Qwen2-VL, Qwen2.5-VL and Qwen3-VL count them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError

I64 = npt.NDArray[np.int64]


def mrope_positions(
    lengths: npt.ArrayLike, spans: npt.ArrayLike, grids: npt.ArrayLike, merge: int = 2, *, text_row: bool = True
) -> I64:
    """Positions of documents that lie one after the other in a row; each document starts at 0.

    A text token's three positions are a counter that goes up by one. An image's tokens share the counter as their first position, and
    add their row and column in its grid of tokens to it for the second and third; after the image the counter goes on by the grid's
    longest side. This is what the model classes' `get_rope_index` gives, document by document.

    Args:
        lengths: int[D], how many tokens each document has.
        spans: int[N, 2], where each image's tokens lie in the row, in order. A span may also hold as many wrapping tokens before the
            image's own ones as after them, as `image_spans` do.
        grids: int[N, 3], `image_grid_thw`: frames, and rows and columns of patches.
        merge: patches per token along each side.
        text_row: whether to put a row of plain positions first. `transformers` takes four rows as "the first one separates the
            documents of a pack, the others are for the rotary embedding"; with three rows documents would attend to each other.

    Returns:
        int64[4, L], or int64[3, L] without `text_row`; L is the sum of `lengths`.

    Raises:
        DataError: spans out of order, across documents, or of another size than their grid.
    """
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    bounds = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    grid = np.asarray(grids, dtype=np.int64).reshape(-1, 3) // [1, merge, merge]
    counts = grid.prod(axis=1)
    starts = _starts(bounds, counts, ends, total)

    # A text token's position is its place in the row less an offset, which changes where a document starts (to that place) and where an
    # image ends (it takes fewer positions than tokens).
    first = ends - sizes
    document = np.searchsorted(ends, starts, side="right")
    saved = counts - grid.max(axis=1, initial=0)
    sums = np.concatenate([[0], np.cumsum(saved)])
    before = first[document] + sums[:-1] - sums[np.searchsorted(document, document)]
    at = np.concatenate([starts + counts, first])  # of an image's end and a document's start at one place the latter counts
    order = np.argsort(at, kind="stable")
    offsets = np.concatenate([before + saved, first])[order]
    place = np.arange(total)
    rows = np.empty((3 + text_row, total), dtype=np.int64)
    frame, line, column = rows[-3:]
    np.subtract(place, np.repeat(offsets, np.diff(at[order], append=total)), out=frame)
    line[:] = column[:] = frame
    if text_row:
        np.subtract(place, np.repeat(first, sizes), out=rows[0])

    steps = np.arange(int(grid.max(initial=0)))
    for start, count, counter, (frames, high, wide) in zip(
        starts.tolist(), counts.tolist(), (starts - before).tolist(), grid.tolist(), strict=True
    ):
        along, here, shape = counter + steps, slice(start, start + count), (frames, high, wide)
        frame[here].reshape(shape)[...] = along[:frames, None, None]
        line[here].reshape(shape)[...] = along[:high, None]
        column[here].reshape(shape)[...] = along[:wide]
    return rows


def _starts(bounds: I64, counts: I64, ends: I64, total: int) -> I64:
    """Where each image's own tokens start, after checking the spans."""
    if len(bounds) != len(counts):
        raise DataError(f"{len(bounds)} image spans for {len(counts)} grids")
    extra = bounds[:, 1] - bounds[:, 0] - counts
    wrong = (extra < 0) | (extra % 2 != 0) | (counts < 1)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise DataError(
            f"image {i} has {int(counts[i])} tokens by its grid, its span {bounds[i].tolist()} holds another number"
        )
    if len(bounds):
        inside = np.searchsorted(ends, bounds[:, 0], side="right") == np.searchsorted(ends, bounds[:, 1], side="left")
        ordered = bool((bounds[1:, 0] >= bounds[:-1, 1]).all())
        if not ordered or bounds[0, 0] < 0 or bounds[-1, 1] > total or not inside.all():
            raise DataError("image spans must lie in order, each within one document")
    starts: I64 = bounds[:, 0] + extra // 2
    return starts

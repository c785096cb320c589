"""Three-dimensional positions (M-RoPE) of packed documents, as Qwen2-VL, Qwen2.5-VL and Qwen3-VL count them."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from zephon.errors import DataError, RecipeError

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
        RecipeError: `merge` is below 1.
    """
    if merge < 1:
        raise RecipeError(f"merge of mrope_positions is {merge!r}; it must be ≥ 1")
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    ends = sizes.cumsum()
    borders = [0, *ends.tolist()]
    bounds = np.asarray(spans, dtype=np.int64).reshape(-1, 2).tolist()
    shapes = [(t, h // merge, w // merge) for t, h, w in np.asarray(grids, dtype=np.int64).reshape(-1, 3).tolist()]
    images = _placed(bounds, [t * h * w for t, h, w in shapes], borders)

    # All tokens are counted as text first. Then each image gets its own positions, and the text behind it goes back by what was saved in
    # its document: an image takes fewer positions than tokens.
    place = np.arange(borders[-1])
    rows = np.empty((3 + text_row, len(place)), dtype=np.int64)
    np.subtract(place, (ends - sizes).repeat(sizes), out=rows[0])
    rows[1:] = rows[0]
    three, here, saved = rows[-3:], -1, 0
    nexts = [*(start for start, _, _ in images), len(place)][1:]
    for (start, stop, document), (frames, high, wide), following in zip(images, shapes, nexts, strict=True):
        if document != here:
            here, saved = document, 0
        counter = start - borders[document] - saved
        own = three[:, start:stop].reshape(3, frames, high, wide)
        own[0] = place[counter : counter + frames, None, None]
        own[1] = place[counter : counter + high, None]
        own[2] = place[counter : counter + wide]
        saved += stop - start - max(frames, high, wide)
        text = three[:, stop : min(following, borders[document + 1])]
        text -= saved
    return rows


def _placed(bounds: list[list[int]], counts: list[int], borders: list[int]) -> list[tuple[int, int, int]]:
    """`(start, stop, document)` of each image's own tokens, after checking the spans."""
    if len(bounds) != len(counts):
        raise DataError(f"{len(bounds)} image spans for {len(counts)} grids")
    wrappers = [end - begin - count for (begin, end), count in zip(bounds, counts, strict=True)]
    for i, (both, count) in enumerate(zip(wrappers, counts, strict=True)):
        if both < 0 or both % 2 or count < 1:
            raise DataError(f"image {i} has {count} tokens by its grid, its span {bounds[i]} holds another number")
    placed, free = [], 0
    for (begin, end), both in zip(bounds, wrappers, strict=True):
        behind = bisect_right(borders, begin)
        if begin < free or behind == len(borders) or end > borders[behind]:
            raise DataError("image spans must lie in order, each within one document")
        placed.append((begin + both // 2, end - both // 2, behind - 1))
        free = end
    return placed

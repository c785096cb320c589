"""The share of images that can't be used, and the end of a run where it is too large: a wrong folder is not a smaller data set."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from zephon import groups
from zephon.errors import LimitError, RecipeError, Where
from zephon.plugin import place_of

WINDOW = 1000
"""So many images of a data set must have been seen before a share of bad ones is an error."""
_MOST_TOLD = 20
"""So many kinds of errors are logged, each once."""


class BadImages:
    """What one worker has seen of each data set; which images those are has no part in what it makes."""

    def __init__(self, limit: float | None, operator: str) -> None:
        self._limit = limit
        self._log = logging.getLogger(f"zephon_vision.{operator}")
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._seen: dict[int, list[int]] = {}
        """By data set: images, and bad ones."""

    def count(self, component: int, seen: int, errors: Iterable[tuple[str, Where]]) -> None:
        """Images of a data set were looked at, and `errors` say what is wrong with the bad ones, and where they are.

        Raises:
            LimitError: more than the limit of the last 1,000 to 2,000 images of the data set; it says where the last one is.
        """
        failed = 0
        last, place = "", Where()
        for last, place in errors:
            failed += 1
            self._tell(last, place)
        with self._lock:
            counts = self._seen.setdefault(component, [0, 0])
            counts[0] += seen
            counts[1] += failed
            total, bad = counts
            if total >= 2 * WINDOW:  # older images count for less
                counts[:] = [total // 2, bad // 2]
        if self._limit is not None and failed and total >= WINDOW and bad > self._limit * total:
            raise LimitError(
                f"{bad} of {total} images can't be used, the last one because: {last}",
                where=place.within(Where(component=component if component >= 0 else None)),
                hint=f"look at the data, or raise max_bad_ratio={self._limit}",
            )

    def _tell(self, error: str, where: Where) -> None:
        kind = error.partition(":")[0]
        if kind in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(kind)
        place = f" [{where}]" if where != Where() else ""
        self._log.warning("bad image: %s%s; others of this kind are not reported", error, place)

    def of_rows(self, group: pa.RecordBatch, images: Sequence[int], errors: Mapping[int, Sequence[str]]) -> None:
        """`count` for the rows of a group: how many images each has, and what is wrong with those of some rows."""
        components = components_of(group)
        for component in dict.fromkeys(components):
            rows = [row for row, of in enumerate(components) if of == component]
            found = [(error, place_of(group, row)) for row in rows for error in errors.get(row, ())]
            self.count(component, sum(images[row] for row in rows), found)


class LostImages:
    """The images that a group's rows lost, by reason and data set, for `Drops.parts`."""

    def __init__(self, group: pa.RecordBatch) -> None:
        self._component = components_of(group)
        self.parts: dict[tuple[str, str], dict[int, int]] = {}

    def add(self, row: int, why: str, images: int = 1) -> None:
        """The row lost so many images."""
        self.of(self._component[row], why, images)

    def of(self, component: int, why: str, images: int = 1) -> None:
        """A row of this data set did."""
        if images:
            sums = self.parts.setdefault(("images", why), {})
            sums[component] = sums.get(component, 0) + images


def components_of(group: pa.RecordBatch) -> list[int]:
    """The data set of each row by its number in the mixture, -1 where that isn't known."""
    return groups.provenance(group, groups.COMPONENT, unknown=-1).tolist()  # type: ignore[no-any-return]


def reason(error: str, *, blank: bool = False) -> str:
    """The kind of an error, for counting: what stands before the details."""
    return ("blank image: " if blank else "bad image: ") + error.partition(":")[0]


def check_ratio(limit: float | None, operator: str) -> None:
    """Raise `RecipeError` where it is no share."""
    if limit is not None and not 0 <= limit <= 1:
        raise RecipeError(f"max_bad_ratio of {operator} is {limit!r}; it must be from 0 to 1, or None")

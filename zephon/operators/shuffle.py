"""`shuffle`: the rows of a window in a keyed random order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import keys
from zephon.errors import RecipeError
from zephon.keys import I64
from zephon.plugin import LaneWindow, SelectOperator


@dataclass(frozen=True, kw_only=True)
class Shuffle(SelectOperator):
    """Emit rows in random order out of a buffer: once it is full, each new row takes the place of a random one, which is emitted.

    The draws are a function of seed, lane, window and row number. At the end of a window the buffer is emptied, in random order.
    """

    name: ClassVar[str] = "shuffle"

    buffer_size: int | None = None
    """Rows held; None: the whole window."""
    seed: int | None = None
    """None: the source's seed."""

    def __post_init__(self) -> None:
        if self.buffer_size is not None and self.buffer_size < 1:
            raise RecipeError(
                f"buffer_size of shuffle is {self.buffer_size}; it must be ≥ 1", hint="leave it out for the whole window"
            )

    def inputs(self) -> tuple[str, ...]:
        """None of the columns: only row numbers count."""
        return ()

    def selector(self, where: LaneWindow) -> Reservoir:
        """A fresh buffer for one lane and window."""
        seed = where.seed if self.seed is None else self.seed
        return Reservoir(
            self.buffer_size,
            draw_key=keys.key(seed, "shuffle", where.lane, where.window),
            flush_key=keys.key(seed, "shuffle flush", where.lane, where.window),
        )


class Reservoir:
    """The buffer, as row numbers."""

    def __init__(self, size: int | None, *, draw_key: int, flush_key: int) -> None:
        self._size = size
        self._draw_key = draw_key
        self._flush_key = flush_key
        self._held: I64 = np.zeros(0, dtype=np.int64)
        self._seen = 0

    def add(self, rows: pa.RecordBatch) -> I64:
        """Take the next rows.

        While the buffer fills, every second row is held and the others swap one out: the first rows come soon and the flow stays even.
        Once it is full, as many numbers come out as rows came in.
        """
        numbers = np.arange(self._seen, self._seen + rows.num_rows, dtype=np.int64)
        self._seen += rows.num_rows
        if self._size is None:
            self._held = np.concatenate([self._held, numbers])
            return numbers[:0]
        # how many are held before and after each row
        after = np.minimum((numbers + 2) // 2, self._size)
        before = np.minimum((numbers + 1) // 2, self._size)
        return self._swap(numbers, after, held=after > before)

    def flush(self) -> I64:
        """All that is held, in random order."""
        rest = self._held[keys.permutation(self._flush_key, len(self._held))]
        self._held = self._held[:0]
        return rest

    def _swap(self, numbers: I64, limits: I64, held: npt.NDArray[np.bool_]) -> I64:
        """Put the numbers into places one after the other; what was in the places that were not new.

        Those that are `held` open a new place, the others go to random ones.
        """
        if not len(numbers):
            return numbers
        places = np.where(held, limits - 1, keys.uniform_below(self._draw_key, numbers, limits))
        self._held = np.concatenate([self._held, np.full(int(limits[-1]) - len(self._held), -1, dtype=np.int64)])
        # all at once: by place, then by time. What was in a place is the number put there before, or what it held at first
        order = np.argsort(places, kind="stable")
        by_place = places[order]
        again = np.zeros(len(order), dtype=bool)
        again[1:] = by_place[1:] == by_place[:-1]
        earlier = np.where(again, np.roll(numbers[order], 1), self._held[by_place])
        final = np.append(~again[1:], True)
        self._held[by_place[final]] = numbers[order][final]
        out = np.empty_like(numbers)
        out[order] = earlier
        return out[~held]

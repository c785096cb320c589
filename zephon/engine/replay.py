"""What an earlier run delivered of the window that a lane begins with: decided again, compared, and built only where it must be."""

from __future__ import annotations

import numpy as np

from zephon.engine.stages import Stage
from zephon.engine.state import LaneState, Odd
from zephon.engine.tasks import Task
from zephon.errors import CheckpointError
from zephon.keys import U64

_MASK = (1 << 64) - 1
_MOST_ODD = 6
"""Odd tasks that a state names: with more of them in a window, a lane would take more than 200 bytes."""


class Replay:
    """Of one lane. What was delivered comes by in order: tasks that `skip` leaves out, then sequences that are built again.

    A stage is stateless, so a task whose sequences were all delivered needs no building, whatever became of its rows, if the state says
    how many sequences it gave: their places are part of the digest. So this also notes, window by window, for the states to come, which
    tasks are odd: they gave another number of sequences than they were given rows.

    Args:
        lane: its number.
        start: where it begins.
        stage: its last one.
        first: whether that is its first one, too.
    """

    def __init__(self, lane: int, start: LaneState, stage: Stage, *, first: bool) -> None:
        self.left = start.delivered
        """Sequences that are still to come by."""
        self._lane, self._start = lane, start
        self._digest = 0
        self._place = 0
        self._by_row = stage.by_row
        # the key of a first stage's task may be the content of what it makes
        skippable = not first or stage.max_rows is not None
        self._notes = skippable and not stage.keeps_rows
        self.odd: Odd | None = start.odd if start.delivered else self._none
        """Of the window up to the last task that was noted; None: not known, or never the case."""
        self._gave = dict(self.odd or ())
        self._skips = skippable and (stage.keeps_rows or self.odd is not None)

    @property
    def _none(self) -> Odd | None:
        return () if self._notes else None

    @property
    def skips(self) -> bool:
        """Whether the next task may need no building."""
        return self._skips and self.left > 0

    def skip(self, rows: int) -> tuple[int, int, int]:
        """The number, in its window, of a task that is new; how many of its first rows need not be built; and how many sequences these
        gave, which must come by next. Once a row must be built, all after it must."""
        place, self._place = self._place, self._place + 1
        if not self.skips or not rows:
            return place, 0, 0
        gave = self._gave.get(place, rows)
        if gave <= self.left:
            return place, rows, gave
        self._skips = False
        some = self.left if self._by_row and gave == rows else 0
        return place, some, some

    def decided(self) -> None:
        """A window's last task was given a number."""
        self._place = 0

    def past(self, keys: U64) -> None:
        """These came by. Raises `CheckpointError` where they are the last and not what was delivered."""
        self._digest = (self._digest + int(np.add.reduce(keys))) & _MASK
        self.left -= len(keys)
        if not self.left and self._digest != self._start.window_digest:
            raise CheckpointError(
                f"lane {self._lane} does not replay as it was: the digest of window {self._start.window} is "
                f"{self._digest:016x}, the state says {self._start.window_digest:016x}",
                hint="the data or a library changed since the state was saved",
            )

    def note(self, task: Task, made: int) -> None:
        """So many sequences were made of a task, in order. What is built for the second time says what it said before."""
        # of an odd task no single rows are ever skipped: what was made is all that it gives
        odd = (task.origin.place, made)
        if self.odd is None or task.rows == made or odd in self.odd:
            return
        self.odd = (*self.odd, odd) if len(self.odd) < _MOST_ODD else None

    def end(self) -> None:
        """All of a window was made. Raises `CheckpointError` where not all that was delivered came by."""
        self.odd = self._none
        if self.left:
            raise CheckpointError(
                f"lane {self._lane} has {self._start.delivered - self.left} sequences in window {self._start.window}, "
                f"the state says {self._start.delivered}",
                hint="the data or a library changed since the state was saved",
            )

"""What goes into an accumulator and what comes out of it, window by window, for those that don't prove it themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from zephon.engine.counts import Counts, add_counts, difference
from zephon.engine.faults import Losses

Both = tuple[Counts, Counts]
"""Rows and tokens, per component."""


class Balance:
    """Of one accumulator of a lane. Groups of the next window may come before the last of this one went: first in, first out.

    Args:
        operator: its name.
        count: told what nobody reported, when a window is through.
    """

    def __init__(self, operator: str, count: Callable[[Losses], None]) -> None:
        self._operator = operator
        self._count = count
        self._windows: deque[Both] = deque([({}, {})])
        self.made: Both = ({}, {})
        """What went beyond what came, in windows that aren't through. Never changed, only replaced: any thread may read it."""

    def came(self, counts: Both, losses: Losses) -> None:
        """A group came, and this was reported as left out of it."""
        rows, tokens = self._windows[-1]
        for mine, more in ((rows, counts[0]), (tokens, counts[1])):
            add_counts(mine, more)
        self.left_out(losses)

    def left_out(self, losses: Losses) -> None:
        """This was reported as left out."""
        for mine, tables in zip(self._windows[-1], (losses.rows, losses.tokens), strict=True):
            for counts in tables.values():
                add_counts(mine, {component: -count for component, count in counts.items()})
        self._weigh()

    def close(self) -> None:
        """The accumulator was flushed: what comes now is of the next window."""
        self._windows.append(({}, {}))

    def went(self, counts: Both) -> None:
        """This was gathered, of the oldest window."""
        for mine, less in zip(self._windows[0], counts, strict=True):
            add_counts(mine, {component: -count for component, count in less.items()})
        self._weigh()

    def settle(self) -> None:
        """The oldest window is through."""
        losses = Losses()
        rows, tokens = self._windows.popleft()
        losses.balance(self._operator, difference(rows), difference(tokens))
        # before it leaves `made`: for who asks in between it is rather there twice than not at all
        self._count(losses)
        self._weigh()

    def _weigh(self) -> None:
        made: Both = ({}, {})
        for window in self._windows:
            for mine, counts in zip(made, window, strict=True):
                add_counts(mine, {component: -count for component, count in counts.items() if count < 0})
        self.made = made

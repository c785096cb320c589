"""`workers="auto"`: how many tasks and reads run at once, and how many batches are held ready, by what was measured.

A run begins with one worker and one read per core of its share, which is right for work that computes.
Work that waits (storage, a service, a lock) leaves cores idle; then the part that is busy all the time is given more, in steps of a
half, as long as that makes the run quicker. A step that doesn't is taken back and that part left alone for a while, so the numbers
settle: there is no point to swing about. None of it can change a byte (invariant 1), since lanes consume results in order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from zephon.engine.meter import Meter, Spent, Times, clock

log = logging.getLogger("zephon.engine")

_LOOK_S = 1.0
_TASKS = 6
"""How many tasks a part must have done in a span that is to be judged."""
_HUNGRY = 0.05
"""The share of its time that the training step may wait."""
_BUSY = 0.75
_SPARE = 0.85
"""Above this share of its cores in use, a rank isn't given more threads; threads that would wait are no use then."""
_OVER = 1.1
"""Above this, some are taken away again."""
_GAIN = 1.05
"""How much quicker a step must make the run to be kept."""
_REST = 30
"""Spans for which a part is left alone after a step that didn't help."""
_MOST = 16
"""Times the number that a part began with: no part grows beyond."""


@dataclass
class Part:
    """Something whose size can be changed: the workers, or the reads."""

    name: str
    size: int
    resize: Callable[[int], None]
    spent: Callable[[Times], Spent]
    least: int = 0
    before: int = 0
    """The size before the step that is on trial; 0: none is."""
    pace: float = 0.0
    """Batches per second before that step."""
    rest: int = 0

    def __post_init__(self) -> None:
        self.least = self.size

    def set(self, size: int, why: str) -> None:
        """Change the size, and say so."""
        log.info("%s: %d → %d: %s", self.name, self.size, size, why)
        self.size = size
        self.resize(size)


class Tuner:
    """Looks at a run about once a second, from the consumer's thread, and changes at most one part at a time.

    Args:
        meter: of the run.
        parts: workers and reads.
        cores: the rank's share.
        hold: sets how many batches are held ready.
        most_ready: what `hold` may be given at most.
    """

    def __init__(self, meter: Meter, parts: list[Part], *, cores: int, hold: Callable[[int], None], most_ready: int) -> None:
        self.parts = parts
        self._meter = meter
        self._cores = cores
        self._hold = hold
        self._most_ready = most_ready
        self._before: Times | None = None
        self._next = clock() + _LOOK_S

    def look(self) -> None:
        """Called after every batch; nearly always it does nothing."""
        now = clock()
        if now < self._next:
            return
        self._next = now + _LOOK_S
        times = self._meter.times()
        if times is None:
            return
        if self._before is None:
            self._before = times
            return
        span = times.since(self._before)
        if max(span.reading.tasks, span.working.tasks) < _TASKS or span.batches < 1 or span.elapsed < _LOOK_S / 2:
            return  # too little: the span goes on
        self._before = times
        before = [part.size for part in self.parts]
        self._judge(span)
        if [part.size for part in self.parts] != before:
            self._meter.changed()
            self._before = self._meter.times()
        self._hold(ready_batches(span, self._most_ready))

    def _judge(self, span: Times) -> None:
        pace = span.batches / span.elapsed
        on_trial = next((part for part in self.parts if part.before), None)
        if on_trial is not None:
            self._verdict(on_trial, pace)
            return
        for part in self.parts:
            part.rest = max(part.rest - 1, 0)
        cores = span.cpu / span.elapsed
        if cores > _OVER * self._cores:
            grown = next((part for part in self.parts if part.size > part.least), None)
            if grown is not None:
                grown.set(max(grown.least, grown.size * 3 // 4), f"{cores:.1f} of {self._cores} cores used")
        elif span.waited > _HUNGRY * span.elapsed and cores < _SPARE * self._cores:
            self._grow(span, pace)

    def _verdict(self, part: Part, pace: float) -> None:
        before, part.before = part.before, 0
        if pace < _GAIN * part.pace:
            part.rest = _REST
            part.set(before, f"more was no quicker ({pace:.3g} batches a second, {part.pace:.3g} before)")

    def _grow(self, span: Times, pace: float) -> None:
        def busy(part: Part) -> float:
            return part.spent(span).seconds / (part.size * span.elapsed)

        open_parts = [p for p in self.parts if not p.rest and p.size < _MOST * p.least and busy(p) >= _BUSY]
        if not open_parts:
            return
        part = max(open_parts, key=busy)
        part.before, part.pace = part.size, pace
        part.set(
            min(part.size + max(1, part.size // 2), _MOST * part.least), f"busy {busy(part):.0%} of the time, with cores idle"
        )


def ready_batches(span: Times, most: int) -> int:
    """Enough batches for the longest that a task takes, and 2 more; at most `most`.

    A training step that is slow needs few (they are memory), one that is quick needs many (each sleep and wake-up costs).
    """
    step = (span.elapsed - span.waited) / span.batches
    task = max((s.seconds / s.tasks for s in (span.reading, *span.operators.values()) if s.tasks), default=0.0)
    if step * most <= 2 * task or step <= 0:
        return most
    return min(most, 2 + math.ceil(2 * task / step))

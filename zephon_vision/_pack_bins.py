"""Packing documents with two budgets as pure arithmetic: lengths and costs in, sequences out.

Streaming best fit with open bins: a document goes into the bin with the least sufficient room among those in which all its budgets
fit, the one opened first where two have the same room. What is decided depends on the documents and their order only, not on how
they were divided over calls. Closing the fullest bin is the better rule for bounded space (Csirik and Johnson 1991, "Bounded space
on-line bin packing: best is better than first"); with two budgets the fullest is the one that has used most of either, since a bin
without patches left is of no use to documents with images, whatever room it has (1.5 points of fill where both budgets bind).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

NO_LIMIT = 1 << 62

Sequences = list[list[int]]
"""Decided sequences in order, each the numbers of its documents in order."""

_SERIAL_BITS = 40
_SERIAL_MASK = (1 << _SERIAL_BITS) - 1


@dataclass(frozen=True)
class Limits:
    """When a bin takes a document, and when it is closed."""

    tokens: int
    blocks: int = NO_LIMIT
    images: int = NO_LIMIT
    bins: int = 32
    """Bins that stay open; one more is needed: the fullest is closed."""
    least_room: int = 32
    """A bin with less room than so many tokens is closed."""
    max_age: int | None = None
    """A bin is closed when so many documents arrived after the one that opened it."""
    ensure_image: bool = False
    """Documents without images never open a bin: they wait for one that has images."""
    waiting: int = NO_LIMIT
    """Documents without images that may wait; over it the oldest is given up."""


@dataclass(slots=True)
class _Bin:
    opened: int
    blocks: int
    images: int
    documents: list[int] = field(default_factory=list)


class Bins:
    """Streaming best fit at work. Documents have the numbers 0, 1, … in the order in which they come."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # open bins as room << 40 | serial number, ascending: bisection finds the least sufficient room, then the oldest
        self._rooms: list[int] = []
        self._bins: dict[int, _Bin] = {}
        self._serial = 0
        self._arrived = 0
        self._waiting: dict[int, int] = {}
        """Documents without images that wait for a bin, and their tokens."""
        self.given_up: list[int] = []
        """Documents that found no bin with an image; whoever reads it empties it."""

    def add(self, documents: Iterable[tuple[int, int, int]]) -> Sequences:
        """Pack documents, each `(tokens, blocks, images)` within the limits; the sequences that are now complete, in order."""
        out: Sequences = []
        limits, bins = self._limits, self._bins
        for tokens, blocks, images in documents:
            number, self._arrived = self._arrived, self._arrived + 1
            if limits.max_age is not None:
                self._close_old(number - limits.max_age, out)
            place = self._find(tokens, blocks, images)
            if place >= 0:
                self._put(place, number, tokens, blocks, images, out)
            elif limits.ensure_image and not images:
                self._waiting[number] = tokens
                if len(self._waiting) > limits.waiting:
                    oldest = next(iter(self._waiting))
                    del self._waiting[oldest]
                    self.given_up.append(oldest)
            else:
                if len(bins) == limits.bins:
                    out.append(bins.pop(self._rooms.pop(self._fullest()) & _SERIAL_MASK).documents)
                self._open(number, tokens, blocks, images, out)
        return out

    def flush(self) -> Sequences:
        """The sequences that are still open, in the order in which they were opened; documents that still wait are given up."""
        out = [held.documents for held in self._bins.values()]
        self.given_up += self._waiting
        self._rooms, self._bins, self._waiting = [], {}, {}
        return out

    def _find(self, tokens: int, blocks: int, images: int) -> int:
        """The place in `_rooms` of the best bin for such a document; -1: none."""
        limits, rooms, bins = self._limits, self._rooms, self._bins
        for place in range(bisect_left(rooms, tokens << _SERIAL_BITS), len(rooms)):
            held = bins[rooms[place] & _SERIAL_MASK]
            if held.blocks + blocks <= limits.blocks and held.images + images <= limits.images:
                return place
        return -1

    def _fullest(self) -> int:
        """The place in `_rooms` of the bin with the least left, as a share of its budget of tokens or of blocks."""
        limits, rooms, bins = self._limits, self._rooms, self._bins
        if limits.blocks == NO_LIMIT:
            return 0
        left = [
            min((found >> _SERIAL_BITS) * limits.blocks, (limits.blocks - bins[found & _SERIAL_MASK].blocks) * limits.tokens)
            for found in rooms
        ]
        return left.index(min(left))

    def _put(self, place: int, number: int, tokens: int, blocks: int, images: int, out: Sequences) -> None:
        found = self._rooms.pop(place)
        serial, room = found & _SERIAL_MASK, (found >> _SERIAL_BITS) - tokens
        held = self._bins[serial]
        held.documents.append(number)
        held.blocks += blocks
        held.images += images
        self._keep(serial, room, out)

    def _open(self, number: int, tokens: int, blocks: int, images: int, out: Sequences) -> None:
        serial, room = self._serial, self._limits.tokens - tokens
        self._serial += 1
        self._bins[serial] = held = _Bin(number, blocks, images, [number])
        for waiting, size in list(self._waiting.items()):
            # in the order in which they came; they have no images, so tokens are all they need
            if size <= room:
                held.documents.append(waiting)
                room -= size
                del self._waiting[waiting]
        self._keep(serial, room, out)

    def _keep(self, serial: int, room: int, out: Sequences) -> None:
        if room and room >= self._limits.least_room:
            insort(self._rooms, room << _SERIAL_BITS | serial)
        else:
            out.append(self._bins.pop(serial).documents)

    def _close_old(self, before: int, out: Sequences) -> None:
        """Close the bins that were opened by document `before` or an earlier one."""
        old = []
        for serial, held in self._bins.items():  # in the order of opening
            if held.opened > before:
                break
            old.append(serial)
        for serial in old:
            out.append(self._bins.pop(serial).documents)
        if old:
            gone = set(old)
            self._rooms = [found for found in self._rooms if found & _SERIAL_MASK not in gone]

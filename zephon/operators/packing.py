"""Packing as arithmetic: document lengths in, sequences out as pieces (document, start, length).

A packer is fed documents in order and answers with the sequences that are thereby decided; `flush` gives the rest. What it
decides depends on the documents and their order only, not on how they were divided over the calls of `add`. All packers cut a
document that is longer than a sequence: its head fills whole sequences, its tail is packed like a short document.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from zephon.keys import I64

Algorithm = Literal["wrap", "first_fit", "best_fit", "best_fit_wrap"]

OPEN_SEQUENCES = 32
"""How many sequences `best_fit_wrap` keeps open."""

_SERIAL_BITS = 40
_SERIAL_MASK = (1 << _SERIAL_BITS) - 1


@dataclass(frozen=True)
class Packed:
    """S decided sequences of P pieces in all: pieces `offsets[i]:offsets[i+1]` make sequence i, in that order."""

    offsets: I64
    """int64[S+1], from 0 to P."""
    document: I64
    """int64[P]: the number that the document was given with."""
    start: I64
    """int64[P]: at which of the document's tokens the piece starts."""
    length: I64
    """int64[P], each > 0."""
    completed: I64
    """int64[S]: the document that completed the sequence, ascending; in a flush the last one that was added."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


class Packer(Protocol):
    """One packing algorithm at work."""

    def add(self, documents: I64, lengths: I64) -> Packed:
        """Pack these documents (numbers ascending, lengths > 0); the sequences that are now complete."""
        ...

    def flush(self) -> Packed:
        """The sequences that are still open; the packer is empty afterwards."""
        ...


def make_packer(algorithm: Algorithm, capacity: int, *, bins: int | None = None, max_documents: int | None = None) -> Packer:
    """A fresh packer for sequences of `capacity` tokens, with at most `max_documents` pieces each.

    `bins` is how many sequences the two fit algorithms keep open.
    """
    makers: dict[Algorithm, Callable[[], Packer]] = {
        "wrap": lambda: Wrap(capacity, max_documents),
        "first_fit": lambda: FirstFit(capacity, bins or 1, max_documents),
        "best_fit": lambda: BestFit(capacity, bins or 1, max_documents),
        "best_fit_wrap": lambda: BestFitWrap(capacity, OPEN_SEQUENCES, max_documents),
    }
    return makers[algorithm]()


class Wrap:
    """Documents one after the other, cut wherever a sequence is full.

    Nothing is padding before the flush, unless `max_documents` is reached.
    """

    def __init__(self, capacity: int, max_documents: int | None = None) -> None:
        self._capacity = capacity
        self._max_documents = max_documents
        self._document = self._start = self._length = np.zeros(0, dtype=np.int64)
        self._last = -1

    def add(self, documents: I64, lengths: I64) -> Packed:
        """See `Packer`. Vectorised: about 30 ns per document."""
        if len(documents):
            self._last = int(documents[-1])
        self._document = np.concatenate([self._document, documents])
        self._start = np.concatenate([self._start, np.zeros(len(documents), dtype=np.int64)])
        self._length = np.concatenate([self._length, lengths])
        ends = np.cumsum(self._length)
        return self._cut(ends, self._cuts(ends))

    def flush(self) -> Packed:
        """See `Packer`: at most one sequence."""
        size = len(self._document)
        offsets = np.array([0, size] if size else [0], dtype=np.int64)
        packed = Packed(
            offsets, self._document, self._start, self._length, np.full(len(offsets) - 1, self._last, dtype=np.int64)
        )
        self._document = self._start = self._length = np.zeros(0, dtype=np.int64)
        return packed

    def _cuts(self, ends: I64) -> I64:
        """Where the complete sequences end in the stream of all pending tokens, with 0 in front."""
        total = int(ends[-1]) if len(ends) else 0
        if self._max_documents is None:
            return np.arange(0, total + 1, self._capacity, dtype=np.int64)
        bounds, cuts, position = ends.tolist(), [0], 0
        while True:
            last = bisect_right(bounds, position) + self._max_documents - 1
            position += self._capacity
            if last < len(bounds):
                position = min(position, bounds[last])
            if position > total:
                return np.array(cuts, dtype=np.int64)
            cuts.append(position)

    def _cut(self, ends: I64, cuts: I64) -> Packed:
        begins = ends - self._length
        done = int(cuts[-1])
        # pieces begin where a document begins and where a sequence begins; both are ascending, together they are all borders
        edges = np.sort(np.concatenate([begins[: np.searchsorted(begins, done)], cuts[:-1]]), kind="stable")
        if len(edges):
            first = np.ones(len(edges), dtype=bool)
            np.not_equal(edges[1:], edges[:-1], out=first[1:])
            edges = edges[first]
        piece = np.searchsorted(begins, edges, side="right") - 1
        offsets: I64 = np.searchsorted(edges, cuts)
        document = self._document[piece]
        start = self._start[piece] + edges - begins[piece]
        packed = Packed(offsets, document, start, np.diff(edges, append=done), document[offsets[1:] - 1])
        left = int(np.searchsorted(ends, done, side="right"))
        self._document, self._start, self._length = self._document[left:], self._start[left:].copy(), self._length[left:].copy()
        if len(self._document):
            used = done - int(begins[left])
            self._start[0] += used
            self._length[0] -= used
        return packed


class _Out:
    """Sequences as they are decided: a flat list of (document, start, length) is the quickest to fill."""

    def __init__(self) -> None:
        self.flat: list[int] = []
        self.ends = [0]
        self.completed: list[int] = []

    def put(self, pieces: Sequence[int], document: int) -> None:
        self.flat += pieces
        self.ends.append(len(self.flat) // 3)
        self.completed.append(document)

    def packed(self) -> Packed:
        document, start, length = np.array(self.flat, dtype=np.int64).reshape(-1, 3).T
        return Packed(np.array(self.ends, dtype=np.int64), document, start, length, np.array(self.completed, dtype=np.int64))


class BestFit:
    """Each document into the open sequence with the least sufficient room, the one opened first where two have the same.

    Where none has room and all `bins` are open, the fullest is closed. Closing the fullest is the better rule for bounded space
    (Csirik and Johnson 1991, "Bounded space on-line bin packing: best is better than first").
    """

    def __init__(self, capacity: int, bins: int, max_documents: int | None = None) -> None:
        self._capacity = capacity
        self._bins = bins
        self._most = 3 * max_documents if max_documents is not None else 1 << 62
        # open sequences as room << 40 | serial number, ascending: bisection finds the least sufficient room, then the oldest
        self._rooms: list[int] = []
        self._pieces: dict[int, list[int]] = {}
        self._serial = 0
        self._last = -1

    def add(self, documents: I64, lengths: I64) -> Packed:
        """See `Packer`. A tight loop: about 1 µs per document."""
        out = _Out()
        capacity, rooms, pieces, most = self._capacity, self._rooms, self._pieces, self._most
        for document, whole in zip(documents.tolist(), lengths.tolist(), strict=True):
            start, length = 0, whole
            while length >= capacity:
                out.put((document, start, capacity), document)
                start += capacity
                length -= capacity
            if not length:
                continue
            place = bisect_left(rooms, length << _SERIAL_BITS)
            if place < len(rooms):
                found = rooms.pop(place)
                serial, room = found & _SERIAL_MASK, (found >> _SERIAL_BITS) - length
                held = pieces[serial]
                held += (document, start, length)
            else:
                if len(rooms) == self._bins:
                    out.put(pieces.pop(rooms.pop(0) & _SERIAL_MASK), document)
                serial, room = self._serial, capacity - length
                self._serial += 1
                pieces[serial] = held = [document, start, length]
            if room and len(held) < most:
                insort(rooms, room << _SERIAL_BITS | serial)
            else:
                out.put(pieces.pop(serial), document)
        self._last = int(documents[-1]) if len(documents) else self._last
        return out.packed()

    def flush(self) -> Packed:
        """See `Packer`: the open sequences, in the order in which they were opened."""
        out = _Out()
        for serial in sorted(self._pieces):
            out.put(self._pieces[serial], self._last)
        self._rooms, self._pieces = [], {}
        return out.packed()


class FirstFit:
    """Each document into the sequence that was opened first among those with room; the fullest is closed where none has.

    On closing see `BestFit`.
    """

    def __init__(self, capacity: int, bins: int, max_documents: int | None = None) -> None:
        self._capacity = capacity
        self._bins = bins
        self._most = 3 * max_documents if max_documents is not None else 1 << 62
        # a tournament tree over the rooms of the open sequences in the order of opening: the first that is large enough in O(log bins)
        self._size = 2 << (bins - 1).bit_length()
        self._tree = [0] * (2 * self._size)
        self._pieces: dict[int, list[int]] = {}
        self._next = 0
        self._last = -1

    def add(self, documents: I64, lengths: I64) -> Packed:
        """See `Packer`."""
        out = _Out()
        capacity, pieces, most = self._capacity, self._pieces, self._most
        for document, whole in zip(documents.tolist(), lengths.tolist(), strict=True):
            start, length = 0, whole
            while length >= capacity:
                out.put((document, start, capacity), document)
                start += capacity
                length -= capacity
            if not length:
                continue
            if self._tree[1] >= length:
                leaf = self._first(length)
                held = pieces[leaf]
                held += (document, start, length)
                room = self._tree[leaf] - length
            else:
                if len(pieces) == self._bins:
                    fullest = min(pieces, key=self._tree.__getitem__)
                    self._set(fullest, 0)
                    out.put(pieces.pop(fullest), document)
                leaf, room = self._open(), capacity - length
                pieces[leaf] = held = [document, start, length]
            if room and len(held) < most:
                self._set(leaf, room)
            else:
                self._set(leaf, 0)
                out.put(pieces.pop(leaf), document)
        self._last = int(documents[-1]) if len(documents) else self._last
        return out.packed()

    def flush(self) -> Packed:
        """See `Packer`: the open sequences, in the order in which they were opened."""
        out = _Out()
        for held in self._pieces.values():
            out.put(held, self._last)
        self._pieces.clear()
        self._tree = [0] * len(self._tree)
        self._next = 0
        return out.packed()

    def _first(self, length: int) -> int:
        tree, node = self._tree, 1
        while node < self._size:
            node <<= 1
            if tree[node] < length:
                node += 1
        return node

    def _set(self, leaf: int, room: int) -> None:
        tree = self._tree
        tree[leaf] = room
        node = leaf >> 1
        while node:
            left, right = tree[2 * node], tree[2 * node + 1]
            most = left if left > right else right  # noqa: FURB136 - max() takes 3 times as long
            if tree[node] == most:
                return
            tree[node] = most
            node >>= 1

    def _open(self) -> int:
        """The next free leaf; when all were used, the open sequences move to the front, which frees half of the leaves."""
        if self._next == self._size:
            rooms = [self._tree[leaf] for leaf in self._pieces]
            moved = list(self._pieces.values())
            self._pieces.clear()
            self._tree = [0] * len(self._tree)
            for place, (room, held) in enumerate(zip(rooms, moved, strict=True)):
                self._pieces[self._size + place] = held
                self._set(self._size + place, room)
            self._next = len(moved)
        self._next += 1
        return self._size + self._next - 1


class BestFitWrap:
    """Best fit that cuts instead of padding.

    A document goes whole into the open sequence with the least sufficient room. Where none has room, a new sequence is opened
    while fewer than `bins` are open; else the fullest is completed with the head of the document, and the rest goes on. So every
    sequence is full before the flush, unless `max_documents` is reached. The flush fills the fullest out of the emptiest.
    """

    def __init__(self, capacity: int, bins: int, max_documents: int | None = None) -> None:
        self._capacity = capacity
        self._bins = bins
        self._most = 3 * max_documents if max_documents is not None else 1 << 62
        self._rooms: list[int] = []  # as in BestFit
        self._pieces: dict[int, list[int]] = {}
        self._serial = 0
        self._last = -1

    def add(self, documents: I64, lengths: I64) -> Packed:
        """See `Packer`. A tight loop: about 1 µs per document."""
        out = _Out()
        capacity, rooms, pieces, most = self._capacity, self._rooms, self._pieces, self._most
        for document, whole in zip(documents.tolist(), lengths.tolist(), strict=True):
            start, length = 0, whole
            while length >= capacity:
                out.put((document, start, capacity), document)
                start += capacity
                length -= capacity
            while length:
                place = bisect_left(rooms, length << _SERIAL_BITS)
                if place == len(rooms) and place < self._bins:
                    serial, room = self._serial, capacity
                    self._serial += 1
                    pieces[serial] = held = []
                else:
                    found = rooms.pop(place if place < len(rooms) else 0)
                    serial, room = found & _SERIAL_MASK, found >> _SERIAL_BITS
                    held = pieces[serial]
                taken = min(length, room)
                held += (document, start, taken)
                start += taken
                length -= taken
                if taken < room and len(held) < most:
                    insort(rooms, (room - taken) << _SERIAL_BITS | serial)
                else:
                    out.put(pieces.pop(serial), document)
        self._last = int(documents[-1]) if len(documents) else self._last
        return out.packed()

    def flush(self) -> Packed:
        """See `Packer`: only the last sequence has room left, unless `max_documents` is reached."""
        out = _Out()
        rooms = [found >> _SERIAL_BITS for found in self._rooms]
        queue = [self._pieces[found & _SERIAL_MASK] for found in self._rooms]
        first, last = 0, len(queue) - 1
        while first <= last:
            held = queue[first]
            while rooms[first] and len(held) < self._most and first < last:
                donor = queue[last]
                document, start, length = donor[:3]
                taken = min(rooms[first], length)
                held += (document, start, taken)
                donor[:3] = [document, start + taken, length - taken] if taken < length else []
                rooms[first] -= taken
                last -= not donor
            out.put(held, self._last)
            first += 1
        self._rooms, self._pieces = [], {}
        return out.packed()

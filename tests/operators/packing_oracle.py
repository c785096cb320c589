"""Packing written down rule by rule, with lists of lists; slow on purpose."""

from __future__ import annotations

Piece = tuple[int, int, int]
"""(document, start, length)."""
Sequence = list[Piece]


class Oracle:
    """One algorithm, document by document."""

    def __init__(self, algorithm: str, capacity: int, *, bins: int, max_documents: int | None) -> None:
        self.algorithm = algorithm
        self.capacity = capacity
        self.bins = bins if algorithm != "wrap" else 1
        self.most = max_documents or 10**9
        self.open: list[Sequence] = []  # in the order of opening
        self.out: list[Sequence] = []

    def room(self, sequence: Sequence) -> int:
        return self.capacity - sum(length for _, _, length in sequence)

    def put(self, sequence: Sequence, piece: Piece) -> None:
        sequence.append(piece)
        if self.room(sequence) == 0 or len(sequence) == self.most:
            self.open = [s for s in self.open if s is not sequence]
            self.out.append(sequence)

    def new(self) -> Sequence:
        self.open.append([])
        return self.open[-1]

    def fullest(self) -> Sequence:
        return min(self.open, key=self.room)  # the first of equals

    def add(self, document: int, length: int) -> None:
        start = 0
        if self.algorithm == "wrap":
            while length:
                target = self.open[0] if self.open else self.new()
                taken = min(length, self.room(target))
                self.put(target, (document, start, taken))
                start, length = start + taken, length - taken
            return
        while length >= self.capacity:
            self.out.append([(document, start, self.capacity)])
            start, length = start + self.capacity, length - self.capacity
        while length:
            enough = [s for s in self.open if self.room(s) >= length]
            if enough:
                target = enough[0] if self.algorithm == "first_fit" else min(enough, key=self.room)
            elif len(self.open) < self.bins:
                target = self.new()
            elif self.algorithm == "best_fit_wrap":
                target = self.fullest()
            else:
                closed = self.fullest()
                self.open = [s for s in self.open if s is not closed]
                self.out.append(closed)
                target = self.new()
            taken = min(length, self.room(target))
            self.put(target, (document, start, taken))
            start, length = start + taken, length - taken

    def flush(self) -> list[Sequence]:
        if self.algorithm != "best_fit_wrap":
            rest, self.open = self.open, []
            return rest
        queue = sorted(self.open, key=self.room)  # stable: the first opened of equals first
        self.open = []
        rest = []
        while queue:
            target = queue.pop(0)
            while queue and self.room(target) and len(target) < self.most:
                document, start, length = queue[-1].pop(0)
                taken = min(length, self.room(target))
                target.append((document, start, taken))
                if taken < length:
                    queue[-1].insert(0, (document, start + taken, length - taken))
                if not queue[-1]:
                    queue.pop()
            rest.append(target)
        return rest

"""Streaming best fit with budgets, written down as plainly as possible: a list of open bins, looked through for each document."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from zephon_vision._pack_bins import NO_LIMIT, Limits


def pack(documents: Sequence[tuple[int, int, int]], limits: Limits) -> tuple[list[list[int]], list[int]]:
    """(sequences in the order in which they are emitted, documents given up)."""
    emitted: list[list[int]] = []
    given_up: list[int] = []
    waiting: list[int] = []
    bins: list[tuple[int, list[int]]] = []  # in the order of opening: (the document that opened it, documents)

    def total(held: Sequence[int], which: int) -> int:
        return sum(documents[n][which] for n in held)

    def room(held: Sequence[int]) -> int:
        return limits.tokens - total(held, 0)

    def least_share(held: Sequence[int]) -> Fraction:
        tokens_left = Fraction(room(held), limits.tokens)
        if limits.blocks == NO_LIMIT:
            return tokens_left
        return min(tokens_left, Fraction(limits.blocks - total(held, 1), limits.blocks))

    def emit(place: int) -> None:
        emitted.append(bins.pop(place)[1])

    def close_if_full(place: int) -> None:
        if room(bins[place][1]) < max(limits.least_room, 1):
            emit(place)

    for number, (tokens, blocks, images) in enumerate(documents):
        while limits.max_age is not None and bins and number - bins[0][0] >= limits.max_age:
            emit(0)
        fitting = [
            place
            for place, (_, held) in enumerate(bins)
            if room(held) >= tokens and total(held, 1) + blocks <= limits.blocks and total(held, 2) + images <= limits.images
        ]
        if fitting:
            place = min(fitting, key=lambda p: (room(bins[p][1]), p))
            bins[place][1].append(number)
            close_if_full(place)
            continue
        if limits.ensure_image and not images:
            waiting.append(number)
            if len(waiting) > limits.waiting:
                given_up.append(waiting.pop(0))
            continue
        if len(bins) == limits.bins:
            emit(min(range(len(bins)), key=lambda p: (least_share(bins[p][1]), room(bins[p][1]), p)))
        bins.append((number, [number]))
        for other in list(waiting):
            if documents[other][0] <= room(bins[-1][1]):
                bins[-1][1].append(other)
                waiting.remove(other)
        close_if_full(len(bins) - 1)
    return emitted + [held for _, held in bins], given_up + waiting

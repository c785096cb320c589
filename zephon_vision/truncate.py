"""Documents that are too long: where to cut them, never inside an image's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from zephon_vision.chat.base import IMAGE, SPECIAL, TEXT

Cut = tuple[int, int, int]
"""`(piece, start, stop)`: the tokens [start, stop) of one piece."""


def cut_document(kinds: Sequence[int], lengths: Sequence[int], limit: int, *, split: bool) -> list[list[Cut]]:
    """Cut a document without roles into documents of at most `limit` tokens.

    Special tokens at its beginning and end (BOS, EOS) frame each document that comes out. Text is cut anywhere, images go whole.

    Args:
        kinds: of the pieces in order: TEXT, IMAGE or SPECIAL.
        lengths: tokens of each piece.
        limit: the most tokens of a document, frame included.
        split: go on in a new document. Else what does not fit is left out: from the cut on, or from the first image that does not fit.

    Returns:
        the documents, each as pieces in order. An image that fits in no document is left out of the split ones.
    """
    first, last = 0, len(kinds)
    while first < last and kinds[first] == SPECIAL:
        first += 1
    while last > first and kinds[last - 1] == SPECIAL:
        last -= 1
    before = [(p, 0, lengths[p]) for p in range(first)]
    after = [(p, 0, lengths[p]) for p in range(last, len(kinds))]
    room = limit - sum(lengths[:first]) - sum(lengths[last:])
    bodies = _fill(kinds, lengths, range(first, last), room, split=split) if room > 0 else []
    return [[*before, *body, *after] for body in bodies]


def _fill(kinds: Sequence[int], lengths: Sequence[int], pieces: Sequence[int], room: int, *, split: bool) -> list[list[Cut]]:
    bodies: list[list[Cut]] = []
    body: list[Cut] = []
    free = room
    for piece in pieces:
        start, stop = 0, lengths[piece]
        while start < stop:
            size = stop - start
            if size <= free:
                body.append((piece, start, stop))
                free -= size
                break
            if kinds[piece] == TEXT and free:
                body.append((piece, start, start + free))
                start += free
            elif size > room and kinds[piece] != TEXT:
                if not split:
                    return [body] if body else []
                break  # it fits nowhere
            if not split:
                return [body] if body else []
            bodies.append(body)
            body, free = [], room
    if body:
        bodies.append(body)
    return bodies


def cut_chat(kinds: Sequence[int], lengths: Sequence[int], turns: Sequence[int], limit: int) -> list[Cut]:
    """Cut a chat to at most `limit` tokens.

    It ends with the last answer that fits whole; where not even the first one does, inside it. A chat is never split: the rest of an
    answer, or a question without its answer, is no example.

    Args:
        kinds, lengths: of the pieces in order.
        turns: how many pieces there are at the end of each trained turn.
        limit: the most tokens.

    Returns:
        what stays.
    """
    ends, total = [0], 0
    for length in lengths:
        total += length
        ends.append(total)
    whole = [turn for turn in turns if ends[turn] <= limit]
    if whole:
        return [(piece, 0, lengths[piece]) for piece in range(whole[-1])]
    made: list[Cut] = []
    free = limit
    for piece, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
        if length > free and kind == IMAGE:
            break
        if min(length, free):
            made.append((piece, 0, min(length, free)))
        free -= min(length, free)
        if not free:
            break
    return made

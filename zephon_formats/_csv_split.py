"""Where the records of a CSV text begin: line ends count unless they are inside quotes.

A quote opens a field only at the field's beginning, as in RFC 4180, Python's `csv` and Arrow; elsewhere it is a character like any other.
"""

from __future__ import annotations

import numpy as np

from zephon.plugin import DataError
from zephon_formats._bytes import I64

_LF, _CR = 10, 13


class RecordStarts:
    """Finds the starts of the records that are not blank, in blocks of any size.

    A record ends at LF, CRLF or CR. The state between blocks is one bit (inside quotes or not) and the last byte.
    """

    def __init__(self, base: int, *, delimiter: int, quote: int | None, header: bool) -> None:
        self._base = self._open = base
        self._quote, self._header = quote, header
        self._field_begins = np.zeros(257, dtype=np.bool_)  # after which byte a field begins; 256 is the text's beginning
        self._field_begins[[_LF, _CR, delimiter, 256]] = True
        self._held = b""
        self._last = 256
        self._last_closed = False  # the last byte is a quote that closed a field: one more makes it a quote inside the field
        self._inside = False
        self._opened = 0
        self._parts: list[I64] = []

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the text."""
        block = self._held + block
        # whether CR is a line end by itself, the next byte tells
        self._held = b"\r" if block.endswith(b"\r") else b""
        self._take(block[:-1] if self._held else block)

    def finish(self) -> I64:
        """The starts, in order, and the end of the text: int64[records + 1]; the header is left out.

        Raises:
            DataError: the text ends inside quotes.
        """
        self._take(self._held)
        if self._inside:
            raise DataError(
                f"the quote at byte {self._opened} is never closed",
                hint="was the file written to its end? quote=None takes quotes as text",
            )
        last = [self._open] if self._open < self._base else []
        starts = np.concatenate([*self._parts, np.array([*last, self._base], dtype=np.int64)])
        kept: I64 = starts[1:] if self._header and len(starts) > 1 else starts
        return kept

    def _take(self, block: bytes) -> None:
        if not block:
            return
        data = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(data == _LF)
        if b"\r" in block:
            returns = np.flatnonzero(data == _CR)
            alone = returns[data[np.minimum(returns + 1, len(data) - 1)] != _LF]
            if len(alone):
                ends = np.sort(np.concatenate([ends, alone]))
        turns = self._turns(data, block)
        if len(turns) or self._inside:
            ends = ends[(np.searchsorted(turns, ends) + self._inside) % 2 == 0]
        if len(ends):
            self._add(data, ends)
        if len(turns):
            self._inside ^= bool(len(turns) % 2)
            if self._inside:
                self._opened = self._base + int(turns[-1])
        self._last = int(data[-1])
        self._last_closed = bool(len(turns)) and not self._inside and int(turns[-1]) == len(data) - 1
        self._base += len(block)

    def _add(self, data: np.ndarray[tuple[int], np.dtype[np.uint8]], ends: I64) -> None:
        starts = np.concatenate([[self._open], ends[:-1] + (self._base + 1)]).astype(np.int64)
        length = ends + self._base - starts
        blank = (length == 0) | ((length == 1) & (ends > 0) & (data[ends] == _LF) & (data[ends - 1] == _CR))
        self._parts.append(starts[~blank])
        self._open = self._base + int(ends[-1]) + 1

    def _turns(self, data: np.ndarray[tuple[int], np.dtype[np.uint8]], block: bytes) -> I64:
        """Where quotes open and close fields by turns. A doubled quote closes and opens again, which comes to the same."""
        if self._quote is None or self._quote not in block:
            return np.zeros(0, dtype=np.int64)
        quotes = np.flatnonzero(data == self._quote)
        before = np.empty(len(quotes), dtype=np.int64)
        before[:] = data[quotes - 1]
        if quotes[0] == 0:
            before[0] = self._last
        begins = self._field_begins[before]
        doubled = np.zeros(len(quotes), dtype=np.bool_)
        doubled[1:] = np.diff(quotes) == 1
        doubled[0] = quotes[0] == 0 and self._last_closed
        opening = np.arange(len(quotes)) % 2 == int(self._inside)
        if (begins | doubled)[opening].all():
            return quotes
        # a quote in the middle of an unquoted field is rare, so this may be slow
        return quotes[_kept(begins.tolist(), doubled.tolist(), self._inside)]


def _kept(begins: list[bool], doubled: list[bool], inside: bool) -> I64:
    """The numbers of the quotes that open or close a field, one quote after the other."""
    kept = []
    closed = True  # the quote before this one closed a field; where there is none in this block, `doubled` knows
    for number, begin in enumerate(begins):
        if inside:
            inside = False
            closed = True
            kept.append(number)
        elif begin or (doubled[number] and closed):
            inside = True
            kept.append(number)
        else:
            closed = False
    return np.array(kept, dtype=np.int64)


def raw_fields(record: bytes, delimiter: bytes, quote: bytes | None) -> list[bytes]:
    """The fields of one record (without its line end) as they are written, quotes and all."""
    fields = []
    start = 0
    while True:
        at = start
        if quote is not None and record.startswith(quote, at):
            at += 1
            while (found := record.find(quote, at)) >= 0 and record.startswith(quote, found + 1):
                at = found + 2
            at = len(record) if found < 0 else found + 1
        stop = record.find(delimiter, at)
        if stop < 0:
            fields.append(record[start:])
            return fields
        fields.append(record[start:stop])
        start = stop + 1


def plain_field(field: bytes, quote: bytes | None) -> bytes:
    """A field's content: without the quotes around it, and doubled ones inside made single."""
    if quote is None or not field.startswith(quote):
        return field
    at = 1
    while (found := field.find(quote, at)) >= 0 and field.startswith(quote, found + 1):
        at = found + 2
    inner, rest = (field[1:], b"") if found < 0 else (field[1:found], field[found + 1 :])
    return inner.replace(quote * 2, quote) + rest

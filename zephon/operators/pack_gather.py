"""The heavy half of packing: copy the tokens of decided sequences into place, in as few slice copies as there are runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon import groups
from zephon.arrays import to_arrow, to_numpy
from zephon.errors import DataError, InternalError
from zephon.gathers import gather_ranges

Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


_LISTS = {
    groups.LENGTHS: ("length", pa.int32()),
    groups.DOC_COMPONENT: ("component", pa.int32()),
    groups.DOC_SHARD: ("shard", pa.int32()),
    groups.DOC_ROW: ("origin", pa.int64()),
    groups.DOC_START: ("start", pa.int64()),
}
"""The list columns of a sequence, one element per document piece, and the field of `groups.PIECE` that each comes from."""

PIECE_FIELDS: tuple[Any, ...] = (
    pa.field(groups.PADDING, pa.int32()),
    *(pa.field(n, pa.list_(kind)) for n, (_, kind) in _LISTS.items()),
)


class GatherSequences:
    """`(decision rows, sources) -> group`: each row exactly `length` tokens, pad tokens last.

    A token column is null in rows none of whose documents have it; where some have, the others count as 1 in the loss mask, else as 0.
    """

    def __init__(self, *, length: int, pad: int, columns: Sequence[str]) -> None:
        self._length = length
        self._pad = pad
        self._columns = columns

    def __call__(self, rows: pa.RecordBatch, sources: Mapping[int, pa.RecordBatch]) -> pa.RecordBatch:
        """Gather; what comes back shares no memory with the sources."""
        return self._gather(_Pieces(rows, self._length), groups.ints(rows, groups.PADDING), sources, in_order=False)

    def of_documents(self, rows: pa.RecordBatch, documents: pa.RecordBatch) -> pa.RecordBatch:
        """The same where piece i is all of row i of `documents`: then the values of a column lie in order already."""
        pieces = _Pieces(rows, self._length, of_documents=True)
        return self._gather(pieces, groups.ints(rows, groups.PADDING), {0: documents}, in_order=True)

    def _gather(
        self, pieces: _Pieces, padding: Ints, sources: Mapping[int, pa.RecordBatch], *, in_order: bool
    ) -> pa.RecordBatch:
        columns: dict[str, Any] = {}
        for name in (groups.TOKENS, *self._columns):
            tokens = name == groups.TOKENS
            having = sources if tokens else {n: g for n, g in sources.items() if g.schema.get_field_index(name) >= 0}
            if not tokens and not having:
                continue
            values = _in_order(groups.column(having[0], name), pieces) if in_order else None
            if values is not None:
                columns[name] = self._padded(name, pieces, values)
            else:
                columns[name] = self._tokens(pieces, padding, having) if tokens else self._column(name, pieces, padding, having)
        return _group(pieces, padding, columns)

    def _padded(self, name: str, pieces: _Pieces, values: Ints) -> Any:
        tokens, mask = name == groups.TOKENS, name == groups.LOSS_MASK
        values = _as_int32(values) if tokens else _check_numbers(values)
        out = np.empty(pieces.rows * self._length, dtype=np.uint8 if mask else values.dtype)
        for row, (begin, end) in enumerate(itertools.pairwise(pieces.row_ends.tolist())):
            first = row * self._length
            out[first : first + end - begin] = values[begin:end]
            out[first + end - begin : first + self._length] = self._pad if tokens else 0
        return self._as_list(out)

    def _tokens(self, pieces: _Pieces, padding: Ints, sources: Mapping[int, pa.RecordBatch]) -> Any:
        numbers = list(sources)
        spans = [groups.list_spans(groups.column(sources[n], groups.TOKENS)) for n in numbers]
        place = np.zeros(max(numbers, default=0) + 1, dtype=np.int32)
        first_row = np.zeros(len(place), dtype=np.int64)
        rows = 0
        for k, (number, (row_begin, _, _)) in enumerate(zip(numbers, spans, strict=True)):
            place[number], first_row[number] = k, rows
            rows += len(row_begin)
        which = place[pieces.source]
        every = np.concatenate([row_begin for row_begin, _, _ in spans]) if spans else first_row
        begin = every[first_row[pieces.source] + pieces.source_row] + pieces.start
        arrays: list[Ints] = []
        for k, (_, _, values) in enumerate(spans):
            if values.dtype != np.int32 or len(values) >= 2**29:
                # only what is between the first and the last piece: a list may show little of a large buffer
                mine = np.flatnonzero(which == k)
                first, last = int(begin[mine].min()), int((begin + pieces.length)[mine].max())
                begin[mine] -= first
                values = _as_int32(values[first:last])
            arrays.append(values)
        tails = np.flatnonzero(padding)
        end = pieces.offsets[tails + 1]
        arrays.append(np.full(self._length if len(tails) else 0, self._pad, dtype=np.int32))
        length = pieces.length
        if len(tails):
            which, begin = np.insert(which, end, len(arrays) - 1), np.insert(begin, end, 0)
            length = np.insert(length, end, padding[tails])
        out = gather_ranges(arrays, which, begin, length)
        return self._as_list(out)

    def _column(self, name: str, pieces: _Pieces, padding: Ints, having: Mapping[int, pa.RecordBatch]) -> Any:
        parts = {n: groups.list_spans(groups.column(g, name)) for n, g in having.items()}
        dtype = (
            np.dtype(np.uint8)
            if name == groups.LOSS_MASK
            else np.result_type(*(values.dtype for _, _, values in parts.values()))
        )
        missing = 1 if name == groups.LOSS_MASK else 0
        out = np.full(pieces.rows * self._length, missing, dtype=dtype)
        _fill_tails(out, padding, self._length, 0)
        there = pieces.copy(parts, out, _check_numbers)
        row_has = np.zeros(pieces.rows, dtype=bool)
        row_has[pieces.row[there]] = True
        return self._as_list(out, None if row_has.all() else row_has)

    def _as_list(self, values: Any, valid: Bools | None = None) -> Any:
        rows = len(values) // self._length
        if valid is not None:
            kept = np.repeat(valid, self._length)
            offsets = np.concatenate([[0], np.cumsum(np.where(valid, self._length, 0))]).astype(np.int32)
            make: Any = pa.ListArray.from_arrays
            return make(to_arrow(offsets), to_arrow(values[kept]), mask=to_arrow(~valid))
        if len(values) >= 2**31:
            raise DataError(
                f"{rows} sequences of {self._length} tokens are too many for one group",
                hint="lower chunk_size or flush more often",
            )
        return groups.make_list(np.arange(rows + 1, dtype=np.int64) * self._length, values)


def _group(pieces: _Pieces, padding: Ints, columns: Mapping[str, Any]) -> pa.RecordBatch:
    fields = [pa.field(name, array.type) for name, array in columns.items()]
    ends = to_arrow(pieces.offsets.astype(np.int32))
    make: Any = pa.ListArray.from_arrays
    lists = [make(ends, to_arrow(pieces.all[field])) for field, _ in _LISTS.values()]
    return pa.RecordBatch.from_arrays(
        [*columns.values(), to_arrow(padding), *lists], schema=pa.schema([*fields, *PIECE_FIELDS])
    )


def _in_order(array: Any, pieces: _Pieces) -> Ints | None:
    """The values of a list column whose row i is piece i; None where it isn't as simple as that."""
    if not pa.types.is_list(array.type) or array.null_count or array.values.null_count:
        return None
    offsets = to_numpy(array.offsets)
    if len(offsets) != len(pieces.length) + 1 or (offsets[1:] - offsets[:-1] != pieces.length).any():
        return None
    return to_numpy(array.values)[int(offsets[0]) : int(offsets[-1])]


class _Pieces:
    """The document pieces of some decision rows, and where each goes in the flat output."""

    def __init__(self, rows: pa.RecordBatch, length: int, *, of_documents: bool = False) -> None:
        self.offsets, self.all = groups.list_pieces(rows)
        self.rows = rows.num_rows
        self._width = length
        self.length = self.all["length"].astype(np.int64)
        self._of_documents = of_documents
        self._ends = np.zeros(len(self.length) + 1, dtype=np.int64)
        np.cumsum(self.length, out=self._ends[1:])
        self.row_ends = self._ends[self.offsets]
        """Where each sequence begins among the tokens of all pieces, and the last one ends."""
        if (self.row_ends[1:] - self.row_ends[:-1] + groups.ints(rows, groups.PADDING) != length).any():
            raise InternalError("document lengths and padding of a decision don't add up to the sequence length")

    @cached_property
    def source(self) -> Ints:
        """The number of each piece's source."""
        return np.zeros(len(self.length), np.int32) if self._of_documents else self.all["source"]

    @cached_property
    def source_row(self) -> Ints:
        """Its row there."""
        return np.arange(len(self.length)) if self._of_documents else self.all["row"]

    @cached_property
    def start(self) -> Ints:
        """Its first token in that row."""
        return self.all["start"]

    @cached_property
    def row(self) -> Ints:
        """The sequence of each piece."""
        return np.repeat(np.arange(self.rows, dtype=np.int64), np.diff(self.offsets))

    @cached_property
    def target(self) -> Ints:
        """Where each piece goes in the flat output."""
        places: Ints = self._ends[:-1] - self._ends[self.offsets[:-1]][self.row] + self.row * self._width
        return places

    def copy(self, parts: Mapping[int, tuple[Ints, Ints, Ints]], out: Ints, check: Callable[[Ints], Ints]) -> Bools:
        """Copy the pieces whose source has the column; which those were, bool[P].

        A null list has no values: it is taken as missing.
        """
        begin = np.zeros(len(self.length), dtype=np.int64)
        there = np.zeros(len(self.length), dtype=bool)
        values = {}
        for number, (row_begin, row_length, data) in parts.items():
            mine = np.flatnonzero(self.source == number)
            row = self.source_row[mine]
            begin[mine] = row_begin[row] + self.start[mine]
            there[mine] = row_length[row] > 0
            values[number] = check(data)
        used = np.flatnonzero(there)
        source, begin, target, length = self.source[used], begin[used], self.target[used], self.length[used]
        # neighbours that follow each other in the source and in the output are one copy; `wrap` copies whole groups at once
        follows = (
            (source[1:] == source[:-1]) & (begin[1:] == begin[:-1] + length[:-1]) & (target[1:] == target[:-1] + length[:-1])
        )
        first = np.flatnonzero(np.append(True, ~follows)) if len(used) else used
        sizes = np.add.reduceat(length, first) if len(used) else length
        for n, b, t, size in zip(
            source[first].tolist(), begin[first].tolist(), target[first].tolist(), sizes.tolist(), strict=True
        ):
            out[t : t + size] = values[n][b : b + size]
        return there


def _fill_tails(out: Ints, padding: Ints, length: int, value: int) -> None:
    for row in np.flatnonzero(padding).tolist():
        out[(row + 1) * length - int(padding[row]) : (row + 1) * length] = value


def _as_int32(values: Ints) -> Ints:
    if values.dtype == np.int32:
        return values
    if values.dtype.kind not in "iu":
        raise DataError(f"token ids must be integers, not {values.dtype}")
    if not np.can_cast(values.dtype, np.int32) and len(values) and (int(values.min()) < -(2**31) or int(values.max()) >= 2**31):
        worst = int(values.max()) if int(values.max()) >= 2**31 else int(values.min())
        raise DataError(f"token id {worst} does not fit int32")
    return values.astype(np.int32)


def _check_numbers(values: Ints) -> Ints:
    if values.dtype.kind not in "iufb":
        raise DataError(f"a token column must hold numbers, not {values.dtype}")
    return values

"""A part of a data set: a range of its rows, a filter over them, and where each row that is left stands in its shard."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from zephon.arrays import refusal
from zephon.atomic import write_whole
from zephon.errors import DataError, RecipeError
from zephon.plan.units import UnitTable

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_POSITION = "_position_"
_SLAB = 1 << 15
_POPCOUNT = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)


@dataclass(frozen=True)
class Part:
    """What the user asked for: `rows` or `fraction` (a range of the stored rows), and a filter over the rows of that range."""

    rows: tuple[int | None, int | None, int] | None = None
    fraction: tuple[float, float] | None = None
    expression: Any = None

    @classmethod
    def of(cls, rows: slice | None, fraction: float | Sequence[float] | None, expression: Any) -> Part | None:
        """None where nothing is asked for. Raises `RecipeError` for what can't be meant."""
        if rows is None and fraction is None and expression is None:
            return None
        if rows is not None and fraction is not None:
            raise RecipeError("rows= and fraction= both choose a range of rows; give one of them")
        if expression is not None:
            from pyarrow.compute import Expression  # noqa: PLC0415 - 90 ms that data sets without a filter need not pay

            if not isinstance(expression, Expression):
                raise RecipeError(
                    f"filter must be a pyarrow.compute.Expression, got {type(expression).__name__}",
                    hint='for example filter=pc.field("score") > 0.5; for a Python function use Pipeline.filter(fn)',
                )
            try:
                pickle.dumps(expression)
            except pa.ArrowException as error:
                raise RecipeError(
                    f"filter {expression!s} can't be used: {error}", hint='name the columns: pc.field("name")'
                ) from error
        return cls(
            None if rows is None else _check_rows(rows), None if fraction is None else _check_fraction(fraction), expression
        )

    def span(self, total: int) -> range:
        """The positions that `rows` or `fraction` takes of `total` rows."""
        if self.rows is not None:
            return range(total)[slice(*self.rows)]
        if self.fraction is not None:
            # the nearest border, so that (0, f) and (f, 1) share no row and leave none out
            low, high = (min(total, math.floor(f * total + 0.5)) for f in self.fraction)
            return range(low, high)
        return range(total)

    def recipe(self) -> dict[str, Any]:
        """As plain values, for the recipe."""
        text = None if self.expression is None else str(self.expression)
        if text is not None and len(text) > 200:
            text = f"{text[:180]}… #{xxhash.xxh3_64_hexdigest(text.encode())}"
        return {
            "rows": None if self.rows is None else list(self.rows),
            "fraction": None if self.fraction is None else list(self.fraction),
            "filter": text,
        }

    def key(self) -> bytes:
        """The part in full: an expression's text leaves out the middle of long lists."""
        return pickle.dumps((self.rows, self.fraction, self.expression), protocol=4)


def _check_rows(rows: Any) -> tuple[int | None, int | None, int]:
    if not isinstance(rows, slice):
        raise RecipeError(f"rows must be a slice, got {rows!r}", hint="for example rows=slice(0, 1000)")
    try:
        start, stop, step = (None if v is None else operator.index(v) for v in (rows.start, rows.stop, rows.step))
    except TypeError as error:
        raise RecipeError(f"rows={rows!r}: start, stop and step must be integers or None") from error
    if step is not None and step < 1:
        raise RecipeError(
            f"rows={rows!r}: the step must be 1 or more", hint="rows are shuffled by the plan, not by the data set"
        )
    return start, stop, step or 1


def _check_fraction(fraction: Any) -> tuple[float, float]:
    pair = (0.0, fraction) if isinstance(fraction, int | float) else fraction
    try:
        low, high = (float(f) for f in pair)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"fraction must be a number or two of them, got {fraction!r}") from error
    if not 0 <= low <= high <= 1:
        raise RecipeError(f"fraction={fraction!r} is not in [0, 1], or runs backwards", hint="for example 0.1, or (0.9, 1.0)")
    return low, high


class Kept:
    """A set of positions in [0, size), a bit each, with a count per 64 of them: 1.5 bits a position, 190 MB for 10^9.

    Args:
        packed: the bits, lowest first, as `numpy.packbits(…, bitorder="little")` makes them.
        size: how many positions there are.
    """

    def __init__(self, packed: npt.NDArray[np.uint8], size: int) -> None:
        self.size = size
        words = size // 64 + 1  # one more than needed, so that `rank(size)` has a word to look at
        filled = np.zeros(words * 8, dtype=np.uint8)
        filled[: len(packed)] = packed
        self._bytes = filled.reshape(words, 8)
        per_word = np.zeros(words + 1, dtype=np.int64)
        for start in range(0, words, 1 << 20):
            block = _POPCOUNT[self._bytes[start : start + (1 << 20)]]
            per_word[start + 1 : start + 1 + len(block)] = block.sum(axis=1, dtype=np.int64)
        total = np.cumsum(per_word)
        self._before = total if total[-1] >= 2**32 else total.astype(np.uint32)
        self.count = int(total[-1])

    def select(self, k: I64) -> I64:
        """The position of the k-th kept one, for each k in [0, count)."""
        out = np.empty(len(k), dtype=np.int64)
        for start in range(0, len(k), _SLAB):
            out[start : start + _SLAB] = self._select(k[start : start + _SLAB])
        return out

    def _select(self, k: I64) -> I64:
        # of the table's own type: else numpy converts the whole table for each call
        word = np.searchsorted(self._before, k.astype(self._before.dtype), side="right") - 1
        rest = k - self._before[word].astype(np.int64)
        bits = np.unpackbits(self._bytes[word], axis=1, bitorder="little")
        seen = np.cumsum(bits, axis=1, dtype=np.uint8)
        found: I64 = word * 64 + np.argmax(seen > rest[:, None], axis=1)
        return found

    def between(self, start: int, stop: int) -> I64:
        """The positions of the kept ones number [start, stop)."""
        if start >= stop:
            return np.zeros(0, dtype=np.int64)
        first, last = np.searchsorted(self._before, np.array([start, stop - 1], self._before.dtype), side="right") - 1
        bits = np.unpackbits(self._bytes[first : last + 1].ravel(), bitorder="little")
        found: I64 = np.flatnonzero(bits) + int(first) * 64
        begin = start - int(self._before[first])
        return found[begin : begin + stop - start]

    def rank(self, position: I64) -> I64:
        """How many kept ones are below each position in [0, size]."""
        word, bit = position >> 6, position & 63
        mask = (np.uint64(1) << bit.astype(np.uint64)) - np.uint64(1)
        part = self._bytes[word].view("<u8").ravel() & mask
        inside = _POPCOUNT[np.ascontiguousarray(part).view(np.uint8).reshape(-1, 8)].sum(axis=1, dtype=np.int64)
        below: I64 = self._before[word].astype(np.int64) + inside
        return below

    @property
    def packed(self) -> npt.NDArray[np.uint8]:
        """The bits, ceil(size / 8) bytes."""
        return self._bytes.ravel()[: -(-self.size // 8)]

    @property
    def digest(self) -> str:
        """A hash of the set."""
        return xxhash.xxh3_64_hexdigest(self.packed.data)


class Selection:
    """The rows of a part, unit by unit. `units` is what planning sees; `number` and `shard` in it are the stored unit's.

    Args:
        table: all stored units.
        span: the stored rows (counted over the whole data set) that a range takes.
        kept: which of these a filter leaves; None: all.
    """

    def __init__(self, table: UnitTable, span: range, kept: Kept | None) -> None:
        self._span, self._kept = span, kept
        start = np.cumsum(table.rows) - table.rows
        first, last = self._below(start), self._below(start + table.rows)
        counts = last - first
        here = np.flatnonzero(counts)
        self._first = first[here]
        self._start = start[here]
        self._shard_start = table.first_row[here] - self._start
        share = counts[here] / table.rows[here]
        nbytes = np.maximum(1, (table.nbytes[here] * share).astype(np.int64))
        first_row = self._positions(self._first) + self._shard_start
        self.units = UnitTable(counts[here], nbytes, table.shard[here], first_row, table.number[here])

    def _below(self, row: I64) -> I64:
        """How many rows of the part are before each stored row."""
        span = self._span
        inside: I64 = np.clip(-((span.start - row) // span.step), 0, len(span)).astype(np.int64)
        return inside if self._kept is None else self._kept.rank(inside)

    def _positions(self, k: I64) -> I64:
        """The stored row of the k-th row of the part."""
        return self._span.start + self._span.step * (k if self._kept is None else self._kept.select(k))

    def offsets(self, unit: int, start: int, stop: int) -> tuple[int, int, I64 | None]:
        """Where the rows [start, stop) of a unit of the part are in the stored unit: a range of it, and places in that range.

        No places: all of the range.
        """
        if start >= stop:
            return 0, 0, None
        first = int(self._first[unit])
        span = self._span
        if self._kept is None:
            inside: I64 = np.arange(first + start, first + stop, dtype=np.int64)
        else:
            inside = self._kept.between(first + start, first + stop)
        rows = span.start + span.step * inside - int(self._start[unit])
        low, high = int(rows[0]), int(rows[-1]) + 1
        return low, high, None if high - low == stop - start else rows - low

    def row_of(self, unit: npt.ArrayLike, row: npt.ArrayLike) -> I64:
        """The row in its shard of each row of the part, given as a unit of `units` and a row there."""
        units, rows = np.broadcast_arrays(np.asarray(unit, dtype=np.int64), np.asarray(row, dtype=np.int64))
        made: I64 = self._positions((self._first[units] + rows).ravel()) + self._shard_start[units].ravel()
        return made.reshape(units.shape)

    def recipe(self) -> dict[str, Any]:
        """What is left, for the recipe."""
        return {"rows_left": self.units.total_rows} | ({} if self._kept is None else {"left": self._kept.digest})


# ------------------------------------------------------------------------------------------------------------ filters


def columns_of(expression: Any, schema: pa.Schema) -> list[str]:
    """The columns that an expression looks at.

    Raises:
        RecipeError: it doesn't fit the schema (an unknown column, types that can't be compared), or isn't true or false.
    """
    _check(expression, schema)
    text = str(expression)
    names = [name for name in schema.names if name in text]  # its own columns, and perhaps others whose names occur in it
    for name in list(names):
        fewer = [n for n in names if n != name]
        with contextlib.suppress(RecipeError):
            _check(expression, pa.schema([schema.field(n) for n in fewer]))
            names = fewer
    return names


def _check(expression: Any, schema: pa.Schema) -> None:
    if error := refusal(expression, schema):
        raise RecipeError(
            f"filter {expression!s} can't be used on these columns: {error}",
            hint=f"the data set has {', '.join(f'{f.name} ({f.type})' for f in schema) or 'no columns'}",
        ) from error


def _true_rows(expression: Any, table: pa.Table) -> I64:
    """The rows of a table for which an expression is true (neither false nor null), in order."""
    numbers: Any = np.arange(len(table), dtype=np.int64)
    found: I64 = table.append_column(_POSITION, pa.array(numbers)).filter(expression).column(_POSITION).to_numpy()
    return np.sort(found)


def judge(expression: Any, table: pa.Table, step: int) -> Mask:
    """Which of a table's rows 0, step, 2·step, … a filter leaves. Raises `DataError` where Arrow can't evaluate it on these values."""
    mask: Mask = np.zeros(len(table), dtype=bool)
    try:
        mask[_true_rows(expression, table)] = True
    except pa.ArrowException as error:
        raise DataError(f"filter {expression!s} fails: {error}") from error
    return mask[::step]


def evaluate(units: Iterable[tuple[int, slice]], judged: Callable[[int, slice], Mask], size: int) -> Kept:
    """Run a filter over units, several at once.

    Args:
        units: `(unit, the places in it that are in the part's range)`, in order.
        judged: which of the places are kept.
        size: of the range, all units together.
    """
    packed: list[npt.NDArray[np.uint8]] = []
    rest: Mask = np.zeros(0, dtype=bool)
    pool = ThreadPoolExecutor(min(16, (os.cpu_count() or 1) + 2), thread_name_prefix="zephon-filter")
    try:
        for bits, count in pool.map(lambda job: _packed(judged(*job)), units):
            rest = np.concatenate([rest, np.unpackbits(bits, count=count).view(bool)])
            whole = len(rest) // 8 * 8
            packed.append(np.packbits(rest[:whole], bitorder="little"))
            rest = rest[whole:]
    finally:
        pool.shutdown(cancel_futures=True)
    packed.append(np.packbits(rest, bitorder="little"))
    return Kept(np.concatenate(packed), size)


def _packed(mask: Mask) -> tuple[npt.NDArray[np.uint8], int]:
    return np.packbits(mask), len(mask)


def load_kept(path: str, size: int) -> Kept | None:
    """What `save_kept` wrote; None where there is nothing, or it is damaged or of another size."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    bits = data[len(data) - -(-size // 8) :]
    if data != _kept_head(size, bits) + bits:
        return None
    return Kept(np.frombuffer(bits, dtype=np.uint8), size)


def _kept_head(size: int, bits: bytes) -> bytes:
    return f"zephon kept rows 1: {size} {xxhash.xxh3_64_hexdigest(bits)}\n".encode()


def save_kept(path: str, kept: Kept) -> None:
    """Keep the outcome of a filter for the next process; where that isn't possible (a full or read-only disk), it isn't kept."""
    data = kept.packed.tobytes()
    with contextlib.suppress(OSError):
        write_whole(path, [_kept_head(kept.size, data), data])

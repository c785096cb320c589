"""Small operators of each kind, written against the plug-in API like anybody's."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zephon.plugin import DataError, Decision, Drops, LaneWindow, Operator, Outcome, SelectOperator, StatefulOperator, groups


@dataclass(frozen=True, kw_only=True)
class Suffix(Operator):
    """Text with something after it."""

    name: ClassVar[str] = "suffix"
    keeps_rows: ClassVar[bool] = True
    text: str

    def inputs(self) -> tuple[str, ...]:
        return ("text",)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            return groups.set_column(group, "text", pc.binary_join_element_wise(groups.column(group, "text"), self.text, ""))

        return apply


@dataclass(frozen=True, kw_only=True)
class KeepSome(Operator):
    """Leaves out every record whose number is divisible by `of`, and says so."""

    name: ClassVar[str] = "keep_some"
    column: str
    of: int

    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> Outcome:
            gone = groups.ints(group, self.column) % self.of == 0
            return Outcome(groups.take(group, np.flatnonzero(~gone)), dropped(group, np.flatnonzero(gone), "divisible"))

        return apply


@dataclass(frozen=True, kw_only=True)
class LeaveOut(Operator):
    """The same without a word: the engine must notice by itself."""

    name: ClassVar[str] = "leave_out"
    column: str
    of: int

    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def bind(self) -> Any:
        return lambda group: groups.take(group, np.flatnonzero(groups.ints(group, self.column) % self.of != 0))


@dataclass(frozen=True, kw_only=True)
class Copies(Operator):
    """0, 1 or 2 copies of each record, by its number."""

    name: ClassVar[str] = "copies"
    column: str

    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            numbers = groups.ints(group, self.column)
            return groups.take(group, np.repeat(np.arange(len(numbers)), numbers % 3))

        return apply


@dataclass(frozen=True, kw_only=True)
class Encode(Operator):
    """A tokenizer in miniature: one token per character."""

    name: ClassVar[str] = "encode"
    keeps_rows: ClassVar[bool] = True

    def inputs(self) -> tuple[str, ...]:
        return ("text",)

    def token_column(self) -> str:
        return groups.TOKENS

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            tokens = [[ord(c) for c in text] for text in groups.column(group, "text").to_pylist()]
            return groups.set_column(group, groups.TOKENS, pa.array(tokens, pa.list_(pa.int32())))

        return apply

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(pa.field(groups.TOKENS, pa.list_(pa.int32())))


@dataclass(frozen=True, kw_only=True)
class DropLong(Operator):
    """Leaves out documents of more tokens than `limit`, with their tokens."""

    name: ClassVar[str] = "drop_long"
    limit: int

    def inputs(self) -> tuple[str, ...]:
        return (groups.TOKENS,)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> Outcome:
            long = np.diff(groups.list_parts(groups.column(group, groups.TOKENS))[0]) > self.limit
            return Outcome(groups.take(group, np.flatnonzero(~long)), dropped(group, np.flatnonzero(long), "long"))

        return apply


@dataclass(frozen=True, kw_only=True)
class Count(Operator):
    """After packing: how many tokens of each sequence are no padding."""

    name: ClassVar[str] = "count"
    keeps_rows: ClassVar[bool] = True

    def inputs(self) -> tuple[str, ...]:
        return (groups.TOKENS,)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            offsets, values = groups.list_parts(groups.column(group, groups.TOKENS))
            before = np.concatenate([[0], np.cumsum(values != 0)])
            return groups.set_column(group, "real", pa.array(before[offsets[1:]] - before[offsets[:-1]]))

        return apply


@dataclass(frozen=True, kw_only=True)
class FewRows(Operator):
    """Takes no more than `rows` rows at once, like what decodes pictures; changes nothing."""

    name: ClassVar[str] = "few_rows"
    keeps_rows: ClassVar[bool] = True
    rows: int

    @property
    def max_rows(self) -> int | None:  # type: ignore[override]
        return self.rows

    def bind(self) -> Any:
        return lambda group: group


@dataclass(frozen=True, kw_only=True)
class Fragile(Operator):
    """Fails on the records whose `id` is in `bad`; counts nothing, changes nothing."""

    name: ClassVar[str] = "fragile"
    keeps_rows: ClassVar[bool] = True
    bad: tuple[int, ...] = ()

    def inputs(self) -> tuple[str, ...]:
        return ("id",)

    def bind(self) -> Any:
        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            for number in groups.ints(group, "id").tolist():
                if number in self.bad:
                    raise ValueError(f"record {number} is bad")
            return group

        return apply


class Odd(Exception):
    """One that does not survive pickling."""

    def __init__(self, *, lock: object) -> None:
        super().__init__("odd")
        self.lock = lock


@dataclass(frozen=True, kw_only=True)
class Raises(Operator):
    """Fails on the record of this `id`, in a way of its choice."""

    name: ClassVar[str] = "raises"
    bad: int
    how: str

    def inputs(self) -> tuple[str, ...]:
        return ("id",)

    def bind(self) -> Any:
        if self.how == "in bind":
            raise KeyError("vocabulary")
        return self.apply

    def apply(self, group: pa.RecordBatch) -> Any:
        if self.bad in groups.ints(group, "id").tolist():
            if self.how == "lines":
                raise ValueError("first line\nsecond line")
            if self.how == "odd":
                raise Odd(lock=threading.Lock())
            if self.how == "ours":
                raise DataError("not wanted", hint="leave it out")
            if self.how == "result":
                return {"not": "a group"}
            if self.how == "exit":
                raise SystemError("deep")
            return 1 // 0
        return group


@dataclass(frozen=True, kw_only=True)
class BadAccumulator(StatefulOperator):
    """Fails when it sees or flushes a group."""

    name: ClassVar[str] = "bad_accumulator"
    when: str

    def accumulator(self, where: LaneWindow) -> Any:
        return _Bad(self.when)

    def bind(self) -> Any:
        def gather(rows: pa.RecordBatch, sources: Any) -> pa.RecordBatch:
            raise RuntimeError("can't gather")

        return gather


class _Bad:
    nbytes = 0

    def __init__(self, when: str) -> None:
        self.when = when

    def add(self, group: pa.RecordBatch, number: int) -> Iterable[Decision]:
        if self.when == "add":
            raise RuntimeError("can't add")
        if self.when == "gather":
            source = groups.make_list(np.arange(len(group) + 1), np.full(len(group), number, np.int32))
            yield Decision(pa.RecordBatch.from_arrays([source], names=[groups.SOURCE]), {number: group})

    def flush(self) -> Iterable[Decision]:
        if self.when == "flush":
            raise RuntimeError("can't flush")
        return ()


@dataclass(frozen=True, kw_only=True)
class BadSelector(SelectOperator):
    """Chooses a row twice."""

    name: ClassVar[str] = "bad_selector"

    def selector(self, where: LaneWindow) -> Any:
        class Twice:
            def add(self, rows: pa.RecordBatch) -> Any:
                return np.array([0, 0])

            def flush(self) -> Any:
                return np.array([], dtype=np.int64)

        return Twice()


def dropped(group: pa.RecordBatch, rows: Any, reason: str) -> Drops:
    """These rows as drops, with the tokens of each data set where there are any."""
    if not len(rows):
        return Drops()
    tokens: dict[str, dict[int, int]] = {}
    if groups.TOKENS in group.schema.names:
        sizes = np.diff(groups.list_parts(groups.column(group, groups.TOKENS))[0])[rows]
        component = groups.ints(group, groups.COMPONENT)[rows]
        tokens = {reason: {int(c): int(sizes[component == c].sum()) for c in np.unique(component)}}
    return Drops({reason: np.asarray(rows, dtype=np.int64)}, tokens)

"""Which bytes of a record batch hold some of its columns, or some of its rows, so that no others need be fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from zephon.plugin import DataError
from zephon_formats._arrow_messages import Message

Range = tuple[int, int]

_GAP = 128 << 10  # what lies between two ranges is fetched with them where that is less than a request costs


class Bytes(Protocol):
    """Bytes of a file by their place in it."""

    def get(self, start: int, stop: int) -> pa.Buffer:
        """The bytes [start, stop), without a copy. They were filled before."""
        ...

    def fill(self, ranges: Sequence[Range]) -> None:
        """Fetch these ranges."""
        ...


@dataclass
class Node:
    """A column or a part of one: its type, the places of its buffers in the file, and its children."""

    kind: pa.DataType
    buffers: list[Range]
    children: list[Node] = field(default_factory=list)

    def everything(self) -> Iterator[Range]:
        """All ranges of it and its children."""
        yield from self.buffers
        for child in self.children:
            yield from child.everything()


def nodes_of(message: Message, schema: pa.Schema) -> list[Node] | None:
    """The columns of a batch with the places of their buffers; None where the header doesn't have as many as the schema needs.

    Raises:
        DataError: a buffer lies outside the body.
    """
    try:
        places = message.buffers + np.array([message.body, 0])
        places[:, 1] += places[:, 0]
        variadic = iter(message.variadic)
    except ValueError as error:
        raise DataError(f"the message at byte {message.start} is damaged: {error}") from None
    if ((places[:, 0] < message.body) | (places[:, 1] < places[:, 0]) | (places[:, 1] > message.stop)).any():
        raise DataError(f"the message at byte {message.start} is damaged: a buffer lies outside its body")
    ranges = [(int(a), int(b)) for a, b in places]
    cursor = _Cursor(ranges, variadic, message.old_unions)
    try:
        made = [cursor.node(f.type) for f in schema]
    except (StopIteration, IndexError):
        return None
    return made if cursor.at == len(ranges) else None


@dataclass
class _Cursor:
    """Deals the buffers of a batch out to its columns, in the order of the schema, parents before children."""

    ranges: list[Range]
    variadic: Iterator[int]
    old_unions: bool
    at: int = 0

    def node(self, kind: pa.DataType) -> Node:
        while isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            kind = kind.index_type  # the values are in messages of their own
        count, children = _shape(kind)
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            count += next(self.variadic)
        if pa.types.is_union(kind) and self.old_unions:
            count += 1
        if self.at + count > len(self.ranges):
            raise IndexError
        buffers = self.ranges[self.at : self.at + count]
        self.at += count
        return Node(kind, buffers, [self.node(child) for child in children])


def _shape(kind: pa.DataType) -> tuple[int, list[pa.DataType]]:
    """How many buffers a type has (without those of its children), and its children."""
    types = pa.types
    if types.is_null(kind):
        return 0, []
    if types.is_map(kind):
        return 2, [pa.struct([kind.key_field, kind.item_field])]
    children = [kind.field(i).type for i in range(kind.num_fields)]
    if types.is_run_end_encoded(kind):
        return 0, [kind.run_end_type, kind.value_type]
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1, children
    if types.is_union(kind):
        return 1 if kind.mode == "sparse" else 2, children
    if _is_bytes(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return 3, children
    return 2, children


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind))


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_list(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def by_rows(kind: pa.DataType) -> bool:
    """Whether `fill_rows` can fetch some rows of a column of this type."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return by_rows(kind.storage_type)
    if (
        types.is_dictionary(kind)
        or types.is_union(kind)
        or types.is_run_end_encoded(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    ):
        return False
    return all(by_rows(child) for child in _shape(kind)[1])


def fill_rows(nodes: Sequence[Node], start: int, stop: int, source: Bytes) -> None:
    """Fetch what the rows [start, stop) of these columns need, level by level: the lengths of lists and texts before their contents.

    Raises:
        DataError: the offsets of a list or text column lead outside its values.
    """
    todo = [(node, start, stop) for node in nodes]
    ranges: list[Range] = []
    while todo or ranges:
        waiting: list[tuple[Node, int, int]] = []
        while todo:
            node, a, b = todo.pop()
            if a >= b:
                continue
            ranges += _fixed(node, a, b)
            if pa.types.is_struct(node.kind):
                todo += [(child, a, b) for child in node.children]
            elif pa.types.is_fixed_size_list(node.kind):
                size = node.kind.list_size
                todo += [(child, a * size, b * size) for child in node.children]
            elif _is_list(node.kind) or _is_bytes(node.kind):
                waiting.append((node, a, b))
        source.fill(ranges)
        ranges = []
        for node, a, b in waiting:
            first, last = _offset(node, a, source), _offset(node, b, source)
            if not 0 <= first <= last:
                raise DataError("a list or text column is damaged: its offsets decrease")
            if _is_list(node.kind):
                todo.append((node.children[0], first, last))
            elif first < last:
                ranges.append(_part(node.buffers[2], first, last))


def _fixed(node: Node, a: int, b: int) -> list[Range]:
    """The ranges of a column's own buffers that are known from row numbers alone."""
    if not node.buffers:
        return []
    made = []
    valid = node.buffers[0]
    if valid[0] < valid[1]:  # left out where no value is null
        made.append(_part(valid, a // 8, -(-b // 8)))
    if len(node.buffers) == 1:
        return made
    if _is_list(node.kind) or _is_bytes(node.kind):
        width = 8 if _is_wide(node.kind) else 4
        return [*made, _part(node.buffers[1], a * width, (b + 1) * width)]
    bits = node.kind.bit_width
    return [*made, _part(node.buffers[1], a * bits // 8, -(-b * bits // 8))]


def _part(buffer: Range, a: int, b: int) -> Range:
    if buffer[0] + b > buffer[1]:
        raise DataError("a record batch is damaged: a buffer is shorter than its rows need")
    return buffer[0] + a, buffer[0] + b


def _offset(node: Node, row: int, source: Bytes) -> int:
    width = 8 if _is_wide(node.kind) else 4
    begin = node.buffers[1][0] + row * width
    return int.from_bytes(source.get(begin, begin + width).to_pybytes(), "little", signed=True)


def merge(ranges: Sequence[Range]) -> list[Range]:
    """The ranges in order, those joined that overlap or lie close together."""
    made: list[Range] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if made and start - made[-1][1] <= _GAP:
            made[-1] = made[-1][0], max(stop, made[-1][1])
        else:
            made.append((start, stop))
    return made

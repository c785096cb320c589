"""`map`, `filter`, `map_batches` and `decode_text`: a user's functions on records and record groups."""

from __future__ import annotations

import codecs
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zephon import groups, keys
from zephon.arrays import refusal, to_arrow, to_numpy
from zephon.errors import DataError, RecipeError, unknown
from zephon.keys import I64
from zephon.plugin import Apply, Drops, Operator, Outcome, place_of

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Map(Operator):
    """Call `fn(record)` for every record, a fresh dict of the user's columns that it may change.

    `fn` returns a dict (the new record), None (the record is dropped and counted) or a list of dicts (several records). If it has
    a parameter `rng`, it gets a numpy Generator that depends on `seed` and on where the record came from, and on nothing else.
    """

    name: ClassVar[str] = "map"

    fn: Callable[..., Record | Sequence[Record] | None]
    fn_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Passed to `fn` by name."""
    output: Mapping[str, Any] | None = None
    """Column → Arrow type (`"int32"`, `"list<float>"`, ..). None: the types are taken from the values of each group."""
    columns: tuple[str, ...] | None = None
    """The columns that `fn` sees; others need not be read. None: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        _check_function("map", self.fn)
        _fix_columns(self)
        for kind in (self.output or {}).values():
            arrow_type(kind)

    def inputs(self) -> tuple[str, ...] | None:
        """`columns`."""
        return self.columns

    def passes(self) -> bool:
        """With `columns`, others don't reach the output."""
        return self.columns is None

    def output_schema(self, schema: pa.Schema) -> pa.Schema | None:
        """`output` and the provenance; without `output` only known when running."""
        _check_columns("map", schema, self.columns or ())
        if self.output is None:
            return None
        made: list[Any] = [pa.field(name, arrow_type(kind)) for name, kind in self.output.items()]
        return pa.schema([*made, *(f for f in schema if f.name in groups.PROVENANCE)])

    def bind(self) -> Apply:
        """The loop over records."""
        return self._apply

    def _apply(self, group: pa.RecordBatch) -> Outcome:
        draws = "rng" in inspect.signature(self.fn).parameters and "rng" not in self.fn_kwargs
        row_keys = _row_keys(group, self.seed) if draws else None
        seen = group if self.columns is None else groups.select(group, self.columns)
        made: list[Record] = []
        origin: list[int] = []
        dropped: list[int] = []
        for row, record in enumerate(groups.iter_rows(seen)):
            extra = {} if row_keys is None else {"rng": keys.generator("map", int(row_keys[row]))}
            result = self.fn(record, **extra, **self.fn_kwargs)
            results = _results(result)
            if not results:
                dropped.append(row)
            made += results
            origin += [row] * len(results)
        try:
            out = _as_group(made, self.output) if self.output is not None else _keep_types(groups.from_rows(made), seen)
        except (pa.ArrowInvalid, TypeError) as error:  # Arrow's is a TypeError, too
            raise self._misfit(made, group, origin, error) from error
        reason = {"returned None": np.array(dropped, dtype=np.int64)} if dropped else {}
        return Outcome(groups.carry_provenance(group, out, origin), Drops(rows=reason))

    def _misfit(self, made: Sequence[Record], group: pa.RecordBatch, origin: Sequence[int], error: Exception) -> DataError:
        """Which record doesn't go with those before it (or with `output`), for an error about all of them."""

        def fits(count: int) -> bool:
            try:
                _as_group(made[:count], self.output) if self.output is not None else groups.from_rows(made[:count])
            except (pa.ArrowInvalid, TypeError):
                return False
            return True

        low, high = 0, len(made)  # the first `low` fit, the first `high` don't
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        place = place_of(group, origin[high - 1])
        names = [name for name in made[high - 1] if not isinstance(name, str)]
        if names:
            return DataError(f"the function returned a column named {names[0]!r}; a name must be text", where=place)
        if high == 1 and self.output is None:
            return DataError(
                f"the function returned a value that no column can hold: {error}",
                where=place,
                hint="return numbers, text, bytes, numpy arrays, and lists and dicts of these",
            )
        what = "`output` declares" if self.output is not None else "the records before it have"
        return DataError(
            f"the function returned a value of another type than {what}: {error}",
            where=place,
            hint=None if self.output is not None else "return one type, or declare it with output=",
        )


@dataclass(frozen=True, kw_only=True)
class Filter(Operator):
    """Keep the records for which `fn(record)` is true, or for which the Arrow expression is; the others are dropped and counted."""

    name: ClassVar[str] = "filter"

    fn: Callable[..., Any] | None = None
    expression: Any = None
    """A `pyarrow.compute.Expression`, instead of `fn`: quicker, since no record becomes Python objects."""
    columns: tuple[str, ...] | None = None
    """The columns that `fn` sees. None: all."""

    def __post_init__(self) -> None:
        given: Any = self.fn
        if isinstance(given, pc.Expression) and self.expression is None:
            # filter(pc.field("x") > 3): the one positional setting may be either
            object.__setattr__(self, "expression", given)
            object.__setattr__(self, "fn", None)
        if (self.fn is None) == (self.expression is None):
            raise RecipeError("filter takes either fn= or expression=")
        if self.fn is not None:
            _check_function("filter", self.fn)
        _fix_columns(self)

    def inputs(self) -> tuple[str, ...] | None:
        """`columns`."""
        return self.columns

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The same."""
        _check_columns("filter", schema, self.columns or ())
        if self.expression is not None and (error := refusal(self.expression, schema)):
            raise self._refused(error, schema) from error
        return schema

    def bind(self) -> Apply:
        """The test of a group."""
        return self._apply

    def _apply(self, group: pa.RecordBatch) -> Outcome:
        kept = self._by_expression(group) if self.fn is None else self._by_function(group, self.fn)
        gone = np.setdiff1d(np.arange(group.num_rows, dtype=np.int64), kept)
        if not len(gone):
            return Outcome(group)
        return Outcome(groups.take(group, kept), Drops(rows={"filtered": gone}))

    def _by_function(self, group: pa.RecordBatch, fn: Callable[..., Any]) -> I64:
        seen = group if self.columns is None else groups.select(group, self.columns)
        return np.flatnonzero([bool(fn(record)) for record in groups.iter_rows(seen)]).astype(np.int64)

    def _by_expression(self, group: pa.RecordBatch) -> I64:
        row = to_arrow(np.arange(group.num_rows, dtype=np.int64))
        table = pa.Table.from_batches([group.append_column(_NUMBER, row)])
        try:
            kept: I64 = to_numpy(table.filter(self.expression).column(_NUMBER))
        except pa.ArrowNotImplementedError as error:  # there is nothing that works on columns of these types
            raise self._refused(error, group.schema) from error
        return kept

    def _refused(self, error: Exception, schema: pa.Schema) -> RecipeError:
        kinds = ", ".join(f"{name}: {schema.field(name).type}" for name in groups.user_columns(schema))
        return RecipeError(
            f"filter's expression {self.expression!s} doesn't go with the columns: {str(error).splitlines()[0]}",
            hint=f"at that point there are {kinds}",
        )


_NUMBER = "_row_number"


@dataclass(frozen=True, kw_only=True)
class MapBatches(Operator):
    """Call `fn(group)` with a `pyarrow.RecordBatch` of the user's columns; it returns a RecordBatch, a Table or a dict of arrays.

    With as many rows as came in, row i is taken to be made from row i. A function that changes the number or order of rows asks for
    `with_provenance` and hands the provenance columns on.
    """

    name: ClassVar[str] = "map_batches"

    fn: Callable[..., Any]
    fn_kwargs: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    """The columns that `fn` sees; others need not be read. None: all."""
    with_provenance: bool = False
    """`fn` gets the columns `_component`, `_pass`, `_shard` and `_row`, too, and returns them for each of its rows."""

    def __post_init__(self) -> None:
        _check_function("map_batches", self.fn)
        _fix_columns(self)

    def inputs(self) -> tuple[str, ...] | None:
        """`columns`."""
        return self.columns

    def passes(self) -> bool:
        """With `columns`, others don't reach the output."""
        return self.columns is None

    def output_schema(self, schema: pa.Schema) -> None:
        """Only known when running."""
        _check_columns("map_batches", schema, self.columns or ())

    def bind(self) -> Apply:
        """The call."""
        return self._apply

    def _apply(self, group: pa.RecordBatch) -> pa.RecordBatch:
        names = list(self.columns) if self.columns is not None else groups.user_columns(group.schema)
        there = [n for n in groups.PROVENANCE if group.schema.get_field_index(n) >= 0]
        given = groups.select(group, names + there if self.with_provenance else names)
        made = _as_batch(self.fn(given, **self.fn_kwargs))
        groups.check_names(made.schema)
        if self.with_provenance:
            for name in there:
                if made.schema.get_field_index(name) < 0:
                    raise DataError(f"the function did not return the column {name!r}", hint="hand all provenance columns on")
            return made
        if made.num_rows != group.num_rows:
            raise DataError(
                f"the function made {made.num_rows} rows out of {group.num_rows}, so it is not known which came from which",
                hint="use with_provenance=True and hand the provenance columns on, or `map`/`filter`",
            )
        return groups.carry_provenance(group, made)


@dataclass(frozen=True, kw_only=True)
class DecodeText(Operator):
    """Turn a column of bytes into text. A column that is text already stays as it is."""

    name: ClassVar[str] = "decode_text"
    keeps_rows: ClassVar[bool] = True

    field: str = "text"
    encoding: str = "utf-8"
    errors: str = "strict"
    """What to do with bytes that are not of this encoding: `strict`, `replace` or `ignore`, as in `bytes.decode`."""

    def __post_init__(self) -> None:
        if self.errors not in ("strict", "replace", "ignore"):
            raise RecipeError(f"decode_text: {unknown('errors', self.errors, ('strict', 'replace', 'ignore'))}")
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            raise RecipeError(f"decode_text: {error}") from error

    def inputs(self) -> tuple[str, ...]:
        """The field."""
        return (self.field,)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The same with the field as text."""
        _check_columns("decode_text", schema, (self.field,))
        index = schema.get_field_index(self.field)
        return schema.set(index, pa.field(self.field, self._made(schema.field(index).type)))

    def bind(self) -> Apply:
        """The decoding."""
        return self._apply

    def _apply(self, group: pa.RecordBatch) -> pa.RecordBatch:
        array = groups.column(group, self.field)
        kind = self._made(array.type)
        if array.type == kind:
            return group
        if self.encoding.lower().replace("_", "-") in ("utf-8", "utf8") and self.errors == "strict":
            return groups.set_column(group, self.field, array.cast(kind))
        texts = [None if value is None else value.decode(self.encoding, self.errors) for value in array.to_pylist()]
        return groups.set_column(group, self.field, pa.array(texts, type=kind))

    def _made(self, kind: pa.DataType) -> pa.DataType:
        """The type of text for a column of this type. Raises `RecipeError` where it holds neither bytes nor text."""
        t = pa.types
        if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
            return kind
        if t.is_binary(kind) or t.is_fixed_size_binary(kind) or t.is_null(kind):
            return pa.string()
        if t.is_large_binary(kind) or t.is_binary_view(kind):
            return pa.large_string()
        raise RecipeError(f"column {self.field!r} is {kind}, not bytes", hint="name the column of bytes with field=")


def arrow_type(kind: str | pa.DataType) -> pa.DataType:
    """The Arrow type of a name such as `"int32"`, `"string"`, `"list<float>"`. Raises `RecipeError` for an unknown one."""
    if isinstance(kind, pa.DataType):
        return kind
    name = kind.strip()
    for prefix, make in (("list<", pa.list_), ("large_list<", pa.large_list)):
        if name.startswith(prefix) and name.endswith(">"):
            return make(arrow_type(name[len(prefix) : -1]))
    by_name: Any = pa.type_for_alias  # its stub takes literals only
    try:
        found: pa.DataType = by_name(name)
    except ValueError as error:
        raise RecipeError(f"unknown Arrow type {kind!r}", hint="give a name such as 'int64', or a pyarrow.DataType") from error
    return found


def _check_function(what: str, fn: Any) -> None:
    if not callable(fn):
        raise RecipeError(f"{what} needs a function, got {type(fn).__name__}")


def _fix_columns(operator: Any) -> None:
    if isinstance(operator.columns, str):
        raise RecipeError(
            f"columns is a list of names, got the string {operator.columns!r}", hint=f"write [{operator.columns!r}]"
        )
    if operator.columns is not None:
        object.__setattr__(operator, "columns", tuple(operator.columns))


def _check_columns(what: str, schema: pa.Schema, names: Iterable[str]) -> None:
    for name in names:
        if schema.get_field_index(name) < 0:
            raise RecipeError(f"{what}: {unknown('column', name, groups.user_columns(schema))}")


def _row_keys(group: pa.RecordBatch, seed: int) -> Any:
    columns = [groups.ints(group, n) for n in groups.PROVENANCE if group.schema.get_field_index(n) >= 0]
    return keys.row_generator_keys(seed, "map", columns or [np.arange(group.num_rows)])


def _results(result: Any) -> list[Record]:
    """What a function returned, as a list of records."""
    results = [] if result is None else [result] if isinstance(result, Mapping) else result
    if not isinstance(results, list | tuple) or not all(isinstance(r, Mapping) for r in results):
        raise TypeError(f"the function returned {type(result).__name__}; it must return a dict, None or a list of dicts")
    return list(results)


def _as_group(rows: Sequence[Record], output: Mapping[str, Any]) -> pa.RecordBatch:
    """Records as a group of the declared columns; a missing value is null."""
    for name in {name for row in rows for name in row} - set(output):
        raise DataError(f"the function returned a column {name!r} that `output` does not declare")
    arrays = [pa.array([row.get(name) for row in rows], type=arrow_type(kind)) for name, kind in output.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(output))


def _keep_types(made: pa.RecordBatch, seen: pa.RecordBatch) -> pa.RecordBatch:
    """Columns that came in and can be what they were without loss are so: int32 stays int32, not int64."""
    for name in made.schema.names:
        index = seen.schema.get_field_index(name)
        if index < 0:
            continue
        array, kind = groups.column(made, name), seen.schema.field(index).type
        if array.type != kind and _same_family(array.type, kind):
            try:
                made = groups.set_column(made, name, array.cast(kind))
            except pa.ArrowInvalid:
                continue  # a value that does not fit: the wider type stays
    return made


def _same_family(one: pa.DataType, other: pa.DataType) -> bool:
    t = pa.types
    if t.is_null(one):
        return True
    if (t.is_list(one) or t.is_large_list(one)) and (t.is_list(other) or t.is_large_list(other)):
        return _same_family(one.value_type, other.value_type)
    kinds = (
        t.is_integer,
        lambda k: t.is_string(k) or t.is_large_string(k),
        lambda k: t.is_binary(k) or t.is_large_binary(k),
    )
    return one == other or any(is_kind(one) and is_kind(other) for is_kind in kinds)


def _as_batch(made: Any) -> pa.RecordBatch:
    if isinstance(made, pa.RecordBatch):
        return made
    if isinstance(made, pa.Table):
        batches = made.combine_chunks().to_batches()
        return batches[0] if len(batches) == 1 else groups.empty_group(made.schema) if not batches else groups.concat(batches)
    if isinstance(made, Mapping):
        arrays = [a if isinstance(a, pa.Array) else pa.array(a) for a in made.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(made))
    raise TypeError(f"the function returned {type(made).__name__}; it must return a RecordBatch, a Table or a dict of arrays")

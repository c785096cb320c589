"""What every operator must keep to, as one function that an author runs on his own operator and some record groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from zephon import groups as record_groups
from zephon.arrays import to_arrow
from zephon.digest import update_rows
from zephon.hashing import hash_group
from zephon.plugin import Decision, Drops, LaneWindow, Operator, Outcome, SelectOperator, StatefulOperator
from zephon.recipe import operator_fingerprint
from zephon.views import viewable, viewed

Groups = Sequence[pa.RecordBatch]


def check_operator(
    operator: Operator, groups: Groups, *, across_rows: bool = False, lane_window: LaneWindow | None = None
) -> list[pa.RecordBatch]:
    """Check an operator against what the engine relies on; what it makes of the groups, for checks of your own.

    Args:
        operator: the operator, with its settings.
        groups: input groups as they may come, best several, with awkward rows among them. Where they have no provenance columns, they
            get some.
        across_rows: a row's output may depend on the other rows of its group (only for stateless operators); without it, the
            operator must make the same of a group and of its parts.
        lane_window: for which lane and window a stateful operator decides.

    Raises:
        AssertionError: says which promise is broken.
    """
    given = _with_provenance(groups)
    _require(len(given) > 0, "give at least one group")
    before = [_hash(g) for g in given]
    _check_class(operator)
    if isinstance(operator, StatefulOperator | SelectOperator):
        made = _check_stateful(operator, given, lane_window or LaneWindow(seed=7, lane=3, window=2))
    else:
        made = _check_stateless(operator, given, across_rows=across_rows)
    _require([_hash(g) for g in given] == before, "it changed a group that it was given; groups are shared, make a new one")
    _check_schema(operator, given, made)
    return made


# --------------------------------------------------------------------------------------------------- any operator


def _check_class(operator: Operator) -> None:
    kind = type(operator)
    _require(is_dataclass(kind) and kind.__dataclass_params__.frozen, f"{kind.__name__} is not a frozen dataclass")  # type: ignore[attr-defined]
    _require(isinstance(getattr(kind, "name", None), str), f"{kind.__name__} has no name")
    stateful = isinstance(operator, StatefulOperator | SelectOperator)
    _require(
        operator.stateful == stateful,
        "`stateful` doesn't agree with its base class: StatefulOperator, SelectOperator or neither",
    )
    copy = _pickled(operator)
    _require(operator_fingerprint(copy) == operator_fingerprint(operator), "a pickled copy has another fingerprint")
    for what, names in (("inputs", operator.inputs()), ("optional_inputs", operator.optional_inputs())):
        _require(
            names is None or (isinstance(names, tuple) and all(isinstance(n, str) for n in names)),
            f"{what}() is not a tuple of names",
        )


def _check_schema(operator: Operator, given: Groups, made: Groups) -> None:
    """`output_schema` says beforehand what comes out."""
    if len({str(g.schema) for g in given}) > 1:
        return
    promised = operator.output_schema(given[0].schema)
    if promised is None:
        return
    for group in made:
        got, want = dict(_types(group.schema)), dict(_types(promised))
        _require(got == want, f"output_schema promises {_difference(want, got)}")


def _types(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(f.name, str(f.type)) for f in schema]


def _difference(want: Mapping[str, str], got: Mapping[str, str]) -> str:
    names = sorted(n for n in {*want, *got} if want.get(n) != got.get(n))
    return "; ".join(f"{n!r}: {want.get(n, 'nothing')}, and it made {got.get(n, 'nothing')}" for n in names)


# ------------------------------------------------------------------------------------------------------ stateless


def _check_stateless(operator: Operator, given: Groups, *, across_rows: bool) -> list[pa.RecordBatch]:
    operator.prepare()
    apply = operator.bind()
    made = [_outcome(apply(g)) for g in given]
    for group, outcome in zip(given, made, strict=True):
        _check_provenance(operator, group, outcome)
    for what, other in (
        ("called again", lambda: [_outcome(apply(g)) for g in given]),
        ("bound again from a pickled copy", lambda: [_outcome(_pickled(operator).bind()(g)) for g in given]),
        ("in another thread", lambda: _in_thread(lambda: [_outcome(apply(g)) for g in given])),
        ("on a copy of the groups", lambda: [_outcome(apply(_copy(g))) for g in given]),
    ):
        for one, two in zip(made, other(), strict=True):
            _require(_same_outcome(one, two), f"{what}, it gave something else")
    _check_empty(apply, given)
    if not across_rows:
        _check_parts(apply, given, made)
    _check_inputs(operator, apply, given, made)
    _check_views(operator, apply, given, made)
    return [o.group for o in made]


def _check_provenance(operator: Operator, group: pa.RecordBatch, outcome: Outcome) -> None:
    made = outcome.group
    for name in record_groups.PROVENANCE:
        _require(name in made.schema.names, f"the provenance column {name!r} was not carried over (groups.carry_provenance)")
        _require(
            made.schema.field(name).type == group.schema.field(name).type, f"the provenance column {name!r} changed its type"
        )
    came, went = _places(group), _places(made)
    _require(set(went) <= set(came), "a row has the provenance of no row that came in")
    gone = np.concatenate([np.zeros(0, dtype=np.int64), *outcome.drops.rows.values()])
    _require(len(np.unique(gone)) == len(gone), "a row is counted as dropped twice")
    _require(not len(gone) or (gone.min() >= 0 and gone.max() < group.num_rows), "a dropped row is not a row of the group")
    if len(set(came)) == len(came):
        dropped = {came[int(i)] for i in gone}
        _require(not dropped & set(went), "a row is counted as dropped and is there all the same")
        _require(dropped | set(went) == set(came), "a row is neither in the output nor counted as dropped (Outcome.drops)")
    _check_counted(outcome.drops)
    if operator.keeps_rows:
        _require(went == came, "`keeps_rows` is not true: rows were added, dropped or reordered")


def _check_counted(drops: Drops) -> None:
    for what, table in (("tokens", drops.tokens), ("parts", drops.parts)):
        for reason, counts in table.items():
            for component, count in counts.items():
                whole = isinstance(component, int | np.integer) and isinstance(count, int | np.integer)
                _require(whole and count >= 0, f"{what} dropped as {reason!r} are not counted as {{component: number}}")


def _check_empty(apply: Callable[[pa.RecordBatch], Any], given: Groups) -> None:
    outcome = _outcome(apply(given[0].slice(0, 0)))
    _require(outcome.group.num_rows == 0, "it made rows out of a group without rows")
    _require(not any(len(v) for v in outcome.drops.rows.values()), "it dropped rows of a group without rows")


def _check_parts(apply: Callable[[pa.RecordBatch], Any], given: Groups, made: Sequence[Outcome]) -> None:
    """An operator never looks at other rows, so a group and its slices give the same."""
    for group, outcome in zip(given, made, strict=True):
        size = group.num_rows
        for cuts in (
            [0, size // 2, size],
            [0, 1, size // 3 + 1, size],
            list(range(size + 1)) if size <= 64 else [0, size - 1, size],
        ):
            bounds = sorted({min(c, size) for c in cuts} | {0, size})
            parts = [_outcome(apply(group.slice(a, b - a))) for a, b in pairwise(bounds)]
            rows = [p.group for p in parts if p.group.num_rows]
            _require(
                _same_rows([outcome.group], rows),
                "a slice of a group gives other rows than the group (or pass across_rows=True)",
            )
            dropped = _sums([p.drops for p in parts])
            _require(dropped == _sums([outcome.drops]), "slices of a group drop other tokens or parts than the group")


def _check_views(operator: Operator, apply: Callable[[pa.RecordBatch], Any], given: Groups, made: Sequence[Outcome]) -> None:
    """What it says that it takes as views gives the same."""
    names = frozenset(operator.viewed_inputs())
    if not names:
        return
    for group, outcome in zip(given, made, strict=True):
        again = _outcome(apply(_shown(group, names)))
        _require(_same_outcome(outcome, again), f"of views of {sorted(names)} (viewed_inputs) it makes something else")
        left = {f.name for f in again.group.schema if record_groups.shows(f.type)} - set(operator.viewed_outputs())
        _require(not left, f"what it makes of views holds views in {sorted(left)}, which viewed_outputs() doesn't name")


def _shown(group: pa.RecordBatch, names: frozenset[str]) -> pa.RecordBatch:
    """The group with views in these columns, where they hold text or bytes, structs of such, or lists of these."""
    arrays: list[Any] = []
    for array, field in zip(group.columns, group.schema, strict=True):
        inner: Any = field.type.value_type if pa.types.is_list(field.type) and not array.null_count else None
        if field.name in names and inner is not None and viewable(inner):
            whole: Any = pa.concat_arrays([array])
            arrays.append(pa.ListArray.from_arrays(whole.offsets, viewed(whole.values)))
        else:
            arrays.append(viewed(array) if field.name in names and viewable(field.type) else array)
    return pa.RecordBatch.from_arrays(arrays, names=group.schema.names)


def _check_inputs(operator: Operator, apply: Callable[[pa.RecordBatch], Any], given: Groups, made: Sequence[Outcome]) -> None:
    """The columns that it names are all that it needs."""
    wanted = operator.inputs()
    if wanted is None:
        return
    names = {*wanted, *operator.optional_inputs(), *record_groups.PROVENANCE}
    for group, outcome in zip(given, made, strict=True):
        others = [n for n in group.schema.names if n not in names]
        less = _outcome(apply(record_groups.select(group, [n for n in group.schema.names if n in names])))
        whole = outcome.group
        if operator.passes():
            whole = record_groups.select(whole, [n for n in whole.schema.names if n not in others])
        _require(
            _same_rows([whole], [less.group]), f"inputs() names {sorted(names)}, but without {others} the output is another"
        )


# ------------------------------------------------------------------------------------------------------- stateful


def _check_stateful(operator: StatefulOperator | SelectOperator, given: Groups, where: LaneWindow) -> list[pa.RecordBatch]:
    if isinstance(operator, SelectOperator):
        return _check_selector(operator, given, where)
    decisions = _decide(operator, given, where)
    gather = operator.bind()
    made = [_check_decision(gather, d) for d in decisions]
    for what, other in (
        ("run again", lambda: _decide(operator, given, where)),
        ("run from a pickled copy", lambda: _decide(_pickled(operator), given, where)),
        ("in another thread", lambda: _in_thread(lambda: _decide(operator, given, where))),
        ("on copies of the groups", lambda: _decide(operator, [_copy(g) for g in given], where)),
    ):
        again = [_check_decision(_pickled(operator).bind(), d) for d in other()]
        _require(_same_rows(made, again), f"{what}, it gave something else")
    _require(not sum(d.rows.num_rows for d in _decide(operator, [], where)), "without input it makes rows")
    wanted = operator.inputs()
    if wanted is not None and not operator.passes():
        names = {*wanted, *operator.optional_inputs(), *record_groups.PROVENANCE}
        less = [record_groups.select(g, [n for n in g.schema.names if n in names]) for g in given]
        again = [_check_decision(gather, d) for d in _decide(operator, less, where)]
        _require(
            _same_rows(made, again), f"inputs() names {sorted(names)}, but without the other columns the output is another"
        )
    _check_empty_row(operator, made)
    return [g for g in made if g.num_rows]


def _decide(operator: StatefulOperator, given: Groups, where: LaneWindow) -> list[Decision]:
    accumulator = operator.accumulator(where)
    decisions: list[Decision] = []
    for number, group in enumerate(given):
        for decision in accumulator.add(group, number):
            for indices in decision.drops.rows.values():
                fits = not len(indices) or (int(np.min(indices)) >= 0 and int(np.max(indices)) < group.num_rows)
                _require(fits, "a dropped row is not a row of the group that was just added")
            decisions.append(decision)
        _require(isinstance(accumulator.nbytes, int) and accumulator.nbytes >= 0, "nbytes is not a number of bytes")
    for decision in accumulator.flush():
        _require(not any(len(v) for v in decision.drops.rows.values()), "drops.rows of a flush refer to no group")
        decisions.append(decision)
    for decision in decisions:
        _check_counted(decision.drops)
    return decisions


def _check_decision(gather: Callable[..., Any], decision: Decision) -> pa.RecordBatch:
    """The gather makes one row per decision row, whatever other rows it makes with it."""
    rows, sources = decision.rows, decision.sources
    _require(set(_used(rows)) == set(sources), "a decision's sources are not exactly the groups that its rows draw on")
    made: pa.RecordBatch = gather(rows, sources)
    _require(made.num_rows == rows.num_rows, f"the gather made {made.num_rows} rows out of {rows.num_rows} decision rows")
    size = rows.num_rows
    for start, stop in {(0, size // 2), (size // 2, size), (size // 3, size // 3 + 1)} if size else ():
        part = rows.slice(start, stop - start)
        some = {n: sources[n] for n in _used(part)}
        _require(
            _same_rows([made.slice(start, stop - start)], [gather(part, some)]), "gathering some of the rows gives other rows"
        )
    copied = gather(_copy(rows), {n: _copy(g) for n, g in sources.items()})
    _require(_same_rows([made], [copied]), "the gather gives other rows in another process (on copies of rows and sources)")
    back = np.arange(size)[::-1]
    mirrored = gather(record_groups.take(rows, back), sources)
    _require(_same_rows([record_groups.take(made, back)], [mirrored]), "the gather gives other rows when they were reordered")
    return made


def _check_empty_row(operator: StatefulOperator, made: Groups) -> None:
    real = [g for g in made if g.num_rows]
    empty = operator.empty_row(real[0].schema if real else None)
    if empty is None:
        return
    _require(empty.num_rows == 1, "empty_row is not one row")
    _require(_same_rows([empty], [_nothing_missing(operator.empty_row(empty.schema))]), "empty_row is not the same each time")
    if real:
        want, got = dict(_types(real[0].schema)), dict(_types(empty.schema))
        _require(want == got, f"empty_row has other columns than the rows: {_difference(want, got)}")


def _nothing_missing(group: pa.RecordBatch | None) -> pa.RecordBatch:
    assert group is not None
    return group


def _check_selector(operator: SelectOperator, given: Groups, where: LaneWindow) -> list[pa.RecordBatch]:
    light = [record_groups.select(g, operator.inputs() or ()) if operator.inputs() is not None else g for g in given]
    light = [rows if rows.num_columns else g for rows, g in zip(light, given, strict=True)]
    order = _select(operator, light, where)
    total = sum(g.num_rows for g in given)
    counts = np.bincount(order, minlength=total)
    _require(len(counts) == total, "it chose a row that it was never given")
    _require(bool((counts == 1).all()), f"it did not emit each row once, but the first ones so often: {counts[:20].tolist()}")
    for what, other in (
        ("run again", lambda: _select(operator, light, where)),
        ("run from a pickled copy", lambda: _select(_pickled(operator), light, where)),
        ("in another thread", lambda: _in_thread(lambda: _select(operator, light, where))),
    ):
        _require(bool(np.array_equal(order, other())), f"{what}, it chose another order")
    _require(not len(_select(operator, [], where)), "without input it makes rows")
    return [record_groups.take(record_groups.concat(given), order)] if total else []


def _select(operator: SelectOperator, light: Groups, where: LaneWindow) -> npt.NDArray[np.int64]:
    selector = operator.selector(where)
    seen, emitted = 0, [np.zeros(0, dtype=np.int64)]
    for rows in light:
        seen += rows.num_rows
        numbers = np.asarray(selector.add(rows), dtype=np.int64)
        _require(not len(numbers) or int(numbers.max()) < seen, "it emitted a row before it was given")
        emitted.append(numbers)
    emitted.append(np.asarray(selector.flush(), dtype=np.int64))
    return np.concatenate(emitted)


# --------------------------------------------------------------------------------------------------------- helpers


def _require(truth: bool, message: str) -> None:
    if not truth:
        raise AssertionError(message)


def _with_provenance(groups: Groups) -> list[pa.RecordBatch]:
    """The groups with provenance: as if all came from one shard."""
    out, row = [], 0
    for group in groups:
        size = group.num_rows
        columns = {
            record_groups.COMPONENT: to_arrow(np.zeros(size, dtype=np.int32)),
            record_groups.PASS: to_arrow(np.zeros(size, dtype=np.int64)),
            record_groups.SHARD: to_arrow(np.zeros(size, dtype=np.int32)),
            record_groups.ROW: to_arrow(np.arange(row, row + size, dtype=np.int64)),
        }
        for name, values in columns.items():
            if name not in group.schema.names:
                group = group.append_column(name, values)
        out.append(group)
        row += size
    return out


def _outcome(made: Any) -> Outcome:
    if isinstance(made, Outcome):
        return made
    _require(isinstance(made, pa.RecordBatch), f"apply returned {type(made).__name__}, neither a RecordBatch nor an Outcome")
    return Outcome(made)


def _pickled(operator: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(operator))


def _copy(group: pa.RecordBatch) -> pa.RecordBatch:
    """The group as another process gets it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, group.schema) as writer:
        writer.write_batch(group)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()


def _in_thread(work: Callable[[], Any]) -> Any:
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="check_operator")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _hash(group: pa.RecordBatch) -> int:
    return hash_group(group)


def _digest(groups: Groups) -> str:
    """Of the rows, however they are divided over groups; a null counts as a column that isn't there."""
    hasher = xxhash.xxh3_128()
    for group in groups:
        update_rows(hasher, group, group.schema.names)
    return hasher.hexdigest()


def _same_rows(one: Groups, two: Groups) -> bool:
    return sum(g.num_rows for g in one) == sum(g.num_rows for g in two) and _digest(one) == _digest(two)


def _same_outcome(one: Outcome, two: Outcome) -> bool:
    rows = {r: v.tolist() for r, v in one.drops.rows.items()} == {r: v.tolist() for r, v in two.drops.rows.items()}
    return rows and _sums([one.drops]) == _sums([two.drops]) and _same_rows([one.group], [two.group])


def _sums(drops: Sequence[Drops]) -> dict[tuple[Any, int], int]:
    """Of tokens and parts, by reason and data set."""
    sums: dict[tuple[Any, int], int] = {}
    for one in drops:
        for reason, counts in (*one.tokens.items(), *one.parts.items()):
            for component, count in counts.items():
                if count:
                    sums[reason, int(component)] = sums.get((reason, int(component)), 0) + int(count)
    return sums


def _places(group: pa.RecordBatch) -> list[tuple[int, ...]]:
    columns = [record_groups.ints(group, name).tolist() for name in record_groups.PROVENANCE]
    return list(zip(*columns, strict=True))


def _used(rows: pa.RecordBatch) -> list[int]:
    return [int(n) for n in np.unique(record_groups.source_numbers(rows))]

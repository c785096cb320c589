"""What becomes of a failure: raise, skip or quarantine; and the record of everything that was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from zephon import groups
from zephon.encodings import decoded_group
from zephon.engine.counts import Counts, add_counts, difference, flat, has_documents, record_counts
from zephon.errors import DataError, InternalError, LimitError, PluginError, RecipeError, RunnerError, Where, ZephonError, wrap
from zephon.plugin import Drops, Outcome, at, place_of
from zephon.views import alike

Policy = Literal["raise", "skip", "quarantine"]
POLICIES: tuple[str, ...] = ("raise", "skip", "quarantine")


@dataclass(frozen=True)
class Failure:
    """One record that failed, in plain values: a line of the quarantine file."""

    component: int
    shard: str | int | None
    row: int | None
    pass_index: int | None
    operator: str
    error: str

    @classmethod
    def of(cls, error: ZephonError, *, component: int, operator: str, pass_index: int | None = None) -> Failure:
        """From an error whose `where` says shard and row."""
        return cls(component, error.where.shard, error.where.row, pass_index, operator, error.message)


@dataclass
class Streak:
    """How many records of a task failed in an operator without one in between that worked."""

    first: int = 0
    """Before the first that worked."""
    last: int = 0
    """After the last that worked."""
    most: int = 0
    worked: bool = False

    def fail(self, records: int = 1) -> None:
        """Some more failed."""
        self.last += records
        self.most = max(self.most, self.last)
        if not self.worked:
            self.first = self.last

    def work(self) -> None:
        """Some worked."""
        self.worked, self.last = True, 0

    def after(self, before: int) -> tuple[int, int]:
        """`(most, last)` where so many had failed just before."""
        return max(self.most, before + self.first), self.last if self.worked else before + self.last


@dataclass
class Losses:
    """Rows and tokens that came in, were added or left out, by (operator, reason) and component; and failures to report."""

    rows: dict[tuple[str, str], Counts] = field(default_factory=dict)
    tokens: dict[tuple[str, str], Counts] = field(default_factory=dict)
    parts: dict[tuple[str, str, str], Counts] = field(default_factory=dict)
    """What rows lost without being dropped for it, by (kind, operator, reason)."""
    added: dict[str, Counts] = field(default_factory=dict)
    """Rows, by operator."""
    tokens_in: Counts = field(default_factory=dict)
    """Tokens of documents that came tokenised from the source, or that a tokenizer made."""
    tokens_added: dict[str, Counts] = field(default_factory=dict)
    """Tokens by which an operator made tokenised documents longer, or copied them."""
    failures: list[Failure] = field(default_factory=list)
    streaks: dict[str, Streak] = field(default_factory=dict)
    """By operator, of those in which records failed."""

    def drop(self, operator: str, reason: str, rows: Mapping[int, int], tokens: Mapping[int, int] | None = None) -> None:
        """Count rows (and tokens) of some components as left out."""
        _add(self.rows, (operator, reason), rows)
        _add(self.tokens, (operator, reason), tokens or {})

    def fail(self, failure: Failure) -> None:
        """Note a record that failed; they come in order."""
        self.failures.append(failure)
        self.streaks.setdefault(failure.operator, Streak()).fail()

    def add(self, other: Losses) -> None:
        """Count what `other` counts, too."""
        for mine, others in ((self.rows, other.rows), (self.tokens, other.tokens)):
            for name, counts in others.items():
                _add(mine, name, counts)
        for part, counts in other.parts.items():
            _add(self.parts, part, counts)
        for more, theirs in ((self.added, other.added), (self.tokens_added, other.tokens_added)):
            for operator, counts in theirs.items():
                _add(more, operator, counts)
        add_counts(self.tokens_in, other.tokens_in)
        self.failures += other.failures

    def balance(self, operator: str, missing_rows: Counts, missing_tokens: Counts) -> None:
        """Count what an operator left out without a word, and (what is below 0) what it made."""
        for missing, dropped, added in (
            (missing_rows, self.rows, self.added),
            (missing_tokens, self.tokens, self.tokens_added),
        ):
            _add(added, operator, {c: -n for c, n in missing.items() if n < 0})
            _add(dropped, (operator, "left out"), {c: n for c, n in missing.items() if n > 0})

    def of_drops(self, operator: str, group: pa.RecordBatch, drops: Drops) -> tuple[Counts, Counts]:
        """Count what an operator reported for its input group; the rows and tokens of that, by component.

        Tokens that it doesn't report go with their rows.
        """
        rows: Counts = {}
        tokens: Counts = {}
        for reason in dict.fromkeys([*drops.rows, *drops.tokens, *drops.records]):
            gone, with_them = record_counts(group, drops.rows[reason]) if reason in drops.rows else ({}, {})
            add_counts(gone, drops.records.get(reason, {}))
            if reason in drops.tokens:
                with_them = {int(c): int(n) for c, n in drops.tokens[reason].items()}
            self.drop(operator, reason, gone, with_them)
            add_counts(rows, gone)
            add_counts(tokens, with_them)
        for (kind, reason), counts in drops.parts.items():
            _add(self.parts, (kind, operator, reason), {int(c): int(n) for c, n in counts.items()})
        return rows, tokens


def _add(table: dict[Any, Counts], name: Any, counts: Mapping[int, int]) -> None:
    mine = table.setdefault(name, {})
    add_counts(mine, {component: count for component, count in counts.items() if count})
    if not mine:
        del table[name]


Apply = Callable[[pa.RecordBatch], "pa.RecordBatch | Outcome"]


def apply_under(policy: Policy, apply: Apply, group: pa.RecordBatch, *, operator: str, losses: Losses) -> list[pa.RecordBatch]:
    """Apply an operator to a group; a failing row raises (naming the row) or is left out, as the policy says.

    The group is tried whole. Only when that fails, halves are tried, down to the rows at fault: an operator is stateless, so the
    other rows give what they would have given. Rows that only fail beside others (values of another type) are those that don't go
    with the rows before them.

    Raises:
        DataError: a row failed, and the policy is to raise.
        ZephonError: not about records at all (a column of a type that the operator doesn't take, a library that doesn't do what it
            should, a missing package), whatever the policy.
    """
    made = _by_halves(policy, apply, group, operator, losses)
    return made if len(made) < 2 else _alike(made, operator, losses)


def _by_halves(policy: Policy, apply: Apply, group: pa.RecordBatch, operator: str, losses: Losses) -> list[pa.RecordBatch]:
    try:
        with at(operator=operator):
            made = [_apply_once(apply, group, operator, losses)]
    except Exception as error:
        if isinstance(error, RecipeError):
            placed(error, group, operator)  # the first of the records, which fail all alike
            raise
        if policy != "raise" and not is_of_records(error):
            raise
        if policy == "raise" and isinstance(error, ZephonError) and error.where.row is not None:
            raise  # the operator knows which row it is
        losses.streaks.setdefault(operator, Streak())
        if len(group) > 1:
            middle = len(group) // 2
            parts = [group.slice(0, middle), group.slice(middle)]
            made = [g for part in parts for g in _by_halves(policy, apply, part, operator, losses)]
            if policy == "raise":
                raise  # every part works by itself: what the operator says of the whole is all there is
            return made
        ours = placed(wrap(error, Where()), group, operator)
        if policy == "raise":
            raise ours from error
        losses.drop(operator, f"failed: {ours.message.split(':', 1)[0]}", *record_counts(group))
        for failure in _failures(ours, group, operator):
            losses.fail(failure)
        return []
    if operator in losses.streaks:
        losses.streaks[operator].work()
    return made


def is_of_records(error: BaseException) -> bool:
    """Whether an error may be about records, so that a policy may leave some out for it; a broken library, a runner, a limit never is."""
    return not isinstance(error, PluginError | RunnerError | InternalError | LimitError)


def _alike(made: list[pa.RecordBatch], operator: str, losses: Losses) -> list[pa.RecordBatch]:
    """What goes together with the groups before; the rows of the others failed."""
    kept: list[pa.RecordBatch] = []
    schema: pa.Schema | None = None
    for group in made:
        try:
            schema = group.schema if schema is None else groups.unify(schema, group.schema)
        except DataError as error:
            losses.drop(operator, "failed: types that don't go together", *record_counts(group))
            for row in range(len(group)):
                alone = group.slice(row, 1)
                for failure in _failures(placed(wrap(error, Where()), alone, operator), alone, operator):
                    losses.fail(failure)
        else:
            kept.append(group)
    return kept


def _failures(error: ZephonError, group: pa.RecordBatch, operator: str) -> list[Failure]:
    """The failure of a group of one row. Of a packed sequence it is that of the document that the error names; where it names none, any
    of them may be at fault, and each is one."""
    names = group.schema.names
    if groups.COMPONENT in names:
        component = int(groups.ints(group, groups.COMPONENT)[0])
        pass_index = int(groups.ints(group, groups.PASS)[0]) if groups.PASS in names else None
        return [Failure.of(error, component=component, operator=operator, pass_index=pass_index)]
    documents = _documents(group) if error.where.row is None else []
    if documents:
        return [Failure(c, s, r, None, operator, error.message) for c, s, r in documents]
    component = -1 if error.where.component is None else error.where.component
    return [Failure.of(error, component=component, operator=operator)]


def _documents(group: pa.RecordBatch) -> list[tuple[int, int, int]]:
    """`(component, shard, row)` of each document of packed sequences, in order; none where that isn't known."""
    names = (groups.DOC_COMPONENT, groups.DOC_SHARD, groups.DOC_ROW)
    if not set(names) <= set(group.schema.names):
        return []
    return list(dict.fromkeys(zip(*(flat(group, name).tolist() for name in names), strict=True)))


def _apply_once(apply: Apply, group: pa.RecordBatch, operator: str, losses: Losses) -> pa.RecordBatch:
    result: Any = apply(group)
    made, drops = (result.group, result.drops) if isinstance(result, Outcome) else (result, Drops())
    if not isinstance(made, pa.RecordBatch):
        raise PluginError(f"{operator} returned {type(made).__name__}; it must return a RecordBatch or an Outcome")
    rows, tokens = losses.of_drops(operator, group, drops)
    if made is not group:
        made = decoded_group(made)
        _check_provenance(operator, group, made)
    if made is not group or rows or tokens:
        _balance(operator, group, made, rows, tokens, losses)
    return made


def _check_provenance(operator: str, group: pa.RecordBatch, made: pa.RecordBatch) -> None:
    """Rows that nobody can say the origin of could be neither counted nor named in an error, and a digest would not know them."""
    lost = {*groups.PROVENANCE}.intersection(group.schema.names).difference(made.schema.names)
    if lost:
        raise PluginError(
            f"{operator} left out the provenance column {min(lost)!r}, with which a record's origin is known",
            hint="zephon.plugin.groups has take, set_column and carry_provenance, which keep them",
        )


def _balance(operator: str, group: pa.RecordBatch, made: pa.RecordBatch, rows: Counts, tokens: Counts, losses: Losses) -> None:
    """Count the rows and tokens that an operator made, or left out without a word (`rows` and `tokens` are what it did report)."""
    rows_before, tokens_before = record_counts(group)
    rows_after, tokens_after = record_counts(made)
    losses.balance(operator, difference(rows_before, rows_after, rows), {})
    if has_documents(made) and not has_documents(group):
        add_counts(losses.tokens_in, tokens_after)
        add_counts(losses.tokens_in, tokens)  # what tokenising cut off came in, too
        return
    losses.balance(operator, {}, difference(tokens_before, tokens_after, tokens))


def placed(error: ZephonError, group: pa.RecordBatch, operator: str | None = None) -> ZephonError:
    """The error with the place of the group's first record, where it is known; of a packed sequence, that of its documents."""
    place = place_of(group, 0)
    if error.where.row is None and (documents := _documents(group.slice(0, 1))):
        component, shard, row = documents[0]
        place = Where(row=row, shard=shard, component=component)
        if len(documents) > 1:  # one of them
            place = replace(place, row=None, rows=f"{row} and {len(documents) - 1} others of its sequence")
    error.where = error.where.within(replace(place, operator=operator))
    return error


def joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The parts as one group. Raises `DataError` naming the first record that doesn't go with those before it."""
    try:
        return groups.concat(alike(parts))
    except DataError as error:
        schema = parts[0].schema
        for part in parts:
            try:
                schema = groups.unify(schema, part.schema)
            except DataError:
                raise placed(error, part) from error
        raise

"""From a pipeline's parts to a definition that can run: columns, schemas, levels, recipe; everything that can be refused early."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import compress
from typing import Any

import pyarrow as pa

from zephon import groups
from zephon.dataset import Dataset
from zephon.engine.faults import Policy
from zephon.engine.priming import measure
from zephon.engine.pump import Cut
from zephon.engine.run import Definition
from zephon.engine.schemas import source_schema, with_provenance
from zephon.engine.stages import cut_levels
from zephon.errors import RecipeError, Where, at, unknown
from zephon.options import Options
from zephon.plan.source import StaticMixtureWorkSource
from zephon.plugin import CountsTokens, Operator
from zephon.recipe import operator_recipe

Steps = Sequence[tuple[Operator, Policy | None]]


def needed_columns(steps: Sequence[tuple[Operator, Any]], available: Sequence[str]) -> list[str] | None:
    """The source columns that the operators need; None: all."""
    needed: dict[str, None] = {}
    for op, _ in steps:
        wanted = op.inputs()
        if wanted is None:
            return None
        needed.update(dict.fromkeys(n for n in (*wanted, *op.optional_inputs()) if n in available))
        if not op.passes():
            return list(needed)
    return None


def settle(steps: Steps, datasets: Sequence[Dataset], default: Policy) -> list[tuple[Operator, Policy]]:
    """The operators with what they take from their surroundings filled in: policies, pad ids, groups of data sets."""
    names = [d.name for d in datasets]
    settled: list[tuple[Operator, Policy]] = []
    special: dict[str, int] = {}
    tokenizer: Any = None
    for op, policy in steps:
        known = {f.name for f in fields(op)}
        with at(operator=op.name):
            if "pad_token_id" in known and getattr(op, "pad_token_id", None) is None and special:
                pad = special.get("pad_token_id", special.get("eos_token_id"))
                op = _with(op, pad_token_id=pad)
            elif "pad_token_id" in known and tokenizer is not None:
                tokenizer.check_ids({"pad_token_id": vars(op)["pad_token_id"]}, op.name)
            if "component_groups" in known and getattr(op, "groups", None) and getattr(op, "component_groups", None) is None:
                op = _with(op, component_groups=_component_groups(vars(op)["groups"], names))
        if isinstance(op, CountsTokens) and hasattr(op, "special_ids"):
            special = {k: v for k, v in op.special_ids().items() if v is not None}
            tokenizer = op if hasattr(op, "check_ids") else None
        settled.append((op, policy or default))
    return settled


def _with(op: Operator, **settings: Any) -> Operator:
    changed: Any = op
    return replace(changed, **settings)  # type: ignore[no-any-return]


def _component_groups(given: Mapping[str, Sequence[str]], names: Sequence[str]) -> tuple[int, ...]:
    group_of: dict[str, int] = {}
    for number, (label, members) in enumerate(given.items()):
        for member in members:
            if member not in names:
                raise RecipeError(f"group {label!r} names a data set {member!r} that isn't in the mixture")
            group_of[member] = number
    # a data set that no group names is a group of its own
    return tuple(group_of.get(name, len(given) + i) for i, name in enumerate(names))


def check_schemas(steps: Sequence[tuple[Operator, Policy]], schema: pa.Schema | None) -> pa.Schema | None:
    """Follow the schema through the operators as far as it is known. Raises `RecipeError` where a step doesn't fit the one before."""
    for op, _ in steps:
        if schema is None:
            return None
        wanted = op.inputs()
        for name in wanted or ():
            if name not in schema.names:
                have = ", ".join(groups.user_columns(schema)) or "none"
                raise RecipeError(f"operator {op.name!r} needs a column {name!r}; at that point there are {have}")
        with at(operator=op.name):
            schema = op.output_schema(schema)
    return schema


@dataclass(frozen=True)
class Settled:
    """What a pipeline comes down to with these options: operators with everything filled in, and how steps are cut."""

    source: StaticMixtureWorkSource
    datasets: Sequence[Dataset]
    steps: Sequence[tuple[Operator, Policy]]
    options: Options
    cutting: Mapping[str, Any]
    """`per_step` (sequences per lane and step), `microbatch`, `drop_last`."""

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that determines the bytes, as plain values."""
        options = self.options
        levels = cut_levels(self.steps)
        # what goes through a stage in parts has a digest for each; what an accumulator takes from the first stage comes whole
        sizes = [level.stage.max_rows for level in (levels if len(levels) == 1 else levels[1:])]
        return {
            **({} if not any(sizes) else {"rows_at_once": sizes[0] if len(sizes) == 1 else sizes}),
            "lanes": options.lane_count,
            "sequences_per_lane_and_step": self.cutting["per_step"],
            "flush_every_chunks": options.flush_every_chunks,
            "source": self.source.recipe(),
            "datasets": [d.fingerprint() for d in self.datasets],
            "on_error": options.on_error,
            "operators": [operator_recipe(op) | ({} if p == options.on_error else {"on_error": p}) for op, p in self.steps],
            "drop_last": self.cutting["drop_last"],
        }

    @property
    def owned(self) -> list[int]:
        """This rank's lanes."""
        return list(self.options.owned_lanes()[0])


def prime_source(
    source: StaticMixtureWorkSource, steps: Sequence[tuple[Operator, Policy]], columns: Sequence[str] | None
) -> None:
    """Measure tokens per record, once, if the mixture is by tokens and nobody has."""
    estimation = source.token_estimation
    if estimation is None or not source.requires_token_priming:
        return
    datasets: list[Any] = source.datasets
    wanted = None if estimation.measure is not None else columns
    source.prime(measure(datasets, steps, columns=wanted, samples=estimation.calibration_samples, count=estimation.measure))


def make_definition(settled: Settled) -> Definition:
    """Plan, levels and cut; raises `RecipeError` for everything that can be known before the run."""
    source, datasets, steps, options, cutting = (
        settled.source,
        settled.datasets,
        settled.steps,
        settled.options,
        settled.cutting,
    )
    owned, padding = options.owned_lanes()
    drawn = [any(float(p.weights[d.name]) > 0 for p in source.mixture.all_phases()) for d in datasets]
    available = {name for d, used in zip(datasets, drawn, strict=True) if used for name in d.schema.names}
    _check_first_columns(steps, sorted(available))
    columns = needed_columns(steps, sorted(available))
    schema = source_schema(datasets, columns, drawn)
    try:
        out_schema = check_schemas(steps, with_provenance(schema))
    except RecipeError as error:
        error.where = error.where.within(Where(dataset=_misfit(steps, datasets, columns, drawn)))
        raise
    prime_source(source, steps, columns)
    plan = source.plan(options.lane_count)
    finite = plan.finite
    if finite and options.ranks > 1 and options.max_steps is None and options.agree is None:
        raise RecipeError(
            "this run ends, and a rank can't know when another rank's lanes do",
            hint="give max_steps=…, or agree=zephon.torch.agree_over() (one all-reduce per step)",
        )
    cut = Cut(
        per_step=cutting["per_step"],
        microbatch=cutting["microbatch"],
        drop_last=cutting["drop_last"],
        padding_lanes=padding,
        finite=finite,
        max_steps=options.max_steps,
        agreed=options.agree is not None or (options.ranks == 1 and options.max_steps is None),
    )
    levels = cut_levels(steps)
    return Definition(
        plan,
        datasets,
        levels,
        columns,
        options,
        list(owned),
        cut,
        source.seed,
        out_schema,
        settled.recipe,
        source.tokens_per_record,
    )


def _misfit(
    steps: Sequence[tuple[Operator, Policy]], datasets: Sequence[Dataset], columns: Sequence[str] | None, drawn: Sequence[bool]
) -> str | None:
    """The first data set whose own columns don't fit the operators; None: only those of all of them together don't."""
    for dataset in compress(datasets, drawn):
        try:
            check_schemas(steps, with_provenance(source_schema([dataset], columns, [True])))
        except RecipeError:
            return dataset.name
    return None


def _check_first_columns(steps: Sequence[tuple[Operator, Policy]], available: Sequence[str]) -> None:
    """The first operator's columns must come from the data."""
    for op, _ in steps[:1]:
        for name in op.inputs() or ():
            if name not in available and name not in groups.PROVENANCE:
                have = ", ".join(available) or "none"
                raise RecipeError(
                    f"operator {op.name!r} needs a column {name!r}; at that point there are {have}",
                    hint=unknown("column", name, available),
                )


def read_exclusions(path: str, names: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    """A quarantine file as `{data set: {shard: rows}}`. Raises `RecipeError` where it isn't one."""
    found: dict[str, dict[str, list[int]]] = {}
    number = 0
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                number += 1
                if not line.strip():
                    continue
                entry = json.loads(line)
                if entry["dataset"] in names and entry.get("row") is not None:
                    found.setdefault(entry["dataset"], {}).setdefault(entry["shard"], []).append(int(entry["row"]))
    except OSError as error:
        raise RecipeError(f"exclude={path!r} can't be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RecipeError(
            f"exclude={path!r}, line {number}: not a quarantine line ({type(error).__name__}: {error})",
            hint="give a file that quarantine= wrote; a line that a crash cut short can be deleted: its record comes again",
        ) from error
    return found

"""Random recipes, topologies and cut points; and how to run them on several ranks and put the global stream together."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from operators_for_tests import Copies, Count, DropLong, Encode, KeepSome, LeaveOut, Suffix

from zephon import Batch, Dataset, Pipeline, StaticMixtureWorkSource, groups, merge_states
from zephon.operators.pack import PackFlat
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Operator

Rows = list[dict[str, Any]]
PAD = 0


def text_records(name: str, lengths: Sequence[int]) -> Rows:
    """Records with a number and a text of these lengths; no two texts that are long enough are the same."""
    made = []
    for number, length in enumerate(lengths):
        stem = f"{name}{number}:"
        made.append({"id": number, "text": (stem * (length // len(stem) + 1))[:length]})
    return made


def token_table(name: str, lengths: Sequence[int]) -> pa.Table:
    """Documents that are tokenised already; a token says which record it is and where in it."""
    base = (1 + ord(name[0])) * 1_000_000
    tokens = [[base + number * 1000 + i for i in range(length)] for number, length in enumerate(lengths)]
    return pa.table({"id": pa.array(range(len(lengths)), pa.int64()), groups.TOKENS: pa.array(tokens, pa.list_(pa.int32()))})


@dataclass(frozen=True)
class Recipe:
    """A pipeline in plain values: all that determines the bytes."""

    data: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and the records' lengths."""
    weights: tuple[int, ...]
    tokenised: bool = False
    shards: int = 1
    steps: tuple[Operator, ...] = ()
    lanes: int = 4
    per_step: int = 2
    seed: int = 0
    chunk: int = 3
    block: int | None = 2
    window: int = 2
    passes: int | None = None
    exhausted: str | None = None
    drop_last: bool = False

    def datasets(self) -> list[Dataset]:
        """Afresh."""
        made = []
        for name, lengths in self.data:
            if self.tokenised:
                made.append(Dataset.from_records(name, token_table(name, lengths)))
            else:
                rows = text_records(name, lengths)
                size = -(-len(rows) // self.shards)
                parts = {f"{name}-{i}": rows[i * size : (i + 1) * size] for i in range(self.shards) if rows[i * size :]}
                made.append(Dataset.from_dict(name, parts))
        return made

    def pipeline(self, *, microbatch: int | None = None, datasets: list[Dataset] | None = None, **options: Any) -> Pipeline:
        """A new pipeline of this recipe."""
        made = datasets or self.datasets()
        source = StaticMixtureWorkSource(
            made,
            dict(zip([d.name for d in made], map(float, self.weights), strict=True)),
            seed=self.seed,
            chunk_size=self.chunk,
            shuffle_block_size=self.block,
            stop_after_passes=self.passes,
            exhausted=self.exhausted,  # type: ignore[arg-type]
        )
        pipeline = Pipeline(source)
        for step in self.steps:
            pipeline.then(step)
        pipeline.batch(microbatch or self.per_step, self.lanes * self.per_step, drop_last=self.drop_last)
        return pipeline.options(lanes=self.lanes, flush_every_chunks=self.window, **options)

    @property
    def packed(self) -> bool:
        """Whether sequences have a fixed layout, so that there are empty ones."""
        return any(isinstance(step, PackFlat) for step in self.steps)


@dataclass(frozen=True)
class Topology:
    """Where and how a recipe runs: nothing here may change a byte."""

    world: int = 1
    runner: str = "inline"
    workers: int = 2
    microbatch: int | None = None
    prefetch: int = 4
    max_bytes: int = 1 << 30
    pad: bool = False

    def options(self, rank: int) -> dict[str, Any]:
        """For one rank."""
        return {
            "dp_rank": rank,
            "dp_size": self.world,
            "runner": self.runner,
            "workers": self.workers,
            "prefetch_batches": self.prefetch,
            "max_bytes": self.max_bytes,
            "uneven_lanes": "pad" if self.pad else "refuse",
        }

    def batches_per_step(self, recipe: Recipe) -> int:
        """Microbatches that every rank delivers in a step."""
        return -(-recipe.lanes // self.world) * (recipe.per_step // (self.microbatch or recipe.per_step))


# ------------------------------------------------------------------------------------------------------- running


def rows_of(batch: Batch) -> Rows:
    """All columns of all rows, provenance included, less the empty sequences."""
    return batch.group.slice(0, len(batch) - batch.empty).to_pylist()


@dataclass
class Driven:
    """What a stretch of a run on all ranks gave."""

    steps: dict[int, Rows]
    """step → the ranks' rows, in rank order."""
    state: dict[str, Any]
    """Merged over the ranks, after a trip through JSON."""


def drive(
    recipe: Recipe, topology: Topology, *, steps: int, state: Mapping[str, Any] | None = None, max_steps: int | None = None
) -> Driven:
    """Run all ranks one after the other for `steps` steps (fewer at the end), from `state` on."""
    out: dict[int, Rows] = {}
    states = []
    for rank in range(topology.world):
        pipeline = recipe.pipeline(microbatch=topology.microbatch, max_steps=max_steps, **topology.options(rank))
        if state is not None:
            pipeline.restore(state)
        wanted = steps * topology.batches_per_step(recipe)
        batches = iter(pipeline)
        for _ in range(wanted):
            batch = next(batches, None)
            if batch is None:
                break
            out.setdefault(batch.step, []).extend(rows_of(batch))
        states.append(json.loads(json.dumps(pipeline.checkpoint())))
        batches.close()  # type: ignore[attr-defined]
    return Driven(out, merge_states(states))


def reference(recipe: Recipe, steps: int) -> tuple[list[Rows], None]:
    """The global stream on one rank, inline, uninterrupted: the rows of each of `steps` steps, as `max_steps` cuts them."""
    found: dict[int, Rows] = {}
    for batch in recipe.pipeline(runner="inline", max_steps=steps):
        found.setdefault(batch.step, []).extend(rows_of(batch))
    return [found.get(s, []) for s in range(steps)], None


def to_the_end(recipe: Recipe) -> list[Rows]:
    """The rows of each step of a finite recipe on one rank, inline, which ends by itself."""
    found: dict[int, Rows] = {}
    for batch in recipe.pipeline(runner="inline"):
        found.setdefault(batch.step, []).extend(rows_of(batch))
    return [found[s] for s in range(len(found))]


def quietly(function: Any, *values: Any, **settings: Any) -> Any:
    """Call it without the warning about states from inside a step."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this state was taken mid-window")
        return function(*values, **settings)


MIXED = Recipe(
    data=(("a", tuple(range(1, 40))), ("b", (5, 0, 17, 3, 3, 60))),
    weights=(2, 1),
    steps=(
        Suffix(text="!"),
        KeepSome(column="id", of=5),
        Shuffle(buffer_size=4),
        Encode(),
        PackFlat(max_length=16, algorithm="best_fit_wrap", pad_token_id=PAD),
        Shuffle(),
        Count(),
    ),
    lanes=4,
    per_step=2,
)


def lane_streams(recipe: Recipe, topology: Topology, steps: int) -> tuple[dict[int, Rows], dict[str, Any]]:
    """Rows by lane, and the lanes' states (digests included) after so many steps."""
    found: dict[int, Rows] = {}
    lanes: dict[str, Any] = {}
    for rank in range(topology.world):
        pipeline = recipe.pipeline(microbatch=topology.microbatch, max_steps=steps, **topology.options(rank))
        for batch in pipeline:
            found.setdefault(batch.lane, []).extend(rows_of(batch))
        lanes |= pipeline.checkpoint()["lanes"]
    found.pop(-1, None)
    return found, lanes


# -------------------------------------------------------------------------------------------------------- drawing

lengths = st.lists(st.integers(0, 12), min_size=1, max_size=30).map(tuple)


@st.composite
def datas(draw: st.DrawFn) -> tuple[tuple[str, tuple[int, ...]], ...]:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    return tuple((name, draw(lengths)) for name in names)


@st.composite
def packers(draw: st.DrawFn, names: Sequence[str] = ()) -> PackFlat:
    """Any packer; one that keeps the groups of data sets apart only where their `names` are given."""
    algorithm = draw(st.sampled_from(["wrap", "first_fit", "best_fit", "best_fit_wrap"]))
    settings: dict[str, Any] = {"max_length": draw(st.integers(1, 16)), "pad_token_id": PAD}
    if algorithm in ("first_fit", "best_fit"):
        settings["num_bins"] = draw(st.integers(1, 5))
    if draw(st.booleans()):
        settings["max_documents"] = draw(st.integers(1, 3))
    settings["homogeneity"] = draw(st.sampled_from(["none", "full", *(["group"] if names else [])]))
    if settings["homogeneity"] == "group":
        settings["groups"] = {"first": list(names[:1])}
    settings["over_long"] = draw(st.sampled_from(["split", "truncate", "drop"]))
    return PackFlat(algorithm=algorithm, **settings)


@st.composite
def step_lists(draw: st.DrawFn, *, tokenised: bool) -> tuple[Operator, ...]:
    """Any mixture of stateless and stateful steps that fits together."""
    steps: list[Operator] = []
    rowwise: list[Operator] = [
        KeepSome(column="id", of=draw(st.integers(2, 5))),
        LeaveOut(column="id", of=4),
        Copies(column="id"),
    ]
    if not tokenised:
        rowwise.append(Suffix(text="!"))
    steps += draw(st.lists(st.sampled_from(rowwise), max_size=2))
    if draw(st.booleans()):
        steps.append(
            Shuffle(
                buffer_size=draw(st.one_of(st.none(), st.integers(1, 8))), seed=draw(st.one_of(st.none(), st.integers(0, 9)))
            )
        )
        steps += draw(st.lists(st.sampled_from(rowwise), max_size=1))
    if tokenised or draw(st.booleans()):
        if not tokenised:
            steps.append(Encode())
        if draw(st.booleans()):
            steps.append(DropLong(limit=draw(st.integers(0, 14))))
        if draw(st.integers(0, 3)):
            steps.append(draw(packers()))
            if draw(st.booleans()):
                steps.append(Shuffle(buffer_size=draw(st.one_of(st.none(), st.integers(1, 4)))))
            if draw(st.booleans()):
                steps.append(Count())
    return tuple(steps)


@st.composite
def recipes(draw: st.DrawFn, **fixed: Any) -> Recipe:
    """A recipe; `fixed` settings are not drawn."""
    tokenised = draw(st.booleans())
    data = draw(datas())
    made = Recipe(
        data=data,
        weights=tuple(draw(st.integers(1, 5)) for _ in data),
        tokenised=tokenised,
        shards=draw(st.integers(1, 3)),
        steps=draw(step_lists(tokenised=tokenised)),
        lanes=draw(st.integers(1, 8)),
        per_step=draw(st.sampled_from([1, 1, 2, 3, 4, 6])),
        seed=draw(st.integers(-3, 2**70)),
        chunk=draw(st.integers(1, 7)),
        block=draw(st.one_of(st.none(), st.integers(1, 6))),
        window=draw(st.integers(1, 4)),
        passes=draw(st.sampled_from([1, 1, 2])) if draw(st.booleans()) else None,
        exhausted=draw(st.sampled_from([None, "stop", "redistribute"])),
        drop_last=draw(st.booleans()),
    )
    if made.passes is None:
        made = replace(made, exhausted=None)
    made = replace(made, **fixed)
    return made if made.passes or yields(made) else replace(made, passes=1)


def yields(recipe: Recipe, steps: int = 6) -> bool:
    """Whether every lane has some steps' sequences: an endless run in which a lane's filters leave nothing would look for ever."""
    if not any(isinstance(step, KeepSome | LeaveOut | Copies | DropLong | PackFlat) for step in recipe.steps):
        return True
    once = replace(recipe, passes=3, exhausted=None, drop_last=False)
    pipeline = once.pipeline(runner="inline")
    batches = iter(pipeline)
    for _ in range(steps * recipe.lanes):
        batch = next(batches, None)
        if batch is None or len(batch) - batch.empty < recipe.per_step:
            return False
    return True


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def topologies(draw: st.DrawFn, recipe: Recipe, *, runners: Sequence[str] = ("inline", "threads")) -> Topology:
    """Where a recipe may run."""
    pad = draw(st.booleans())
    return Topology(
        world=draw(st.integers(1, recipe.lanes)) if pad else draw(st.sampled_from(divisors(recipe.lanes))),
        runner=draw(st.sampled_from(list(runners))),
        workers=draw(st.integers(1, 3)),
        microbatch=draw(st.sampled_from(divisors(recipe.per_step))),
        prefetch=draw(st.integers(1, 5)),
        max_bytes=draw(st.sampled_from([1, 4096, 1 << 30])),
        pad=pad,
    )


def flatten(steps: Sequence[Rows]) -> Rows:
    """The rows of all steps, one after the other."""
    return [row for rows in steps for row in rows]


def as_array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)

"""WorkSource: which records are chunk k of lane l, without reading any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from zephon.checks import whole, whole_or_none
from zephon.errors import RecipeError, unknown
from zephon.keys import I64, key
from zephon.plan.mixture import MixtureSpec, Schedule, apportion, arrange
from zephon.plan.passes import ComponentRows
from zephon.plan.segments import Ending, Exhausted, Segment, lane_segments
from zephon.plan.tokens import TokenEstimation
from zephon.plan.units import UnitTable, stripe_rows

CHUNK_BYTES = 5 << 19
"""Decoded bytes per chunk where `chunk_size` is not given: 8 chunks are about 5 million tokens of ordinary text, so that the one padded
sequence at each flush stays below 0.03 % of the tokens."""
STRIPE_BYTES = 128 << 20
"""What the open stripes of all lanes together weigh, where `shuffle_block_size` is not given."""
_MAX_CHUNK = 1 << 15
_MAX_BUNDLE = 1 << 12
_FEW, _HEAVY_BYTES = 128, 16 << 20
"""A chunk costs about a millisecond however few rows it has, so heavy records (photographs) come 128 at a time, as long as they stay
below so many bytes."""
_MIN_CHUNK_BYTES = 64 << 10

Policy = Literal["stop", "repeat", "redistribute"]


class PlannedDataset(Protocol):
    """What planning sees of a data set."""

    @property
    def name(self) -> str: ...

    @property
    def units(self) -> UnitTable: ...


@dataclass(frozen=True)
class Chunk:
    """The records of one chunk in order: `component[i]`, and the lane's row number `index[i]` in that component."""

    lane: int
    number: int
    component: npt.NDArray[np.int32]
    index: I64

    def __len__(self) -> int:
        return len(self.component)

    @cached_property
    def counts(self) -> dict[int, int]:
        """Records of each component that there is."""
        counts = np.bincount(self.component)
        return {c: int(counts[c]) for c in np.flatnonzero(counts).tolist()}


class Plan:
    """The draws of every lane, for a fixed lane count and fixed record shares. Lane-local; O(1) in lanes and position."""

    def __init__(self, source: StaticMixtureWorkSource, *, lanes: int, tokens_per_record: Mapping[str, float] | None) -> None:
        names = [d.name for d in source.datasets]
        phases = []
        for phase in source.mixture.all_phases():
            weights = [float(phase.weights[n]) / (tokens_per_record[n] if tokens_per_record else 1.0) for n in names]
            seats = apportion(weights)
            length = None if phase.records is None else -(-phase.records // lanes)
            phases.append((Schedule(arrange(seats), len(names)), length))
        self.lanes = lanes
        self.source = source
        self.names = names
        self._phases = phases
        first = phases[0][0]
        shares = first.seats / first.size
        self.rows: list[ComponentRows | None] = []
        for number, dataset in enumerate(source.datasets):
            used = any(schedule.seats[number] for schedule, _ in phases)
            self.rows.append(self._component(dataset, max(float(shares[number]), 0.01), lanes) if used else None)
        self.chunk_size = source.chunk_size or self._chunk_size(shares)
        self._segments: dict[int, tuple[list[Segment], int | None]] = {}
        self._check_passes()

    def _check_passes(self) -> None:
        """Raises `RecipeError` where a data set that the last, endless phase doesn't draw can't make its passes before."""
        last, length = self._phases[-1]
        if length is not None:
            return
        for number, rows in enumerate(self.rows):
            rule, passes = self.source.ending(self.names[number])
            if rows is None or rule != "all" or passes is None or last.seats[number]:
                continue
            drawn = sum(
                float(schedule.seats[number]) / schedule.size * (phase.records or 0)
                for (schedule, _), phase in zip(self._phases, self.source.mixture.all_phases(), strict=True)
            )
            due = passes * rows.total_rows
            if drawn < due:
                name = self.names[number]
                raise RecipeError(
                    f"data set {name!r} is to make {passes} passes, {due:,} records, but the last phase doesn't draw it and the phases "
                    f"before give it only {drawn:,.0f}: this run would never end",
                    hint=f"make those phases longer, or say that {name!r} doesn't count: exhausted={{{name!r}: 'repeat'}}",
                )

    def _component(self, dataset: PlannedDataset, share: float, lanes: int) -> ComponentRows:
        source = self.source
        stripe = source.shuffle_block_size or stripe_rows(dataset.units, lanes=lanes, share=share, total_bytes=STRIPE_BYTES)
        return ComponentRows(
            dataset.units,
            seed_key=key(source.seed, "rows of", dataset.name),
            lanes=lanes,
            stripe=stripe,
            shuffle_units=source.shuffle_shards,
            shuffle_rows=source.shuffle_within_shard,
            reshuffle=source.reshuffle_on_repeat,
            # what the first chunk draws from is all that a first batch and a restore have to read
            bundle_rows=int(min(max(_at_once(dataset.units.total_bytes / dataset.units.total_rows), 1), _MAX_BUNDLE)),
        )

    def _chunk_size(self, shares: npt.NDArray[np.float64]) -> int:
        mean = sum(
            float(share) * dataset.units.total_bytes / dataset.units.total_rows
            for share, dataset in zip(shares, self.source.datasets, strict=True)
            if share > 0
        )
        # of small data a chunk is at most what a lane has of it in one pass: else many lanes would each read all of it several
        # times before a first batch
        drawn = sum(rows.table.total_bytes for rows in self.rows if rows is not None)
        share = max(drawn / self.lanes, _MIN_CHUNK_BYTES)
        wanted = min(max(_at_once(mean, share), 1), _MAX_CHUNK)
        drawn_from = [rows for rows in self.rows if rows is not None]
        if len(drawn_from) > 1:
            return int(wanted)
        # of one data set a chunk is a bundle, or an even part of one: what is read for it is what it takes. Parts of light records are
        # no smaller than wanted, since a chunk costs milliseconds however little it holds; of small data they stay near a lane's share
        rows = drawn_from[0]
        parts = rows.bundle / wanted
        light = mean * _FEW <= CHUNK_BYTES and rows.bundle * self.lanes <= rows.total_rows
        return rows.bundle // max(1, int(parts) if light else round(parts))

    def _lane(self, lane: int) -> tuple[list[Segment], int | None]:
        made = self._segments.get(lane)
        if made is None:
            endings = [self._ending(c, lane) for c in range(len(self.rows))]
            made = lane_segments(self._phases, endings, phase_key=self._phase_key(lane))
            self._segments[lane] = made
        return made

    def _phase_key(self, lane: int) -> int:
        # steps of the golden ratio spread the lanes evenly over any period, so that one global batch has the mixture too
        spread = (lane * 2654435769 + key(self.source.seed, "lane phases")) & 0xFFFFFFFF
        return (spread * self._phases[0][0].size) >> 32

    def _ending(self, component: int, lane: int) -> Ending:
        rows, source = self.rows[component], self.source
        if rows is None:
            return Ending("repeat", None)
        rule, passes = source.ending(self.names[component])
        cap = None if source.max_repeats is None else rows.lane_rows(lane, 1 + source.max_repeats)
        return Ending(rule, None if passes is None else rows.lane_rows(lane, passes), cap)

    def lane_draws(self, lane: int) -> int | None:
        """How many records the lane is given in all; None: without end."""
        return self._lane(lane)[1]

    def lane_chunks(self, lane: int) -> int | None:
        """How many chunks the lane has; None: without end."""
        draws = self.lane_draws(lane)
        return None if draws is None else -(-draws // self.chunk_size)

    def last_flat_row(self, component: int) -> int | None:
        """The flat row of a component after which no lane draws, where that is known without asking the lanes; None: no such row."""
        rows, source = self.rows[component], self.source
        if rows is None:
            return None
        rule, passes = source.ending(self.names[component])
        ends = [passes] if passes is not None and rule in ("stop", "redistribute") else []
        if source.max_repeats is not None:
            ends.append(1 + source.max_repeats)
        return min(ends) * rows.total_rows if ends else None

    def rows_per_pass(self, lane: int) -> int:
        """At least how many records the lane draws until it had each of its rows once."""
        shares = self._phases[-1][0].seats / self._phases[-1][0].size
        each = [
            rows.lane_rows(lane, 1) / share for rows, share in zip(self.rows, shares, strict=True) if rows is not None and share
        ]
        return int(max(each, default=0)) + 1

    def open_bytes(self, lanes: int) -> int:
        """About what the stripes weigh that this many lanes have open at a time."""
        total = 0.0
        for rows in self.rows:
            if rows is not None:
                total += rows.bundle * rows.table.total_bytes / rows.total_rows
        return int(total * lanes)

    @property
    def finite(self) -> bool:
        """Whether the lanes end.

        Raises:
            RecipeError: some do and some don't, since a data set runs out near the end of its last phase.
        """
        ends = self.lane_draws(0) is not None
        if len(self._phases) > 1:  # else all lanes have the same endings
            other = next((lane for lane in range(1, self.lanes) if (self.lane_draws(lane) is not None) != ends), None)
            if other is not None:
                some, none = (0, other) if ends else (other, 0)
                raise RecipeError(
                    f"lane {some} ends in a phase in which its part of a data set runs out, lane {none} goes on for ever",
                    hint="make the phase longer or shorter, or let that data set repeat: exhausted={…: 'repeat'}",
                )
        return ends

    def chunk(self, lane: int, number: int) -> Chunk:
        """Chunk `number` of a lane; empty past its end."""
        segments, total = self._lane(lane)
        start = number * self.chunk_size
        stop = start + self.chunk_size if total is None else min(start + self.chunk_size, total)
        bounds = [(x, max(start, x.start), stop if x.stop is None else min(stop, x.stop)) for x in segments]
        parts = [segment.draws(low, high) for segment, low, high in bounds if low < high]
        if not parts:
            return Chunk(lane, number, np.zeros(0, np.int32), np.zeros(0, np.int64))
        if len(parts) == 1:
            return Chunk(lane, number, *parts[0])
        return Chunk(lane, number, np.concatenate([c for c, _ in parts]), np.concatenate([i for _, i in parts]))


class WorkSource:
    """What plans chunks for lanes, as a name for annotations: `StaticMixtureWorkSource` is the only one, and what pipelines take."""


class StaticMixtureWorkSource(WorkSource):
    """Data sets mixed by weights.

    Args:
        datasets: one or more `Dataset`, names unique.
        mixture: name → weight, or a `MixtureSpec`. May be left out for a single data set.
        seed: any integer; all order follows from it.
        chunk_size: records that a lane plans at a time; default from the records' sizes.
        shuffle_shards: a new order of read units in each pass.
        shuffle_within_shard: permute records inside a shuffle block.
        shuffle_block_size: records per shuffle block of a lane; default from the records' sizes.
        token_estimation: weights count tokens instead of records.
        stop_after_passes: a finite run; None: endless, unless a data set has the policy "stop" or "redistribute" (then 1).
        exhausted / exhausted_policy: what happens when a data set has made its passes, for all or by name: None (every data set makes at
            least `stop_after_passes` passes, quick ones repeat), "repeat", "stop", "redistribute".
        max_repeats: no data set is read more often than 1 + max_repeats times; then the others take its share.
        reshuffle_on_repeat: each pass has an order of its own; False: every pass has that of the first.

    Raises:
        RecipeError: unknown or missing names, bad weights, an empty data set with weight > 0, a setting out of range.
    """

    def __init__(
        self,
        datasets: Sequence[PlannedDataset] | PlannedDataset,
        mixture: MixtureSpec | Mapping[str, float] | None = None,
        *,
        seed: int = 0,
        chunk_size: int | None = None,
        shuffle_shards: bool = True,
        shuffle_within_shard: bool = True,
        shuffle_block_size: int | None = None,
        token_estimation: TokenEstimation | None = None,
        stop_after_passes: int | None = None,
        exhausted: Policy | Mapping[str, Policy | None] | None = None,
        exhausted_policy: Policy | Mapping[str, Policy | None] | None = None,
        max_repeats: int | None = None,
        reshuffle_on_repeat: bool = True,
    ) -> None:
        self.datasets = list(datasets) if isinstance(datasets, Sequence) else [datasets]
        if not self.datasets:
            raise RecipeError("a source needs at least one data set")
        odd = next((d for d in self.datasets if not isinstance(getattr(d, "name", None), str)), None)
        if odd is not None:
            raise RecipeError(
                f"a source takes data sets, got {odd!r:.60}", hint="Dataset.from_path(name, path) makes one of files"
            )
        names = [d.name for d in self.datasets]
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise RecipeError(
                f"two data sets are named {twice!r}",
                hint="names must differ; the same data may be given twice under two names",
            )
        if mixture is None:
            if len(names) > 1:
                raise RecipeError("several data sets need a mixture", hint=f"give mixture={{{names[0]!r}: 0.5, …}}")
            mixture = {names[0]: 1.0}
        self.mixture = MixtureSpec.from_any(mixture)
        self.mixture.check_names(names)
        self.seed = whole("seed", seed)
        self.chunk_size = whole_or_none("chunk_size", chunk_size, least=1)
        self.shuffle_shards = shuffle_shards
        self.shuffle_within_shard = shuffle_within_shard
        self.shuffle_block_size = whole_or_none("shuffle_block_size", shuffle_block_size, least=1)
        self.token_estimation = token_estimation
        self.stop_after_passes = whole_or_none("stop_after_passes", stop_after_passes, least=1)
        if exhausted is not None and exhausted_policy is not None:
            raise RecipeError("exhausted and exhausted_policy are one setting; give one of them")
        self.exhausted = _policies(exhausted if exhausted is not None else exhausted_policy, names)
        if max_repeats is not None and max_repeats < 0:
            raise RecipeError(f"max_repeats is {max_repeats}; it must be ≥ 0")
        self.max_repeats = whole_or_none("max_repeats", max_repeats)
        self.reshuffle_on_repeat = reshuffle_on_repeat
        self._measured: dict[str, float] | None = None
        self._check_not_empty()
        if self.stop_after_passes is not None and len(self.mixture.all_phases()) > 1 and not self.requires_token_priming:
            self.plan(1)  # refuses passes that can't be made; with measured weights that is known when they are

    def _check_not_empty(self) -> None:
        for dataset in self.datasets:
            drawn = any(float(p.weights[dataset.name]) > 0 for p in self.mixture.all_phases())
            if drawn and not len(dataset.units):
                raise RecipeError(
                    f"data set {dataset.name!r} has no rows but a weight > 0", hint="give it weight 0, or leave it out"
                )

    def ending(self, name: str) -> tuple[Exhausted, int | None]:
        """What one data set does at its end, and after how many passes that is (None: it has no end)."""
        policy = self.exhausted[name]
        if policy in ("stop", "redistribute"):
            return cast("Exhausted", policy), self.stop_after_passes or 1
        if policy == "repeat" or self.stop_after_passes is None:
            return "repeat", None
        return "all", self.stop_after_passes

    @property
    def requires_token_priming(self) -> bool:
        """Whether tokens per record must still be measured before the first chunk can be planned."""
        return self.token_estimation is not None and self.tokens_per_record is None

    @property
    def tokens_per_record(self) -> dict[str, float] | None:
        """Tokens per record by data set, as given or measured; None: not (yet) known, or not asked for."""
        if self.token_estimation is None:
            return None
        return self.token_estimation.given([d.name for d in self.datasets]) or self._measured

    def prime(self, tokens_per_record: Mapping[str, float]) -> None:
        """Set the measured tokens per record (by the engine's sample, or from a state)."""
        self._measured = {d.name: float(tokens_per_record[d.name]) for d in self.datasets}

    def plan(self, lanes: int) -> Plan:
        """The plan for this many lanes. Raises `RecipeError` where `lanes` is below 1, or a data set can't make its passes."""
        if lanes < 1:
            raise RecipeError(f"lanes is {lanes}; it must be ≥ 1")
        return Plan(self, lanes=lanes, tokens_per_record=self.tokens_per_record)

    def recipe(self) -> dict[str, Any]:
        """The settings that determine the order, as plain values."""
        estimation = self.token_estimation
        return {
            "mixture": self.mixture.recipe(),
            "seed": self.seed,
            "chunk_size": self.chunk_size,
            "shuffle_shards": self.shuffle_shards,
            "shuffle_within_shard": self.shuffle_within_shard,
            "shuffle_block_size": self.shuffle_block_size,
            "stop_after_passes": self.stop_after_passes,
            "exhausted": dict(self.exhausted),
            "max_repeats": self.max_repeats,
            "reshuffle_on_repeat": self.reshuffle_on_repeat,
            "token_estimation": None
            if estimation is None
            else {
                "calibration_samples": estimation.calibration_samples,
                "given": estimation.given([d.name for d in self.datasets]),
            },
        }


def _at_once(mean: float, share: float = float("inf")) -> float:
    """Records of a chunk, of `mean` bytes each, where a lane has `share` bytes."""
    mean = max(mean, 1.0)
    return max(min(CHUNK_BYTES, share) / mean, min(_FEW, min(_HEAVY_BYTES, share) / mean))


def _policies(given: Policy | Mapping[str, Policy | None] | None, names: Sequence[str]) -> dict[str, Policy | None]:
    known = ("stop", "repeat", "redistribute")
    table: dict[str, Policy | None] = {name: given.get(name) if isinstance(given, Mapping) else given for name in names}
    if isinstance(given, Mapping):
        for name in given:
            if name not in table:
                raise RecipeError(unknown("data set in exhausted", name, names))
    for policy in table.values():
        if policy is not None and policy not in known:
            raise RecipeError(unknown("exhausted policy", str(policy), known))
    return table

"""Planning: nanoseconds per record at 1, 64, 1,024 and 4,096 lanes and 10^6 and 10^9 records, in read units that exist as arrays only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import Result, Setting, Timed, alternate, costs, script, value
from zephon import StaticMixtureWorkSource
from zephon.plan.source import Plan
from zephon.plan.units import UnitTable, unit_table

_LANES = (1, 64, 1024, 4096)
_FAR = 1_000_000


@dataclass(frozen=True)
class Planned:
    """A data set of which nothing but the units is there."""

    name: str
    units: UnitTable


def measure(setting: Setting) -> list[Result]:
    """All that planning does for a record: `chunk`, `draw`, and `bundle_rows` for the bundles that it lies in."""
    web, code = dataset("web", 10**6, 10**9), dataset("code", 10**5, 10**8)
    source = StaticMixtureWorkSource([web], seed=1)
    plans = {lanes: source.plan(lanes) for lanes in _LANES}
    mixed = StaticMixtureWorkSource([web, code], {"web": 0.7, "code": 0.3}, seed=1).plan(1024)
    order = alternate(lambda: float(len(plans[1].rows[0]._pass_order(7)[0])), repeats=1)[0][0]  # type: ignore[union-attr]
    small = StaticMixtureWorkSource([dataset("web", 10**3, 10**6)], seed=1)
    rows = 1 << (18 if setting.quick else 21)
    walks = [*(Walk(plans[lanes], range(lanes)) for lanes in _LANES), Walk(mixed, range(1024))]
    walks += [Walk(source.plan(64), range(64)), Walk(source.plan(64), range(64), _FAR)]
    walks += [Walk(small.plan(lanes), range(lanes)) for lanes in (1, 4096)]
    one, some, many, most, two, near, far, few, few_most = alternate(
        *(lambda walk=walk: walk.on(rows if setting.quick else max(rows, walk.round)) for walk in walks),
        repeats=setting.repeats,
    )
    scale: Any = {"unit": "ns/record", "scale": 1e9}
    return [
        costs("planning, 64 lanes (bare: 1 lane)", one, some, **scale),
        costs("planning, 1,024 lanes (bare: 1 lane)", one, many, **scale, at_most=1.2),
        costs("planning, 4,096 lanes (bare: 1 lane)", one, most, **scale, at_most=1.2),
        costs("planning 10^6 records, 1 lane (bare: 10^9 records)", one, few, **scale),
        costs("planning 10^6 records, 4,096 lanes (bare: 1 lane)", few, few_most, **scale, at_most=1.2),
        value("planning, 1,024 lanes", _nanoseconds(many), "ns/record", at_most=1000),
        value("planning, 1,024 lanes, two data sets mixed", _nanoseconds(two), "ns/record", at_most=1000),
        costs(f"planning, from chunk {_FAR:,} of each lane on (bare: from chunk 0)", near, far, **scale, at_most=1.2),
        value("order of 10^6 units, once per pass", order.wall * 1e3, "ms"),
    ]


class Walk:
    """Lanes of a plan, planned as the engine does: lane by lane, chunk after chunk, each bundle resolved once."""

    def __init__(self, plan: Plan, lanes: Sequence[int], first: int = 0) -> None:
        self._plan = plan
        self._lanes = lanes
        self._number = first
        self._open: dict[tuple[int, int], set[int]] = {}

    @property
    def round(self) -> int:
        """Records after which every lane planned as many blocks as any other: fewer, and a turn has all of the orders to make or none."""
        return len(self._lanes) * max(drawn.block for drawn in self._plan.rows if drawn is not None)

    def on(self, rows: int) -> float:
        """Go on by about `rows` records, never over the same ones twice (orders are kept); how many they were."""
        done = 0
        while done < rows:
            for lane in self._lanes:
                chunk = self._plan.chunk(lane, self._number)
                done += len(chunk)
                for component, drawn in enumerate(self._plan.rows):
                    assert drawn is not None
                    bundle, _ = drawn.draw(lane, chunk.index[chunk.component == component])
                    before, now = self._open.get((lane, component), set()), set(range(int(bundle[0]), int(bundle[-1]) + 1))
                    for new in sorted(now - before):
                        drawn.bundle_rows(lane, new)
                    self._open[lane, component] = now
            self._number += 1
        return float(done)


def _nanoseconds(timed: Sequence[Timed]) -> float:
    return statistics.median(t.wall / t.work for t in timed) * 1e9


def dataset(name: str, units: int, rows: int) -> Planned:
    """Units of about the same number of records, 2 KB each: ordinary text."""
    random = np.random.default_rng(len(name))
    mean = rows // units
    counts = random.integers(mean // 2, mean + mean // 2 + 1, units)
    counts[-1] += rows - counts.sum() if rows > counts.sum() else 0
    return Planned(name, unit_table([(counts, counts * 2048)]))


if __name__ == "__main__":
    script(measure)

"""Where a run's time goes: counted per task and per batch, never per record; read when somebody asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zephon.cores import idle_seconds

clock = time.perf_counter


@dataclass
class Spent:
    """Time that a piece of work took: on the clock (`seconds`) and of a core (`cpu`), in so many tasks.

    The processor's time is that of the calling thread: threads that a library starts by itself are not in it.
    """

    seconds: float = 0.0
    cpu: float = 0.0
    tasks: int = 0

    def add(self, seconds: float, cpu: float) -> None:
        """One task more."""
        self.seconds += seconds
        self.cpu += cpu
        self.tasks += 1

    def since(self, before: Spent) -> Spent:
        """What was added after `before`."""
        return Spent(self.seconds - before.seconds, self.cpu - before.cpu, self.tasks - before.tasks)


class Stopwatch:
    """How long something was so; a clock is read only when it changes."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    def set(self, so: bool) -> None:
        """Whether it is so from now on."""
        if so and self._since is None:
            self._since = clock()
        elif not so and self._since is not None:
            self._seconds, self._since = self._seconds + clock() - self._since, None

    @property
    def seconds(self) -> float:
        """In all, up to now."""
        since = self._since
        return self._seconds + (0.0 if since is None else clock() - since)


@dataclass(frozen=True)
class Times:
    """A span of a run, or all of it up to a moment."""

    elapsed: float
    """Seconds in which the consumer trained or waited."""
    waited: float
    """Of these, how long it waited for a batch."""
    batches: int
    reading: Spent
    operators: Mapping[str, Spent]
    """Stateless operators on workers, in the recipe's order."""
    pump_cpu: float
    """Of the thread that plans, decides and forms batches."""
    full: float
    """How long the lanes held all the bytes that they may hold."""
    idle: float | None = None
    """Core-seconds that nobody used on this machine, where that is known."""

    @property
    def working(self) -> Spent:
        """All operators on workers together; the tasks are those of the busiest one."""
        spent = list(self.operators.values())
        return Spent(sum(s.seconds for s in spent), sum(s.cpu for s in spent), max((s.tasks for s in spent), default=0))

    @property
    def cpu(self) -> float:
        """Of all the loader's own threads and workers."""
        return self.reading.cpu + self.working.cpu + self.pump_cpu

    def since(self, before: Times) -> Times:
        """The span after `before`."""
        nothing = Spent()
        return Times(
            self.elapsed - before.elapsed,
            self.waited - before.waited,
            self.batches - before.batches,
            self.reading.since(before.reading),
            {name: spent.since(before.operators.get(name, nothing)) for name, spent in self.operators.items()},
            self.pump_cpu - before.pump_cpu,
            self.full - before.full,
            None if self.idle is None or before.idle is None else self.idle - before.idle,
        )


@dataclass
class Meter:
    """Counts for one run. Each count has one writer: the pump's thread, the consumer's, or a reader under the lock."""

    pump_cpu: Callable[[], float] = field(default_factory=lambda: float)
    full: Callable[[], float] = field(default_factory=lambda: float)
    """Asked for what the pump counts: see `Times`."""
    first_batch_s: float | None = None
    """From the start of the run to its first batch."""
    _begun: float = field(default_factory=clock)
    _last: float = 0.0
    _waited: float = 0.0
    _batches: int = 0
    _reading: Spent = field(default_factory=Spent)
    _operators: dict[str, Spent] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _warm: Times | None = None
    _changed: Times | None = None

    def start(self) -> None:
        """The run begins now."""
        self._begun = clock()

    def read(self, seconds: float, cpu: float) -> None:
        """A chunk was read, in any thread."""
        with self._guard:
            self._reading.add(seconds, cpu)

    def worked(self, spent: Mapping[str, tuple[float, float]]) -> None:
        """A task came back from a worker."""
        for name, (seconds, cpu) in spent.items():
            self._operators.setdefault(name, Spent()).add(seconds, cpu)

    def delivered(self, asked: float) -> None:
        """The batch that was asked for at `asked` is there."""
        now = clock()
        if self._warm is None:
            self.first_batch_s = now - self._begun
            self._begun = self._last = now
            self._warm = self._now()
        else:
            self._waited += now - asked
            self._last = now
            self._batches += 1

    def times(self) -> Times | None:
        """From the first batch, which pays for the start, to the last one; None before it."""
        return None if self._warm is None else self._now().since(self._warm)

    def changed(self) -> None:
        """The run was given other numbers of workers: `recent` begins anew."""
        self._changed = self._now()

    def recent(self) -> Times | None:
        """As `times`, since the last change."""
        return self._now().since(self._changed) if self._changed is not None else self.times()

    def _now(self) -> Times:
        with self._guard:
            reading = self._reading.since(Spent())
        return Times(
            elapsed=self._last - self._begun,
            waited=self._waited,
            batches=self._batches,
            reading=reading,
            operators={name: spent.since(Spent()) for name, spent in list(self._operators.items())},
            pump_cpu=self.pump_cpu(),
            full=self.full(),
            idle=idle_seconds(),
        )

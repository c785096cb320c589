"""What a run may be told that is not part of the recipe (except where a docstring says so)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from zephon.checks import number, whole_or_none
from zephon.cores import core_share, memory_share
from zephon.engine.faults import POLICIES, Policy
from zephon.errors import RecipeError, unknown

RunnerName = Literal["inline", "threads", "processes", "ray"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of `Pipeline.options`. Only those that say that they are part of the recipe change any byte.

    Raises:
        RecipeError: a value that can't be.
    """

    lanes: int | None = None
    """Part of the recipe. The independent streams that a global batch is cut across; default: `dp_size`."""
    dp_rank: int | None = None
    dp_size: int | None = None
    """Data-parallel coordinates. Default: one rank; refused where torch.distributed says that there are several."""
    uneven_lanes: Literal["refuse", "pad"] = "refuse"
    """A lane count that the ranks don't divide: refuse, or give ranks with fewer lanes empty microbatches."""
    runner: RunnerName = "threads"
    workers: int | Literal["auto"] | None = None
    """Tasks at once. Default: the cores that this rank may use (its share of the machine's, or the Ray cluster's). "auto" begins with
    that, and changes it, and the reads at once and the batches held ready, by what tasks were measured to take."""
    ranks_per_node: int | None = None
    """How many ranks share this machine's cores and memory; default: what the launcher says (torchrun, MPI, Slurm), else one."""
    resources: Mapping[str, Mapping[str, Any]] | None = None
    """What the runner "ray" asks of the cluster for an operator's tasks, by the operator's name: `{"tokenize": {"num_cpus": 2}}`, and
    whatever else `ray.remote` takes. Other runners don't look at it."""
    fetch_parallelism: int | None = None
    """Reads at once; default: as many as workers."""
    switch_interval_s: float | None = 0.001
    """While a run with the runner "threads" iterates, no thread of this process keeps the interpreter lock longer than this while others
    wait for it (`sys.setswitchinterval`); None leaves Python's interval alone, which is 5 ms."""
    prefetch_batches: int = 64
    """Microbatches held ready for the training step at most; two are enough where they are heavy."""
    max_bytes: int | None = None
    """Bytes that data in flight and decoded data kept for several lanes may take, half each. Default: 1 GiB, or a quarter of this
    rank's share of the memory where that is less."""
    spill_dir: str | None = None
    """A folder on a disk where the images of sequences that wait in a shuffle after `pack_multimodal` lie meanwhile, in a file without a
    name, instead of in memory. What a disk can't take waits in memory."""
    copy: bool = False
    """Batches have memory of their own. Without it, those of data that no operator changes show text and bytes where these lie, in mapped
    files: then nobody may write into a file while a batch of it is in use."""
    io_options: Any = None
    """Retries, time-outs and the shard cache (`zephon.io.StoreOptions`, or the same as a dict) of data sets that have none of their own."""
    flush_every_chunks: int = 8
    """Part of the recipe. Chunks per window."""
    max_steps: int | None = None
    """Deliver exactly so many steps (counted from the beginning of the run, not from a restore)."""
    agree: Callable[[bool], bool] | None = None
    """For a finite run on several ranks: a logical AND over them. Told a flag once per step, it answers whether all ranks said True; so
    they end at one step. (Without `drop_last` the flag is that this rank has nothing left, with it that all its lanes fill the step.)"""
    on_error: Policy = "raise"
    """Part of the recipe. What becomes of a record that can't be read or that an operator fails on."""
    quarantine: str | None = None
    """Where on_error="quarantine" writes a JSON line per failed record."""
    exclude: str | None = None
    """Part of the recipe. A quarantine file whose records are left out from the beginning."""
    max_failures: int | None = None
    """Stop when more records than this failed in this process."""
    max_failures_in_a_row: int | None = None
    """Stop when more records than this failed in a lane without one in between that worked."""
    watchdog_s: float = 120.0
    """Dump all stacks when no batch came for so long."""
    aggregate_dir: str | None = None
    """A folder that all ranks see: `checkpoint()` then returns the merged state of all ranks."""
    aggregate_timeout_s: float = 120.0
    """How long `checkpoint()` waits there for the other ranks."""
    run_id: str | None = None
    """The subfolder of `aggregate_dir` for this run's states; default: `run`."""

    def __post_init__(self) -> None:
        for name in (
            "lanes",
            "dp_size",
            "ranks_per_node",
            "fetch_parallelism",
            "prefetch_batches",
            "max_bytes",
            "flush_every_chunks",
            "max_steps",
        ):
            object.__setattr__(self, name, whole_or_none(name, getattr(self, name), least=1))
        if self.workers != "auto":
            if isinstance(self.workers, str):
                raise RecipeError(unknown("number of workers", self.workers, ("auto",)))
            object.__setattr__(self, "workers", whole_or_none("workers", self.workers, least=1))
        _check_resources(self.resources)
        for name in ("max_failures", "max_failures_in_a_row", "dp_rank"):
            object.__setattr__(self, name, whole_or_none(name, getattr(self, name), least=0))
        if self.switch_interval_s is not None:
            number("switch_interval_s", self.switch_interval_s, 0, above=True)
        for name in ("watchdog_s", "aggregate_timeout_s"):
            number(name, getattr(self, name), 0, above=True)
        if self.agree is not None and not callable(self.agree):
            raise RecipeError(f"agree is {self.agree!r}; it must be a function (bool) -> bool")
        if self.runner not in get_args(RunnerName):
            raise RecipeError(unknown("runner", str(self.runner), get_args(RunnerName)))
        if self.on_error not in POLICIES:
            raise RecipeError(unknown("on_error policy", str(self.on_error), POLICIES))
        if self.uneven_lanes not in ("refuse", "pad"):
            raise RecipeError(unknown("uneven_lanes", str(self.uneven_lanes), ("refuse", "pad")))
        if self.dp_rank is not None and self.dp_size is not None and self.dp_rank >= self.dp_size:
            raise RecipeError(f"dp_rank is {self.dp_rank} but dp_size is {self.dp_size}; ranks count from 0")

    def updated(self, changes: Mapping[str, Any], also: Iterable[str] = ()) -> Options:
        """With these changes; an unknown name is a `RecipeError` with the nearest one of ours and of `also`."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise RecipeError(unknown("option", name, [*known, *also]))
        return replace(self, **changes)

    @property
    def ranks(self) -> int:
        """dp_size, 1 where it is not given."""
        return self.dp_size or 1

    @property
    def rank(self) -> int:
        """dp_rank, 0 where it is not given."""
        return self.dp_rank or 0

    @property
    def lane_count(self) -> int:
        """The number of lanes over all ranks."""
        return self.lanes or self.ranks

    def owned_lanes(self) -> tuple[range, int]:
        """This rank's contiguous block of lanes, and how many padding lanes it delivers after them.

        Raises:
            RecipeError: one of `dp_rank` and `dp_size` is missing, the lanes don't divide by the ranks (and `uneven_lanes` isn't "pad"),
                or there are fewer lanes than ranks.
        """
        lanes, ranks = self.lane_count, self.ranks
        if self.rank >= ranks or (self.dp_rank is None and ranks > 1):
            raise RecipeError(
                f"dp_rank is {self.dp_rank} and dp_size is {self.dp_size}",
                hint="give both: a rank that doesn't know its number would read another one's data",
            )
        if lanes < ranks:
            raise RecipeError(f"{lanes} lanes can't feed {ranks} ranks", hint=f"set lanes to a multiple of {ranks}")
        if lanes % ranks and self.uneven_lanes == "refuse":
            divisors = ", ".join(str(d) for d in range(1, lanes + 1) if lanes % d == 0)
            raise RecipeError(
                f"{lanes} lanes don't divide by {ranks} ranks; {lanes} lanes work on {divisors} ranks",
                hint='or set uneven_lanes="pad": ranks with fewer lanes then get empty microbatches',
            )
        start, stop = self.rank * lanes // ranks, (self.rank + 1) * lanes // ranks
        return range(start, stop), -(-lanes // ranks) - (stop - start)

    @property
    def worker_count(self) -> int:
        """Workers to begin with, by default the cores that this rank may use."""
        return self.workers if isinstance(self.workers, int) else self.cores

    @property
    def runner_workers(self) -> int | None:
        """What the runner is given; None: it finds out by itself (a Ray cluster has other cores than this machine)."""
        return None if self.runner == "ray" and not isinstance(self.workers, int) else self.worker_count

    @property
    def cores(self) -> int:
        """This rank's share of the machine's cores."""
        return core_share(self.ranks_per_node)

    @property
    def byte_budget(self) -> int:
        """`max_bytes`, or its default on this machine."""
        return self.max_bytes or min(1 << 30, memory_share(self.ranks_per_node) // 4)


def _check_resources(resources: Any) -> None:
    if resources is None:
        return
    if not isinstance(resources, Mapping) or not all(isinstance(asked, Mapping) for asked in resources.values()):
        raise RecipeError(f"resources is {resources!r}", hint='give a mapping by operator: {"tokenize": {"num_cpus": 2}}')

"""explain() and stats(): a pipeline in words, a run in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zephon.dataset import Dataset
from zephon.engine.bottleneck import bottleneck
from zephon.engine.run import Run
from zephon.engine.stages import cut_levels
from zephon.options import Options
from zephon.plan.source import StaticMixtureWorkSource
from zephon.plugin import Operator


def explain(
    source: StaticMixtureWorkSource,
    datasets: Sequence[Dataset],
    steps: Sequence[tuple[Operator, Any]],
    options: Options,
    cutting: Mapping[str, Any],
    last: Run | None = None,
) -> str:
    """Data sets with sizes and shares, the stages and accumulators, lanes and steps; of the last run, what it waited for."""
    lines = ["data sets"]
    phases = source.mixture.all_phases()
    for dataset in datasets:
        weights = " → ".join(f"{float(p.weights[dataset.name]) / sum(map(float, p.weights.values())):.4g}" for p in phases)
        table = dataset.units
        lines.append(
            f"  {dataset.name}: {_counted(table.total_rows, 'row')} in {_counted(len(dataset.shards), 'shard')}, "
            f"{_counted(len(table), 'read unit')}, "
            f"{_bytes(table.total_bytes)}; weight {weights}{' of the tokens' if source.token_estimation else ''}"
        )
    lines.append("steps")
    for number, level in enumerate(cut_levels(steps)):
        lines += [f"  {op!r}  (stateful: decides in order, per lane)" for op in level.deciders]
        lines += [f"  {op!r}  (stage {number}, on workers)" for op, _ in level.stage.steps]
    owned, padding = options.owned_lanes()
    lanes = options.lane_count
    per_step = cutting["per_step"]
    lines.append("batches")
    lines.append(
        f"  {_counted(lanes, 'lane')} over {_counted(options.ranks, 'rank')}; this rank has lanes {owned.start}–{owned.stop - 1}"
        f"{f' and {padding} empty' if padding else ''}; "
        f"a step is {lanes} × {per_step} = {lanes * per_step} sequences, in microbatches of {cutting['microbatch']}"
    )
    lines.append(f"  runner {options.runner}, {_workers(options)}, {_bytes(options.byte_budget)} for data in flight")
    if last is not None:
        lines += ["last run", f"  {bottleneck(last.meter.recent(), last.setup())}"]
    return "\n".join(lines)


def _workers(options: Options) -> str:
    if options.runner_workers is None:
        return "a worker per core of the cluster"
    return _counted(options.worker_count, "worker") + (" to begin with" if options.workers == "auto" else "")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def stats_report(run: Run) -> dict[str, Any]:
    """Counters of a run so far."""
    report = run.accounting()
    tokens = report["tokens"]["out"]
    return {
        "sequences": report["sequences"],
        "tokens": tokens,
        "padding_tokens": report["padding_tokens"],
        "packing_efficiency": tokens / (tokens + report["padding_tokens"]) if tokens else None,
        "units_read": run.fetcher.units.made,
        "bundles_read": run.fetcher.bundles.made,
        "kept_bytes": run.fetcher.units.nbytes + run.fetcher.bundles.nbytes,
        "peak_lane_bytes": run.pump.peak_bytes,
        "peak_spilled_bytes": run.spill.peak_bytes,
        "failures": report["failures"],
        "bottleneck": bottleneck(run.meter.recent(), run.setup()),
        "time": _time_report(run),
    }


def _time_report(run: Run) -> dict[str, Any]:
    """Seconds since the first batch; of operators and reading over all their workers."""
    times, setup = run.meter.times(), run.setup()
    if times is None:
        return {}
    return {
        "first_batch_s": run.meter.first_batch_s,
        "elapsed_s": times.elapsed,
        "waited_s": times.waited,
        "reading_s": times.reading.seconds,
        "reading_cpu_s": times.reading.cpu,
        "operators_s": {name: spent.seconds for name, spent in times.operators.items()},
        "operators_cpu_s": {name: spent.cpu for name, spent in times.operators.items()},
        "pump_cpu_s": times.pump_cpu,
        "budget_full_s": times.full,
        "workers": setup.workers,
        "reads_at_once": setup.reads,
        "cores": setup.cores,
    }


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"

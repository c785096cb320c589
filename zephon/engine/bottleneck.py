"""What a run waits for, in one sentence, and what would help."""

from __future__ import annotations

from dataclasses import dataclass

from zephon.engine.meter import Spent, Times

_BRIEF_S = 0.25
"""A shorter span says nothing."""
_PATIENT = 0.05
"""The share of time that the training step may wait before the loader is what's slow."""
_BUSY = 0.75
"""The share of its workers' time from which on a part counts as busy."""
_IDLE_CPU = 0.5
"""Work that uses less of a core than this is waiting for something."""
_CROWDED = "other processes use this machine's cores; fewer of them, or more cores, would help"


@dataclass(frozen=True)
class Setup:
    """What the run had at hand."""

    runner: str
    workers: int
    reads: int
    """Reads at once."""
    cores: int
    """That this process may use."""
    max_bytes: int
    tuned: bool = False
    """workers='auto'"""


def bottleneck(times: Times | None, setup: Setup) -> str:
    """The sentence. Spans are compared, so it is true of the span and no promise of what comes after the change."""
    if times is None:
        return "no batch yet, so nothing is known"
    if times.elapsed < _BRIEF_S or times.batches < 2:
        return f"too short to say: {times.batches} batches in {times.elapsed:.2f} s after the first"
    if setup.runner == "inline":
        return _inline(times)
    if times.waited < _PATIENT * times.elapsed:
        return (
            f"the training step is slower than the loader: it waits for a batch {_share(times.waited, times.elapsed)} of the time; "
            f"a faster loader would gain nothing ({_busy(times.working, setup.workers, times.elapsed)} workers busy)"
        )
    starved = f"the training step waits for a batch {_share(times.waited, times.elapsed)} of the time; "
    return starved + _what_is_slow(times, setup)


def _what_is_slow(times: Times, setup: Setup) -> str:
    elapsed = times.elapsed
    working = times.working.seconds / (setup.workers * elapsed)
    reading = times.reading.seconds / (setup.reads * elapsed)
    if working >= _BUSY and working >= reading:
        return _slow_workers(times, setup)
    if reading >= _BUSY:
        return _slow_reading(times, setup)
    if times.full >= 0.3 * elapsed:
        return f"the byte budget is full {_share(times.full, elapsed)} of the time; a larger max_bytes would help (now {setup.max_bytes:,})"
    if times.pump_cpu >= _BUSY * elapsed:
        return (
            f"the thread that packs, shuffles and forms batches is busy {_share(times.pump_cpu, elapsed)} of the time; larger batches, "
            "or fewer lanes per process (more ranks), would help"
        )
    if _crowded(times, setup):
        return _CROWDED
    parts = [("reading", times.reading, setup.reads), *((n, s, setup.workers) for n, s in times.operators.items())]
    slower, spent, workers = max(parts, key=lambda part: part[1].seconds)
    return (
        f"no part is busy all the time, {slower} the most ({_busy(spent, workers, elapsed)} at work): the first task of a lane is waited "
        "for, whatever is done behind it; more lanes, a smaller chunk_size or more even records would help"
    )


def _crowded(times: Times, setup: Setup) -> bool:
    """Whether others use the cores that this process could."""
    return (
        times.idle is not None
        and times.cpu < 0.8 * setup.cores * times.elapsed
        and times.idle < 0.1 * setup.cores * times.elapsed
    )


def _slow_workers(times: Times, setup: Setup) -> str:
    name, top = max(times.operators.items(), key=lambda item: item[1].seconds)
    said = f"{name} takes {_share(top.seconds, times.working.seconds)} of the workers' time"
    busy = f"{_busy(times.working, setup.workers, times.elapsed)} busy"
    cores = times.cpu / times.elapsed
    if cores >= 0.8 * setup.cores:
        return f"{said}, on {cores:.1f} of {setup.cores} cores ({busy}); more cores per rank, or a cheaper {name}, would help"
    if _crowded(times, setup) and top.cpu >= 0.2 * top.seconds:  # else it sleeps, whoever has the cores
        return f"{said} ({busy}), but {_CROWDED}"
    waits = top.cpu < 0.75 * top.seconds
    if setup.runner == "threads" and setup.workers > 1 and waits and 0.6 <= cores <= 1.25:
        return f"{said}; its Python code holds the interpreter's lock ({busy}, on {cores:.1f} cores); runner='processes' would help"
    if top.cpu < _IDLE_CPU * top.seconds:
        return (
            f"{said} and waits most of it ({_share(top.cpu, top.seconds)} of it on a core); more workers than cores would help "
            f"({busy}); workers='auto' {'is finding' if setup.tuned else 'finds'} how many"
        )
    return f"{said}; more workers would help ({busy}, on {cores:.1f} of {setup.cores} cores)"


def _slow_reading(times: Times, setup: Setup) -> str:
    busy = f"{_busy(times.reading, setup.reads, times.elapsed)} busy"
    if times.reading.cpu < _IDLE_CPU * times.reading.seconds:
        return (
            f"reading waits for storage ({busy}, {_share(times.reading.cpu, times.reading.seconds)} of it on a core); more reads at once "
            "would help (fetch_parallelism), or a shard cache (io_options)"
        )
    if times.cpu >= 0.8 * setup.cores * times.elapsed:
        return f"decoding what is read takes the time ({busy}) on all {setup.cores} cores; fewer columns or a quicker format would help"
    return f"decoding what is read takes the time ({busy}); more reads at once would help (fetch_parallelism)"


def _inline(times: Times) -> str:
    parts = [("reading", times.reading), *times.operators.items()]
    name, top = max(parts, key=lambda item: item[1].seconds)
    rest = max(times.waited - sum(s.seconds for _, s in parts), 0.0)
    what = (
        f"{name} takes {_share(top.seconds, times.waited)}"
        if top.seconds >= rest
        else "packing, shuffling and batching take the most"
    )
    return (
        f"runner='inline' does everything in the training step's thread, {_share(times.waited, times.elapsed)} of its time; "
        f"{what} of that; runner='threads' would help"
    )


def _busy(spent: Spent, workers: int, elapsed: float) -> str:
    return f"{min(spent.seconds / elapsed, workers):.1f} of {workers}"


def _share(part: float, whole: float) -> str:
    return f"{min(part / whole if whole > 0 else 0.0, 1.0):.0%}".replace("%", " %")

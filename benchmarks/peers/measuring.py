"""In the process that is measured: marks in wall and CPU time, children included, and the window in which batches are counted."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil  # type: ignore[import-untyped]

_POINTS = 200
"""At most so many points of a run's time line are kept."""


@dataclass(frozen=True)
class Given:
    """What a run is told."""

    case: str
    peer: str
    variant: str
    data: str
    """The folder of made data."""
    seconds: float
    """The window's length; 0: only the first batch."""
    workers: int
    tokenizer: str
    """A `tokenizer.json`."""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loader:
    """A peer, set up for a case."""

    batches: Iterator[Any]
    work: Callable[[Any], float]
    """Takes a batch as a trainer would, and says how much it was (samples, tokens, images)."""
    ids: Callable[[Any], Any] | None = None
    """The token ids of a batch, int[8, 2048], to be checked after the run."""
    close: Callable[[], None] | None = None


def cpu() -> float:
    """CPU seconds of this process, of children that ended, and of children that live."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            theirs = child.cpu_times()
            total += theirs.user + theirs.system + theirs.children_user + theirs.children_system
    return float(total)


def restored(start: Callable[[Any], tuple[Iterator[Any], Callable[[], Any]]], batches: int) -> dict[str, Any]:
    """A checkpoint after so many batches, and how long a loader that is made anew from it takes to its next batch.

    Args:
        start: from a state (None: the beginning) to the batches and a function that gives the state.
    """
    began = time.perf_counter()
    flow, state = start(None)
    next(flow)
    fresh = time.perf_counter() - began
    for _ in range(batches - 1):
        next(flow)
    began = time.perf_counter()
    saved = pickle.dumps(state())
    took = time.perf_counter() - began
    getattr(flow, "close", lambda: None)()
    began = time.perf_counter()
    flow, _ = start(pickle.loads(saved))
    next(flow)
    restore = time.perf_counter() - began
    return {"restore_s": restore, "fresh_s": fresh, "state_s": took, "state_bytes": len(saved)}


def measure(make: Callable[[Given], Loader], given: Given, began: float) -> dict[str, Any]:
    """One run: time to the first batch, then throughput over a window that begins after a quarter of itself.

    Args:
        began: `time.time()` just before this process was started.
    """
    loader = make(given)
    built = time.time()
    batch = next(loader.batches)
    loader.work(batch)
    first = time.time()
    kept = [batch]
    made: dict[str, Any] = {"built_s": built - began, "first_batch_s": first - began, "first_batch_cpu_s": cpu()}
    if given.seconds > 0:
        made |= _window(loader, given.seconds, kept)
    if loader.ids is not None:
        made["ids"] = [loader.ids(b).tolist() for b in kept[:4]]
    if loader.close is not None:
        loader.close()
    return made


def _window(loader: Loader, seconds: float, kept: list[Any]) -> dict[str, Any]:
    """Both ends of the window lie in the flow, so what is read ahead at its beginning and at its end is about the same.

    Where the data end before it is as long as its warm-up, all that came after the first batch is measured instead: what is left at the
    end, a few milliseconds perhaps, says little.
    """
    first = began = time.perf_counter()
    used_first = used = cpu()
    done = before = 0.0
    line: list[tuple[float, float]] = []
    skipped, ended, warm = 0, False, True
    while True:
        now = time.perf_counter()
        if warm and now - first >= seconds / 4:
            began, used, before, skipped, warm = now, cpu(), done, len(line), False
        if not warm and now - began >= seconds:
            break
        batch = next(loader.batches, None)
        if batch is None:
            ended = True
            break
        done += loader.work(batch)
        line.append((time.perf_counter() - first, done))
        if loader.ids is not None and len(kept) < 4:
            kept.append(batch)
    end, spent = time.perf_counter(), cpu()
    if ended and end - began < seconds / 4:
        began, used, before, skipped, warm = first, used_first, 0.0, 0, True
    line = [(round(t, 4), round(w - before, 1)) for t, w in line[skipped:]]
    return {
        "wall_s": end - began,
        "cpu_s": spent - used,
        "work": done - before,
        "ended": ended,
        "whole": warm,
        "line": line[:: max(1, len(line) // _POINTS)],
    }

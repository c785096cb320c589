"""What all lanes of a process share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from zephon.engine.faults import Losses
from zephon.engine.ledger import Ledger
from zephon.engine.spill import Source, in_memory_of_its_own
from zephon.engine.stages import Level, Note, Report
from zephon.engine.tasks import Load
from zephon.plan.source import Chunk, Plan
from zephon.runners.base import Groups

Fetched = tuple[pa.RecordBatch, Losses, "Report | None"]
"""A chunk's records, what was left out, and the first stage's report where that stage has no operators."""


@dataclass
class LaneContext:
    """Given to each lane; see `engine/run.py`."""

    plan: Plan
    levels: Sequence[Level]
    seed: int
    window_chunks: int
    ledger: Ledger
    submit_fetch: Callable[[Chunk], Future[Fetched]]
    submit_stage: Callable[[int, Groups, Note, str], Future[tuple[Groups, Report]]]
    do_here: Callable[[int, Groups, Note], tuple[Groups, Report]]
    """Does the task of a stage that only moves memory."""
    on_failures: Callable[[int, int, Losses], None]
    """Told, in order, what failed in each task of a lane and level (-1: reading)."""
    chunk_bytes: int
    """What a chunk is expected to weigh before it is read."""
    load: Load
    worked: Callable[[int, Report], None]
    """Told of a task of a level that came back."""
    woke: Callable[[], None]
    """Called (from any thread) when a task of a lane is done."""
    per_step: int = 1
    """Sequences of a lane in a step."""
    park: Callable[[pa.RecordBatch], Source] = in_memory_of_its_own
    """Where groups lie that wait in a selection and show little of much."""

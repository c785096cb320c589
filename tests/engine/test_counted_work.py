"""The loader's own work is counted, not timed: it is done per group and per batch, never per record.

Each pipeline runs twice, with as many chunks and batches, the second time with four times the records in each. What the calls of
functions grow by is what a record costs. A loop over records, wherever it hides, costs one call or more for each.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from operators.tokenizer_kinds import tokenizer

from zephon import Dataset, Pipeline, StaticMixtureWorkSource

CHUNKS = 24
SMALL, LARGE = 400, 1600
"""Records per chunk."""
FREE = 0.3
"""Calls per record that are none: what more records bring besides (bundles, decisions) was 0.06 to 0.18 when this was written."""
Made = Callable[[int], Pipeline]


def pipeline_of(table: pa.Table, chunk: int) -> Pipeline:
    data = Dataset.from_records("data", table)
    return Pipeline(StaticMixtureWorkSource(data, chunk_size=chunk, stop_after_passes=1)).options(lanes=2)


def token_lists(records: int) -> pa.Table:
    lengths = np.random.default_rng(0).integers(8, 24, records)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table({"input_ids": pa.ListArray.from_arrays(offsets, pa.array(np.arange(offsets[-1], dtype=np.int32)))})


def texts(records: int) -> pa.Table:
    return pa.table({"text": [f"the {i} quick brown foxes jump" for i in range(records)]})


def pretokenised(chunk: int) -> Pipeline:
    """Pack, shuffle and batch token lists: 8 sequences per chunk."""
    made = pipeline_of(token_lists(CHUNKS * chunk), chunk)
    return made.pack_flat(max_length=2 * chunk, pad_token_id=0).shuffle(buffer_size=20).batch(4)


def records(chunk: int) -> Pipeline:
    """Fetch and batch."""
    table = pa.table({"image": [bytes(50)] * (CHUNKS * chunk), "text": ["a word or two"] * (CHUNKS * chunk)})
    return pipeline_of(table, chunk).batch(chunk // 10)


def filtered(chunk: int) -> Pipeline:
    """What users do with groups."""
    table = pa.table({"a": range(CHUNKS * chunk)})
    return pipeline_of(table, chunk).map_batches(double).shuffle(buffer_size=chunk).batch(chunk // 10)


def double(group: pa.RecordBatch) -> pa.RecordBatch:
    return group.set_column(0, "a", pc.multiply(group.column(0), 2))


def tokenised(kind: str, folder: Path) -> Made:
    """Tokenise, pack and batch."""
    path = folder / "tokenizer.json"
    tokenizer(kind).save(str(path))

    def make(chunk: int) -> Pipeline:
        made = pipeline_of(texts(CHUNKS * chunk), chunk).tokenize(tokenizer_id=str(path), special_tokens="none")
        return made.pack_flat(max_length=2 * chunk, pad_token_id=0).shuffle(buffer_size=20).batch(4)

    return make


def calls(pipeline: Pipeline) -> int:
    """Calls of functions of a whole run in this thread, those that are written in C included."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in pipeline.options(runner="inline"):
        pass
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def cost(make: Made) -> tuple[float, float]:
    """Calls per record, and per chunk with its batches."""
    calls(make(SMALL))  # what is made once per process
    small, large = calls(make(SMALL)), calls(make(LARGE))
    return (large - small) / (CHUNKS * (LARGE - SMALL)), small / CHUNKS


@pytest.mark.parametrize(("make", "most"), [(pretokenised, 2250), (records, 1350), (filtered, 2700)])
def test_a_record_costs_no_call(make: Made, most: int) -> None:
    per_record, per_chunk = cost(make)
    assert per_record < FREE
    assert per_chunk < most


def test_work_per_record_would_be_seen() -> None:
    def mapped(chunk: int) -> Pipeline:
        return pipeline_of(pa.table({"a": range(CHUNKS * chunk)}), chunk).map(lambda record: record).batch(chunk // 10)

    assert cost(mapped)[0] > 1


@pytest.mark.parametrize(("kind", "most"), [("gpt2", FREE), ("words", 2.5)])
def test_a_text_costs_no_call_where_the_library_takes_many_at_once(kind: str, most: float, tmp_path: Path) -> None:
    """The reference library, which serves the kind "words", hands out one object per text."""
    if kind == "gpt2":
        pytest.importorskip("fastokens")
    per_record, per_chunk = cost(tokenised(kind, tmp_path))
    assert per_record < most
    assert per_chunk < 5000


def test_a_batch_costs_a_bounded_number_of_calls() -> None:
    def of_size(size: int) -> Pipeline:
        return pipeline_of(pa.table({"a": range(CHUNKS * LARGE)}), LARGE).batch(size)

    calls(of_size(64))
    large, small = calls(of_size(64)), calls(of_size(8))
    assert (small - large) / (CHUNKS * LARGE / 8 - CHUNKS * LARGE / 64) < 42


def test_a_chunk_goes_through_a_stage_once() -> None:
    seen: list[int] = []

    def count(group: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(len(group))
        return group

    made = pipeline_of(pa.table({"a": range(CHUNKS * LARGE)}), LARGE).map_batches(count).batch(32).options(workers=2)
    assert sum(1 for _ in made) == CHUNKS * LARGE // 32
    assert len(seen) == CHUNKS
    assert max(seen) == LARGE


def test_no_thread_works_per_record() -> None:
    """The same with threads: what all of them call grows with the chunks, not with the records."""

    def by_thread(chunk: int) -> Counter[str]:
        counted: Counter[str] = Counter()

        def note(_frame: Any, event: str, _argument: Any) -> None:
            if event == "call":
                counted[threading.current_thread().name.rstrip("-0123456789")] += 1

        flow = iter(filtered(chunk).options(workers=2))
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            for _ in flow:
                pass
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]
            sys.setprofile(None)
        return counted

    small, large = by_thread(SMALL), by_thread(LARGE)
    assert {"zephon-pump", "zephon-worker", "zephon-fetch", "MainThread"} <= set(small)
    # of one thread it says nothing: which of them turns the pump is a matter of time
    assert large.total() - small.total() < FREE * CHUNKS * (LARGE - SMALL)

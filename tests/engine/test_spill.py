"""What waits on disk comes back as it was, its room is used again, and a disk that fails is said so."""

from __future__ import annotations

import gc
import logging
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.engine.spill import Parked, Spill, held_bytes, in_memory
from zephon.errors import RecipeError, RunnerError

PAGE = 64 << 10
IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def documents(sizes: list[int], seed: int = 0) -> pa.RecordBatch:
    """Each with two images, the second missing."""
    draw = np.random.default_rng(seed)
    rows: Any = [[{"bytes": draw.bytes(size), "path": None}, None] for size in sizes]
    return pa.record_batch(
        {"images": pa.array(rows, IMAGES), "input_ids": [[size, 7] for size in sizes], "n": np.arange(len(sizes))}
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(25))
@given(st.lists(st.tuples(st.lists(st.integers(0, 200_000), min_size=1, max_size=4), st.integers(0, 6)), max_size=12))
def test_what_is_parked_comes_back_whatever_went_before(tmp_path: Path, steps: list[tuple[list[int], int]]) -> None:
    spill = Spill(str(tmp_path))
    held: list[tuple[Any, pa.RecordBatch]] = []
    for number, (sizes, gone) in enumerate(steps):
        group = documents([11, *sizes, 11], number).slice(1, len(sizes))
        held.append((spill.park(group), group))
        del held[gone : gone + 1]
        assert spill.nbytes == sum(-(-p._size // PAGE) * PAGE for p, _ in held if isinstance(p, Parked))
    for parked, group in held:
        assert in_memory([parked])[0].equals(group)
        assert held_bytes(parked) < PAGE
    held.clear()
    parked = group = None
    assert spill.nbytes == 0
    spill.close()


def test_the_file_has_no_name_and_is_as_long_as_what_is_parked_at_a_time(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path))
    for number in range(20):
        parked = [spill.park(documents([100_000], seed)) for seed in (number, number + 1)]
        assert all(isinstance(p, Parked) for p in parked)
    assert list(tmp_path.iterdir()) == []
    assert spill.peak_bytes == 4 * 2 * PAGE  # the old ones go when the new ones are there
    assert spill._file.seek(0, 2) <= spill.peak_bytes
    del parked
    gc.collect()
    assert spill._file.seek(0, 2) == 0


def test_small_groups_and_those_of_a_run_without_a_folder_stay_in_memory(tmp_path: Path) -> None:
    whole = documents([100, 40_000, 100])
    small, large = whole.slice(0, 1), whole.slice(1, 1)
    for made in (Spill(str(tmp_path)).park(small), Spill(None).park(large)):
        assert isinstance(made, pa.RecordBatch)
    assert Spill(None).park(large).equals(large)
    assert isinstance(Spill(str(tmp_path)).park(large), Parked)


def test_what_a_full_disk_can_t_take_waits_in_memory_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spill = Spill(str(tmp_path))
    first = spill.park(documents([200_000]))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (4 * PAGE, before[1])
    )  # the kernel refuses to write beyond it, as a full disk does
    try:
        with caplog.at_level(logging.WARNING, logger="zephon.engine"):
            more = [spill.park(documents([200_000], seed)) for seed in (1, 2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [type(m) for m in (first, *more)] == [Parked, pa.RecordBatch, pa.RecordBatch]
    assert [g.equals(documents([200_000], seed)) for seed, g in enumerate(in_memory([first, *more]))] == [True] * 3
    assert [r.message for r in caplog.records] == [
        f"spill_dir {str(tmp_path)!r} takes no more (File too large): what it can't take waits in memory"
    ]
    assert spill.nbytes == 4 * PAGE


def test_a_folder_that_is_not_there_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="spill_dir '.*gone' can't be used: No such file or directory"):
        Spill(str(tmp_path / "gone"))


def test_a_file_that_lost_its_content_is_an_error_and_no_other_data(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path))
    parked = spill.park(documents([200_000]))
    spill._file.truncate(PAGE)
    with pytest.raises(RunnerError, match="can't be read again.*the file ends too early"):
        in_memory([parked])
    spill.close()
    with pytest.raises(RunnerError, match="can't be read again"):
        in_memory([parked])

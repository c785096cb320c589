"""However a run stops, nothing is left of it: no thread, process, file or shared memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from conftest import worker_processes, zephon_threads
from strategies import MIXED

from zephon.errors import CheckpointError


def leftovers() -> tuple[list[str], int]:
    """Threads and worker processes of ours, after a moment to end."""
    for _ in range(100):
        if not zephon_threads() and not worker_processes():
            break
        time.sleep(0.02)
    return zephon_threads(), len(worker_processes())


def shared_memory() -> set[str]:
    """Names in /dev/shm, less those that other tests' use of multiprocessing and torch makes meanwhile: Zephon has neither."""
    if not os.path.isdir("/dev/shm"):
        return set()
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.", "torch_", "psm_", "pym-"))}


def test_a_break_leaves_nothing(runner: str) -> None:
    before = shared_memory()
    for number, _ in enumerate(MIXED.pipeline(runner=runner, workers=2)):
        if number == 3:
            break
    gc.collect()
    assert leftovers() == ([], 0)
    assert shared_memory() == before


def test_an_iterator_that_nobody_holds_any_more_leaves_nothing(runner: str) -> None:
    pipeline = MIXED.pipeline(runner=runner, workers=2)
    batches = iter(pipeline)
    next(batches)
    del batches, pipeline
    gc.collect()
    assert leftovers() == ([], 0)


def test_an_exception_in_the_loop_leaves_nothing(runner: str) -> None:
    def train() -> None:
        for _ in MIXED.pipeline(runner=runner, workers=2):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train()
    gc.collect()
    assert leftovers() == ([], 0)


def test_closing_twice_is_closing_once(runner: str) -> None:
    batches = iter(MIXED.pipeline(runner=runner, workers=2))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    batches.close()  # type: ignore[attr-defined]
    assert next(batches, None) is None
    assert leftovers() == ([], 0)


def test_files_are_closed(runner: str) -> None:
    list(MIXED.pipeline(runner=runner, workers=2, max_steps=2))
    before = psutil.Process().num_fds()
    for _ in range(3):
        list(MIXED.pipeline(runner=runner, workers=2, max_steps=2))
    assert psutil.Process().num_fds() <= before


def test_building_and_iter_start_nothing(runner: str) -> None:
    pipeline = MIXED.pipeline(runner=runner, workers=2)
    batches = iter(pipeline)
    pipeline.explain()
    pipeline.checkpoint()
    assert leftovers() == ([], 0)
    next(batches)
    batches.close()  # type: ignore[attr-defined]


def test_an_iterator_from_before_a_restore_says_so() -> None:
    pipeline = MIXED.pipeline(runner="threads")
    batches = iter(pipeline)
    next(batches)
    state = pipeline.checkpoint()
    with pytest.warns(UserWarning, match="mid-window"):
        pipeline.restore(state)
    with pytest.raises(CheckpointError, match="restored or iterated again"):
        next(batches)


SCRIPT = """
import sys, time
{first}
sys.path.insert(0, {tests!r})
from strategies import MIXED
batches = iter(MIXED.pipeline(runner={runner!r}, workers=2))
for number, batch in enumerate(batches):
    if number == 2:
        print("running", flush=True)
        {then}
"""


def run_script(runner: str, then: str, *, first: str = "") -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    script = textwrap.dedent(SCRIPT).format(tests=tests, runner=runner, then=then, first=first)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_process(runner: str, sent: signal.Signals) -> None:
    before = shared_memory()
    process = run_script(runner, "time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    children = descendants(process)
    assert len(children) >= (2 if runner == "processes" else 0)
    process.send_signal(sent)
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert shared_memory() == before


def test_an_interpreter_that_ends_with_an_open_iterator_does_not_hang(runner: str) -> None:
    process = run_script(runner, "break")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_with_torch_an_open_iterator_goes_after_the_modules_and_says_nothing(runner: str) -> None:
    """What is left when the interpreter ends is collected last where torch is there, when our modules have lost their names."""
    pytest.importorskip("torch")
    process = run_script(runner, "break", first="import torch")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")

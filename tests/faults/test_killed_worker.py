"""A worker process that dies is noticed at once and named, and nobody waits for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from runners import stages
from runners.stages import Stage

from zephon.errors import RunnerError
from zephon.runners import make_runner

WHO, NAP, DIE, ORPHAN = range(4)


STAGES = [
    Stage("who", stages.whoami),
    Stage("tokenize", stages.nap),
    Stage("decode", stages.die),
    Stage("orphan", stages.leave_a_child),
]


@pytest.fixture
def started() -> Iterator[Callable[[int], Any]]:
    """Starts a runner with so many workers; whatever happens, it is closed."""
    runners: list[Any] = []

    def start(workers: int) -> Any:
        runners.append(make_runner("processes", workers=workers))
        runners[-1].start(STAGES)
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


@pytest.mark.parametrize(
    ("note", "how", "hint"),
    [
        ("SIGKILL", "died with signal 9", "out of memory"),
        ("SIGSEGV", "died with signal 11", "a library crashed"),
        ("exit", "ended with exit code 7", "os._exit"),
    ],
)
def test_a_worker_that_dies_in_a_task_is_named_with_the_task_and_breaks_the_runner(
    note: str, how: str, hint: str, started: Callable[[int], Any]
) -> None:
    runner = started(1)
    pid = runner.submit(WHO, [], None, label="first").result(30)[1][0]
    label = "dataset 'wiki', rows 0-99"
    futures = [runner.submit(DIE, [], note, label=label), *(runner.submit(NAP, [], 0.0, label="later") for _ in range(5))]
    errors = [future.exception(30) for future in futures]
    late = runner.submit(WHO, [], None, label="late").exception(30)
    assert all(isinstance(error, RunnerError) for error in errors)
    assert errors[0].message == f"worker 0 (pid {pid}) {how} while it ran 'decode' [{label}]"
    assert hint in str(errors[0])
    assert {str(error) for error in [*errors, late]} == {str(errors[0])}
    assert len({id(error) for error in errors}) == len(errors)
    runner.close()
    assert not psutil.pid_exists(pid)


def test_a_worker_killed_from_outside_is_noticed_while_others_work_on(started: Callable[[int], Any]) -> None:
    runner = started(2)
    pids: set[int] = set()
    while len(pids) < 2:
        pids |= {future.result(30)[1][0] for future in [runner.submit(WHO, [], None, label="t") for _ in range(8)]}
    naps = [runner.submit(NAP, [], 3.0, label=f"nap {i}") for i in range(2)]
    end = time.monotonic() + 30
    while not all(nap.running() for nap in naps):  # what is still queued when a worker dies fails with it
        assert time.monotonic() < end
        time.sleep(0.005)
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    errors = [nap.exception(30) for nap in naps]
    assert sorted(error is None for error in errors) == [False, True]
    broken = next(error for error in errors if error is not None)
    assert f"(pid {victim}) died with signal 9 while it ran 'tokenize' [nap " in str(broken)


def test_an_idle_worker_that_dies_is_an_error_of_the_next_task(started: Callable[[int], Any]) -> None:
    runner = started(1)
    pid = runner.submit(WHO, [], None, label="t").result(30)[1][0]
    os.kill(pid, signal.SIGTERM)
    error = runner.submit(WHO, [], None, label="t").exception(30)
    assert isinstance(error, RunnerError)
    assert f"worker 0 (pid {pid}) died with signal 15" in str(error)


def test_a_worker_whose_child_keeps_the_socket_open_is_noticed_too(tmp_path: Path, started: Callable[[int], Any]) -> None:
    note = tmp_path / "child"
    error = started(1).submit(ORPHAN, [], str(note), label="t").exception(30)
    os.kill(int(note.read_text()), signal.SIGKILL)
    assert "died with signal 9 while it ran 'orphan'" in str(error)


def test_a_worker_that_stands_still_does_not_keep_close_waiting(started: Callable[[int], Any]) -> None:
    runner = started(1)
    pid = runner.submit(WHO, [], None, label="t").result(30)[1][0]
    os.kill(pid, signal.SIGSTOP)
    future = runner.submit(WHO, [], None, label="t")
    runner.close()
    assert future.done()
    assert not psutil.pid_exists(pid)

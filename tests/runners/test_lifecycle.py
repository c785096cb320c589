"""From start to end of a runner's life: what must travel, what must be refused, and that nothing is ever left behind."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from conftest import worker_processes
from runners import stages
from runners.stages import Forgetful, Stage

from zephon.errors import RunnerError
from zephon.runners import make_runner

HERE = str(Path(__file__).resolve().parent.parent)
HEAD = f"""
import atexit, gc, os, signal, sys, threading, time
sys.path.insert(0, {HERE!r})
import pyarrow as pa
from runners import stages
from runners.stages import Stage
from zephon.runners import make_runner
"""


def script(body: str, **options: Any) -> subprocess.Popen[str]:
    """A user's program: no `if __name__ == "__main__"`, nothing but the body."""
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + body], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finished(body: str) -> tuple[int, str, str]:
    with script(body) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def gone(pids: list[int]) -> bool:
    """Whether the processes end, soon."""
    end = time.monotonic() + 15
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def started() -> Iterator[Callable[..., Any]]:
    """Starts `processes` with these stages; whatever happens, they are closed."""
    runners: list[Any] = []

    def start(*stages: Any, workers: int = 1) -> Any:
        runners.append(make_runner("processes", workers=workers))
        runners[-1].start(stages)
        return runners[-1]

    yield start
    for runner in runners:
        runner.close()


def test_close_leaves_no_process_no_thread_and_no_open_file(started: Callable[..., Any]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    runner = started(Stage("echo", stages.echo), Stage("nap", stages.nap), workers=2)
    group = pa.record_batch({"x": range(50_000)})
    assert runner.submit(0, [group], 1, label="t").result(30)[0][0].equals(group)
    assert len(worker_processes()) == 2
    waiting = [runner.submit(1, [group], 60.0, label="t") for _ in range(10)]
    runner.close()
    runner.close()
    assert all(future.done() for future in waiting)
    assert worker_processes() == []
    del waiting, runner
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zephon")]


def test_a_runner_that_is_closed_while_it_starts_is_gone_at_once(started: Callable[..., Any]) -> None:
    runner = started(Stage("echo", stages.echo), workers=2)
    future = runner.submit(0, [], 1, label="t")
    runner.close()
    assert future.cancelled()
    assert worker_processes() == []


def test_a_collected_runner_is_closed() -> None:
    runner = make_runner("processes", workers=1)
    runner.start([Stage("who", stages.whoami)])
    pid = runner.submit(0, [], None, label="t").result(30)[1][0]
    del runner
    gc.collect()
    assert not psutil.pid_exists(pid)


def test_workers_use_one_thread_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, started: Callable[..., Any]
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    runner = started(Stage("who", stages.whoami))
    assert runner.submit(0, [], None, label="t").result(30)[1][1:] == ("3", "false", 1, None)


def test_what_is_in_flight_is_never_in_dev_shm(started: Callable[..., Any]) -> None:
    others = Path("/proc/self/maps").read_text().count("/dev/shm")  # semaphores of libraries that other tests have loaded
    runner = started(Stage("echo", stages.echo), Stage("maps", lambda groups, _: ([], Path("/proc/self/maps").read_text())))
    group = pa.record_batch({"x": range(50_000)})
    held = runner.submit(0, [group], 1, label="t").result(30)
    maps = Path("/proc/self/maps").read_text() + runner.submit(1, [group], 1, label="t").result(30)[1]
    assert maps.count("memfd:zephon") >= 2
    assert maps.count("/dev/shm") <= others
    runner.close()
    del held


def closure(offset: int) -> Callable[..., Any]:
    def add(groups: Any, note: int) -> Any:
        return groups, note + offset

    return add


class Adder:
    offset = 5

    def add(self, groups: Any, note: int) -> Any:
        return groups, note + self.offset


def test_lambdas_closures_partials_and_bound_methods_travel(started: Callable[..., Any]) -> None:
    offset = 5

    class Local:
        def add(self, groups: Any, note: int) -> Any:
            return groups, note + offset

    works = [
        lambda groups, note: (groups, note + 5),
        closure(5),
        Local().add,
        functools.partial(lambda more, g, n: (g, n + more), 5),
    ]
    runner = started(*(Stage(f"s{i}", work) for i, work in enumerate(works)))
    assert [runner.submit(i, [], 1, label="t").result(30)[1] for i in range(len(works))] == [6] * len(works)


def test_a_stage_that_cannot_be_pickled_is_named_with_the_part_at_fault() -> None:
    lock = threading.Lock()
    runner = make_runner("processes", workers=1)
    with pytest.raises(RunnerError) as caught:
        runner.start([Stage("fine", stages.echo), Stage("resize", lambda groups, _: lock and groups)])
    assert "stage 'resize' can't be sent to a worker process: work's variable 'lock' is a lock" in str(caught.value)
    assert "bind" in str(caught.value)
    runner.close()


def test_a_stage_whose_module_a_worker_cannot_import_says_so(
    monkeypatch: pytest.MonkeyPatch, started: Callable[..., Any]
) -> None:
    module = types.ModuleType("only_here")
    exec("def work(groups, note): return groups, note", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    runner = started(Stage("adder", module.work))
    error = runner.submit(0, [], 1, label="t").exception(30)
    assert isinstance(error, RunnerError)
    assert "stage 'adder' can't be loaded in a worker: No module named 'only_here'" in str(error)
    assert "sys.path" in str(error)


def test_a_wrapper_that_loses_a_field_in_pickling_is_an_error(started: Callable[..., Any]) -> None:
    runner = started(Forgetful())
    error = runner.submit(0, [], 1, label="t").exception(30)
    assert isinstance(error, RunnerError)
    assert "stage 'forgetful' changed on its way to worker 0" in str(error)
    assert "kept here and None there" in str(error)


def test_a_user_program_needs_no_main_guard_and_keeps_its_own_error_classes() -> None:
    code, out, err = finished("""
from zephon.errors import DataError
class Mine(DataError): pass
class Op:
    def __init__(self, n): self.n = n
    def work(self, groups, note):
        if note < 0: raise Mine("negative")
        return groups, helper(note) + self.n
def helper(note): return note * 10
print("imported")
runner = make_runner("processes", workers=2)
runner.start([Stage("op", Op(1).work), Stage("inner", lambda g, n: (g, (lambda m: m + helper(1))(n)))])
print([runner.submit(i % 2, [], i, label="t").result()[1] for i in range(4)])
try: runner.submit(0, [], -1, label="t").result()
except Mine as error: print(error)
runner.close()
""")
    assert (code, err) == (0, "")
    assert out == "imported\n[1, 11, 21, 13]\nnegative [operator 'op']\n"


ENDS = {
    "it just ends": "",
    "it raises": "raise ValueError('mine')",
    "an exit handler closes": "atexit.register(runner.close)",
    "a thread waits for a task": "threading.Thread(target=future.exception, daemon=True).start()",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_without_close_does_not_hang(end: str) -> None:
    body = """
pids = []
for name in ("threads", "processes"):
    runner = make_runner(name, workers=1)
    runner.start([Stage("nap", stages.nap), Stage("who", stages.whoami)])
    pids.append(runner.submit(1, [], None, label="t").result()[1][0])
    future = runner.submit(0, [], 0.2 if name == "threads" else 60.0, label="t")
    more = [runner.submit(0, [], 0.2, label="t") for _ in range(200)]
    keep = globals().setdefault("keep", []) + [runner]
print(pids[1], flush=True)
"""
    code, out, err = finished(body + ENDS[end])
    assert code == (1 if "raises" in end else 0), err
    assert err == "" or "ValueError: mine" in err.splitlines()[-1]
    assert gone([int(out)])


def test_a_thread_that_is_stuck_in_a_task_does_not_hang_the_end_of_the_program() -> None:
    code, out, err = finished("""
runner = make_runner("threads", workers=2)
runner.start([Stage("nap", stages.nap)])
future = runner.submit(0, [], 3600.0, label="a long nap")
future.add_done_callback(lambda f: print(f.exception()))
while not future.running(): time.sleep(0.01)
""")
    assert (code, err) == (0, "")
    assert "closing didn't wait any longer for 'a long nap'" in out


BUSY = """
runner = make_runner("processes", workers=2)
runner.start([Stage("nap", stages.nap), Stage("who", stages.whoami)])
pids = set()
while len(pids) < 2:
    pids |= {f.result()[1][0] for f in [runner.submit(1, [], None, label="t") for _ in range(8)]}
group = pa.record_batch({"x": range(100_000)})
futures = [runner.submit(0, [group], 60.0, label="t") for _ in range(8)]
"""
WAIT = "print(*pids, flush=True)\nfutures[0].result()\n"


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) >= 2
    return pids


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_when_their_parent_is_killed_in_the_middle_of_their_tasks(how: signal.Signals) -> None:
    with script(BUSY + WAIT) as process:
        pids = pids_of(process)
        process.send_signal(how)
        assert gone(pids)
    assert process.returncode == -how


def test_ctrl_c_reaches_the_user_once_and_the_workers_not_at_all() -> None:
    with script(BUSY + WAIT, start_new_session=True) as process:
        pids = pids_of(process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert gone(pids)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_during_the_start_prints_no_traceback_of_a_worker() -> None:
    body = """
runner = make_runner("processes", workers=2)
try:
    runner.start([Stage("who", stages.whoami)])
    os.killpg(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt: pass
print(runner.submit(0, [], None, label="t").result()[1][0] > 0)
"""
    with script(body, start_new_session=True) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "True\n", "")


def test_workers_end_with_their_parent_even_when_a_fork_of_it_lives_on() -> None:
    """A fork holds the parent's ends of the sockets, so no end of file comes."""
    fork = """
child = os.fork()
if child == 0:
    runner.close()
    assert "another process" in str(runner.submit(0, [], None, label="t").exception())
    print("fork", flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(0.5)
assert not any(future.done() for future in futures)
print(*pids, child, flush=True)
futures[0].result()
"""
    with script(BUSY + fork) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fork\n"
        *pids, child = pids_of(process)
        process.kill()
        try:
            assert gone(pids)
            assert psutil.pid_exists(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_what_a_task_prints_is_shown_even_if_the_worker_ends_suddenly() -> None:
    code, out, _ = finished("""
runner = make_runner("processes", workers=1)
runner.start([Stage("print", lambda g, n: (print("hello from", n), (g, n))[1])])
runner.submit(0, [], "worker", label="t").result()
runner.close()
""")
    assert (code, out) == (0, "hello from worker\n")


def test_large_tasks_and_results_cross_without_a_deadlock(started: Callable[..., Any]) -> None:
    runner = started(Stage("echo", stages.echo), workers=2)
    group = pa.record_batch({"x": range(300_000)})
    note = b"n" * 300_000
    futures: list[Future[Any]] = [runner.submit(0, [group, group.slice(i)], note, label="t") for i in range(30)]
    for i, future in enumerate(futures):
        groups, back = future.result(60)
        assert back == note
        assert groups == [group, group.slice(i)]
    runner.close()
    assert groups[1].equals(group.slice(29))  # outlives the runner

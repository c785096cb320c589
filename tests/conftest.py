"""What every test gets: quiet hypothesis profiles, the runner matrix, and a look for threads and processes that were left behind."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings
from thoroughness import QUICK

settings.register_profile(
    "quick",
    deadline=None,
    max_examples=QUICK,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=20 * QUICK, derandomize=False)
settings.load_profile(os.environ.get("ZEPHON_TESTS", "quick"))

# Notes of an earlier run must not hide what is wrong now. The caches of others stay where they are.
os.environ.setdefault("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="zephon-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

# Seconds of work, roughly: begun last, one of these would keep one core busy while the others have nothing left.
LONG_FIRST = (
    "stores/test_every_format_on_every_store.py",
    "invariants/test_3_state_is_small_and_rank_free.py",
    "house/test_docs.py",
    "engine/test_closing.py",
    "stores/test_bad_shards.py",
    "operators/test_token_backends.py",
    "invariants/test_4_rows_in_equal_rows_out.py",
    "stores/test_io_options.py",
    "engine/test_progress.py",
    "invariants/test_2_batches_cut_across_lanes.py",
    "faults/test_ranks_killed.py",
    "cases/test_hosts_and_memory.py",
    "invariants/test_6_equal_steps.py",
    "invariants/test_1_lane_is_pure.py",
    "runners/test_lifecycle.py",
    "engine/test_ctrl_c.py",
    "engine/test_replay.py",
    "operators/test_tokenize.py",
    "formats/test_arrow.py",
    "vision/pack/test_elastic.py",
    "vision/pack/test_balance_cost.py",
    "vision/interleave/test_templates.py",
    "cli/test_demo_vlm.py",
    "cases/test_resume_and_workers.py",
    "formats/test_custom_format.py",
    "vision/test_contrastive.py",
    "engine/test_failures.py",
    "formats/test_csv.py",
    "storage/test_first_program.py",
    "vision/pack/test_late_decode.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take long, then the others as they come."""
    places = {f"tests/{name}": place for place, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.fixture(autouse=True, scope="module")
def a_ctrl_c_is_what_python_makes_of_it() -> None:
    """Else a test that sends one ends the process, where litdata's writer ran before: it leaves a handler that exits. And a shell has what
    it starts with `&` ignore it, and so would the programs that tests start and interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def what_is_loaded_is_not_garbage() -> None:
    """Else each `gc.collect()` of a test looks at all modules of torch and transformers again, for a fifth of a second."""
    gc.collect()
    gc.freeze()


RUNNERS = ("inline", "threads", "processes")


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> str:
    """Each runner; `inline` is the reference."""
    return str(request.param)


def zephon_threads() -> list[str]:
    """The names of Zephon's threads that are alive."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("zephon"))


def worker_processes() -> list[psutil.Process]:
    """Zephon's worker processes below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if any("zephon.runners" in part for part in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test may leave a thread or a worker of Zephon behind."""
    before = len(zephon_threads())
    yield
    for _ in range(100):
        if len(zephon_threads()) <= before and not worker_processes():
            return
        time.sleep(0.02)
    raise AssertionError(f"left behind: {zephon_threads()}, {worker_processes()}")

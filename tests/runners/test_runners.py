"""What every runner promises, checked against `inline`."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

import pyarrow as pa
import pytest
from conftest import worker_processes, zephon_threads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runners import stages
from runners.record_groups import record_groups
from runners.stages import Stage
from thoroughness import examples

from zephon.errors import DataError, RecipeError, RunnerError
from zephon.runners import make_runner

STAGES = [
    Stage("echo", stages.echo),
    Stage("reverse", stages.reverse),
    Stage("nap", stages.nap),
    Stage("raise", stages.raise_it),
    Stage("bind", stages.which_bind, stages.Token),
    Stage("broken", stages.which_bind, stages.break_bind),
    Stage("note", stages.unpicklable_note),
]
ECHO, REVERSE, NAP, RAISE, BIND, BROKEN, NOTE = range(len(STAGES))


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Not here, where runners live through many tests; `every` looks at the end, and test_lifecycle.py at each one."""


@pytest.fixture(scope="module")
def every() -> Iterator[dict[str, Any]]:
    """One started runner of each kind."""
    runners = {name: make_runner(name, workers=2) for name in ("inline", "threads", "processes")}
    for runner in runners.values():
        runner.start(STAGES)
    yield runners
    for runner in runners.values():
        runner.close()
    assert not zephon_threads()
    assert not worker_processes()


@pytest.fixture(params=["inline", "threads", "processes"])
def runner(request: Any, every: dict[str, Any]) -> Any:
    return every[request.param]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(groups=st.lists(record_groups(), max_size=3), note=st.none() | st.integers() | st.tuples(st.text(), st.binary()))
def test_any_groups_come_back_the_same_from_every_runner(
    every: dict[str, Any], groups: list[pa.RecordBatch], note: Any
) -> None:
    for stage in (ECHO, REVERSE):
        expected, _ = every["inline"].submit(stage, groups, note, label="t").result()
        for name in ("threads", "processes"):
            made, back = every[name].submit(stage, groups, note, label="t").result(30)
            assert back == note
            assert [len(g) for g in made] == [len(g) for g in expected]
            assert all(m.equals(e, check_metadata=True) for m, e in zip(made, expected, strict=True))
            for group in made:
                group.validate(full=True)


def test_groups_with_dictionaries_of_their_own_keep_them(every: dict[str, Any]) -> None:
    words = [["a", "b", "a"], ["c", "a", None], [], ["d"]]
    groups = [pa.record_batch({"w": pa.array(w, pa.string()).dictionary_encode()}) for w in words]
    made, _ = every["processes"].submit(ECHO, groups, None, label="t").result(30)
    assert [g.column(0).to_pylist() for g in made] == words


def test_futures_belong_to_their_tasks_in_whatever_order_they_end(runner: Any) -> None:
    naps = [0.15, 0.0, 0.05, 0.0, 0.1, 0.0, 0.0, 0.02] + [0.0] * 40
    futures = [runner.submit(NAP, [pa.record_batch({"i": [i]})], nap, label=str(i)) for i, nap in enumerate(naps)]
    results = [future.result(30) for future in futures]
    assert [(groups[0]["i"][0].as_py(), note) for groups, note in results] == list(enumerate(naps))


@pytest.mark.parametrize(("note", "message"), [("locked", "LockedError: item 3 is bad"), ("oops", "KeyError: 'oops'")])
def test_an_exception_of_any_kind_reaches_the_future_with_its_traceback(runner: Any, note: str, message: str) -> None:
    error = runner.submit(RAISE, [], note, label="t").exception(30)
    assert type(error) is DataError
    assert error.message == message
    assert error.where.operator == "raise"
    assert "in raise_it" in error.trace


@pytest.mark.parametrize(("note", "word"), [("exit", SystemExit(3)), ("interrupt", KeyboardInterrupt())])
def test_what_ends_the_program_reaches_the_consumer_as_it_is(runner: Any, note: str, word: BaseException) -> None:
    with pytest.raises(type(word)) as caught:
        runner.submit(RAISE, [], note, label="t").result(30)
    assert caught.value.args == word.args
    assert runner.submit(BIND, [], None, label="t").result(30), "the worker lives on"


def test_an_exception_whose_text_fails_still_names_its_type(runner: Any) -> None:
    assert "UnprintableError" in runner.submit(RAISE, [], "unprintable", label="t").exception(30).message


def test_our_own_error_keeps_its_place_and_hint(runner: Any) -> None:
    error = runner.submit(RAISE, [], "placed", label="t").exception(30)
    assert str(error) == "bad row [dataset 'wiki', row 7, operator 'raise']\n  → fix it"
    assert "in raise_it" in error.trace


def test_a_stage_is_bound_once_in_each_worker(runner: Any) -> None:
    futures = [runner.submit(BIND, [], None, label="t") for _ in range(30)]
    assert 1 <= len({future.result(30)[1] for future in futures}) <= runner.workers


def test_a_bind_that_fails_is_an_error_of_the_task_and_not_of_the_runner(runner: Any) -> None:
    error = runner.submit(BROKEN, [], None, label="t").exception(30)
    assert isinstance(error, DataError)
    assert str(error) == "FileNotFoundError: vocab.json [operator 'broken']"
    assert runner.submit(ECHO, [], 1, label="t").result(30) == ([], 1)


def test_a_note_that_cannot_travel_is_an_error_and_not_a_hang(every: dict[str, Any]) -> None:
    assert "lock" in str(every["processes"].submit(NOTE, [], 1, label="t").exception(30))
    assert "lock" in str(every["processes"].submit(ECHO, [], threading.Lock(), label="t").exception(30))
    assert every["processes"].submit(ECHO, [], 1, label="t").result(30) == ([], 1)


@pytest.mark.parametrize("name", ["inline", "threads", "processes"])
def test_close_ends_every_future_and_can_be_called_again_from_anywhere(name: str) -> None:
    runner = make_runner(name, workers=1)
    runner.close()
    runner.start([Stage("nap", stages.nap)])
    futures = [runner.submit(0, [], 0.05, label=str(i)) for i in range(8)]
    others = [threading.Thread(target=runner.close) for _ in range(2)]
    for thread in others:
        thread.start()
    runner.close()
    for thread in others:
        thread.join(30)
    assert not wait(futures, timeout=0).not_done
    for future in futures:
        assert future.cancelled() or future.exception() is None or isinstance(future.exception(), RunnerError)
    with pytest.raises(RunnerError, match="'late'"):
        runner.submit(0, [], 0, label="late").result(30)
    runner.close()


def test_a_collected_threads_runner_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    runner = make_runner("threads", workers=3)
    runner.start(STAGES)
    assert len(set(threading.enumerate()) - before) == 3
    del runner
    gc.collect()
    assert set(threading.enumerate()) == before


def test_threads_forget_the_groups_of_a_finished_task(every: dict[str, Any]) -> None:
    group = pa.record_batch({"x": [1, 2, 3]})
    every["threads"].submit(ECHO, [group], None, label="t").result(30)
    end = time.monotonic() + 10
    while len(gc.get_referrers(group)) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert not [r for r in gc.get_referrers(group) if isinstance(r, list)]


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_a_pool_that_grows_and_shrinks_does_every_task_once(name: str) -> None:
    runner = make_runner(name, workers=1)
    runner.start([Stage("bind", stages.which_bind, stages.Token), Stage("nap", stages.nap)])
    done: list[Any] = []
    for size in (3, 1, 2, 2, 1, 4, 1):
        runner.resize(size)
        assert runner.workers == size
        done += [runner.submit(1, [], 0.002, label=str(i)) for i in range(10)]
    runner.resize(3)
    workers = {runner.submit(0, [], None, label="t").result(30)[1] for _ in range(10)}
    assert [future.result(30) for future in done] == [([], 0.002)] * 70
    assert 1 <= len(workers) <= 3
    runner.close()


def test_threads_that_are_too_many_end() -> None:
    before = len(zephon_threads())
    runner = make_runner("threads", workers=1)
    runner.start([Stage("echo", stages.echo)])
    runner.resize(8)
    assert len(zephon_threads()) == before + 8
    runner.resize(2)
    end = time.monotonic() + 10
    while len(zephon_threads()) > before + 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(zephon_threads()) == before + 2
    runner.close()


def test_submitting_while_another_thread_closes_leaves_no_future_waiting() -> None:
    for _ in range(20):
        runner = make_runner("threads", workers=2)
        runner.start([Stage("echo", stages.echo)])
        closer = threading.Thread(target=runner.close)
        closer.start()
        futures = [runner.submit(0, [], i, label=str(i)) for i in range(50)]
        closer.join(30)
        for future in futures:
            with contextlib.suppress(CancelledError, RunnerError):
                future.result(10)


def test_an_unknown_runner_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match="did you mean 'threads'"):
        make_runner("thread", workers=1)
    with pytest.raises(RecipeError, match="unknown runner 'dask'"):
        make_runner("dask", workers=1)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, None])
def test_a_number_of_workers_that_makes_no_sense_is_refused(workers: Any) -> None:
    with pytest.raises(RecipeError, match="at least 1"):
        make_runner("threads", workers=workers)

"""Python's switch interval is shorter while runs on threads iterate, and what it was before, afterwards."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from strategies import MIXED

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError, RecipeError
from zephon.runners import switching
from zephon.runners.switching import Turns

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no interpreter lock to take turns at"
)
MINE = 0.004


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    """Another interval than Python's own, so that "as it was" can't be mistaken for the default."""
    default = sys.getswitchinterval()
    sys.setswitchinterval(MINE)
    yield
    gc.collect()
    assert sys.getswitchinterval() == MINE
    sys.setswitchinterval(default)


def batches(**options: Any) -> Iterator[Any]:
    return iter(MIXED.pipeline(runner="threads", workers=2, **options))


def test_it_is_short_while_a_run_on_threads_iterates_and_as_before_after_its_end() -> None:
    seen = {sys.getswitchinterval() for _ in batches(max_steps=3)}
    assert seen == {0.001}
    assert sys.getswitchinterval() == MINE


def test_a_run_that_fails_puts_it_back() -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    records = Dataset.from_records("numbers", [{"n": n} for n in range(8)])
    pipeline = Pipeline(StaticMixtureWorkSource([records], seed=1)).map(fail).batch(1).options(runner="threads", workers=2)
    with pytest.raises(DataError, match="no"):
        list(pipeline)
    assert sys.getswitchinterval() == MINE


def test_an_iterator_that_nobody_holds_any_more_puts_it_back() -> None:
    running = batches()
    next(running)
    del running
    gc.collect()
    assert sys.getswitchinterval() == MINE


def test_of_two_runs_at_once_the_shortest_counts_and_the_last_to_end_puts_it_back() -> None:
    one, other = batches(), batches(switch_interval_s=0.0005)
    next(one)
    next(other)
    assert sys.getswitchinterval() == 0.0005
    other.close()  # type: ignore[attr-defined]
    assert sys.getswitchinterval() == 0.001
    next(one)
    one.close()  # type: ignore[attr-defined]
    assert sys.getswitchinterval() == MINE


def test_an_interval_that_is_shorter_already_stays() -> None:
    running = batches(switch_interval_s=0.02)
    next(running)
    assert sys.getswitchinterval() == MINE
    running.close()  # type: ignore[attr-defined]


def test_what_the_program_sets_meanwhile_stays() -> None:
    one = batches()
    next(one)
    sys.setswitchinterval(0.002)
    next(batches())
    assert sys.getswitchinterval() == 0.002
    one.close()  # type: ignore[attr-defined]
    gc.collect()
    assert sys.getswitchinterval() == 0.002
    sys.setswitchinterval(MINE)


@pytest.mark.parametrize("options", [{"runner": "threads", "switch_interval_s": None}, {"runner": "inline"}])
def test_it_is_left_alone_where_the_user_wants_that_and_where_there_are_no_workers_threads(options: dict[str, Any]) -> None:
    assert {sys.getswitchinterval() for _ in MIXED.pipeline(max_steps=3, **options)} == {MINE}


def test_runs_that_begin_and_end_in_many_threads_at_once_leave_it_as_it_was() -> None:
    def run() -> None:
        for _ in range(200):
            turns = Turns(0.001)
            turns.shorten()
            turns.shorten()
            turns.close()
            turns.close()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == MINE


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="switch_interval_s is 0"):
        MIXED.pipeline(switch_interval_s=0)


def test_a_turn_that_ends_with_the_interpreter_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(0.0005)
    turns.shorten()
    for name in ("_INTERVAL", "sys"):  # modules lose their names before the last objects go
        monkeypatch.setattr(switching, name, None)
    turns.close()
    assert sys.getswitchinterval() == MINE

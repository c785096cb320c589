"""Values that one thread makes and others wait for, or help with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon import Dataset, Pipeline
from zephon.crews import Crew
from zephon.engine.fetch import Fetcher
from zephon.engine.keep import Keep, Line

LONGEST_S = 20


def keep() -> Keep[list[int]]:
    return Keep(1000, len)


def numbered(count: int, job: Callable[[int], int]) -> Callable[[Crew], list[int]]:
    """Makes what `job` gives for 0, 1, ..., as jobs of the crew."""
    return lambda crew: crew.share([lambda number=number: job(number) for number in range(count)])  # type: ignore[misc]


def test_threads_that_want_a_value_do_its_jobs_together_and_each_once() -> None:
    held, done, both = keep(), [], threading.Barrier(2, timeout=LONGEST_S)

    def job(number: int) -> int:
        if number in (0, 9):
            both.wait()  # one thread alone would wait here for ever
        done.append(number)
        return number

    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(held.together, "a", numbered(10, job)) for _ in range(3)]
        assert [f.result(LONGEST_S) for f in found] == [list(range(10))] * 3
    assert sorted(done) == list(range(10))
    assert held.made == 1


def test_who_comes_to_make_another_value_first_does_jobs_of_those_that_were_asked_for_before() -> None:
    held, begun, both, order = keep(), threading.Event(), threading.Barrier(2, timeout=LONGEST_S), []

    def job(number: int) -> int:
        if number in (0, 9):
            both.wait()  # the maker alone would wait here for ever
        order.append("a")
        return number

    def make(crew: Crew) -> list[int]:
        begun.set()
        return numbered(10, job)(crew)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(held.together, "a", make)
        begun.wait(LONGEST_S)
        second = pool.submit(held.together, "b", numbered(1, lambda _: order.append("b") or 7))  # type: ignore[func-returns-value]
        assert first.result(LONGEST_S) == list(range(10))
        assert second.result(LONGEST_S) == [7]
    assert "b" not in order[:9]  # its own job comes when the helper finds none left


def test_a_value_behind_one_that_fails_is_made_all_the_same() -> None:
    held, begun, on = keep(), threading.Event(), threading.Event()

    def make(crew: Crew) -> list[int]:
        begun.set()
        on.wait(LONGEST_S)
        raise OSError("gone")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(held.together, "a", make)
        begun.wait(LONGEST_S)
        second = pool.submit(held.together, "b", numbered(2, lambda number: number))
        on.set()
        with pytest.raises(OSError, match="gone"):
            first.result(LONGEST_S)
        assert second.result(LONGEST_S) == [0, 1]


def test_a_job_that_fails_in_a_helper_fails_for_all_and_nothing_is_kept() -> None:
    held, both = keep(), threading.Barrier(2, timeout=LONGEST_S)

    def job(number: int) -> int:
        if number in (0, 9):
            both.wait()
        if number == 9:  # the maker begins with the first, a helper with the last
            raise OSError("gone")
        return number

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(held.together, "a", numbered(10, job)) for _ in range(2)]
        for one in found:
            with pytest.raises(OSError, match="gone"):
                one.result(LONGEST_S)
    assert held.together("a", numbered(3, lambda number: number)) == [0, 1, 2]


@pytest.mark.parametrize("failing", [True, False])
def test_who_waits_for_a_value_that_is_made_without_jobs_gets_it_or_its_error(failing: bool) -> None:
    held, begun, on = keep(), threading.Event(), threading.Event()

    def make() -> list[int]:
        begun.set()
        on.wait(LONGEST_S)
        if failing:
            raise ValueError("not to be had")
        return [1]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(held.get, "a", make)
        begun.wait(LONGEST_S)
        second = pool.submit(held.together, "a", numbered(2, lambda number: number))
        on.set()
        for one in (first, second):
            if failing:
                with pytest.raises(ValueError, match="not to be had"):
                    one.result(LONGEST_S)
            else:
                assert one.result(LONGEST_S) == [1]


@given(order=st.permutations(range(6)))
@settings(max_examples=examples(20), deadline=None)
def test_threads_begin_in_the_order_in_which_they_were_given_places_however_they_are_woken(order: list[int]) -> None:
    line, begun = Line(), []
    line.patience_s = LONGEST_S
    places = [line.place() for _ in order]

    def work(place: int) -> None:
        line.wait(place)
        begun.append(place)
        line.leave(place)
        line.leave(place)  # as a reader does that failed after it began

    threads = [threading.Thread(target=work, args=(place,)) for place in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_S)
    assert begun == places


def test_who_waits_for_one_that_never_comes_passes_after_a_while() -> None:
    line = Line()
    gone, here = line.place(), line.place()
    line.wait(here)
    line.leave(here)
    line.leave(gone)
    last = line.place()
    line.patience_s = LONGEST_S
    line.wait(last)


def test_a_chunk_that_is_asked_for_first_is_read_first_also_where_its_thread_is_woken_last() -> None:
    source = Dataset.from_records("d", [{"x": i} for i in range(64)])
    definition = Pipeline(source).options(lanes=2)._make_run().definition
    fetcher = Fetcher(definition.plan, definition.datasets, columns=None, keep_bytes=1 << 20, policy="raise")
    fetcher.line.patience_s = LONGEST_S
    read, places = [], [fetcher.line.place(), fetcher.line.place()]
    pieces = fetcher._pieces

    def noted(component: int, unit: Any, row: Any, share: Any) -> Any:
        read.append(int(row[0]))
        return pieces(component, unit, row, share)

    fetcher._pieces = noted  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(fetcher.fetch, definition.plan.chunk(1, 0), places[1])
        first = pool.submit(fetcher.fetch, definition.plan.chunk(0, 0), places[0])
        made = [future.result(LONGEST_S)[0].column("x").to_pylist() for future in (first, second)]
    assert [min(made[0]), min(made[1])] == read

"""Jobs of one task, done by workers that have nothing to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from zephon.crews import Crew, lent, share
from zephon.runners.pool import ThreadPool
from zephon.waiting import Promise

LONGEST_S = 20
SOON_S = 0.05
"""By then a worker without a task waits for one."""


@dataclass
class Call:
    do: Callable[[], Any]
    label: str = "a call"
    future: Future[Any] = field(default_factory=Promise)


def pool_of(workers: int) -> ThreadPool[Call]:
    return ThreadPool(lambda: lambda call: call.do(), workers, name="sharing")


@pytest.fixture
def pool() -> Iterator[ThreadPool[Call]]:
    made = pool_of(2)
    yield made
    made.close()


def given(pool: ThreadPool[Call], do: Callable[[], Any]) -> Future[Any]:
    call = Call(do)
    pool.add(call)
    return call.future


def test_a_worker_that_has_nothing_to_do_does_jobs_of_another_ones_task(pool: ThreadPool[Call]) -> None:
    both = threading.Barrier(2, timeout=LONGEST_S)

    def job(number: int) -> int:
        if number in (1, 9):
            both.wait()  # one thread alone would wait here for ever
        elif number == 0:
            time.sleep(SOON_S)
        return number

    def task() -> tuple[list[int], float]:
        return share([partial(job, number) for number in range(10)]), lent()[0]

    made, seconds = given(pool, task).result(LONGEST_S)
    assert made == list(range(10))
    assert seconds > 0  # the helper's part is counted with the task


def test_what_a_job_raises_in_a_helper_comes_out_of_the_task_and_the_workers_go_on(pool: ThreadPool[Call]) -> None:
    both = threading.Barrier(2, timeout=LONGEST_S)

    def job(number: int) -> int:
        if number == 0:
            time.sleep(SOON_S)
            return 0
        both.wait()
        if number == 2:  # the maker begins with the first, a helper with the last
            raise OSError("gone")
        return number

    with pytest.raises(Exception, match="gone"):
        given(pool, lambda: share([partial(job, number) for number in range(3)])).result(LONGEST_S)
    assert given(pool, lambda: 7).result(LONGEST_S) == 7


def test_without_a_worker_to_spare_the_jobs_are_done_one_after_the_other_where_they_are() -> None:
    def jobs(seen: list[tuple[int, str]]) -> list[Callable[[], int]]:
        def job(number: int) -> int:
            seen.append((number, threading.current_thread().name))
            return number

        return [partial(job, number) for number in range(5)]

    seen: list[tuple[int, str]] = []
    assert share(jobs(seen)) == list(range(5))
    alone = pool_of(1)
    assert given(alone, lambda: share(jobs(seen))).result(LONGEST_S) == list(range(5))
    alone.close()
    here, there = threading.current_thread().name, "sharing-0"
    assert seen == [*((n, here) for n in range(5)), *((n, there) for n in range(5))]


def test_closing_beside_a_shared_task_leaves_nobody_waiting() -> None:
    pool, begun, on = pool_of(2), threading.Event(), threading.Event()

    def job(number: int) -> int:
        begun.set()
        on.wait(LONGEST_S)
        return number

    shared = given(pool, lambda: share([partial(job, number) for number in range(6)]))
    begun.wait(LONGEST_S)
    closing = threading.Thread(target=pool.close)
    closing.start()
    on.set()
    closing.join(LONGEST_S)
    assert not closing.is_alive()
    assert shared.result(LONGEST_S) == list(range(6))


def test_the_first_failure_in_order_is_raised_whoever_comes_first() -> None:
    crew, failed = Crew(), threading.Event()
    others = threading.Thread(target=crew.help)

    def first() -> None:
        assert failed.wait(20)

    def second() -> None:
        raise ValueError("the second")

    def last() -> None:
        failed.set()
        raise ValueError("the last")

    others.start()
    with pytest.raises(ValueError, match="the second"):
        crew.share([first, second, last])
    others.join(20)
    assert not others.is_alive()

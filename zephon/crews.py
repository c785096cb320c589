"""Jobs of one task that several threads do: those that want what it makes, or workers that have nothing to do."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from zephon.waiting import Promise

T = TypeVar("T")
U = TypeVar("U")

_here = threading.local()


class Crew:
    """The threads that want a value while it is made, or one that was asked for later: those do some of the maker's jobs."""

    def __init__(self) -> None:
        self._jobs: Future[deque[tuple[Callable[[], Any], Future[Any]]]] = Promise()

    def share(self, jobs: Sequence[Callable[[], U]]) -> list[U]:
        """What the jobs give, each done once by some thread; the maker begins with the first, the others with the last. Once for each
        crew.

        Raises:
            BaseException: what the first job in order that fails raised, whoever did which; those behind it may be left out then.
        """
        given: list[tuple[Callable[[], U], Future[U]]] = [(job, Promise()) for job in jobs]
        left = deque(given)
        self._jobs.set_result(left)
        _do(left.popleft, later=True)
        return [future.result() for _, future in given if not future.cancelled()]

    def help(self) -> None:
        """Do jobs until none is left; before there are any, wait for them."""
        left = self._jobs.result()
        _do(left.pop, later=False)

    def close(self) -> None:
        """No jobs will come."""
        if not self._jobs.done():
            self._jobs.set_result(deque())


def _do(take: Callable[[], tuple[Callable[[], Any], Future[Any]]], *, later: bool) -> None:
    """Do jobs until none is left. `later`: those that are left come after the one that was taken; else before it, and one of them may be
    the first that fails."""
    with suppress(IndexError):
        while True:
            job, future = take()
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it reaches the maker
                future.set_exception(error)
                while later or isinstance(error, KeyboardInterrupt):
                    take()[1].cancel()


def listen(offer: Callable[[Callable[[], None]], None]) -> None:
    """Say, in a worker's thread, how its tasks offer work to the others: `offer` has one of them call what it is given, if one has
    nothing to do."""
    _here.offer = offer


def share(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What the jobs of a task give, in their order, each done once: here, or by workers that have nothing to do, who are looked for before
    each job. At the start and at the end of a run there are fewer tasks than workers.

    Raises:
        BaseException: what the first job in order that fails raised, whoever did which; those behind it may be left out then.
    """
    offer: Callable[[Callable[[], None]], None] | None = getattr(_here, "offer", None)
    if offer is None or len(jobs) < 2:
        return [job() for job in jobs]
    crew = Crew()
    mine = threading.get_ident()
    times: list[tuple[float, float]] = []

    def offering(job: Callable[[], T]) -> T:
        offer(crew.help)
        if threading.get_ident() == mine:
            return job()
        clock, cpu = time.perf_counter(), time.thread_time()
        try:
            return job()
        finally:
            times.append((time.perf_counter() - clock, time.thread_time() - cpu))

    try:
        return crew.share([partial(offering, job) for job in jobs])
    finally:
        crew.close()
        seconds, of_a_core = lent()
        _here.lent = seconds + sum(s for s, _ in times), of_a_core + sum(c for _, c in times)


def lent() -> tuple[float, float]:
    """Seconds on the clock, and of a core, that other workers gave to this thread's jobs since this was asked last."""
    found: tuple[float, float] = getattr(_here, "lent", (0.0, 0.0))
    _here.lent = 0.0, 0.0
    return found

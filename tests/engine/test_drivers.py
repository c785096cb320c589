"""Who turns the pump: the consumer, a thread that ended a task, or the pump's own thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from zephon.engine.drivers import BackgroundPump
from zephon.waiting import Bell


class Turned:
    """Stands for a pump: each turn makes one delivery of each piece of work that ended, and notes the thread."""

    def __init__(self) -> None:
        self.wake = Bell()
        self.deliveries: deque[Any] = deque()
        self.error: BaseException | None = None
        self.finished = False
        self.busy = True
        self.prefetch = 4
        self.cpu_s = 0.0
        self.ended: deque[Any] = deque()
        self.by: list[str] = []
        self.during: Callable[[], None] = lambda: None

    def turn(self) -> bool:
        if not self.ended:
            return False
        self.during()
        self.by.append(threading.current_thread().name)
        self.deliveries.append(self.ended.popleft())
        return True


def driver_of(pump: Any, *, leaving: Callable[[], object] | None) -> BackgroundPump:
    return BackgroundPump(pump, watchdog_s=30.0, describe=lambda: "", leaving=leaving)


def in_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread


@pytest.mark.parametrize(("shared", "who"), [(True, "worker"), (False, "MainThread")])
def test_for_a_consumer_that_waits_the_thread_that_ended_a_task_turns_the_pump(shared: bool, who: str) -> None:
    """Where tasks run on threads; else the consumer does. The pump's own thread stays away."""
    pump = Turned()
    driver = driver_of(pump, leaving=(lambda: None) if shared else None)
    driver.start()

    def work() -> None:
        while not driver._hungry or driver._turner is not None:
            time.sleep(0.001)
        time.sleep(0.02)  # the consumer is asleep
        pump.ended.append("batch")
        driver.wake()

    thread = in_thread("worker", work)
    assert driver.next() == "batch"
    thread.join()
    driver.close()
    assert pump.by == [who]


def test_the_pumps_thread_turns_it_while_the_consumer_is_away() -> None:
    pump = Turned()
    driver = driver_of(pump, leaving=lambda: None)
    driver.start()
    pump.ended.extend(range(3))
    driver.wake()
    end = time.monotonic() + 10
    while len(pump.deliveries) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    assert [driver.next() for _ in range(3)] == [0, 1, 2]
    driver.close()
    assert pump.by == ["zephon-pump"] * 3


@pytest.mark.parametrize("shared", [True, False])
def test_no_word_is_lost_between_many_threads_and_a_consumer_that_comes_and_goes(shared: bool) -> None:
    pump = Turned()
    driver = driver_of(pump, leaving=(lambda: None) if shared else None)
    driver.start()
    count = 300

    def work() -> None:
        for number in range(count):
            pump.ended.append(number)
            driver.wake()
            if number % 7 == 0:
                time.sleep(0.0005)

    threads = [in_thread(f"worker-{n}", work) for n in range(3)]
    made = []
    for number in range(3 * count):
        made.append(driver.next())
        if number % 50 == 0:
            time.sleep(0.003)
    for thread in threads:
        thread.join()
    driver.close()
    assert sorted(made) == sorted([*range(count)] * 3)


def test_closing_waits_for_a_thread_that_turns_the_pump_and_nobody_turns_it_afterwards() -> None:
    pump = Turned()
    driver = driver_of(pump, leaving=lambda: None)
    inside, go = threading.Event(), threading.Event()

    def during() -> None:
        inside.set()
        go.wait(10)

    pump.during = during
    driver._hungry = True
    pump.ended.append("batch")
    worker = in_thread("worker", driver.wake)
    assert inside.wait(10)
    closer = in_thread("closer", driver.close)
    time.sleep(0.02)
    assert closer.is_alive()
    go.set()
    closer.join()
    worker.join()
    pump.ended.append("another")
    driver.wake()
    assert pump.by == ["worker"]


def test_an_error_in_a_thread_of_ours_reaches_the_consumer() -> None:
    pump = Turned()
    driver = driver_of(pump, leaving=lambda: None)
    driver.start()

    def fails() -> None:
        raise SystemExit(3)

    pump.during = fails

    def work() -> None:
        while not driver._hungry:
            time.sleep(0.001)
        time.sleep(0.02)
        pump.ended.append("batch")
        driver.wake()  # and raises nothing here

    thread = in_thread("worker", work)
    with pytest.raises(SystemExit):
        driver.next()
    thread.join()
    driver.close()

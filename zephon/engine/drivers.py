"""Who turns the pump: the consumer, or a thread while the consumer is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from zephon.engine.pump import Delivery, Pump, bark
from zephon.errors import InternalError
from zephon.waiting import Bell

_LINGER_S = 0.001
"""How long the pump's thread stays away after the consumer had to wait: it may be back at once."""
_PATIENCE_S = 5.0
"""How long `close` waits for a thread that turns the pump."""
_SOON_S = 0.02
"""So long after that it is called only for what has happened, not to look whether there is something to do."""


class BackgroundPump:
    """A thread turns the pump while the training step runs. While the consumer waits for a batch, the consumer turns it itself, or, where
    tasks run on threads, the one that has ended a task.

    Threads that hand work to each other wait for the interpreter lock and find the caches of their cores cold, each time; and where there
    is one more of them than cores, two of them often share one core while another one has nothing to do, for milliseconds. So as few as
    can be are woken.
    """

    def __init__(
        self, pump: Pump, *, watchdog_s: float, describe: Callable[[], str], leaving: Callable[[], object] | None = None
    ) -> None:
        """`leaving`: tasks run on threads, which call `wake` and may turn the pump; a consumer that leaves them its core calls it."""
        self._pump = pump
        self._leaving = leaving
        self._moves = False
        """Something may have to move on since the pump was turned last."""
        self._call = Bell()
        """There is something to do for the thread."""
        self._stopped = False
        self._turning = threading.RLock()
        """Held by who turns the pump. Nobody else can release it: so a consumer may try after a Ctrl-C, whether it got it or not."""
        self._turner: threading.Thread | None = None
        self._watchdog_s = watchdog_s
        self._describe = describe
        self._hungry = False
        """The consumer waits for a batch."""
        self._fed = 0.0
        """When it last got one that it had waited for."""
        self._quiet_since = 0.0
        self._thread = threading.Thread(target=self._run, name="zephon-pump", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._call.set()
        self._thread.start()

    def wake(self) -> None:
        """Something may have to move on: do it, or tell who turns the pump now. Any thread may."""
        self._moves = True
        if not self._hungry:
            self._pump.wake.set()
            self._call.set()
        elif self._leaving is None or self._serve() or self._stopped:
            self._pump.wake.set()

    def _serve(self) -> bool:
        """Turn the pump for the consumer, unless somebody does, who will see `_moves`; whether the consumer is to look."""
        pump = self._pump
        while (
            self._moves
            and self._wanted
            and self._turner is not threading.current_thread()
            and self._turning.acquire(blocking=False)
        ):
            try:
                while self._wanted and self._turn():
                    pass
            finally:
                self._turning.release()
        return bool(pump.deliveries) or pump.finished or not self._hungry

    @property
    def _wanted(self) -> bool:
        """Whether the consumer waits, and nothing is there for it."""
        return self._hungry and not (self._pump.deliveries or self._pump.finished or self._stopped)

    def _run(self) -> None:
        pump = self._pump
        while not self._stopped and not pump.finished:
            self._call.wait(1.0)
            if not self._hungry and (rest := self._fed + _LINGER_S - time.monotonic()) > 0:
                time.sleep(rest)
            while not self._hungry and not self._stopped:
                with self._turning:
                    if not self._turn():
                        break

    def _turn(self, *, raises: bool = False) -> bool:
        """Turn the pump once, in the thread that holds `_turning`; whether anything moved. An error waits for the consumer."""
        pump, begun = self._pump, time.thread_time()
        self._moves, self._turner = False, threading.current_thread()
        try:
            moved = not pump.finished and pump.turn()
        except BaseException as error:
            pump.error = error
            pump.finished = moved = True
            if raises and not isinstance(error, Exception):
                raise  # a Ctrl-C doesn't wait for the batches that are ready
        finally:
            pump.cpu_s += time.thread_time() - begun
            self._turner = None
        if moved:
            self._quiet_since = time.monotonic()
        return moved

    def next(self) -> Delivery | None:
        """The next delivery, waiting for it; None at the end. Raises what stopped the pump."""
        pump, waited = self._pump, False
        if not pump.deliveries:
            waited = True
            self._quiet_since = time.monotonic()
            self._hungry = True
            try:
                while not pump.deliveries and not pump.finished:
                    self._help()
                with self._turning:
                    self._turn(raises=True)  # what the batch makes room for begins now, not when the next task ends
            finally:
                self._fed = time.monotonic()
                self._hungry = False
                if self._moves:
                    self._call.set()  # the word was for the consumer, which has gone
        if not pump.deliveries:
            if pump.error is not None:
                raise pump.error
            return None
        made = pump.deliveries.popleft()  # only this thread takes
        # not for every batch: each hand-over between two threads costs more than forming a batch
        if not waited and 2 * len(pump.deliveries) <= pump.prefetch and not (pump.busy and self._is_fed()):
            self._call.set()
        return made

    def _is_fed(self) -> bool:
        """Whether the consumer had to wait just now, and so will soon be back."""
        return time.monotonic() - self._fed < _SOON_S

    def _help(self) -> None:
        """Turn the pump, or wait until there is something to do."""
        pump = self._pump
        if self._stopped:
            raise InternalError("the pump is closed")
        try:
            if not self._turning.acquire(timeout=1.0):
                return self._watch()
            pump.wake.clear()
            moved = bool(pump.deliveries) or self._turn(raises=True)
        finally:
            try:  # noqa: SIM105 - a line of Python, as `suppress` is, lets a Ctrl-C come in between
                self._turning.release()
            except RuntimeError:  # it isn't ours: somebody turns the pump for long, or a Ctrl-C came first
                pass
        if not moved and not self._moves:
            if self._leaving is not None:
                self._leaving()
            pump.wake.wait(1.0)
            self._watch()
        return None

    def _watch(self) -> None:
        """Speak up when nothing has moved for too long."""
        quiet = time.monotonic() - self._quiet_since
        if quiet > self._watchdog_s:
            self._quiet_since = time.monotonic()
            bark(quiet, self._describe())

    def close(self) -> None:
        """Stop the thread, and have nobody turn the pump any more. Idempotent."""
        self._stopped = True
        self._pump.wake.set()
        self._call.set()
        here = threading.current_thread()
        if self._thread.is_alive() and self._thread is not here:
            self._thread.join()
        # the collector may run this in a thread that turns the pump
        if self._turner is not here and self._turning.acquire(timeout=_PATIENCE_S):
            self._turning.release()


class ForegroundPump:
    """Turns the pump in the consumer's own thread, when a batch is asked for: no thread at all."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def start(self) -> None:
        """Nothing runs before a batch is asked for."""

    def wake(self) -> None:
        """Something may have to move on."""
        self._pump.wake.set()

    def next(self) -> Delivery | None:
        """The next delivery; None at the end."""
        pump = self._pump
        while True:
            if not pump.deliveries:
                pump.deliver()  # may only move on to another lane
            if pump.deliveries:
                return pump.deliveries.popleft()
            if pump.finished:
                return None
            if not pump.turn() and not pump.deliveries and not pump.finished:
                raise InternalError("the pump stands still")

    def close(self) -> None:
        """Nothing to stop."""

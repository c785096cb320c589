"""Who turns the pump: the consumer, or a thread while the consumer is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from zephon.engine.pump import Delivery, Pump, bark
from zephon.errors import InternalError

_LINGER_S = 0.001
"""How long the pump's thread stays away after the consumer had to wait: it may be back at once."""
_LONGEST_NAP_S = 0.02
"""While the consumer waits, the pump's thread looks so often whether it still does."""


class BackgroundPump:
    """A thread turns the pump while the training step runs. While the consumer waits for a batch, the consumer turns it itself.

    Two threads that hand work to each other wait for the interpreter lock and find the caches of their cores cold, each time; so one of
    them does it all for as long as nothing else is to be done.
    """

    def __init__(self, pump: Pump, *, watchdog_s: float, describe: Callable[[], str]) -> None:
        self._pump = pump
        self._stop = threading.Event()
        self._turning = threading.Lock()
        """Held by who turns the pump."""
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
        self._thread.start()

    def _run(self) -> None:
        pump, nap = self._pump, _LINGER_S
        while not self._stop.is_set() and not pump.finished:
            if self._hungry or time.monotonic() - self._fed < _LINGER_S:
                self._stop.wait(nap)
                nap = min(2 * nap, _LONGEST_NAP_S)
                if self._hungry:
                    self._watch()
                continue
            nap = _LINGER_S
            pump.wake.clear()
            with self._turning:
                moved = self._turn()
            if self._hungry:
                pump.wake.set()  # the word that was cleared may have been the consumer's
            elif not moved:
                pump.wake.wait(1.0)

    def _turn(self) -> bool:
        """Turn the pump once, in the thread that holds `_turning`; whether anything moved. An error waits for the consumer."""
        pump, begun = self._pump, time.thread_time()
        try:
            return not pump.finished and pump.turn()
        except BaseException as error:
            pump.error = error
            pump.finished = True
            if not isinstance(error, Exception) and threading.current_thread() is not self._thread:
                raise  # a Ctrl-C doesn't wait for the batches that are ready
            return True
        finally:
            pump.cpu_s += time.thread_time() - begun

    def next(self) -> Delivery | None:
        """The next delivery, waiting for it; None at the end. Raises what stopped the pump."""
        pump = self._pump
        if not pump.deliveries:
            self._quiet_since = time.monotonic()
            self._hungry = True
            try:
                while not pump.deliveries and not pump.finished:
                    self._help()
            finally:
                self._fed = time.monotonic()
                self._hungry = False
        if not pump.deliveries:
            if pump.error is not None:
                raise pump.error
            return None
        made = pump.deliveries.popleft()  # only this thread takes
        # not for every batch: each hand-over between two threads costs more than forming a batch
        if 2 * len(pump.deliveries) <= pump.prefetch and not pump.wake.is_set():
            pump.wake.set()
        return made

    def _help(self) -> None:
        """Turn the pump, or wait until there is something to do."""
        pump = self._pump
        if self._stop.is_set():
            raise InternalError("the pump is closed")
        if not self._turning.acquire(timeout=1.0):
            return self._watch()
        try:
            pump.wake.clear()
            moved = bool(pump.deliveries) or self._turn()
        finally:
            self._turning.release()
        if moved:
            self._quiet_since = time.monotonic()
        else:
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
        """Stop the thread. Idempotent."""
        self._stop.set()
        self._pump.wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


class ForegroundPump:
    """Turns the pump in the consumer's own thread, when a batch is asked for: no thread at all."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def start(self) -> None:
        """Nothing runs before a batch is asked for."""

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

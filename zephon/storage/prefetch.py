"""Fetching ahead in the background: bounded, cancellable, and never a reason to fail."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable

from zephon.waiting import Flag, Guard

log = logging.getLogger("zephon.storage")

_MOST_WAITING = 256


class Prefetcher:
    """Calls `load(path, stopped)` for paths, in order, on a few threads that exist only while there is something to do.

    A failure is logged and forgotten: whoever reads the file meets it again, with an error that says where.
    """

    def __init__(self, load: Callable[[str, Flag], None], threads: int) -> None:
        self._load = load
        self._most = threads
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._changed = Guard()
        self._waiting: deque[str] = deque()
        self._running: set[str] = set()
        self._threads = 0
        self._stopped = Flag()

    def add(self, paths: Iterable[str]) -> None:
        """Queue those that are not queued yet, as far as there is room."""
        if not self._most:
            return
        if os.getpid() != self._pid:
            self._forget()  # a forked child has none of the threads
        with self._changed:
            for path in paths:
                if len(self._waiting) >= _MOST_WAITING:
                    return
                if path in self._running or path in self._waiting:
                    continue
                self._waiting.append(path)
                if self._threads < self._most:
                    self._threads += 1
                    number = self._threads
                    threading.Thread(
                        target=self._work, args=(self._stopped,), name=f"zephon-prefetch-{number}", daemon=True
                    ).start()

    def cancel(self, timeout_s: float = 60.0) -> None:
        """Forget what waits, stop what runs between two parts, and wait for it."""
        if os.getpid() != self._pid:
            self._forget()
            return
        with self._changed:
            self._waiting.clear()
            self._stopped.set()
            self._stopped = Flag()
            self._changed.wait_for(lambda: self._threads == 0, timeout_s)

    def _work(self, stopped: Flag) -> None:
        while True:
            with self._changed:
                if stopped.is_set() or not self._waiting:
                    self._threads -= 1
                    self._changed.notify_all()
                    return
                path = self._waiting.popleft()
                self._running.add(path)
            try:
                self._load(path, stopped)
            except Exception as error:  # noqa: BLE001 - the reader meets it again
                log.info("%s can't be fetched ahead: %s", path, error)
            finally:
                with self._changed:
                    self._running.discard(path)

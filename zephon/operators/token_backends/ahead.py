"""A quicker library that loads its tokenizer in the background, without the interpreter lock, while a run is being set up."""

from __future__ import annotations

import threading
from collections.abc import Callable

from zephon.operators.token_backends.base import Backend, EarlyBackend, FlatEncoder, Ready
from zephon.waiting import Bell


class Ahead:
    """Begins at once. What fails here fails again, and is told, where it is asked for.

    What needs the interpreter lock is done before this returns: beside a thread that keeps the lock, as one that sets up a run does,
    each file that is opened would cost 5 ms of waiting for it, and all of it took three times as long.

    Args:
        make: makes the tokenizer ready.
        choose: the back-end that will be asked for it, if any will.
    """

    def __init__(self, make: Callable[[], Ready], choose: Callable[[Ready], EarlyBackend | None]) -> None:
        self._ready: Ready | None = None
        self._backend: EarlyBackend | None = None
        self._loaded: FlatEncoder | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        try:
            self._ready = make()
            self._backend = choose(self._ready)
            if self._backend is None:
                return
            load = self._backend.begin(self._ready)
        except Exception as error:  # noqa: BLE001 - it reaches whoever asks
            self._error = error
            return
        begun = Bell()
        # no daemon: a thread that is inside of Rust when the interpreter ends takes the process down ("exception not rethrown", status 134)
        thread = threading.Thread(target=self._run, args=(load, begun), name="zephon-tokenizer")
        thread.start()
        self._thread = thread
        while not begun.wait(0.1) and thread.is_alive():  # the thread has the lock, and lets go of it inside of the library
            pass

    def _run(self, load: Callable[[], FlatEncoder], begun: Bell) -> None:
        try:
            begun.set()
            self._loaded = load()
        except BaseException as error:  # noqa: BLE001 - a panic of Rust is not an Exception
            self._error = error

    def ready_of(self, text: str) -> Ready | None:
        """The tokenizer made ready, if it is this one and could be."""
        return self._ready if self._ready is not None and self._ready.origin == text else None

    def load(self, backend: Backend, ready: Ready) -> FlatEncoder:
        """`backend.load(ready)`, which may have begun already. Raises as it does."""
        if ready is self._ready and backend is self._backend:
            self.wait()
            if self._error is not None:
                raise self._error
            if self._loaded is not None:
                return self._loaded
        return backend.load(ready)  # also where the thread died before it could say why

    def wait(self, timeout: float | None = None) -> None:
        """Until what was begun has ended, well or badly, or for so many seconds: for its thread, whose end can't fail to be seen."""
        if self._thread is not None:
            self._thread.join(timeout)

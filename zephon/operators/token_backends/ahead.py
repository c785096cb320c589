"""A quicker library that loads its tokenizer in the background, without the interpreter lock, while a run is being set up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from zephon.operators.token_backends.base import Backend, EarlyBackend, FlatEncoder, Ready


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
        self._loaded: Future[FlatEncoder] = Future()
        try:
            self._ready = make()
            self._backend = choose(self._ready)
            if self._backend is None:
                return
            load = self._backend.begin(self._ready)
        except Exception as error:  # noqa: BLE001 - it reaches whoever asks
            self._loaded.set_exception(error)
            return
        begun = threading.Event()
        # no daemon: a thread that is inside of Rust when the interpreter ends takes the process down ("exception not rethrown", status 134)
        threading.Thread(target=self._run, args=(load, begun), name="zephon-tokenizer").start()
        begun.wait()  # the thread has the lock, and lets go of it inside of the library

    def _run(self, load: Callable[[], FlatEncoder], begun: threading.Event) -> None:
        begun.set()
        try:
            self._loaded.set_result(load())
        except BaseException as error:  # noqa: BLE001 - a panic of Rust is not an Exception
            self._loaded.set_exception(error)

    def ready_of(self, text: str) -> Ready | None:
        """The tokenizer made ready, if it is this one and could be."""
        return self._ready if self._ready is not None and self._ready.origin == text else None

    def load(self, backend: Backend, ready: Ready) -> FlatEncoder:
        """`backend.load(ready)`, which may have begun already. Raises as it does."""
        return self._loaded.result() if ready is self._ready and backend is self._backend else backend.load(ready)

"""A quicker library that loads its tokenizer in the background, without the interpreter lock, while a run is being set up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from zephon.operators.token_backends.base import Backend, FlatEncoder, Ready


class Ahead:
    """Begins at once. What fails here fails again, and is told, where it is asked for.

    Args:
        make: makes the tokenizer ready.
        choose: the back-end that will be asked for it, if any will.
    """

    def __init__(self, make: Callable[[], Ready], choose: Callable[[Ready], Backend | None]) -> None:
        self._make = make
        self._choose = choose
        self._ready: Future[tuple[Ready, Backend | None]] = Future()
        self._loaded: Future[FlatEncoder] = Future()
        # no daemon: a thread that is inside of Rust when the interpreter ends takes the process down ("exception not rethrown", status 134)
        threading.Thread(target=self._run, name="zephon-tokenizer").start()

    def _run(self) -> None:
        try:
            ready = self._make()
            backend = self._choose(ready)
        except BaseException as error:  # noqa: BLE001 - it reaches whoever asks
            self._ready.set_exception(error)
            return
        self._ready.set_result((ready, backend))
        if backend is not None:
            try:
                self._loaded.set_result(backend.load(ready))
            except BaseException as error:  # noqa: BLE001 - a panic of Rust is not an Exception
                self._loaded.set_exception(error)

    def ready_of(self, text: str) -> Ready | None:
        """The tokenizer made ready, if it is this one and could be."""
        if self._ready.exception() is not None:
            return None
        ready = self._ready.result()[0]
        return ready if ready.origin == text else None

    def load(self, backend: Backend, ready: Ready) -> FlatEncoder:
        """`backend.load(ready)`, which may have begun already. Raises as it does."""
        mine, chosen = (None, None) if self._ready.exception() is not None else self._ready.result()
        return self._loaded.result() if ready is mine and backend is chosen else backend.load(ready)

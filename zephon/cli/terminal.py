"""The terminal, by rich: who imports this without rich gets a `ModuleNotFoundError`."""

from __future__ import annotations

import rich.console


class Console(rich.console.Console):
    """A reader that has seen enough (`zephon preview … | head`) is a `BrokenPipeError`, as with `print`: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

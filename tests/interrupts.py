"""A Ctrl-C at a place of one's choice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from signal import SIGINT, raise_signal
from typing import Any


def interrupted_at(number: int, use: Callable[[], None]) -> bool:
    """Call it with a Ctrl-C at that one of the places in it where Python looks for signals; whether there is such a place."""
    places, came = count(), False

    def look(frame: Any, event: str, what: Any) -> None:
        nonlocal came
        if event in ("call", "c_return") and next(places) == number:
            came = True
            raise_signal(SIGINT)

    try:
        sys.setprofile(look)
        use()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return came

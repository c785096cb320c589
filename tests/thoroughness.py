"""How many examples a test of properties tries: `ZEPHON_TESTS=thorough` tries twenty times as many, also where a test states a number."""

from __future__ import annotations

from hypothesis import settings

QUICK = 25


def examples(quick: int) -> int:
    """So many in the profile `quick`, and in the others as many more as they try of tests that state no number."""
    return quick * settings().max_examples // QUICK

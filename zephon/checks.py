"""Checks of settings that several parts make."""

from __future__ import annotations

import operator
from typing import Any

from zephon.errors import RecipeError


def whole(name: str, value: Any, *, least: int | None = None) -> int:
    """A whole number as a Python integer (numpy's are taken, states hold plain values). Raises `RecipeError`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or (least is not None and operator.index(value) < least):
        limit = "" if least is None else f" ≥ {least}"
        raise RecipeError(f"{name} is {value!r}; it must be a whole number{limit}")
    return operator.index(value)


def whole_or_none(name: str, value: Any, *, least: int | None = None) -> int | None:
    """The same; None stays."""
    return None if value is None else whole(name, value, least=least)


def number(name: str, value: Any, limit: float, *, above: bool = False) -> None:
    """Raises `RecipeError` where it is no number (NaN is none), or below `limit`, or with `above` not above it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value > limit if above else value >= limit):
        raise RecipeError(f"{name} is {value!r}; it must be a number {'>' if above else '≥'} {limit}")

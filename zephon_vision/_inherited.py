"""Settings that are said once: an operator takes those that it isn't given from the operators before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from zephon.errors import RecipeError, unknown
from zephon.plugin import Operator
from zephon_vision.headers import Header

Exif = Literal["apply", "ignore"]
"""Whether images are turned as their EXIF orientation says, or left as they are stored."""

Given = TypeVar("Given", bound=Operator)


def inherited(operator: Given, before: Sequence[Operator], *names: str) -> Given:
    """`operator`, with those of these settings that are None as the nearest operator before it has them."""
    found: dict[str, Any] = {}
    for name in names:
        if getattr(operator, name) is None:
            found[name] = next((v for op in reversed(before) if (v := getattr(op, name, None)) is not None), None)
    found = {name: value for name, value in found.items() if value is not None}
    return replace(operator, **found) if found else operator


def check_exif(value: Exif | None, operator: str) -> None:
    """Raise `RecipeError` for what is none of the two."""
    if value is not None and value not in get_args(Exif):
        raise RecipeError(f"{operator}: {unknown('exif', str(value), get_args(Exif))}")


def exif_parts(value: Exif | None) -> dict[str, str]:
    """What belongs to a recipe: nothing, for upright images."""
    return {"exif": value} if value == "ignore" else {}


def size_of(head: Header, exif: Exif | None) -> tuple[int, int]:
    """`(height, width)` of the image as it is taken."""
    return head.stored if exif == "ignore" else (head.height, head.width)

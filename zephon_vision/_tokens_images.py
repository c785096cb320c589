"""Images on the way into token sequences: their sizes, plans and token runs, and smaller plans where a sample is too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from zephon import groups
from zephon.arrays import struct_parts, to_numpy
from zephon.errors import DataError, InternalError, RecipeError
from zephon.keys import I64
from zephon_vision import columns
from zephon_vision._decoders_source import image_parts, mapped
from zephon_vision._inherited import Exif, size_of
from zephon_vision._taking import references, taken
from zephon_vision._tokens_vocabulary import I32, U8
from zephon_vision.headers import check_size, read_header
from zephon_vision.policies.base import Plan, Policy, SpecialIds
from zephon_vision.policies.none import NoImages

BLANK = (224, 224)
"""The size that an image counts as where it can't be used and a grey one takes its place."""

_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class Planned:
    """One image's plan and what stands for it among the tokens."""

    spec: str
    plan: Plan
    numbers: Sequence[int]
    """`plan.pack()`."""
    ids: I32
    types: U8
    """1 on the image's own tokens, 0 on wrappers and separators."""


class Planner:
    """Plans by one policy, and by smaller ones made from it; any number of threads may use it."""

    def __init__(self, policy: Policy, ids: SpecialIds) -> None:
        self._ids = ids
        self.policies = [policy, *smaller(policy)]
        """The policy, then ever smaller ones."""
        self._specs = [p.spec() for p in self.policies]
        self._loose = bool(policy.texts) or len(ids.newline) != 1
        self.own = _own_tokens(policy, ids)
        self._known: dict[tuple[int, int, int, int], Planned] = {}

    def plan(self, height: int, width: int, images: int, level: int = 0) -> Planned:
        """The plan of an image of this size in a sample with so many images; `level` counts in `policies`.

        Raises:
            DataError: the policy refuses the size.
        """
        key = (height, width, images, level)
        found = self._known.get(key)
        if found is None:
            found = self._made(height, width, images, level)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = found
        return found

    def _made(self, height: int, width: int, images: int, level: int) -> Planned:
        policy = self.policies[level]
        plan = policy.plan(height, width, images=images)
        ids = np.array(policy.token_run(plan, self._ids), dtype=np.int32)
        if len(ids) != plan.tokens:
            if not self._loose:
                raise InternalError(f"the image policy {policy.name!r} planned {plan.tokens} tokens and made {len(ids)}")
            plan = replace(plan, tokens=len(ids))
        own = ids == self.own if len(self.own) else np.zeros(len(ids), dtype=bool)
        return Planned(self._specs[level], plan, plan.pack(), ids, own.view(np.uint8))


def smaller(policy: Policy) -> list[Policy]:
    """The same policy with ever smaller budgets: pixels, longest edge, tiles or tokens, whichever it has. Some have none."""
    made: list[Policy] = []
    for settings in _smaller_settings(policy):
        try:
            made.append(replace(policy, **settings))
        except RecipeError:  # below what the policy allows
            break
    return made


def _smaller_settings(policy: Any) -> Iterator[dict[str, Any]]:
    if isinstance(getattr(policy, "max_pixels", None), int):
        least, value = int(getattr(policy, "min_pixels", 1)), int(policy.max_pixels)
        while value > least:
            value = max(least, value * 9 // 10)
            yield {"max_pixels": value}
    elif isinstance(getattr(policy, "max_soft_tokens", None), int):
        yield from ({"max_soft_tokens": n} for n in (560, 280, 140, 70) if n < policy.max_soft_tokens)
    elif isinstance(getattr(policy, "longest_edge", None), int):
        tile = getattr(policy, "tile", None)
        value = int(policy.longest_edge)
        least = int(tile) if isinstance(tile, int) else 32
        while value > least:
            value = max(least, value - tile if isinstance(tile, int) else value * 19 // 20)
            yield {"longest_edge": value}
    else:
        for name in ("max_patches", "max_tiles"):
            if isinstance(getattr(policy, name, None), int):
                yield from ({name: n} for n in range(getattr(policy, name) - 1, 0, -1))
                return


def _own_tokens(policy: Policy, ids: SpecialIds) -> I32:
    """The ids of the tokens that image features replace: what a large image has most of."""
    run = [] if isinstance(policy, NoImages) else policy.token_run(policy.plan(1024, 1024), ids)
    return np.array([Counter(run).most_common(1)[0][0]], dtype=np.int32) if run else np.zeros(0, np.int32)


class GroupImages:
    """The images of a group: where each row's are, their sizes, and what is wrong with them."""

    def __init__(
        self,
        group: pa.RecordBatch,
        *,
        min_side: int | None,
        max_aspect: float | None,
        media_root: str | None,
        exif: Exif | None,
    ) -> None:
        array = groups.column(group, columns.IMAGES)
        self.offsets, flat = list_values(array, columns.IMAGES)
        self.data, self.path = image_parts(flat)
        self._min_side, self._max_aspect = min_side, max_aspect
        self._media_root, self._exif = media_root, exif
        self._info: dict[str, list[Any]] | None = None
        if group.schema.get_field_index(columns.IMAGE_INFO) >= 0:
            self._info_offsets, info = list_values(groups.column(group, columns.IMAGE_INFO), columns.IMAGE_INFO)
            self._info = {n: p.to_pylist() for n, p in struct_parts(info).items() if n in ("height", "width", "error")}
        self._known: dict[int, tuple[int, int] | str] = {}

    def size(self, row: int, image: int) -> tuple[int, int] | str:
        """`(height, width)` of the row's image, or why it can't be used.

        Raises:
            DataError: the row has no such image.
        """
        place = int(self.offsets[row]) + image
        if not 0 <= image < int(self.offsets[row + 1] - self.offsets[row]):
            raise DataError(f"a segment refers to an image that the row doesn't have: number {image}")
        if place not in self._known:
            self._known[place] = self._checked(self._size(row, image, place))
        return self._known[place]

    def _size(self, row: int, image: int, place: int) -> tuple[int, int] | str:
        if self._info is None:
            return self._read(place)
        at = int(self._info_offsets[row]) + image
        if at >= int(self._info_offsets[row + 1]):
            raise DataError("image_info and images are not parallel")
        error = self._info["error"][at]
        return error if error is not None else (self._info["height"][at], self._info["width"][at])

    def _read(self, place: int) -> tuple[int, int] | str:
        data, path = self.data[place].as_buffer(), self.path[place].as_py()
        try:
            with mapped((None if data is None else memoryview(data), path), self._media_root) as file:
                header = read_header(file)
            check_size(header)
        except DataError as error:
            return error.message
        return size_of(header, self._exif)

    def _checked(self, size: tuple[int, int] | str) -> tuple[int, int] | str:
        if isinstance(size, str):
            return size
        short, long = min(size), max(size)
        if short < 1:
            return "empty"
        if self._min_side is not None and short < self._min_side:
            return f"too small: {size[1]} × {size[0]} pixels"
        if self._max_aspect is not None and long > self._max_aspect * short:
            return f"too long: {size[1]} × {size[0]} pixels"
        return size

    def seen(self) -> tuple[list[int], dict[int, list[str]]]:
        """How many images were asked for in each row, and why those of some rows can't be used; the user's own limits are no reason."""
        counts = [0] * (len(self.offsets) - 1)
        errors: dict[int, list[str]] = {}
        for place, size in self._known.items():
            row = int(np.searchsorted(self.offsets, place, side="right")) - 1
            counts[row] += 1
            if isinstance(size, str) and not size.startswith("too "):
                errors.setdefault(row, []).append(size)
        return counts, errors

    def gathered(self, places: Sequence[int]) -> Any:
        """The images at these places (-1: a missing one), as `_taking.references`."""
        index = np.array(places, dtype=np.int64)
        return references(taken(self.data, index), taken(self.path, index))


def list_values(array: Any, name: str) -> tuple[I64, Any]:
    """`(offsets int64[N+1] from 0, values)` of a list column without null rows; only the values of these rows."""
    if array.null_count:
        raise DataError(f"column {name!r} is null in a row")
    ends = to_numpy(array.offsets).astype(np.int64)
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    return ends - first, array.values.slice(first, last - first)

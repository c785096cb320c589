"""Where a data set's shards come from: what `Dataset` asks of files (`zephon.discovery`) and of memory (`zephon.memory`) alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from zephon.plugin import OpenShard, Shard

Looks = tuple[tuple[int, ...], ...]
"""What tells one version of a shard's files from another, a tuple of numbers for each; empty where reading itself notices."""


class LookTable:
    """The looks of many shards, 32 bytes for each file."""

    def __init__(self, looks: Sequence[Looks]) -> None:
        self._ends = np.cumsum([0, *(len(one) for one in looks)], dtype=np.int64)
        self._table = np.array([file for one in looks for file in one], dtype=np.int64)

    def __getitem__(self, shard: int) -> Looks:
        return tuple(map(tuple, self._table[self._ends[shard] : self._ends[shard + 1]].tolist()))


class Shards(ABC):
    """The shards of one data set. What has a body here is for stores that are elsewhere, or can change; memory is neither."""

    in_memory: ClassVar[bool] = False
    """Whether reading a unit is no more than slicing memory."""

    @abstractmethod
    def list(self) -> Sequence[Shard]:
        """The shards in their fixed order."""

    @abstractmethod
    def open(self, shard: Shard) -> OpenShard:
        """One of them, ready for reading."""

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """`format` and `options`, plain."""

    @abstractmethod
    def keep_at(self, shards: Sequence[Shard], what: str) -> str | None:
        """A local path for something that was worked out from these versions of the shards; None: don't keep it."""

    @property
    @abstractmethod
    def splittable(self) -> bool:
        """See `Reader`."""

    def look(self, shard: Shard) -> Looks:  # noqa: ARG002 - a default of an interface
        """What the shard's files look like now, for `check`. Raises `DataError` where one is gone."""
        return ()

    def check(self, shard: Shard, looked: Looks) -> None:  # noqa: B027 - a default of an interface
        """Raises `DataError` where a file of the shard isn't any more what it was at `look`."""

    @property
    def has_cache(self) -> bool:
        """Whether shards are fetched into a cache on local disk."""
        return False

    def use_io_options(self, options: Mapping[str, Any] | Any) -> bool:  # noqa: ARG002 - a default of an interface
        """Read through a store with these options from now on, unless some were given; whether that changed anything."""
        return False

    def check_limits(self, shards: Sequence[Shard]) -> None:  # noqa: B027 - a default of an interface
        """Refuse a shard cache that can't hold one of these. Raises `RecipeError`."""

    def prefetch(self, shards: Sequence[Shard]) -> None:  # noqa: B027 - a default of an interface
        """Fetch these into the cache, in the background."""

    def cancel_prefetch(self) -> None:  # noqa: B027 - a default of an interface
        """Stop fetching ahead."""

"""How storage is read and cached: settings that never change a byte of a stream."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from zephon.checks import number
from zephon.errors import RecipeError, unknown

__all__ = ["CacheOptions", "StoreOptions", "parse_bytes"]

_SIZE = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_bytes(value: int | float | str, name: str = "size") -> int:
    """A number of bytes: 50_000, "50gb" (10**9), "50 GiB" (2**30), "1.5t".

    Raises:
        RecipeError: it is not a size.
    """
    if isinstance(value, str):
        found = _SIZE.match(value)
        if found:
            number, unit, binary = found.groups()
            if unit or not binary:
                return int(float(number.replace("_", "")) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        return int(value)
    raise RecipeError(f"{name} is {value!r}; give a number of bytes or a size such as '50gb' or '512MiB'")


def _from_any(kind: Any, given: Any) -> Any:
    """`kind` from a mapping of its fields, or what is one already."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise RecipeError(f"{kind.__name__} can't be made from {given!r}; give a mapping of its fields")
    known = [f.name for f in fields(kind)]
    for name in given:
        if name not in known:
            raise RecipeError(unknown(f"field of {kind.__name__}", str(name), known))
    return kind(**given)


def _check_numbers(options: Any, names: tuple[str, ...], least: float) -> None:
    for name in names:
        number(f"{name} of {type(options).__name__}", getattr(options, name), least)


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """The shard cache on local disk: whole files of remote stores, shared by all processes of a node."""

    enabled: bool = True
    root: str | None = None
    """The folder below which the cache makes one of its own; default: `shards` in the user's cache directory."""
    limit_bytes: int = 50_000_000_000
    """Bytes on disk at most; also a size such as "50gb". It must hold the largest shard."""
    wait_s: float = 120.0
    """How long to wait for another process that downloads the same shard, before reading it directly."""
    verify: bool = True
    """Compare each download with the checksum that the store gives, where it gives one."""
    prefetch_threads: int = 2
    """Downloads ahead of the reader at once; 0: none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit_bytes", parse_bytes(self.limit_bytes, "limit_bytes of CacheOptions"))
        if self.root is not None:
            object.__setattr__(self, "root", os.fspath(self.root))
        _check_numbers(self, ("wait_s", "prefetch_threads"), 0)
        _check_numbers(self, ("limit_bytes",), 1)

    @classmethod
    def from_any(cls, given: Mapping[str, Any] | Self | bool | None) -> Self:
        """Options from a mapping, from themselves, or from True (the defaults); None and False: no cache.

        Raises:
            RecipeError: an unknown field or a value that doesn't fit.
        """
        made: Self = cls(enabled=bool(given)) if given is None or isinstance(given, bool) else _from_any(cls, given)
        return made


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """How remote stores are read. Local files need none of it."""

    retries: int = 7
    """Tries after the first one that failed for a reason that may pass."""
    first_wait_s: float = 0.5
    """The wait before the second try; it doubles with each, and a keyed jitter of ±50 % is put on it."""
    longest_wait_s: float = 30.0
    """Where the doubling ends. A store that says how long to wait (`Retry-After`) is obeyed beyond it, up to five minutes."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """The longest time without a byte: a body that stalls is noticed."""
    timeout_s: float = 300.0
    """The longest time for one request with its whole body."""
    part_bytes: int = 16 << 20
    """Longer reads are cut into requests of this size."""
    parallel_parts: int = 4
    """Requests at once for one long read."""
    cache: CacheOptions = field(default_factory=lambda: CacheOptions(enabled=False))
    """The shard cache; off unless asked for. A mapping of its fields will do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "part_bytes", parse_bytes(self.part_bytes, "part_bytes of StoreOptions"))
        object.__setattr__(self, "cache", CacheOptions.from_any(self.cache))
        _check_numbers(self, ("retries", "first_wait_s", "longest_wait_s"), 0)
        _check_numbers(self, ("connect_timeout_s", "read_timeout_s", "timeout_s"), 0.001)
        _check_numbers(self, ("part_bytes", "parallel_parts"), 1)

    @classmethod
    def from_any(cls, given: Mapping[str, Any] | Self | None) -> Self:
        """Options from a (nested) mapping, or from themselves; None: the defaults.

        Raises:
            RecipeError: an unknown field or a value that doesn't fit.
        """
        made: Self = cls() if given is None else _from_any(cls, given)
        return made

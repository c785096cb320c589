"""Entry points → classes by name: lists without importing, loads one, never chooses between two claims."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Literal

from zephon.errors import PluginError, unknown
from zephon.notes import Notes
from zephon.plugin import Operator, Reader

Group = Literal["zephon.formats", "zephon.operators", "zephon.image_policies"]

_BASES: dict[Group, type[Any]] = {"zephon.formats": Reader, "zephon.operators": Operator}
"""What a group's classes are subclasses of. The core doesn't know image policies: who takes one looks at it."""


@dataclass(frozen=True)
class Claim:
    """One package's entry point for a name."""

    entry_point: EntryPoint

    @property
    def name(self) -> str:
        """What is claimed."""
        return self.entry_point.name

    @property
    def target(self) -> str:
        """`module:class`."""
        return self.entry_point.value

    @cached_property
    def distribution(self) -> str:
        """The package's name. It stands in the metadata, whose reading takes a millisecond: only who needs it pays."""
        dist = self.entry_point.dist
        return dist.name if dist else "?"

    @cached_property
    def version(self) -> str:
        """Of the package."""
        dist = self.entry_point.dist
        return dist.version if dist else "?"


def available(group: Group) -> dict[str, list[Claim]]:
    """Every installed name and who claims it, without importing any of them; names sorted."""
    # reading the metadata of all distributions takes tens of milliseconds, and what is installed hardly changes under a process
    return _available(group, tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _available(group: Group, path: tuple[str, ...]) -> dict[str, list[Claim]]:
    found: dict[str, list[Claim]] = {}
    for point in _installed(path).select(group=group):
        found.setdefault(point.name, []).append(Claim(point))
    return {name: _distinct(found[name]) for name in sorted(found)}


@functools.lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> Any:  # noqa: ARG001 - the path is what the answer depends on
    return entry_points()


def _distinct(claims: list[Claim]) -> list[Claim]:
    """One distribution may be listed twice (an editable install beside its build folder): that isn't a second claim."""
    if len(claims) == 1:
        return claims
    return list({(claim.distribution, claim.target): claim for claim in claims}.values())


def noted(group: Group, name: str, fact: Callable[[type[Any]], Any]) -> Any:
    """A plain value that follows from a class, without importing it where it was noted before, with the modules as they are now.

    Args:
        group: of the entry point.
        name: of the entry point.
        fact: the value, from the class.

    Raises:
        PluginError: as `load`, where the class must be imported.
    """
    return _noted(group, name, fact, tuple(sys.path))


@functools.lru_cache(maxsize=256)
def _noted(group: Group, name: str, fact: Callable[[type[Any]], Any], path: tuple[str, ...]) -> Any:
    claims = available(group).get(name, [])
    state = _state_of(claims[0], path) if len(claims) == 1 else None
    if state is None:
        return fact(load(group, name))
    return Notes("plugin", claims[0].target, *state).of(fact.__name__, lambda: fact(load(group, name)))


def _state_of(claim: Claim, path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The file that a claim's module is in, and sizes and times of it and its neighbours; None: not known without importing it."""
    try:
        spec = find_spec(claim.entry_point.module)
        return None if spec is None or spec.origin is None else (spec.origin, *_looks(os.path.dirname(spec.origin), path))
    except Exception:  # a package above it that doesn't import: `load` tells
        return None


@functools.lru_cache(maxsize=64)
def _looks(folder: str, path: tuple[str, ...]) -> tuple[str, str]:  # noqa: ARG001 - looked at anew with another path
    """The size of all modules there, and when the last one was changed. One folder has many readers."""
    with os.scandir(folder) as entries:
        looks = [entry.stat() for entry in entries if entry.name.endswith(".py")]
    return str(sum(look.st_size for look in looks)), str(max((look.st_mtime_ns for look in looks), default=0))


def load(group: Group, name: str) -> type[Any]:
    """Import the class that one entry point names.

    Raises:
        PluginError: nobody has that name (with the nearest one), two packages have it, its module doesn't import
            (with the package to install), or it isn't a class of that name and kind.
    """
    claims = available(group).get(name)
    if not claims:
        raise PluginError(unknown(group.removeprefix("zephon.").removesuffix("s"), name, available(group)))
    if len(claims) > 1:
        owners = " and ".join(f"{c.distribution} {c.version} ({c.target})" for c in claims)
        raise PluginError(f"{group} name {name!r} is claimed by {owners}", hint="uninstall one of them")
    claim = claims[0]
    try:
        target = claim.entry_point.load()
    except ImportError as error:
        missing = getattr(error, "name", None) or str(error)
        raise PluginError(
            f"{name!r} of {claim.distribution} {claim.version} can't be imported: {error}",
            hint=f"install {missing!r}, for example with `pip install '{claim.distribution}[{name}]'`",
        ) from error
    except (Exception, SystemExit) as error:  # a script that was meant to be run ends the program
        raise PluginError(
            f"{name!r} of {claim.distribution} {claim.version} fails on import: {type(error).__name__}: {error}"
        ) from error
    return _checked(group, claim, target)


def _checked(group: Group, claim: Claim, target: Any) -> type[Any]:
    """What an entry point gave, as a class; raises `PluginError` for what would fail later in words that don't name the package."""
    if not isinstance(target, type):
        raise PluginError(f"entry point {claim.name!r} of {claim.distribution} is {target!r}; it must be a class")
    base = _BASES.get(group)
    if base is not None and not issubclass(target, base):
        raise PluginError(f"{claim.target} of {claim.distribution} must be a subclass of zephon.plugin.{base.__name__}")
    if getattr(target, "name", None) != claim.name:
        raise PluginError(
            f"{claim.target} of {claim.distribution} calls itself {getattr(target, 'name', None)!r}, its entry point {claim.name!r}"
        )
    for mark in ("suffixes", "index_files") if base is Reader else ():
        value = getattr(target, mark)
        if not (isinstance(value, tuple) and all(isinstance(one, str) and one for one in value)):
            raise PluginError(f"{mark} of {claim.target} of {claim.distribution} must be a tuple of texts, not {value!r}")
    return target

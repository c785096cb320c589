"""Checkpoints: per lane a handful of integers and a digest, and the recipe they belong to.

A state is plain (dict, list, int, float, str), rank-free and mergeable: `lanes` is keyed by lane number, so states of different
ranks are united by key. This module knows integers and dicts only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from zephon.errors import CheckpointError, LaneCountError
from zephon.recipe import STREAM_VERSION, difference, fingerprint

FORMAT = 1
_MAX_WINDOW = 1 << 31

Odd = tuple[tuple[int, int], ...]
"""Tasks of a window by number, ascending, each with how many sequences it gave."""


class LaneState(NamedTuple):
    """Where one lane is.

    Attributes:
        window: the window that the next sequence comes from (or, at its end, the window that was just finished).
        delivered: sequences delivered in that window.
        total: sequences delivered in all.
        digest: running digest of everything delivered, 64 bits.
        window_digest: the same for this window only; a restore replays the window and compares.
        empty: how many of `total` were empty sequences, after the lane's end.
        odd: of this window's tasks of the last stage, up to that of the last sequence delivered: those that gave another number of
            sequences than they were given rows, so that a restore needs to build none of them again to know. None: not known (there were
            many; the state is of an earlier version), or never the case.
    """

    window: int = 0
    delivered: int = 0
    total: int = 0
    digest: int = 0
    window_digest: int = 0
    empty: int = 0
    odd: Odd | None = None

    @property
    def before(self) -> int:
        """The sequences of earlier windows: the number of this window's first sequence in the lane's stream."""
        return self.total - self.empty - self.delivered

    def pack(self) -> list[Any]:
        """As it stands in a state: three integers and two hex strings; a fourth integer after the lane's end, or where a list of pairs
        follows: `odd`."""
        packed = [self.window, self.delivered, self.total, f"{self.digest:016x}", f"{self.window_digest:016x}"]
        if self.odd is not None and self.delivered:
            return [*packed, self.empty, [list(task) for task in self.odd]]
        return [*packed, self.empty] if self.empty else packed

    @classmethod
    def unpack(cls, values: Any, lane: str) -> LaneState:
        """Raises `CheckpointError` where the values are not a lane's state."""
        try:
            window, delivered, total, digest, window_digest, *rest = values
            empty, *more = rest or [0]
            odd = None
            if more:
                (tasks,) = more
                odd = tuple((place, gave) for place, gave in tasks)
            numbers = [window, delivered, total, empty, *chain.from_iterable(odd or ())]
            if not all(type(number) is int for number in numbers):
                raise TypeError("not integers")
            made = cls(window, delivered, total, int(str(digest), 16), int(str(window_digest), 16), empty, odd)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"the state of lane {lane} is damaged: {values!r}") from error
        if min(made.before, *numbers) < 0 or made.window > _MAX_WINDOW:
            raise CheckpointError(f"the state of lane {lane} is damaged: {values!r}")
        return made


def make_state(
    *,
    recipe: Mapping[str, Any],
    lanes: Mapping[int, LaneState],
    tokens_per_record: Mapping[str, float] | None,
    padding: int | None = None,
) -> dict[str, Any]:
    """The state of these lanes; `padding`: what the rank's padding lane delivered, if it is behind them (`padding_total`)."""
    state = {
        "format": FORMAT,
        "stream_version": STREAM_VERSION,
        "fingerprint": fingerprint(recipe),
        "recipe": dict(recipe),
        "tokens_per_record": None if tokens_per_record is None else dict(tokens_per_record),
        "lanes": {str(number): lane.pack() for number, lane in sorted(lanes.items())},
    }
    if padding is not None and padding < min(lane.total for lane in lanes.values()):
        state["padding"] = {_block(lanes): padding}
    return state


def padding_total(lanes: Mapping[int, LaneState], stated: int | None, per_step: int) -> int:
    """How many sequences the padding lane of the rank that owns these lanes delivered.

    It comes last in a step, so it is at the step that the lanes are in; only where all of them completed one and it didn't, the
    state must say so (`stated`; what doesn't fit the lanes is of an older state that was merged).
    """
    totals = {lane.total for lane in lanes.values()}
    least = min(totals)
    if stated is not None and len(totals) == 1 and least % per_step == 0 and least - per_step <= stated < least:
        return stated
    return least // per_step * per_step


def stated_padding(state: Mapping[str, Any], owned: Sequence[int]) -> int | None:
    """What a state says of the padding lane of the rank that owns exactly these lanes."""
    found = state.get("padding", {}).get(_block(owned))
    return None if found is None else int(found)


def _block(lanes: Iterable[int]) -> str:
    numbers = sorted(lanes)
    return f"{numbers[0]}-{numbers[-1]}"


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state out of those of several ranks (any order, any number of times the same).

    Where two states know the same lane, the one that is further on wins: a rank may carry an older merge along.

    Raises:
        CheckpointError: not states, or of different recipes.
    """
    merged: dict[str, Any] = {}
    for state in states:
        check_form(state)
        if not merged:
            merged = {**state, "lanes": dict(state["lanes"])}
            if "padding" in state:
                merged["padding"] = dict(state["padding"])
            continue
        if state["fingerprint"] != merged["fingerprint"]:
            raise CheckpointError(
                "states of different recipes can't be merged: " + _differences(merged["recipe"], state["recipe"])
            )
        merged["tokens_per_record"] = merged["tokens_per_record"] or state["tokens_per_record"]
        for lane, values in state["lanes"].items():
            mine = merged["lanes"].get(lane)
            if mine is None or LaneState.unpack(values, lane).total > LaneState.unpack(mine, lane).total:
                merged["lanes"][lane] = values
        for block, total in state.get("padding", {}).items():
            behind = merged.setdefault("padding", {})
            behind[block] = max(total, behind.get(block, 0))
    if not merged:
        raise CheckpointError("there is no state to merge")
    merged["lanes"] = {lane: merged["lanes"][lane] for lane in sorted(merged["lanes"], key=int)}
    return merged


def check_form(state: Any) -> None:
    """Raises `CheckpointError` where `state` is not a state of this format."""
    if (
        not isinstance(state, Mapping)
        or not isinstance(state.get("lanes"), Mapping)
        or "recipe" not in state
        or "fingerprint" not in state
    ):
        raise CheckpointError("this is not a Zephon state", hint="give back what state_dict() returned")
    if not isinstance(state["recipe"], Mapping):
        raise CheckpointError("this state's recipe is damaged")
    if state.get("format") != FORMAT:
        raise CheckpointError(f"this state has format {state.get('format')!r}; this version reads format {FORMAT}")
    if state.get("stream_version") != STREAM_VERSION:
        raise CheckpointError(
            f"this state was saved by stream version {state.get('stream_version')!r}; this is {STREAM_VERSION}, whose bytes differ",
            hint="see the CHANGELOG for the version to go on with",
        )
    for lane in state["lanes"]:
        if not (isinstance(lane, str) and lane.isdecimal() and lane.isascii()):
            raise CheckpointError(f"this state has a lane {lane!r}; lanes are numbers")
    padding = state.get("padding", {})
    if not isinstance(padding, Mapping) or not all(type(total) is int and total >= 0 for total in padding.values()):
        raise CheckpointError(f"the padding of this state is damaged: {padding!r}")
    _check_tokens(state.get("tokens_per_record"), state["recipe"])


def _check_tokens(tokens: Any, recipe: Mapping[str, Any]) -> None:
    if tokens is None:
        return
    names = [d.get("name") for d in recipe.get("datasets", []) if isinstance(d, Mapping)]
    good = isinstance(tokens, Mapping) and all(
        isinstance(tokens.get(n), int | float) and math.isfinite(tokens[n]) and tokens[n] > 0 for n in names
    )
    if not good:
        raise CheckpointError(f"the tokens per record of this state are damaged: {tokens!r}")


def load_state(state: Mapping[str, Any], *, recipe: Mapping[str, Any], owned: Sequence[int]) -> dict[int, LaneState]:
    """The lanes of this rank out of a (merged) state.

    Raises:
        LaneCountError: saved with another number of lanes.
        CheckpointError: another recipe (with the differences), a lane that it can't have, or a lane of this rank is missing.
    """
    check_form(state)
    saved = state["recipe"]
    if saved.get("lanes") != recipe["lanes"]:
        raise LaneCountError(
            f"the state was saved with {saved.get('lanes')} lanes, this pipeline has {recipe['lanes']}",
            hint=f"set lanes={saved.get('lanes')}: the number of ranks may change, the number of lanes may not",
        )
    if state["fingerprint"] != fingerprint(recipe):
        raise CheckpointError(
            f"the state was saved with recipe {state['fingerprint']}, this pipeline is {fingerprint(recipe)}: "
            + _differences(saved, recipe),
            hint="restore with the recipe that the state was saved with",
        )
    beyond = [lane for lane in state["lanes"] if int(lane) >= recipe["lanes"]]
    if beyond:
        raise CheckpointError(f"this state is damaged: it has a lane {beyond[0]}, and its recipe has {recipe['lanes']} lanes")
    missing = [lane for lane in owned if str(lane) not in state["lanes"]]
    if missing:
        raise CheckpointError(
            f"the state knows lanes {_some(sorted(map(int, state['lanes'])))}, this rank owns lane {missing[0]} too",
            hint="merge the states of all ranks: zephon.merge_states([...])",
        )
    return {lane: LaneState.unpack(state["lanes"][str(lane)], str(lane)) for lane in owned}


def _differences(saved: Any, now: Any) -> str:
    found = difference(saved, now)
    text = "; ".join(found[:6]) or "no difference in words"
    return text + (f"; and {len(found) - 6} more" if len(found) > 6 else "")


def _some(numbers: Sequence[int]) -> str:
    return str(list(numbers)) if len(numbers) <= 8 else f"[{numbers[0]}, {numbers[1]}, … {numbers[-1]}]"

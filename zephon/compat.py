"""Spellings that adapters of training frameworks use, translated at the edge; nothing below knows them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from zephon.errors import RecipeError

log = logging.getLogger("zephon.compat")

OPTION_NAMES = {
    "canonical_replicas": "lanes",
    "dp_degree": "dp_size",
    "dp_world_size": "dp_size",
    "dp_group_id": "dp_rank",
    "flush_every_k_chunks": "flush_every_chunks",
    "max_workers": "workers",
    "aggregate_store": None,
    "default_stage_prefetch": None,
    "deterministic": None,
    "global_rank": None,
    "mtp_mode": None,
    "op_queue_capacity": None,
    "worker_allocation": None,
    "world_size": None,
}
"""Their name → ours; None: accepted, and without effect, because our engine needs no such setting."""

_RUNNERS = {"process": "processes", "thread": "threads"}


def translate_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options in our names.

    Raises:
        RecipeError: one setting is given under two names with two values.
    """
    out: dict[str, Any] = {}
    for name, value in given.items():
        ours = OPTION_NAMES.get(name, name)
        if ours is None:
            if value not in (None, False):
                log.info("option %s=%r is accepted and has no effect here", name, value)
            continue
        if ours == "runner":
            value = _RUNNERS.get(str(value), value)
        if ours == "lanes" and value is not None and value == 0:
            raise RecipeError(f"{name} is 0; it must be a whole number ≥ 1")
        if ours in out and out[ours] != value:
            raise RecipeError(f"{name}={value!r} and {ours}={out[ours]!r} are one setting")
        out[ours] = value
    return out


def translate_settings(operator: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """An operator's settings in our names."""
    out = dict(settings)
    if operator == "tokenize":
        _translate_over_long(out)
    if operator == "pack_flat":
        if "max_sequences_per_bin" in out:
            out["max_documents"] = out.pop("max_sequences_per_bin")
        drop, policy = out.pop("drop_oversized", None), out.get("over_long")
        if drop is not None and policy is not None and bool(drop) != (policy == "drop"):
            raise RecipeError(f"drop_oversized={drop!r} and over_long={policy!r} contradict each other")
        if drop:
            out["over_long"] = "drop"
        out.pop("emit_positions", None)
        out.pop("parallelism", None)
        if out.get("homogeneity") == "groups":
            out["homogeneity"] = "group"
    return out


def _translate_over_long(out: dict[str, Any]) -> None:
    """`split_long_samples` and `truncation` of `tokenize` to `over_long`."""
    split, truncate, policy = out.pop("split_long_samples", None), out.pop("truncation", None), out.get("over_long")
    if split and truncate:
        raise RecipeError("split_long_samples and truncation exclude each other")
    for name, value, means in (("split_long_samples", split, "split"), ("truncation", truncate, "truncate")):
        if policy is not None and value is not None and bool(value) != (policy == means):
            raise RecipeError(f"{name}={value!r} and over_long={policy!r} contradict each other")
    if split or truncate:
        out["over_long"] = "split" if split else "truncate"
    elif split is not None and policy is None and out.get("max_length") is not None:
        raise RecipeError(
            f"split_long_samples={split!r} leaves open what becomes of texts with more than max_length={out['max_length']!r} tokens",
            hint="give truncation=True, or over_long='drop' (counted), or leave max_length out: a packer takes any length",
        )
    if out.get("over_long") and out.get("max_length") is None:
        raise RecipeError("splitting, truncating or dropping long documents needs max_length")


def chat_steps(settings: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """`tokenize_chat` as our operators and their settings: the turns of a chat, then their tokens and what of them is trained."""
    tokens: dict[str, Any] = {"images": None, **settings}
    turns = {"text_column": tokens.pop("field", None), "placeholder": None}
    _translate_over_long(tokens)
    if tokens.get("max_length") is not None:
        tokens.setdefault("over_long", "truncate")
    return [("interleave", turns), ("tokenize_interleaved", tokens)]


def check_mixture(given: Any, source: Mapping[str, float]) -> None:
    """Raises `RecipeError` where the mixture that `ensure_mixture` is given isn't that of the source, up to a factor."""
    wanted = getattr(given, "weights", given)
    if not isinstance(wanted, Mapping) or not wanted:
        raise RecipeError(f"ensure_mixture takes a mixture, got {given!r}", hint="give a mapping name → weight, or nothing")
    shares = [{name: float(w) / sum(map(float, one.values())) for name, w in one.items()} for one in (wanted, source)]
    if any(abs(shares[0].get(name, 0.0) - shares[1].get(name, 0.0)) > 1e-9 for name in {*shares[0], *shares[1]}):
        raise RecipeError(
            f"ensure_mixture asks for {dict(wanted)}, and the source draws {dict(source)}",
            hint="the mixture is the source's: give it there",
        )


OPERATOR_NAMES = {"map_transform": "map", "pack_sequences": "pack_flat"}
"""Their name of an operator → ours."""

"""Spellings that adapters of training frameworks use, translated at the edge; nothing below knows them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from zephon.errors import RecipeError

log = logging.getLogger("zephon.compat")

_OPTIONS = {
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
        ours = _OPTIONS.get(name, name)
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
        split, truncate = out.pop("split_long_samples", None), out.pop("truncation", None)
        if split and truncate:
            raise RecipeError("split_long_samples and truncation exclude each other")
        if split or truncate:
            out.setdefault("over_long", "split" if split else "truncate")
        if out.get("over_long") and out.get("max_length") is None:
            raise RecipeError("splitting or truncating long documents needs max_length")
    if operator == "pack_flat":
        if "max_sequences_per_bin" in out:
            out["max_documents"] = out.pop("max_sequences_per_bin")
        if out.pop("drop_oversized", False):
            out.setdefault("over_long", "drop")
        out.pop("emit_positions", None)
        out.pop("parallelism", None)
        if out.get("homogeneity") == "groups":
            out["homogeneity"] = "group"
    return out


OPERATOR_NAMES = {"map_transform": "map", "pack_sequences": "pack_flat"}
"""Their name of an operator → ours."""

"""Names that adapters import from here; see COMPAT."""

from __future__ import annotations

from zephon.plan.mixture import MixtureSpec
from zephon.plan.source import StaticMixtureWorkSource, WorkSource
from zephon.plan.tokens import TokenEstimation

__all__ = ["MixtureSpec", "StaticMixtureWorkSource", "TokenEstimation", "WorkSource"]

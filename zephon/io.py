"""Names that adapters import from here; see COMPAT."""

from __future__ import annotations

from zephon.dataset import Dataset, InMemoryShard

__all__ = ["Dataset", "InMemoryShard"]

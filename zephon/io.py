"""Names that adapters import from here; see COMPAT."""

from __future__ import annotations

from zephon.dataset import Dataset, InMemoryShard
from zephon.storage.options import CacheOptions, StoreOptions

__all__ = ["CacheOptions", "Dataset", "InMemoryShard", "StoreOptions"]

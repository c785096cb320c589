"""For torch: the all-reduce that ends a finite run on several ranks, and data sets for its DataLoader."""

from __future__ import annotations

from zephon.integrations.torch import ZephonIterableDataset, agree_over, collate, dp_options_from_env, make_torch_dataset

__all__ = ["ZephonIterableDataset", "agree_over", "collate", "dp_options_from_env", "make_torch_dataset"]

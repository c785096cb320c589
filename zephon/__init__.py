"""Zephon: a deterministic, elastic training data loader for language and vision-language models.

The public names are loaded on first use (PEP 562), so that `import zephon` costs milliseconds: neither pyarrow nor numpy,
torch or a format library is imported until something needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon.batch import Batch as Batch
    from zephon.batch import SampleBatch as SampleBatch
    from zephon.batch import global_sha256 as global_sha256
    from zephon.dataset import Dataset as Dataset
    from zephon.dataset import InMemoryShard as InMemoryShard
    from zephon.engine.state import merge_states as merge_states
    from zephon.pipeline import Pipeline as Pipeline
    from zephon.plan.mixture import MixtureSpec as MixtureSpec
    from zephon.plan.mixture import Phase as Phase
    from zephon.plan.source import StaticMixtureWorkSource as StaticMixtureWorkSource
    from zephon.plan.source import WorkSource as WorkSource
    from zephon.plan.tokens import TokenEstimation as TokenEstimation

__version__ = "0.1.0"

_HOME = {
    "Batch": "zephon.batch",
    "Dataset": "zephon.dataset",
    "InMemoryShard": "zephon.dataset",
    "MixtureSpec": "zephon.plan.mixture",
    "Phase": "zephon.plan.mixture",
    "Pipeline": "zephon.pipeline",
    "SampleBatch": "zephon.batch",
    "StaticMixtureWorkSource": "zephon.plan.source",
    "TokenEstimation": "zephon.plan.tokens",
    "WorkSource": "zephon.plan.source",
    "global_sha256": "zephon.batch",
    "merge_states": "zephon.engine.state",
}

__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'zephon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

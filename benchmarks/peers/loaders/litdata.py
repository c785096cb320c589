"""LitData: `StreamingDataset` with shuffle and `transform`, in `StreamingDataLoader`, with no worker process or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import tools
from ..measuring import Given
from . import rows


def _loader(given: Given, kind: str, transform: Callable[[Any], Any] | None = None) -> Any:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(str(Path(given.data, kind, "litdata")), shuffle=True, drop_last=False, seed=1, transform=transform)
    workers = given.workers if "processes" in given.variant else 0
    return StreamingDataLoader(data, batch_size=tools.BATCH, num_workers=workers, collate_fn=list)


CASES = rows.cases(_loader)

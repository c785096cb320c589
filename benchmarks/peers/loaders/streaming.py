"""MosaicML Streaming: `StreamingDataset` over local MDS, py1e shuffle, in torch's `DataLoader`, with no worker process or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import tools
from ..measuring import Given
from . import rows


def _loader(given: Given, kind: str, transform: Callable[[Any], Any] | None = None) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()  # of a run that was stopped, as its documents say

    class Transformed(StreamingDataset):  # type: ignore[misc]
        """Its documents change records by a subclass."""

        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return row if transform is None else transform(row)

    data = Transformed(local=str(Path(given.data, kind, "mds")), shuffle=True, batch_size=tools.BATCH, shuffle_seed=1)
    workers = given.workers if "processes" in given.variant else 0
    return DataLoader(data, batch_size=tools.BATCH, num_workers=workers, collate_fn=list)


CASES = rows.cases(_loader)

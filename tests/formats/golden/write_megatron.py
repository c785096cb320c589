"""Wrote `megatron/` with megatron-core 0.16.1 (and torch 2.14.1): `python write_megatron.py DIRECTORY`. 0.12.0 writes the same bytes.

Five sets: `uint16` and `int32` as `tools/preprocess_data.py` chooses them by the size of the vocabulary, `int64`, one with several
sequences to a document, and a multimodal one with modes; the last is also merged from two, as `merge_datasets.py` does it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

LENGTHS = [5, 0, 13, 1, 40, 7, 7, 3]
DOCUMENTS = [[5, 0], [13], [1, 40, 7], [7, 3]]


def write(folder: Path) -> None:
    """All sets, and `expected.json`: the sequences and document borders that IndexedDataset itself reads from each."""
    expected = {}
    for number, (name, dtype) in enumerate(
        {
            "uint16": np.uint16,
            "int32": np.int32,
            "int64": np.int64,
            "documents": np.uint16,
            "modes": np.int32,
            "merged": np.int32,
        }.items()
    ):
        draw = np.random.default_rng(number)
        multimodal = name in ("modes", "merged")
        builder = IndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=dtype, multimodal=multimodal)
        highest = 65_499 if dtype == np.uint16 else 128_255
        if name == "documents":
            for lengths in DOCUMENTS:
                builder.add_document(torch.from_numpy(draw.integers(0, highest, sum(lengths))), lengths)
        elif name == "merged":
            builder.add_index(str(folder / "modes"))
            builder.add_index(str(folder / "modes"))
        else:
            for i, length in enumerate(LENGTHS):
                builder.add_item(torch.from_numpy(draw.integers(0, highest, length)), mode=i % 3)
                builder.end_document()
        builder.finalize(str(folder / f"{name}.idx"))
        read = IndexedDataset(str(folder / name), multimodal=multimodal)
        items = [read[i] for i in range(len(read))]
        expected[name] = {
            "sequences": [(item[0] if multimodal else item).tolist() for item in items],
            "modes": [int(item[1]) for item in items] if multimodal else None,
            "documents": read.document_indices.tolist(),
        }
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    write(Path(sys.argv[1]))

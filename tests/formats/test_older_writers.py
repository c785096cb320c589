"""What earlier releases of the formats' own libraries wrote (golden/older, by golden/write_older.py) is read as it was written.

LitData's and Streaming's are in `test_litdata_golden` and `test_mds`, Megatron's in `test_megatron`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from formats.golden.write_older import rows

from zephon import Dataset

OLDER = Path(__file__).parent / "golden" / "older"


def read(name: str, tmp_path: Path) -> list[dict[str, Any]]:
    copy = tmp_path / name  # indices are written beside the data
    (shutil.copytree if (OLDER / name).is_dir() else shutil.copyfile)(OLDER / name, copy)
    dataset = Dataset.from_path("d", copy, cache_dir=str(tmp_path / "cache"))
    return [row for unit in range(len(dataset.units.rows)) for batch in dataset.read(unit, None) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", sorted(path.name for path in OLDER.iterdir() if "webdataset" not in path.name))
def test_tables_of_older_writers(name: str, tmp_path: Path) -> None:
    assert read(name, tmp_path) == rows()


def test_tars_of_an_older_writer(tmp_path: Path) -> None:
    found = read("webdataset-0.2.86.tar.gz", tmp_path)
    assert [{**row, "json": json.loads(row["json"])} for row in found] == [
        {
            "__key__": f"{row['id']:05d}",
            "txt": row["text"],
            "cls": row["id"],
            "bin": row["blob"],
            "json": {"tokens": row["tokens"], "image": {**row["image"], "bytes": row["image"]["bytes"].hex()}},
        }
        for row in rows()
    ]

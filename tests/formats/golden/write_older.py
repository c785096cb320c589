"""Wrote `older/` with earlier releases of the formats' own libraries, each from an environment that holds that release:

`python write_older.py KIND PATH`, KIND one of `vortex` (0.40.0 and 0.60.0), `parquet`, `arrow`, `datasets` (pyarrow 12.0.1, datasets
2.14.0), `lance` (pylance 0.20.0), `webdataset` (0.2.86). It imports nothing of ours, nor anything that those releases don't have.
"""

from __future__ import annotations

import json
import sys
from typing import Any

COUNT = 24


def rows() -> list[dict[str, Any]]:
    """What every file holds."""
    return [
        {
            "id": i,
            "text": f"row {i} " + "ü→日" * (i % 4),
            "score": None if i % 7 == 0 else i / 4,
            "blob": bytes([i]) * (i % 5),
            "tokens": list(range(i % 6)),
            "image": {"bytes": b"\xff\xd8" + bytes([i]) * 9, "path": f"{i}.jpg"},
        }
        for i in range(COUNT)
    ]


def table(start: int = 0, stop: int = COUNT) -> Any:
    """The rows as an Arrow table; not a slice, of whose structs Lance 0.20.0 wrote all rows."""
    import pyarrow as pa

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    types = {"id": pa.int64(), "text": pa.string(), "score": pa.float32(), "blob": pa.binary(), "tokens": pa.list_(pa.int32())}
    return pa.Table.from_pylist(rows()[start:stop], schema=pa.schema([*types.items(), ("image", image)]))


def write_vortex(path: str) -> None:
    import vortex
    import vortex.io

    vortex.io.write(vortex.array(table()), path)


def write_parquet(path: str) -> None:
    """A path that ends in `-VERSION-PAGES.parquet`, say `a-2.4-1.0.parquet`."""
    import pyarrow.parquet as pq

    version, pages = path.removesuffix(".parquet").split("-")[-2:]
    pq.write_table(table(), path, row_group_size=9, version=version, data_page_version=pages)


def write_arrow(path: str) -> None:
    import pyarrow as pa

    new = pa.ipc.new_stream if path.endswith("s") else pa.ipc.new_file
    with new(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=9)


def write_datasets(path: str) -> None:
    import datasets

    datasets.Dataset(table()).save_to_disk(path, num_shards=2)


def write_lance(path: str) -> None:
    import lance

    lance.write_dataset(table(0, 16), path)
    lance.write_dataset(table(16), path, mode="append")


def write_webdataset(path: str) -> None:
    import webdataset

    with webdataset.TarWriter(path) as writer:
        for row in rows():
            row["image"]["bytes"] = row["image"]["bytes"].hex()
            writer.write({"__key__": f"{row['id']:05d}", "txt": row["text"], "cls": row["id"], "bin": row["blob"],
                          "json": json.dumps({"tokens": row["tokens"], "image": row["image"]}).encode()})  # fmt: skip


if __name__ == "__main__":
    globals()[f"write_{sys.argv[1]}"](sys.argv[2])

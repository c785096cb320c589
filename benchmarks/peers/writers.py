"""From Parquet to each format, by the format's own writer, in the environment that has it."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_PARTS = 4


def rows(source: str) -> Iterator[dict[str, Any]]:
    """All rows of all files."""
    for path in sorted(Path(source).glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=64):
            yield from batch.to_pylist()


def arrow(source: str, target: str) -> None:
    """Arrow files by Hugging Face datasets."""
    from datasets import Dataset

    with tempfile.TemporaryDirectory(prefix="zephon-peer-") as cache:
        files = [str(p) for p in sorted(Path(source).glob("*.parquet"))]
        Dataset.from_parquet(files, cache_dir=cache).save_to_disk(target)


def litdata(source: str, target: str) -> None:
    """LitData chunks, 64 MB each as its documentation does."""
    import litdata as library

    library.optimize(fn=_given, inputs=list(rows(source)), output_dir=target, num_workers=1, chunk_bytes="64MB")


def _given(row: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {k: np.asarray(v, dtype=np.int32) if isinstance(v, list) else v for k, v in row.items()}


def mds(source: str, target: str) -> None:
    """MDS shards by `MDSWriter`, at its default size."""
    import numpy as np
    from streaming import MDSWriter

    kinds = {"image": "bytes", "text": "str", "input_ids": "ndarray:int32"}
    schema = pq.read_schema(min(Path(source).glob("*.parquet")))
    with MDSWriter(out=target, columns={n: kinds[n] for n in schema.names}) as out:
        for row in rows(source):
            out.write({k: np.asarray(v, dtype=np.int32) if isinstance(v, list) else v for k, v in row.items()})


def webdataset(source: str, target: str) -> None:
    """Tars by `TarWriter`."""
    from webdataset import TarWriter

    Path(target).mkdir(parents=True)
    files = sorted(Path(source).glob("*.parquet"))
    for number, path in enumerate(files):
        with TarWriter(str(Path(target) / f"part-{number}.tar")) as tar:
            for row, record in enumerate(pq.read_table(path).to_pylist()):
                image = {"jpg": record["image"]} if "image" in record else {}
                tar.write({"__key__": f"{number}-{row:06d}", **image, "txt": record["text"]})


def vortex(source: str, target: str) -> None:
    """Vortex files."""
    import vortex as library

    Path(target).mkdir(parents=True)
    for path in sorted(Path(source).glob("*.parquet")):
        library.io.write(pq.read_table(path), str(Path(target) / f"{path.stem}.vortex"))


def arrayrecord(source: str, target: str) -> None:
    """ArrayRecord in groups of one record, as Grain's documentation says for random access."""
    from array_record.python.array_record_module import ArrayRecordWriter

    Path(target).mkdir(parents=True)
    for path in sorted(Path(source).glob("*.parquet")):
        writer = ArrayRecordWriter(str(Path(target) / f"{path.stem}.array_record"), "group_size:1")
        for row in pq.read_table(path).to_pylist():
            writer.write(_packed(row))
        writer.close()


def _packed(row: dict[str, Any]) -> bytes:
    """Text alone as it is, token ids as int32, else a pickle, which Grain's documents use for records of several fields."""
    import numpy as np

    if list(row) == ["text"]:
        return str(row["text"]).encode()
    if list(row) == ["input_ids"]:
        return np.asarray(row["input_ids"], dtype=np.int32).tobytes()
    return pickle.dumps(row)


def split(table: pa.Table, target: Path, group: int) -> None:
    """Parquet in four files: what everything else is made from."""
    target.mkdir(parents=True)
    step = -(-len(table) // _PARTS)
    for part in range(_PARTS):
        name = target / f"part-{part}.parquet"
        pq.write_table(table.slice(part * step, step), name, row_group_size=group, compression="none", use_dictionary=False)


WRITERS: dict[str, Callable[[str, str], None]] = {
    "arrow": arrow,
    "litdata": litdata,
    "mds": mds,
    "webdataset": webdataset,
    "vortex": vortex,
    "arrayrecord": arrayrecord,
}

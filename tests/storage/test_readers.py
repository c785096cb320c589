"""A reader finds the same rows on S3, straight and through the cache, with one range per thing that it wants."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from storage.conftest import QUICK, Bucket
from storage.servers import Fault

from zephon.dataset import Dataset
from zephon.plugin import Shard
from zephon.registry import load
from zephon.storage import CacheOptions


@pytest.mark.parametrize("cached", [False, True])
def test_parquet_on_s3_gives_its_rows_in_spite_of_a_bad_network(bucket: Bucket, tmp_path: Path, cached: bool) -> None:
    rows = [{"n": n, "text": f"{n:>900}"} for n in range(3000)]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=500, compression="none")
    url = bucket.put("d/a.parquet", file.getvalue())
    options = replace(QUICK, cache=CacheOptions(enabled=cached, root=str(tmp_path / "c")))
    store = bucket.store(options)
    (info,) = store.files(url)
    bucket.proxy.fresh(Fault("cut", "a.parquet", times=2), Fault("status", "a.parquet", times=1))
    opened = load("zephon.formats", "parquet")().open(store, Shard(info.path, info.size, info.etag))
    assert len(bucket.proxy.asked("a.parquet")) <= 6  # the footer, and no data, with or without a cache
    assert not (tmp_path / "c").exists()
    found = [row for unit in range(6) for batch in opened.read(unit, None, 0, 500) for row in batch.to_pylist()]
    assert found == rows
    assert bool(list((tmp_path / "c").glob("*/??/*a.parquet"))) == cached
    opened.close()


def test_a_data_set_reads_urls(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("d/a.jsonl", b'{"n": 1}\n{"n": 2}\n')
    bucket.put("d/b.jsonl", b'{"n": 3}\n')
    made = Dataset.from_path("d", f"s3://{bucket.name}/d", storage_options=bucket.storage_options, cache_dir=str(tmp_path))
    assert len(made) == 3
    assert [row["n"] for unit in range(2) for batch in made.read(unit, None) for row in batch.to_pylist()] == [1, 2, 3]

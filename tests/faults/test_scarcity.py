"""A process without memory or open files is no fault of the data: no policy leaves records out for it."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skimage import data as photographs
from vision.pictures import jpeg

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import RunnerError


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def write(form: str, folder: Path) -> None:
    for part in range(4):
        rows = [{"id": part * 100 + i, "text": f"{i:05d}" * 4_000} for i in range(100)]
        if form == "parquet":
            table = pa.Table.from_pylist(rows)
            pq.write_table(table, folder / f"{part}.parquet", row_group_size=10, use_dictionary=False, compression="none")
        else:
            (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_file_that_can_not_be_opened_for_want_of_descriptors_loses_no_row(form: str, tmp_path: Path) -> None:
    write(form, tmp_path)
    source = StaticMixtureWorkSource(Dataset.from_path("d", tmp_path), seed=1, stop_after_passes=1, chunk_size=10)
    made = Pipeline(source).batch(10).options(on_error="skip", runner="inline", max_bytes=1 << 20)
    batches = iter(made)
    next(batches)
    state = made.state_dict()
    with pytest.raises(RunnerError, match=r"Too many open files(.|\n)*no record is at fault"), no_file_can_be_opened():
        for _ in batches:
            pass
    made.load_state_dict(state)
    assert sum(len(batch) for batch in made) == 390


def test_an_image_file_is_no_bad_image_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(photographs.astronaut()[:64, :64]))
    records = [{"image": {"bytes": None, "path": "a.jpg"}} for _ in range(9)]
    made = Pipeline(StaticMixtureWorkSource(Dataset.from_records("d", records), stop_after_passes=1, chunk_size=1))
    made.decode_images(column="image", policy='siglip{"size": 32}', media_root=str(tmp_path)).batch(1)
    batches = iter(made.options(runner="inline", lanes=1, prefetch_batches=1))
    next(batches)
    with pytest.raises(RunnerError, match="Too many open files"), no_file_can_be_opened():
        for _ in batches:
            pass


def test_a_lack_of_memory_in_an_operator_is_not_the_records_fault(runner: str) -> None:
    def fails(record: dict[str, Any]) -> dict[str, Any]:
        if record["id"] == 7:
            raise MemoryError
        return record

    source = StaticMixtureWorkSource(Dataset.from_records("d", [{"id": i} for i in range(20)]), stop_after_passes=1)
    with pytest.raises(RunnerError, match=r"MemoryError(.|\n)*operator 'map'"):
        list(Pipeline(source).map(fails).batch(4).options(on_error="skip", runner=runner, workers=2))

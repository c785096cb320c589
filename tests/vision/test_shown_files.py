"""Files of images reach `decode_images` without a copy where that can be, and nothing of a run depends on whether they did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.engine.fetch import Fetcher
from zephon.engine.stages import cut_levels, shown_inputs
from zephon.plugin import Operator, RecipeError
from zephon.views import buffers
from zephon_vision import columns
from zephon_vision.decode_images import DecodeImages
from zephon_vision.probe_images import ProbeImages

FILES = [jpeg(scene(40 + number, 60, seed=number)) for number in range(24)]
REFERENCE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def in_memory(_: Path) -> Dataset:
    return Dataset.from_records(
        "photographs", [{"image": {"bytes": f, "path": None}, "text": f"a picture {n}", "n": n} for n, f in enumerate(FILES)]
    )


def in_parquet(folder: Path) -> Dataset:
    images = pa.array([{"bytes": f, "path": None} for f in FILES], REFERENCE)
    pq.write_table(
        pa.table({"image": images, "text": [f"a picture {n}" for n in range(24)], "n": np.arange(24)}),
        folder / "a.parquet",
        row_group_size=7,
    )
    return Dataset.from_path("photographs", folder / "a.parquet")


def in_map(folder: Path) -> Dataset:
    many = 200  # of a unit that a bundle shows several times, it makes a copy
    group = pa.record_batch({"image": pa.array(FILES * many, pa.binary()), "n": np.tile(np.arange(24), many)})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, group.schema) as writer:
        writer.write_batch(group)
    return Dataset.from_path("photographs", folder / "a.arrow")


def pipeline(data: Dataset, **options: Any) -> Pipeline:
    step = DecodeImages(column="image", policy='siglip{"size": 28}', backend="pil")
    return Pipeline(StaticMixtureWorkSource([data], seed=3, chunk_size=5)).then(step).batch(2).options(lanes=3, **options)


@pytest.mark.parametrize(("make", "shown"), [(in_memory, True), (in_parquet, True), (in_map, False)])
def test_a_chunk_shows_files_where_they_lie_but_not_in_maps(tmp_path: Path, make: Any, shown: bool) -> None:
    """A map may be written to while its files wait to be decoded."""
    data = make(tmp_path)
    plan = StaticMixtureWorkSource([data], seed=3, chunk_size=5, stop_after_passes=1).plan(1)
    fetcher = Fetcher(plan, [data], columns=None, keep_bytes=1 << 30, policy="raise", shown=frozenset({"image"}))
    for number in range(5):
        before = pa.total_allocated_bytes()
        group, _, _ = fetcher.fetch(plan.chunk(0, number))
        column = group.column("image")
        assert groups.shows(column.type) == shown
        if number and shown:  # the first reads the bundle
            assert pa.total_allocated_bytes() - before < len(FILES[0])
        files = column.field("bytes") if pa.types.is_struct(column.type) else column
        rows = group.column("n").to_pylist()
        assert [bytes(value or b"") for value in buffers(files)] == [FILES[row] for row in rows]
        assert group.schema.field("n").type == pa.int64()


@pytest.mark.parametrize("make", [in_memory, in_parquet])
def test_a_run_on_processes_goes_on_where_one_on_threads_stopped(tmp_path: Path, make: Any) -> None:
    """Threads are shown the files and processes get copies: batches and digests are the same."""
    data = make(tmp_path)

    def batches(run: Pipeline, count: int) -> list[Any]:
        return [b.group.to_pylist() for _, b in zip(range(count), run, strict=False)]

    alone = pipeline(data, runner="threads", workers=2)
    first, state = batches(alone, 6), alone.state_dict()
    on, copied = pipeline(data, runner="threads"), pipeline(data, runner="processes", workers=1)
    on.load_state_dict(state)
    copied.load_state_dict(state)
    assert batches(on, 9) == batches(copied, 9)
    assert on.state_dict() == copied.state_dict()
    assert first == batches(pipeline(data, runner="inline"), 6)


class Upper(Operator):
    """Takes what it is given as values."""

    name = "upper"
    keeps_rows = True

    def bind(self) -> Any:
        """The group as it is, which must hold no views."""

        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            assert not any(map(groups.shows, group.schema.types))
            return group

        return apply


def documents(data: Dataset, *between: Operator) -> Pipeline:
    made = Pipeline(StaticMixtureWorkSource([data], seed=3, chunk_size=5, stop_after_passes=2)).interleave().probe_images()
    for operator in between:
        made = made.then(operator)
    made = made.tokenize_interleaved(tokenizer=fast(QWEN), images='qwen2_5_vl{"max_pixels": 3136}', max_length=64)
    return made.pack_multimodal(max_length=64, pad_token_id=0).decode_images(backend="pil").batch(2)


@pytest.mark.parametrize("make", [in_memory, in_parquet])
def test_files_stay_where_they_are_up_to_the_packer_that_copies_them(tmp_path: Path, make: Any) -> None:
    """Only on threads, and only where every operator up to there says that it takes them so; batches and digests are the same."""
    data = make(tmp_path)
    shown, values = documents(data), documents(data, Upper())
    seen = []
    for run, runner in ((shown, "threads"), (shown, "inline"), (shown, "processes"), (values, "threads")):
        pipeline = run.options(lanes=3, runner=runner, workers=1)
        rows = [batch.group.to_pylist() for batch in pipeline]
        seen.append((rows, pipeline.state_dict()["lanes"]))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert len(seen[0][0]) > 3
    levels = [cut_levels([(op, "raise") for op, _ in run._steps]) for run in (shown, values)]
    names = [shown_inputs([op for op, _ in first.stage.steps], second.deciders[0]) for first, second in levels]
    assert "image" in names[0]
    assert not names[1]


def test_no_views_reach_a_batch_through_an_operator_that_passes_them_on(tmp_path: Path) -> None:
    """Behind a packer, whose gather may leave files where they are for who takes them so."""
    made = documents(in_memory(tmp_path)).options(lanes=1)
    made._steps = [*made._steps[:-1], (ProbeImages(), None)]  # instead of decoding
    batch = next(iter(made))
    assert not any(map(groups.shows, batch.group.schema.types))
    assert any(row for row in batch.group.column(columns.IMAGES).to_pylist())


def test_a_batch_that_is_kept_stays_what_it_was(tmp_path: Path) -> None:
    """Pixels lie in memory that is used again, though never while somebody holds a batch, or a part of one."""
    held, copies = [], []
    for number, batch in zip(range(60), pipeline(in_memory(tmp_path), runner="threads", workers=2), strict=False):
        if number % 3 == 0:
            held.append(batch.group.column(columns.PIXELS).slice(1))
            copies.append(held[-1].to_pylist())
    assert [array.to_pylist() for array in held] == copies
    assert len({bytes(row[0]) for (row,) in copies}) > 1


@dataclass(frozen=True, kw_only=True)
class Otherwise(Operator):
    """Gives images another form, as a user's own operator may."""

    name = "otherwise"
    kind: Any

    def bind(self) -> Any:
        """Of each image what its form holds."""
        item = self.kind.value_type
        shorter = not pa.types.is_struct(item)

        def apply(group: pa.RecordBatch) -> pa.RecordBatch:
            rows = groups.column(group, columns.IMAGES).to_pylist()
            made = [[image["bytes"] if shorter else image for image in row] for row in rows]
            return groups.set_column(group, columns.IMAGES, pa.array(made, self.kind))

        return apply


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.binary()),
        pa.large_list(pa.large_binary()),
        pa.list_view(REFERENCE),
        pa.list_(pa.struct({"bytes": pa.binary()})),
        pa.list_(pa.struct({"path": pa.null(), "bytes": pa.binary_view()})),
    ],
    ids=str,
)
def test_images_may_have_any_form_between_probing_and_tokenising(tmp_path: Path, kind: Any) -> None:
    """That which `probe_images` takes, `tokenize_interleaved` takes, too."""
    data = in_memory(tmp_path)
    runs = [documents(data, *between).options(lanes=2, runner="inline") for between in ((), (Otherwise(kind=kind),))]
    ordinary, otherwise = ([batch.group.to_pylist() for batch in run] for run in runs)
    assert otherwise == ordinary


def test_images_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    run = documents(in_memory(tmp_path), Otherwise(kind=pa.list_(pa.list_(pa.uint8())))).options(runner="inline")
    with pytest.raises(RecipeError, match=r"column 'images' is .*, not images .*tokenize_interleaved"):
        next(iter(run))

"""Fetch and batch: (JPEG bytes, text) in batches of 32, globally shuffled, format by format, against the format's own loader.

The files are written by each format's own writer. Loaders decode nothing: images stay bytes. Each is given what its documentation says
about speed in one process; ours runs `threads` with two workers. Megatron holds tokens and nothing else: documents of a few hundred of
them, compared where `megatron.core` is installed.

    python -m benchmarks.fetch --case parquet         # one format; several may be given
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import CORES, Result, Setting, alternate, rates, script
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.registry import load

_BATCH = 32


def photographs(count: int) -> pa.Table:
    """`count` crops of real photographs (of scikit-image and scikit-learn) as JPEG of about 30 kB, with a line of text each."""
    from PIL import Image
    from skimage import data
    from sklearn.datasets import load_sample_images

    pictures = [data.astronaut(), data.chelsea(), data.coffee(), *load_sample_images().images]
    random = np.random.default_rng(1)
    rows = []
    for number in range(count):
        picture = pictures[number % len(pictures)]
        top, left = (int(random.integers(0, max(1, side - 290))) for side in picture.shape[:2])
        sink = io.BytesIO()
        Image.fromarray(picture[top : top + 290, left : left + 290]).save(sink, "JPEG", quality=92)
        rows.append(
            {"image": sink.getvalue(), "text": f"a photograph, number {number}, " + "word " * int(random.integers(5, 60))}
        )
    return pa.Table.from_pylist(rows)


def documents(count: int) -> pa.Table:
    """`count` lists of 50 to 500 tokens."""
    random = np.random.default_rng(1)
    lengths = random.integers(50, 500, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tokens = random.integers(0, 65_000, int(offsets[-1])).astype(np.int32)
    return pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))})


def measure(setting: Setting, only: Sequence[str] = ()) -> list[Result]:
    """Samples per second over one whole pass, start-up included."""
    logging.getLogger("streaming").setLevel(logging.ERROR)
    results = []
    count = 320 if setting.quick else 4_000
    photos = cache(lambda: photographs(count))
    tokens = cache(lambda: documents(10 * count))
    for name, (make, theirs, way) in CASES.items():
        if (only and name not in only) or (name == "megatron" and not importlib.util.find_spec("megatron")):
            continue
        folder = setting.folder / f"fetch-{name}-{count}"
        rows = 10 * count if name == "megatron" else count
        if not (folder / ".whole").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make(tokens() if name == "megatron" else photos(), folder)
            (folder / ".whole").touch()

        def ours(folder: Path = folder) -> float:
            source = StaticMixtureWorkSource([Dataset.from_path("photographs", folder)], seed=1, stop_after_passes=1)
            pipeline = Pipeline(source).batch(_BATCH).options(lanes=2, runner="threads", workers=CORES)
            return float(sum(len(list(batch.to_pydict().values())[-1]) - batch.empty for batch in pipeline))

        def bare(theirs: Callable[[Path], Iterable[int]] = theirs, folder: Path = folder) -> float:
            return float(sum(theirs(folder)))

        b, o = alternate(bare, ours, repeats=setting.repeats)
        assert b[0].work == o[0].work == rows, (name, b[0].work, o[0].work)
        results.append(rates(f"fetch and batch, {name}", b, o, unit="samples/s", note=f"bare: {way}"))
    return results


def write(name: str) -> Callable[[pa.Table, Path], None]:
    """With the writer of the format (which is the real library's), in four parts."""

    def make(table: pa.Table, folder: Path) -> None:
        reader = load("zephon.formats", name)()
        step = -(-len(table) // 4)
        for part in range(4):
            writer = reader.writer(str(folder / f"part-{part}{reader.part_suffix}"), table.schema)
            for batch in table.slice(part * step, step).to_batches(max_chunksize=256):
                writer.write(batch)
            writer.close()
        reader.finish(str(folder))

    return make


def write_tars(table: pa.Table, folder: Path) -> None:
    """By webdataset's own writer."""
    from webdataset import TarWriter

    rows = table.to_pylist()
    step = -(-len(rows) // 4)
    for part in range(4):
        with TarWriter(str(folder / f"part-{part}.tar")) as tar:
            for number, row in enumerate(rows[part * step : (part + 1) * step]):
                tar.write({"__key__": f"{part}-{number:06d}", "jpg": row["image"], "txt": row["text"]})


def write_lance(table: pa.Table, folder: Path) -> None:
    """By Lance's own writer, a fragment per quarter."""
    import lance

    lance.write_dataset(table, str(folder / "photographs.lance"), max_rows_per_file=-(-len(table) // 4))


def write_megatron(table: pa.Table, folder: Path) -> None:
    """By Megatron's own builder."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(folder / "tokens.bin"), dtype=np.uint16)
    for document in table.column("input_ids").to_pylist():
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(str(folder / "tokens.idx"))


def batches(items: Iterable[Any]) -> Iterator[int]:
    """The sizes of batches that are made as lists."""
    held = []
    for item in items:  # a plain loop: some of these iterators don't end twice
        held.append(item)
        if len(held) == _BATCH:
            yield len(held)
            held = []
    if held:
        yield len(held)


def parquet(folder: Path) -> Iterator[int]:
    """Hugging Face's streaming reader with its shuffle buffer."""
    from datasets import load_dataset

    made = load_dataset("parquet", data_files=[str(p) for p in sorted(folder.glob("*.parquet"))], split="train", streaming=True)
    yield from (len(batch["text"]) for batch in made.shuffle(seed=1, buffer_size=1000).iter(batch_size=_BATCH))


def arrow(folder: Path) -> Iterator[int]:
    """Hugging Face's map-style data set, shuffled by indices."""
    from datasets import Dataset as Theirs
    from datasets import concatenate_datasets

    made = concatenate_datasets([Theirs(pa_table(p)) for p in sorted(folder.glob("*.arrow"))])
    yield from (len(batch["text"]) for batch in made.shuffle(seed=1).iter(batch_size=_BATCH))


def pa_table(path: Path) -> Any:
    """A mapped Arrow file as their table."""
    from datasets.table import InMemoryTable

    return InMemoryTable(pa.ipc.open_file(pa.memory_map(str(path))).read_all())


def mds(folder: Path) -> Iterator[int]:
    """`StreamingDataset` over local files, py1e shuffle."""
    from streaming import StreamingDataset

    yield from batches(StreamingDataset(local=str(folder), shuffle=True, batch_size=_BATCH, num_canonical_nodes=1))


def litdata(folder: Path) -> Iterator[int]:
    """`StreamingDataset` with shuffle, items as they are."""
    from litdata import StreamingDataset

    yield from batches(StreamingDataset(str(folder), shuffle=True, drop_last=False))


def tars(folder: Path) -> Iterator[int]:
    """`WebDataset` with a shuffle buffer."""
    import webdataset

    shards = [str(p) for p in sorted(folder.glob("*.tar"))]
    yield from batches(webdataset.WebDataset(shards, shardshuffle=4, seed=1, empty_check=False).shuffle(1000))


def vortex(folder: Path) -> Iterator[int]:
    """A bare scan, not shuffled."""
    import vortex as library

    for path in sorted(folder.glob("*.vortex")):
        for batch in library.open(str(path)).to_arrow():
            yield from (len(b.to_pydict()["text"]) for b in pa.Table.from_batches([batch]).to_batches(max_chunksize=_BATCH))


def lance(folder: Path) -> Iterator[int]:
    """`LanceDataset` of `lance.torch.data`, not shuffled."""
    from lance.torch.data import LanceDataset

    made = LanceDataset(
        str(folder / "photographs.lance"),
        batch_size=_BATCH,
        to_tensor_fn=lambda batch, **_: batch.to_pydict(),
        auto_detect_rank=False,
    )
    yield from (len(batch["text"]) for batch in made)


def megatron(folder: Path) -> Iterator[int]:
    """`IndexedDataset`, mapped, at shuffled indices."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    made = IndexedDataset(str(folder / "tokens"))
    yield from batches(made[int(i)].tolist() for i in np.random.default_rng(1).permutation(len(made)))


CASES: dict[str, tuple[Callable[[pa.Table, Path], None], Callable[[Path], Iterable[int]], str]] = {
    "parquet": (write("parquet"), parquet, "`datasets`, streaming, buffer of 1,000"),
    "arrow": (write("arrow"), arrow, "`datasets`, shuffled by indices"),
    "litdata": (write("litdata"), litdata, "`litdata.StreamingDataset`"),
    "webdataset": (write_tars, tars, "`WebDataset`, buffer of 1,000"),
    "vortex": (write("vortex"), vortex, "a bare scan, not shuffled"),
    "lance": (write_lance, lance, "`lance.torch.data.LanceDataset`, not shuffled"),
    "megatron": (write_megatron, megatron, "`IndexedDataset` at shuffled indices; documents of 275 tokens on average"),
    # last: its processes and shared memory outlive it, and litdata then waits for ever
    "mds": (write("mds"), mds, "`StreamingDataset`"),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--case", action="append", choices=list(CASES), default=[])
    given, sys.argv[1:] = parser.parse_known_args()
    script(lambda setting: measure(setting, given.case))

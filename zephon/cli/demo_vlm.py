"""`zephon demo --vlm`: real documents with images, packed; the same global batches, pixels and all, on any number of ranks."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from zephon import groups
from zephon.batch import Batch
from zephon.cli.demo import Measured, _peak_bytes, _words, run_worlds
from zephon.dataset import Dataset
from zephon.errors import PluginError, RecipeError, writing
from zephon.pipeline import Pipeline
from zephon.plan.source import StaticMixtureWorkSource
from zephon.plan.tokens import TokenEstimation

LANES = 4
WORLDS = (1, 2, 4)
RESUMES = (2, 4, 1)
SHARES = {"documents": 0.7, "chats": 0.3}
PADDED_AT_ONCE = 8
"""Documents in a batch of the usual collator, which pads all to the longest; what packing is compared with."""


@dataclass(frozen=True)
class Size:
    """How much the demo does."""

    pages: int
    vocabulary: int
    steps: int
    max_length: int
    max_pixels: int
    """Of an image, once resized: 784 are a token."""
    chunk_size: int

    @property
    def max_patches(self) -> int:
        """In a sequence: what three quarters of its tokens may be."""
        return 3 * self.max_length


FULL = Size(pages=400, vocabulary=8192, steps=16, max_length=4096, max_pixels=512 * 784, chunk_size=24)
QUICK = Size(pages=48, vocabulary=1024, steps=4, max_length=1024, max_pixels=96 * 784, chunk_size=8)


@dataclass
class Seen(Measured):
    """What one run gave, images too."""

    images: int = 0
    patches: int = 0
    sequences: int = 0
    documents: list[int] = field(default_factory=list)
    """Tokens of each document, as they came."""
    guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, counted as they pass."""
        for batch in batches:
            images = sum(len(plans) for plans in _lists(batch, "image_plans"))
            patches = int(groups.ints(batch.group, "image_blocks").sum())
            documents = [n for row in _lists(batch, groups.LENGTHS) for n in row]
            with self.guard:  # every rank has its thread
                self.images += images
                self.patches += patches
                self.sequences += len(batch) - batch.empty
                self.documents += documents
            yield batch

    @property
    def padded(self) -> float:
        """How much of a batch would be text and images if documents were padded to the longest of each batch instead."""
        full = len(self.documents) // PADDED_AT_ONCE * PADDED_AT_ONCE
        lengths = np.array(self.documents[:full]).reshape(-1, PADDED_AT_ONCE)
        return float(lengths.sum() / (lengths.max(axis=1) * PADDED_AT_ONCE).sum()) if lengths.size else 1.0


def run_demo_vlm(*, folder: str | None, manuals: str | None, quick: bool) -> int:
    """Run the demo; 0 where all hashes agree, else 1.

    Raises:
        PluginError: its extra isn't installed.
        RecipeError: `folder` can't be written, or `manuals` has too few pages with figures.

    Args:
        folder: where data, tokenizer and `preview.html` are kept; None: in a temporary folder, without the preview.
        manuals: a folder with HTML manuals to use; None: where Debian's packages put theirs, or photographs if there are none.
    """
    size = QUICK if quick else FULL
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        place = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="zephon-demo-vlm-")))
        with writing(str(place), RecipeError):
            place.mkdir(parents=True, exist_ok=True)
            tokenizer = make_data(place, size, manuals)
        source = make_source(place, size)

        def make(rank: int, world: int) -> Pipeline:
            return make_pipeline(source, tokenizer, size, rank=rank, world=world)

        runs = run_worlds(make, Seen, lanes=LANES, steps=size.steps, chains=(*([world] for world in WORLDS), RESUMES))
        _show(runs, time.monotonic() - began)
        if folder:
            from zephon.cli.preview import preview
            from zephon.cli.preview_html import write_html

            page = place / "preview.html"
            write_html(
                preview(make_pipeline(source, tokenizer, size, rank=0, world=1), batches=4, title="zephon demo --vlm"), page
            )
            print(f"{page}: the first batches, to look at")
    return 0 if len({tuple(run.hashes) for run in runs}) == 1 else 1


def make_data(place: Path, size: Size, manuals: str | None) -> Path:
    """Write both data sets and train the tokenizer, whose path is returned."""
    try:
        from zephon.cli import demo_data, demo_vlm_data
    except ModuleNotFoundError as error:
        raise PluginError(f"the demo needs the package {error.name!r}", hint="pip install 'zephon[demo-vlm]'") from error
    pages = demo_vlm_data.manual_pages([manuals] if manuals else demo_vlm_data.MANUALS, size.pages)
    what = "illustrated manuals"
    least = size.pages // 4
    if manuals and len(pages) < least:
        raise RecipeError(
            f"--manuals {manuals!r} has {len(pages)} HTML pages with figures, and the demo needs {least}",
            hint="without --manuals the photographs of scikit-image and scikit-learn will do",
        )
    if len(pages) < least:
        pages, what = demo_vlm_data.photograph_pages(size.pages), "photographs of scikit-image and scikit-learn"
    chats = [chat for number, page in enumerate(pages) if (chat := demo_vlm_data.as_chat(page, number)) is not None]
    for name, rows in (("documents", [demo_vlm_data.as_document(page) for page in pages]), ("chats", chats)):
        path = place / f"{name}.parquet"
        count = demo_vlm_data.write_parquet(path, rows)
        images = sum(1 for row in rows for image in row["images"] if image is not None)
        print(f"{path}: {count:,} {name} with {images:,} images from {what}, {path.stat().st_size / 1e6:.1f} MB")
    tokenizer = place / "tokenizer.json"
    texts = (text for page in pages for text in page.texts)
    demo_data.train_tokenizer(texts, tokenizer, vocabulary=size.vocabulary, special=demo_vlm_data.SPECIAL)
    print(f"{tokenizer}: byte-level BPE with the special tokens of Qwen2.5-VL\n")
    return tokenizer


def make_source(place: Path, size: Size) -> StaticMixtureWorkSource:
    """Both data sets, in shares of the tokens, those of images included."""
    return StaticMixtureWorkSource(
        datasets=[Dataset.from_path(name, place / f"{name}.parquet") for name in SHARES],
        mixture=SHARES,
        token_estimation=TokenEstimation(),  # its sample is all of so small a data set: the shares of a short run then come close
        chunk_size=size.chunk_size,  # small, so that a few seconds show several windows; the default is for real runs
        seed=42,
    )


def make_pipeline(source: StaticMixtureWorkSource, tokenizer: Path, size: Size, *, rank: int, world: int) -> Pipeline:
    """The pipeline of one rank."""
    return (
        Pipeline(source)
        .interleave()
        .probe_images()
        .tokenize_interleaved(
            tokenizer_id=str(tokenizer),
            images=f'qwen2_5_vl{{"max_pixels": {size.max_pixels}}}',
            max_length=size.max_length,
            over_long="split",
        )
        .pack_multimodal(max_length=size.max_length, max_patches=size.max_patches, open_bins=8)
        .shuffle(buffer_size=16, seed=42)
        .decode_images()
        .batch(microbatch_size=1)
        .options(lanes=LANES, dp_rank=rank, dp_size=world, max_steps=size.steps, max_bytes=(512 << 20) // world)
        .options(runner="threads" if world == 1 else "inline")
    )


def _lists(batch: Batch, name: str) -> list[list[Any]]:
    values: list[Any] = batch.group.column(name).to_pylist()
    return values


def _show(runs: Sequence[Seen], seconds: float) -> None:
    first, last = 0, len(runs[0].hashes) - 1
    heads = ["ranks", f"step {first}", f"step {last // 2}", f"step {last}", "all steps", "images/s", "tokens/s"]
    rows = [
        [
            run.label,
            *(run.hashes[i][:12] for i in (first, last // 2, last)),
            run.rolled_up[:16],
            f"{run.images / run.seconds:,.0f}",
            f"{run.tokens.total() / run.seconds:,.0f}",
        ]
        for run in runs
    ]
    print(f"\nSHA-256 of the global batches, pixels included: {LANES} lanes, {len(runs[0].hashes)} steps")
    _print_table(heads, rows)
    one = runs[0]
    total = one.tokens.total()
    shares = ", ".join(f"{name} {one.tokens[name] / total:.3f} (asked: {share:g})" for name, share in SHARES.items())
    fill = total / (total + one.padding)
    print(f"\nmixture by tokens    {shares}, over {len(one.documents)} documents; longer runs come closer")
    print(
        f"packing efficiency   {fill:.1%} of {total + one.padding:,} tokens are text or images; "
        f"{one.padded:.1%} if padded in batches of {PADDED_AT_ONCE}"
    )
    print(
        f"in a sequence        {len(one.documents) / max(1, one.sequences):.1f} documents, "
        f"{one.images / max(1, one.sequences):.1f} images, {one.patches / max(1, one.sequences):,.0f} patches"
    )
    fastest = max(runs, key=lambda run: run.images / run.seconds)
    print(f"images               {fastest.images / fastest.seconds:,.0f} a second from files to patches, in the quickest run")
    print(f"peak memory          {_peak_bytes() / 1e6:,.0f} MB, training the tokenizer included; {seconds:.0f} s in all\n")
    wrong = [run.label for run in runs if run.hashes != one.hashes]
    if wrong:
        print(f"HASHES DIFFER: {', '.join(wrong)} ranks gave other batches than {one.label}")
    else:
        print(
            f"all hashes agree: {len(one.hashes)} global batches are the same on {_words(WORLDS)} ranks and over {runs[-1].label}"
        )


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table, by rich where it is installed."""
    try:
        from rich.box import SIMPLE
        from rich.table import Table

        from zephon.cli.terminal import Console
    except ModuleNotFoundError:
        for row in (heads, *rows):
            print("  " + "  ".join(f"{cell:<16}" for cell in row))
        return
    table = Table(box=SIMPLE, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, no_wrap=True, justify="right" if number > 4 else "left", style="cyan" if number == 4 else "")
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=max(console.width, 100)).print(table)

"""`zephon demo`: real text through the whole pipeline, with the same global batches on any number of ranks and after any resume."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from zephon.batch import Batch, global_sha256
from zephon.dataset import Dataset
from zephon.engine.state import merge_states
from zephon.errors import PluginError, RecipeError, writing
from zephon.pipeline import Pipeline
from zephon.plan.source import StaticMixtureWorkSource
from zephon.plan.tokens import TokenEstimation

LANES = 8
MAX_LENGTH = 2048
WORLDS = (1, 2, 4, 8)
RESUMES = (4, 8, 2)
SHARES = {"code": 0.5, "docs": 0.5}

Advance = Callable[[int], None]
Make = Callable[[int, int], Pipeline]
"""Makes the pipeline of a rank, of so many."""


@dataclass(frozen=True)
class Size:
    """How much the demo does."""

    megabytes: float
    vocabulary: int
    steps: int
    chunk_size: int


FULL = Size(megabytes=8, vocabulary=8192, steps=48, chunk_size=24)
QUICK = Size(megabytes=1, vocabulary=2048, steps=9, chunk_size=4)


@dataclass
class Measured:
    """What one run gave: a SHA-256 per step, and counts."""

    label: str
    hashes: list[str] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    padding: int = 0
    seconds: float = 0.0

    def count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; whoever wants to know more of them counts as they pass."""
        return batches

    @property
    def rolled_up(self) -> str:
        """One SHA-256 over those of all steps."""
        return hashlib.sha256("".join(self.hashes).encode()).hexdigest()


M = TypeVar("M", bound=Measured)


def run_demo(*, folder: str | None, megabytes: float | None, quick: bool) -> int:
    """Run the demo; 0 where all hashes agree, else 1. Raises `PluginError` where its extra isn't installed."""
    size = QUICK if quick else FULL
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        place = Path(folder) if folder else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zephon-demo-")))
        with writing(str(place), RecipeError):
            place.mkdir(parents=True, exist_ok=True)
            tokenizer = _make_data(place, size, size.megabytes if megabytes is None else megabytes)
        source = make_source(place, size)

        def make(rank: int, world: int) -> Pipeline:
            return make_pipeline(source, tokenizer, size, rank=rank, world=world)

        runs = run_worlds(make, Measured, lanes=LANES, steps=size.steps, chains=(*([world] for world in WORLDS), RESUMES))
    _show(runs, source, time.monotonic() - began)
    return 0 if len({tuple(run.hashes) for run in runs}) == 1 else 1


def _make_data(place: Path, size: Size, megabytes: float) -> Path:
    try:
        from zephon.cli import demo_data
    except ModuleNotFoundError as error:
        raise PluginError(f"the demo needs the package {error.name!r}", hint="pip install 'zephon[demo]'") from error
    limit = int(megabytes * 1e6)
    code, docs = demo_data.mixed(demo_data.python_sources(limit)), demo_data.mixed(demo_data.documents(limit))
    for name, count, written in (
        ("code.parquet", len(code), demo_data.write_parquet(place / "code.parquet", code)),
        ("docs.jsonl", len(docs), demo_data.write_jsonl(place / "docs.jsonl", docs)),
    ):
        print(f"{place / name}: {count:,} records, {written / 1e6:.1f} MB of text")
    every = max(1, round(megabytes))  # about a megabyte of each is enough for a vocabulary of this size
    tokenizer = place / "tokenizer.json"
    demo_data.train_tokenizer((r["text"] for r in code[::every] + docs[::every]), tokenizer, vocabulary=size.vocabulary)
    print(f"{tokenizer}: byte-level BPE, {size.vocabulary:,} tokens\n")
    return tokenizer


def make_source(place: Path, size: Size) -> StaticMixtureWorkSource:
    """Both data sets, half of the tokens each. All ranks of the demo share it, so tokens per record are measured once."""
    return StaticMixtureWorkSource(
        datasets=[Dataset.from_path("code", place / "code.parquet"), Dataset.from_path("docs", place / "docs.jsonl")],
        mixture=SHARES,
        token_estimation=TokenEstimation(calibration_samples=1024),
        chunk_size=size.chunk_size,  # small, so that a few seconds show several windows; the default is for real runs
        seed=42,
    )


def make_pipeline(source: StaticMixtureWorkSource, tokenizer: Path, size: Size, *, rank: int, world: int) -> Pipeline:
    """The pipeline of one rank. `max_steps` makes every rank end at the same step of this endless mixture.

    A rank by itself uses worker threads; of several ranks in this one process, each works in the thread that asks for its batches.
    """
    return (
        Pipeline(source)
        .tokenize(tokenizer_id=str(tokenizer), field="text")
        .pack_flat(max_length=MAX_LENGTH, algorithm="wrap")
        .shuffle(buffer_size=64, seed=42)
        .batch(microbatch_size=2)
        .options(lanes=LANES, dp_rank=rank, dp_size=world, max_steps=size.steps, max_bytes=(512 << 20) // world)
        .options(runner="threads" if world == 1 else "inline")
    )


def run_worlds(make: Make, new: Callable[[str], M], *, lanes: int, steps: int, chains: Sequence[Sequence[int]]) -> list[M]:
    """`run_world` over each of these numbers of ranks, with one progress bar.

    Args:
        new: makes what a run fills, from its label.
    """
    with _progress(steps * len(chains)) as advance:
        return [
            run_world(make, new(label(worlds)), lanes=lanes, steps=steps, worlds=worlds, advance=advance) for worlds in chains
        ]


def run_world(make: Make, made: M, *, lanes: int, steps: int, worlds: Sequence[int], advance: Advance) -> M:
    """All steps on `worlds[0]` ranks; with several, a part on each, with a checkpoint and a restore on new pipelines in between.

    Args:
        make: makes the pipeline of a rank, of so many.
        made: is filled with what the run gives.
    """
    state: dict[str, Any] | None = None
    began = time.monotonic()
    for number, world in enumerate(worlds, 1):
        stop = steps * number // len(worlds)
        ranks = [make(rank, world) for rank in range(world)]
        if state is not None:
            for pipeline in ranks:
                pipeline.restore(state)
        with contextlib.ExitStack() as stack:
            threads = stack.enter_context(ThreadPoolExecutor(world, thread_name_prefix="demo-rank"))
            running = [stack.enter_context(contextlib.closing(iter(pipeline))) for pipeline in ranks]  # type: ignore[type-var]
            batches = [made.count(iterator) for iterator in running]
            while len(made.hashes) < stop:
                _take_step(threads, batches, lanes // world, made)
                advance(1)
            # through JSON, as a trainer would store it; each rank states only its own lanes
            state = json.loads(json.dumps(merge_states(pipeline.checkpoint() for pipeline in ranks)))
    made.seconds = time.monotonic() - began
    return made


def label(worlds: Sequence[int]) -> str:
    """The ranks of a run."""
    return " → ".join(map(str, worlds))


def _take_step(threads: ThreadPoolExecutor, ranks: Sequence[Iterator[Batch]], per_rank: int, made: Measured) -> None:
    """One step: each rank's microbatches, one per lane, in rank order. Every rank works in its own thread."""
    parts = threads.map(lambda batches: [next(batches) for _ in range(per_rank)], ranks)
    step = [batch for part in parts for batch in part]
    made.hashes.append(global_sha256(step))
    for batch in step:
        made.tokens.update(batch.component_token_counts())
        made.padding += batch.padding


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Advance]:
    """A progress bar where rich is installed; else nothing moves."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield _no_bar
        return
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("steps", total=total)
        yield lambda steps: bar.update(task, advance=steps)


def _no_bar(steps: int) -> None:
    del steps


def _show(runs: Sequence[Measured], source: StaticMixtureWorkSource, seconds: float) -> None:
    first, last = 0, len(runs[0].hashes) - 1
    print(f"\nSHA-256 of the global batches, {LANES} lanes, {len(runs[0].hashes)} steps")
    print(f"  {'ranks':<10}  {f'step {first}':<16}  {f'step {last // 2}':<16}  {f'step {last}':<16}  all steps")
    for run in runs:
        shown = [run.hashes[i][:16] for i in (first, last // 2, last)]
        print(f"  {run.label:<10}  {'  '.join(shown)}  {run.rolled_up[:32]}")
    total = runs[0].tokens.total()
    shares = ", ".join(f"{name} {runs[0].tokens[name] / total:.3f} (asked: {share:g})" for name, share in SHARES.items())
    measured = ", ".join(f"{name} {n:,.0f}" for name, n in (source.tokens_per_record or {}).items())
    print(f"\nmixture by tokens    {shares}; tokens per record: {measured}")
    print(f"packing efficiency   {total / (total + runs[0].padding):.2%} of {total + runs[0].padding:,} tokens are text")
    print(
        f"throughput           {total / min(run.seconds for run in runs):,.0f} tokens/s from files to batches, in the quickest run"
    )
    print(f"peak memory          {_peak_bytes() / 1e6:,.0f} MB, training the tokenizer included; {seconds:.0f} s in all\n")
    wrong = [run.label for run in runs if run.hashes != runs[0].hashes]
    if wrong:
        print(f"HASHES DIFFER: {', '.join(wrong)} ranks gave other batches than {runs[0].label}")
    else:
        print(
            f"all hashes agree: {len(runs[0].hashes)} global batches are the same on {_words(WORLDS)} ranks and over {runs[-1].label}"
        )


def _words(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"


def _peak_bytes() -> int:
    try:
        import resource
    except ModuleNotFoundError:
        return 0  # not on this system
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # the unit differs

"""The cases: who runs in which way, what is compared with what, and the goals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.peers.environments import FREE
from benchmarks.peers.runs import Entry

Measure = Literal[
    "rate",
    "cpu_rate",
    "first_batch_s",
    "import_s",
    "peak_pss_mb",
    "restore_s",
    "state_bytes",
    "state_s",
    "first_batch_cpu_s",
    "import_cpu_s",
]
"""Work per second, per CPU second (children included), or a cost."""

COSTS: tuple[Measure, ...] = (
    "first_batch_s",
    "import_s",
    "peak_pss_mb",
    "restore_s",
    "state_bytes",
    "state_s",
    "first_batch_cpu_s",
    "import_cpu_s",
)
OURS = "ours"
PEERS = {
    "ours": ("Zephon, this tree", "ours"),
    "public": ("public `zephon` 0.2.0", "torch"),
    "grain": ("Grain", "light"),
    "litdata": ("LitData", "torch"),
    "streaming": ("MosaicML Streaming", "torch"),
    "datasets": ("Hugging Face datasets", "light"),
    "webdataset": ("WebDataset", "light"),
    "spdl": ("SPDL", "light"),
    "bare": ("limit", "ours"),
}
"""Module in `loaders/` to its name and its environment."""


@dataclass(frozen=True)
class Goal:
    """Ours at its best against a peer at its best: at least so many times as much, or (`at_most`) at most such a share."""

    against: str
    """A peer, perhaps with `: words` that its variant must have."""
    ratio: float
    measure: Measure
    ours: str = ""
    """Words that our variant must have."""
    at_most: bool = False


@dataclass(frozen=True)
class Case:
    """One row of the issue."""

    name: str
    title: str
    unit: str
    entries: tuple[Entry, ...]
    goals: tuple[Goal, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """Peers that can't do it, and why."""
    data: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Formats by kind."""
    seconds: float = 1.5
    more: dict[str, Any] = field(default_factory=dict)
    measure: Measure = "rate"
    beside: tuple[tuple[str, Measure], ...] = (("per CPU second", "cpu_rate"), ("first batch, s", "first_batch_s"))
    """What else of a run stands in the table: head and measure of two columns."""
    workers: bool = False
    """The last word of each variant says how many workers (`w4`)."""

    @property
    def less_is_better(self) -> bool:
        """Seconds and megabytes."""
        return self.measure in COSTS


def entry(peer: str, variant: str, setting: str, *, longer: float = 1) -> Entry:
    """With the peer's environment."""
    return Entry(peer, variant, PEERS[peer][1], setting, longer)


_THREADS = "threads, 2 workers"
_DL0, _DL2 = "no worker process", "`num_workers=2`"
_NO_SHUFFLE = "file order"

B1 = Case(
    "B1",
    "fetch and batch (image bytes, text), globally shuffled, batches of 32",
    "samples/s",
    (
        *(entry("ours", f, f"{f}; {_THREADS}") for f in ("parquet", "arrow", "litdata", "mds", "vortex", "webdataset")),
        *(entry("ours", f"{f} inline", f"{f}; inline") for f in ("parquet", "arrow", "litdata", "vortex")),
        *(entry("ours", f"{f} inline chunks", f"{f}; inline, `chunk_size=1024`") for f in ("arrow", "litdata", "vortex")),
        entry("public", "parquet threads", f"parquet; {_THREADS}"),
        entry("public", "litdata threads", f"litdata; {_THREADS}"),
        entry("public", "mds threads", f"mds; {_THREADS}"),
        entry("public", "vortex threads", f"vortex; {_THREADS}"),
        entry("grain", "threads", "ArrayRecord; 16 reading threads (default)"),
        entry("grain", "one thread", "ArrayRecord; `num_threads=0`, advised for data in memory"),
        entry("grain", "processes", "ArrayRecord; `mp_prefetch`, 2 processes"),
        entry("litdata", "alone", f"litdata; {_DL0}"),
        entry("litdata", "processes", f"litdata; {_DL2}"),
        entry("streaming", "alone", f"mds; py1e, {_DL0}"),
        entry("streaming", "processes", f"mds; py1e, {_DL2}"),
        entry("datasets", "arrow", "arrow; shuffled by indices, format arrow"),
        entry("datasets", "streaming", "parquet; streamed, buffer of 1,000, format arrow"),
        entry("webdataset", "tar", "tar; buffer of 1,000"),
        entry("spdl", "arrow", "mapped arrow; 2 threads"),
        entry("bare", "parquet", f"pyarrow scan of parquet, {_NO_SHUFFLE}"),
        entry("bare", "arrow", f"pyarrow scan of mapped arrow, {_NO_SHUFFLE}"),
        entry("bare", "arrow hash", f"pyarrow scan of mapped arrow, {_NO_SHUFFLE}, all bytes hashed (xxh3) as ours are"),
        entry("bare", "memcpy", "copy of every image in memory"),
    ),
    (
        Goal("public", 3.5, "cpu_rate"),
        Goal("grain", 2.5, "cpu_rate"),
        Goal("litdata", 1.2, "cpu_rate"),
        Goal("streaming", 8, "cpu_rate"),
        Goal("bare: arrow", 0.9, "rate"),
        Goal("bare: arrow", 0.9, "rate", ours="arrow"),
        Goal("bare: parquet", 0.9, "rate", ours="parquet"),
    ),
    data={"images": ("parquet", "arrow", "litdata", "mds", "vortex", "webdataset", "arrayrecord")},
)
B2 = Case(
    "B2",
    "vision and language: decode, resize to 224, normalise, tokenise, pack to 2,048, batches of 8",
    "images/s",
    (
        entry("ours", "float", f"parquet; {_THREADS}, float32 normalised"),
        entry("ours", "uint8", f"parquet; {_THREADS}, uint8 (the device normalises)"),
        entry("ours", "uint8 arrow", f"mapped arrow; {_THREADS}, uint8"),
        entry("ours", "scaled", f"parquet; {_THREADS}, `scaled_decode='gap2'`, uint8"),
        entry("public", "threads pillow", f"parquet; {_THREADS}, Pillow in `map_transform`"),
        entry("public", "threads fast", f"parquet; {_THREADS}, our decode calls in `map_transform`"),
        entry("public", "vortex threads fast", f"vortex; {_THREADS}, our decode calls in `map_transform`"),
        entry("grain", "threads pillow", "ArrayRecord; 16 threads, Pillow in `map`"),
        entry("grain", "processes pillow", "ArrayRecord; 2 processes, Pillow in `map`"),
        entry("grain", "threads fast", "ArrayRecord; 16 threads, our decode calls in `map`"),
        entry("litdata", "processes pillow", f"litdata; {_DL2}, Pillow in `transform`; packed by numpy"),
        entry("streaming", "processes pillow", f"mds; {_DL2}, Pillow in `__getitem__`; packed by numpy"),
        entry("webdataset", "pillow", "tar; Pillow in `map`; packed by numpy"),
        entry("spdl", "pillow", "mapped arrow; 2 threads, Pillow; packed by numpy"),
        entry("bare", "pillow", "pool of 2 threads: Pillow + `tokenizers`"),
        entry("bare", "fast", "pool of 2 threads: our decode calls + fastokens"),
    ),
    (
        Goal("grain: pillow", 1.8, "rate", ours="float"),
        Goal("public: pillow", 1.8, "rate", ours="float"),
        Goal("grain: fast", 1.1, "rate", ours="uint8"),
        Goal("public: fast", 1.1, "rate", ours="uint8"),
        Goal("bare: fast", 0.9, "rate", ours="uint8"),
    ),
    (("datasets", "no packing, and its images decode one by one as in WebDataset"),),
    {"images": ("parquet", "arrow", "litdata", "mds", "vortex", "webdataset", "arrayrecord")},
    seconds=6.0,
)
_TEXT = {"text": ("parquet", "litdata", "mds", "webdataset", "arrayrecord", "arrow")}
B3 = Case(
    "B3",
    "text: tokenise, pack to 2,048, batches of 8",
    "tokens/s",
    (
        entry("ours", "fast", f"parquet; {_THREADS}, the back-end that it chooses (fastokens)"),
        entry("ours", "fast arrow", f"mapped arrow; {_THREADS}, fastokens"),
        entry("ours", "tokenizers", f"parquet; {_THREADS}, back-end `tokenizers`", longer=4),
        entry("public", "threads", f"parquet; {_THREADS}, its `tokenize`"),
        entry("public", "processes", "parquet; processes, its `tokenize`"),
        entry("grain", "threads", "ArrayRecord; 16 threads, `tokenizers` in `map`"),
        entry("grain", "processes", "ArrayRecord; 2 processes, `tokenizers` in `map`"),
        entry("litdata", "processes", f"litdata; {_DL2}, `tokenizers` in `transform`; packed by numpy"),
        entry("streaming", "processes", f"mds; {_DL2}, `tokenizers` in `__getitem__`; packed by numpy"),
        entry("datasets", "streaming", "parquet streamed, `tokenizers` in `map(batched=True)`; packed by numpy"),
        entry("webdataset", "alone", "tar; `tokenizers` in `map`; packed by numpy"),
        entry("spdl", "threads", "mapped arrow; 2 threads, `tokenizers`; packed by numpy"),
        entry("bare", "slow", "`tokenizers` (`encode_batch_fast`), 2 threads", longer=4),
        entry("bare", "fast", "fastokens, 2 threads"),
    ),
    (
        Goal("grain", 15, "rate"),
        Goal("public", 15, "rate"),
        Goal("bare: slow", 0.9, "rate", ours="tokenizers"),
        Goal("bare: fast", 0.7, "rate", ours="fast"),
    ),
    data=_TEXT,
    seconds=4.0,
)
B3B = Case(
    "B3b",
    "text, where the peers' user functions call the same fast tokenizer",
    "tokens/s",
    (
        entry("ours", "fast", f"parquet; {_THREADS}"),
        entry("public", "threads fast", f"parquet; {_THREADS}, in `map_transform`"),
        entry("public", "processes fast", "parquet; processes, in `map_transform`"),
        entry("grain", "threads fast", "ArrayRecord; 16 threads, in `map`"),
        entry("grain", "one thread fast", "ArrayRecord; `num_threads=0`, in `map`"),
        entry("grain", "processes fast", "ArrayRecord; 2 processes, in `map`"),
        entry("litdata", "processes fast", f"litdata; {_DL2}, in `transform`; packed by numpy"),
        entry("streaming", "processes fast", f"mds; {_DL2}, in `__getitem__`; packed by numpy"),
        entry("webdataset", "fast", "tar; in `map`; packed by numpy"),
        entry("spdl", "threads fast", "mapped arrow; 2 threads; packed by numpy"),
    ),
    (Goal("grain", 2, "rate"), Goal("public", 3, "rate")),
    data=_TEXT,
    seconds=2.0,
)
B4 = Case(
    "B4",
    "lists of ids: pack to 2,048, batches of 8",
    "tokens/s",
    (
        entry("ours", "threads", f"parquet; {_THREADS}"),
        entry("ours", "inline", "parquet; inline"),
        entry("public", "threads", f"parquet; {_THREADS}"),
        entry("grain", "threads", "ArrayRecord; 16 threads"),
        entry("grain", "one thread", "ArrayRecord; `num_threads=0`"),
        entry("litdata", "alone", f"litdata; {_DL0}; packed by numpy"),
        entry("streaming", "alone", f"mds; {_DL0}; packed by numpy"),
        entry("bare", "numpy", "`numpy.concatenate` of lists in memory"),
    ),
    (Goal("public", 20, "rate"),),
    (("datasets", "no packing"), ("webdataset", "no packing, no arrays of its own"), ("spdl", "no packing, no reader")),
    {"tokens": ("parquet", "litdata", "mds", "arrayrecord")},
)
B5 = Case(
    "B5",
    "import, and time to the first batch of B3",
    "s",
    (
        *tuple(entry(e.peer, e.variant, e.setting) for e in B3.entries if e.peer != "bare" and "processes" not in e.variant),
        entry("litdata", "alone", f"litdata; {_DL0}"),
        entry("streaming", "alone", f"mds; {_DL0}"),
    ),
    (Goal("public", 10, "import_s"), Goal("public", 10, "first_batch_s")),
    data=_TEXT,
    seconds=0,
    measure="first_batch_s",
    beside=(("CPU s", "first_batch_cpu_s"), ("import, s", "import_s")),
)
B8 = Case(
    "B8",
    "peak memory of B2 with a shuffle of 1,024 sequences",
    "MB (PSS)",
    (
        entry("ours", "float", f"parquet; {_THREADS}, float32"),
        entry(
            "ours",
            "float numpy",
            f"parquet; {_THREADS}, float32; resized by cykooz.resizer, arrays of numpy as the peers' (no torch)",
        ),
        entry("ours", "float numpy spill", "the same with `spill_dir` on a disk, `max_bytes` of 256 MiB, `chunk_size=32`"),
        entry("public", "threads pillow", f"parquet; {_THREADS}"),
        entry("grain", "threads pillow", "ArrayRecord; 16 threads"),
    ),
    (Goal("public", 0.25, "peak_pss_mb", at_most=True), Goal("grain", 0.25, "peak_pss_mb", at_most=True)),
    tuple(
        (p, "no packing, so nothing to shuffle after it") for p in ("litdata", "streaming", "datasets", "webdataset", "spdl")
    ),
    {"images": ("parquet", "arrayrecord")},
    seconds=30.0,  # the public loader takes most of it to fill the buffer
    more={"shuffle": 1024},
    measure="peak_pss_mb",
)
B9 = Case(
    "B9",
    "a user's function in plain Python",
    "records/s",
    (
        entry("ours", "threads", _THREADS),
        entry("ours", "processes", "processes, 2 workers"),
        Entry("ours", "threads free-threaded", FREE, f"{_THREADS}, on an interpreter without its lock"),
        entry("public", "threads", _THREADS),
        entry("public", "processes", "processes"),
        entry("grain", "threads", "16 threads"),
        entry("grain", "processes", "2 processes"),
    ),
    data={"text": ("parquet", "arrayrecord")},
    seconds=2.0,
)
_LANES = (1, 8, 32, 256)
B6 = Case(
    "B6",
    "lists of ids packed to 2,048: a checkpoint after 40 sequences of each lane, and from a restore to the next batch",
    "s to restore",
    (
        *(entry("ours", f"{lanes} lanes", f"{lanes} lanes") for lanes in _LANES),
        *(entry("public", f"{lanes} lanes", f"{lanes} lanes (`canonical_replicas`)") for lanes in _LANES),
        entry("grain", "1 lanes", "`get_state`, `set_state`; it has no lanes"),
    ),
    (
        Goal("public: 8 lanes", 10, "restore_s", ours="8 lanes"),
        Goal("public: 32 lanes", 10, "restore_s", ours="32 lanes"),
        Goal("public: 8 lanes", 100, "state_bytes", ours="8 lanes"),
        Goal("public: 32 lanes", 100, "state_bytes", ours="32 lanes"),
    ),
    data={"tokens": ("parquet", "arrayrecord")},
    measure="restore_s",
    beside=(("checkpoint, bytes", "state_bytes"), ("checkpoint, s", "state_s")),
)
B7 = Case(
    "B7",
    "planning, in read units of 1,000 records that exist as a table only",
    "records/s",
    tuple(
        entry("ours", f"{lanes} lanes 10^{power}", f"{lanes:,} lane{'s' * (lanes > 1)}, 10^{power} records")
        for power in (6, 9)
        for lanes in (1, 64, 1024, 4096)
    ),
    # a record costs at most 1.2 times as much
    tuple(Goal(f"ours: 1 lanes 10^{power}", 1 / 1.2, "rate", ours=f"4096 lanes 10^{power}") for power in (6, 9)),
)
SCALING = Case(
    "scaling",
    "B2 with 1, 2 and 4 workers on two cores",
    "images/s",
    tuple(
        entry(peer, f"{words} w{count}", f"{words}, {count} workers")
        for peer, words in (("ours", "uint8"), ("public", "threads pillow"), ("grain", "processes pillow"), ("spdl", "pillow"))
        for count in (1, 2, 4)
    ),
    data=B2.data,
    seconds=2.0,
    workers=True,
)
CASES = {case.name: case for case in (B1, B2, B3, B3B, B4, B5, B6, B7, B8, B9, SCALING)}

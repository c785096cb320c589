"""What the yardsticks read: text that every Python installation holds, and lists of tokens from a fixed seed. Nothing is committed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon.cli import demo_data


@dataclass(frozen=True)
class Text:
    """Python sources and documentation of the installed packages, in a fixed order, as Parquet and as JSONL, and a tokenizer trained on it."""

    parquet: Path
    jsonl: Path
    tokenizer: Path

    @cached_property
    def documents(self) -> list[str]:
        """All texts, in memory."""
        return [str(t) for t in pq.read_table(self.parquet, columns=["text"]).column("text").to_pylist()]


def text(folder: Path, megabytes: int) -> Text:
    """Made where the folder does not have it yet. Two thirds are sources; a document has at most 12,000 characters."""
    place = folder / f"text-{megabytes}"
    made = Text(place / "text.parquet", place / "text.jsonl", place / "tokenizer.json")
    if not made.tokenizer.exists():
        place.mkdir(parents=True, exist_ok=True)
        limit = megabytes * 1_000_000
        sources, documents = list(demo_data.python_sources(limit * 2 // 3)), list(demo_data.documents(limit // 3))
        # neighbours differ: one of three is documentation, as long as there is any
        mixed = list(chain.from_iterable(zip(sources[::2], sources[1::2], documents, strict=False)))
        rest = len(mixed) // 3
        records = [*mixed, *sources[2 * rest :], *documents[rest:]]
        demo_data.write_parquet(made.parquet, records)
        demo_data.write_jsonl(made.jsonl, islice(records, 2000))
        sample = records[:: max(1, len(records) // 400)]  # 3 MB or so: enough for this vocabulary
        demo_data.train_tokenizer((r["text"] for r in sample), made.tokenizer, vocabulary=16_384)
    return made


def documents_of_tokens(count: int) -> pa.Table:
    """`input_ids`: list<int32>, `count` documents of 20 to 8,000 tokens, log-normal with a mean of about 550."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6, 0.8, count), 20, 8000).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = random.integers(0, 50_000, offsets[-1], dtype=np.int32)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)).cast(pa.list_(pa.int32()))
    return pa.table({"input_ids": lists})


def documents_of_tokens_file(folder: Path, count: int) -> Path:
    """The same as a Parquet file of row groups of 4,000 documents, not compressed: random tokens can't be."""
    path = folder / f"tokens-{count}.parquet"
    if not path.exists():
        pq.write_table(documents_of_tokens(count), path, row_group_size=4000, compression="none", use_dictionary=False)
    return path


def small_records(count: int) -> pa.Table:
    """Records of three integers and a short string."""
    random = np.random.default_rng(0)
    numbers = {name: random.integers(0, 1 << 30, count) for name in ("id", "width", "height")}
    names = pa.array([f"record {i % 100_000:06d}" for i in range(count)])
    return pa.table({**numbers, "name": names})


def small_records_file(folder: Path, count: int) -> Path:
    """The same as a Parquet file of row groups of 16,384 records."""
    path = folder / f"records-{count}.parquet"
    if not path.exists():
        pq.write_table(small_records(count), path, row_group_size=16_384)
    return path

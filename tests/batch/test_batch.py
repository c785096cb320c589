"""A batch as records, counts and digests."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest
import xxhash
from batch.oracle import NAMES, Drawn, group_of, packed
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from zephon.batch import Batch, SampleBatch, global_sha256
from zephon.errors import RecipeError


def cut(group: pa.RecordBatch, sizes: list[int]) -> list[Batch]:
    """The rows in microbatches of these sizes, over and over."""
    out, begin = [], 0
    while begin < group.num_rows:
        size = sizes[len(out) % len(sizes)]
        out.append(Batch(group.slice(begin, size), lane=0, step=0, index=len(out)))
        begin += size
    return out


@settings(max_examples=examples(100), deadline=None)
@given(packed())
def test_records_counts_and_ids_are_those_of_the_pieces(drawn: Drawn) -> None:
    batch, rows = drawn.batch, drawn.rows
    real = [r for r in rows if not r.empty]
    tokens, samples = Counter[str](), Counter[str]()
    for row in real:
        for piece in row.pieces:
            tokens[NAMES[piece.component]] += piece.length
            samples[NAMES[piece.component]] += piece.start == 0

    assert len(batch) == len(rows)
    assert batch.component_token_counts() == dict(tokens)
    assert batch.component_sample_counts() == {k: v for k, v in samples.items() if v}
    assert batch.num_tokens == sum(tokens.values())
    assert batch.padding == sum(r.padding for r in rows)
    assert batch.is_empty.tolist() == [r.empty for r in rows]
    assert batch.lane_ids == [3] * len(rows)
    firsts = [r.pieces[0] if r.pieces else None for r in rows]
    assert batch.ids == [None if p is None else (NAMES[p.component], p.shard, p.row) for p in firsts]
    assert [r.meta.sample_id for r in batch.records] == batch.ids
    for record, row in zip(batch.records, rows, strict=True):
        assert record.payload["input_ids"] == row.tokens
        assert not any(name.startswith("_") for name in record.payload)
        assert record.meta.padding_length == row.padding
        assert record.meta.lane_id == 3
        assert sum(record.meta.component_token_counts.values()) == len(row.tokens) - row.padding
        assert sum(record.meta.component_sample_counts.values()) == sum(p.start == 0 for p in row.pieces)


@settings(max_examples=examples(100), deadline=None)
@given(packed(), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.booleans())
def test_the_digest_of_a_step_does_not_depend_on_the_microbatches_nor_the_layout(
    drawn: Drawn, sizes: list[int], large: bool
) -> None:
    real = [r for r in drawn.rows if not r.empty]
    group = group_of(real, large=large)
    assert global_sha256(cut(group, sizes)) == global_sha256([drawn.batch]) == drawn.batch.sha256()
    assert not real or global_sha256(cut(group, sizes)[1:]) != drawn.batch.sha256()


def test_empty_sequences_are_no_part_of_the_digest() -> None:
    """Ranks with fewer lanes deliver empty microbatches, and the global batch is still the same."""
    group = pa.RecordBatch.from_pydict({"input_ids": [[1, 2], [0, 0]]})
    padded, bare = Batch(group, lane=0, step=0, index=0, empty=1), Batch(group.slice(0, 1), lane=0, step=0, index=0)
    nothing = Batch(group.slice(1), lane=0, step=0, index=0, empty=1)
    assert global_sha256([padded, nothing]) == global_sha256([bare])
    assert nothing.sha256() == hashlib.sha256().hexdigest()


def test_any_hasher_will_do() -> None:
    batch = Batch(pa.RecordBatch.from_pydict({"input_ids": [[1, 2], [3]]}), lane=0, step=0, index=0)
    one, two = xxhash.xxh3_64(), xxhash.xxh3_64()
    batch.update(one)
    for part in cut(batch.group, [1]):
        part.update(two)
    assert one.hexdigest() == two.hexdigest()


def test_a_batch_that_was_never_packed_counts_rows() -> None:
    group = pa.RecordBatch.from_pydict(
        {
            "input_ids": pa.array([[1, 2, 3], [4], [5, 6]], pa.list_(pa.int32())),
            "_component": pa.array([1, 0, 1], pa.int32()),
            "_pass": pa.array([0, 0, 0], pa.int64()),
            "_shard": pa.array([7, 8, 9], pa.int32()),
            "_row": pa.array([10, 11, 12], pa.int64()),
        }
    )
    batch = Batch(group, lane=0, step=0, index=0, dataset_names=("wiki",))
    assert batch.component_token_counts() == {"wiki": 1, "1": 5}
    assert batch.component_sample_counts() == {"wiki": 1, "1": 2}
    assert (batch.num_tokens, batch.padding) == (6, 0)
    assert batch.ids == [("1", 7, 10), ("wiki", 8, 11), ("1", 9, 12)]
    assert batch.to_pydict() == {"input_ids": [[1, 2, 3], [4], [5, 6]]}
    assert batch.records[1].meta.component_token_counts == {"wiki": 1}


def test_a_batch_without_tokens_or_provenance_still_has_records() -> None:
    batch = SampleBatch(pa.RecordBatch.from_pydict({"x": [1, 2]}), lane=4, step=0, index=0)
    assert [r.payload for r in batch.records] == [{"x": 1}, {"x": 2}]
    assert batch.ids == [None, None]
    assert (batch.num_tokens, batch.padding, batch.component_token_counts()) == (0, 0, {})


@settings(max_examples=examples(30), deadline=None)
@given(packed())
def test_a_batch_survives_pickling(drawn: Drawn) -> None:
    copy = pickle.loads(pickle.dumps(drawn.batch))
    assert copy.group.equals(drawn.batch.group)
    assert vars(copy).keys() >= {"lane", "step", "index", "empty", "dataset_names", "defaults"}
    assert (copy.lane, copy.step, copy.index, copy.empty, copy.dataset_names) == (3, 5, 1, drawn.batch.empty, NAMES)


def test_pickling_a_slice_sends_only_the_slice() -> None:
    group = pa.RecordBatch.from_pydict({"input_ids": [[1] * 1000] * 1000})
    assert len(pickle.dumps(Batch(group.slice(5, 1), lane=0, step=0, index=0))) < 20_000


def test_more_empty_rows_than_rows_are_refused() -> None:
    with pytest.raises(RecipeError, match="3 empty"):
        Batch(pa.RecordBatch.from_pydict({"x": [1, 2]}), lane=0, step=0, index=0, empty=3)


def test_the_module_imports_neither_torch_nor_arrow_compute() -> None:
    code = "import sys, zephon.batch; print([m for m in ('torch', 'pyarrow.compute') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_torch_the_default_is_numpy() -> None:
    code = """
import importlib.util, sys
sys.modules["torch"] = None
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else real(name, package)
import pyarrow as pa
from zephon.batch import Batch
got = Batch(pa.RecordBatch.from_pydict({"input_ids": [[1, 2, 3]]}), lane=0, step=0, index=0).to_training()
print(type(got["labels"]).__name__, got["labels"].dtype, got["labels"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ndarray int64 [[2, 3]]"

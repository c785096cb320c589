"""A group that came from another process is like the one that was sent, whatever is done with it: its buffers may have no address."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operators_for_tests import Copies, LeaveOut
from runners.record_groups import record_groups
from strategies import Recipe, rows_of
from thoroughness import examples

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, groups
from zephon.digest import update_rows
from zephon.hashing import hash_group
from zephon.operators.shuffle import Shuffle
from zephon.runners.arena import pack, unpack
from zephon.views import take_from


def sent(group: pa.RecordBatch) -> pa.RecordBatch:
    return unpack(pack(None, [group]))[1][0]


def rows_digest(group: pa.RecordBatch) -> str:
    hasher = hashlib.sha256()
    update_rows(hasher, group, group.schema.names)
    return hasher.hexdigest()


def lengths(group: pa.RecordBatch) -> list[list[int]]:
    return [groups.list_lengths(c).tolist() for c in group.columns if pa.types.is_list(c.type)]


USES: dict[str, Callable[[pa.RecordBatch, Any], Any]] = {
    "take": lambda group, index: groups.take(group, index).to_pylist(),
    "gather": lambda group, index: take_from([group, group], index * 0, index, group.schema).to_pylist(),
    "concat": lambda group, _: groups.concat([group, group]).to_pylist(),
    "hash": lambda group, _: hash_group(group),
    "digest": lambda group, _: rows_digest(group),
    "lengths": lambda group, _: lengths(group),
    "size": lambda group, _: groups.nbytes(group) >= 0,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@settings(max_examples=examples(60))
@given(group=record_groups(), data=st.data())
def test_what_is_done_with_it_gives_the_same(
    use: Callable[[pa.RecordBatch, Any], Any], group: pa.RecordBatch, data: st.DataObject
) -> None:
    group = group.slice(0, 50)
    index = np.array(data.draw(st.lists(st.integers(0, len(group) - 1), max_size=5)) if len(group) else [], dtype=np.int64)
    assert use(sent(group), index) == use(group, index)


def test_documents_without_tokens_change_no_byte_in_worker_processes() -> None:
    # a list column that holds nothing comes with a buffer that has no address
    recipe = Recipe(
        data=(("a", (0, 0, 3, 0, 0, 0, 2, 0)),), weights=(1,), tokenised=True, steps=(Copies(column="id"), Shuffle()), lanes=2,
        per_step=1, chunk=1, window=4, passes=1,
    )  # fmt: skip
    found = []
    for runner in ("inline", "processes"):
        pipeline = recipe.pipeline(runner=runner, workers=2)
        found.append(([rows_of(batch) for batch in pipeline], pipeline.checkpoint()))
    assert found[0] == found[1]


def test_lists_whose_items_have_other_names_in_other_files_have_one_digest_on_every_runner(tmp_path: Path) -> None:
    # Parquet calls them "element" unless it is told otherwise, JSON lines have none
    kind = pa.list_(pa.field("element", pa.int32()))
    pq.write_table(pa.table({"x": pa.array([[1, 2], [3], []] * 4, kind)}), tmp_path / "a.parquet", store_schema=False)
    (tmp_path / "b.jsonl").write_text('{"x": [4, 5]}\n' * 12)
    found = []
    for runner in ("inline", "processes"):
        data = [
            Dataset.from_path(n, tmp_path / f, **o)
            for n, f, o in (("b", "b.jsonl", {"schema": {"x": "list<int32>"}}), ("a", "a.parquet", {}))
        ]
        source = StaticMixtureWorkSource(data, {"a": 1, "b": 1}, stop_after_passes=1, chunk_size=1)
        pipeline = Pipeline(source).then(LeaveOut(column="_row", of=3)).shuffle(buffer_size=2).batch(1)
        pipeline.options(runner=runner, workers=2)
        found.append(([rows_of(batch) for batch in pipeline], pipeline.checkpoint()))
    assert found[0] == found[1]

"""`pack_multimodal`: decisions and gathering together, against what loops over the documents give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vision.pack.best_fit_oracle import pack
from vision.pack.interleaved import KINDS, PAD, Document, document, documents, group, joined, measure

from zephon import groups
from zephon.engine.deciders import Deciders
from zephon.engine.faults import Losses
from zephon.errors import DataError, RecipeError
from zephon.operators.shuffle import Shuffle
from zephon.plugin import Decision, Drops, LaneWindow
from zephon.testing import check_operator
from zephon.views import buffers
from zephon_vision import columns
from zephon_vision._pack_bins import NO_LIMIT, Limits
from zephon_vision._pack_holding import MultimodalAccumulator
from zephon_vision.pack_multimodal import PackMultimodal

WINDOW = LaneWindow(seed=0, lane=0, window=0)
SHOWN = (*KINDS, groups.PADDING, groups.LENGTHS, columns.IMAGE_DOCUMENT, columns.IMAGE_BLOCKS)


def operator(**settings: Any) -> PackMultimodal:
    return PackMultimodal(**{"max_length": 200, "open_bins": 3, "least_room": 4, "pad_token_id": PAD, **settings})


def decide(packer: PackMultimodal, given: Sequence[pa.RecordBatch]) -> tuple[list[Decision], MultimodalAccumulator]:
    accumulator = packer.accumulator(WINDOW)
    made = [d for number, g in enumerate(given) for d in accumulator.add(g, number)]
    return made + list(accumulator.flush()), accumulator


def run(packer: PackMultimodal, given: Sequence[pa.RecordBatch]) -> tuple[list[dict[str, Any]], list[Drops]]:
    """(packed rows, drops)."""
    decisions, _ = decide(packer, given)
    gather = packer.bind()
    rows = []
    for d in decisions:
        made = gather(d.rows, d.sources)
        made.validate(full=True)
        rows += made.to_pylist()
    return rows, [d.drops for d in decisions]


def split(rows: Sequence[Document], size: int, **settings: Any) -> list[pa.RecordBatch]:
    return [group(rows[i : i + size], first=i, **settings) for i in range(0, len(rows), size)]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in SHOWN}


@given(
    st.integers(0, 10_000),
    st.integers(1, 30),
    st.integers(1, 8),
    st.sampled_from([None, 700, 3000]),
    st.sampled_from([None, 4]),
    st.sampled_from([None, 7]),
)
def test_rows_are_what_a_loop_over_their_documents_gives(
    seed: int, count: int, size: int, patches: int | None, images: int | None, age: int | None
) -> None:
    rows = [r for r in documents(count, seed=seed) if r[groups.TOKENS]]
    limits = Limits(
        tokens=200,
        blocks=NO_LIMIT if patches is None else patches,
        images=NO_LIMIT if images is None else images,
        bins=3,
        least_room=4,
        max_age=age,
    )
    want, _ = pack([measure(r) for r in rows], limits)
    packer = operator(max_patches=patches, max_images=images, max_age=age)
    found, drops = run(packer, split(rows, size))
    assert [shown(r) for r in found] == [joined([rows[n] for n in sequence], 200) for sequence in want]
    assert [r[groups.DOC_ROW] for r in found] == want
    assert all(set(r[groups.DOC_START]) == {0} and set(r[groups.DOC_SHARD]) == {5} for r in found)
    assert all([n % 3 for n in r[groups.DOC_ROW]] == r[groups.DOC_COMPONENT] for r in found)
    assert not any(d.rows or d.tokens for d in drops)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_patches": 700}, {"packing": None}, {"ensure_image": True, "max_waiting": 3}, {"max_age": 5}, {"max_images": 3}],
)
def test_it_keeps_what_operators_promise(settings: dict[str, Any]) -> None:
    rows = documents(40, seed=3)
    given = [group(rows[:13]), group(rows[13:14], first=13), group(rows[14:], first=14)]
    check_operator(operator(**settings), given)
    without = [
        groups.take(group(rows, without=(groups.LOSS_MASK, columns.MM_TYPES)), range(a, b)) for a, b in ((0, 9), (9, 40))
    ]
    check_operator(operator(**settings), without)


def test_text_documents_need_no_image_columns() -> None:
    rows = documents(20, seed=4, images=0)
    names = (columns.IMAGES, columns.IMAGE_PLANS, columns.IMAGE_SPANS)
    check_operator(operator(), split(rows, 6, without=names))
    found, _ = run(operator(), [*split(rows[:10], 5, without=names), group(documents(5, seed=5, first=10), first=10)])
    assert {n for r in found for n in r[groups.DOC_ROW]} >= {n for n in range(10) if rows[n][groups.TOKENS]}
    assert any(r[columns.IMAGES] for r in found)


def test_nulls_are_kept_where_they_mean_something_and_are_empty_lists_elsewhere() -> None:
    one, two = document(1, random.Random(1), images=3), document(2, random.Random(5), images=0)
    assert two[groups.TOKENS]
    one[columns.IMAGES][1] = {"bytes": None, "path": None}
    for name in (columns.IMAGES, columns.IMAGE_PLANS, columns.IMAGE_SPANS):
        two[name] = None
    found, _ = run(operator(), [group([two, one, two, document(3, random.Random(3), images=1)])])
    (row,) = found
    assert row[columns.IMAGES][1] == {"bytes": None, "path": None}
    assert row[columns.IMAGE_DOCUMENT] == [1, 1, 1, 3]


def test_slices_and_other_layouts_of_the_same_columns_give_the_same_rows() -> None:
    rows = documents(12, seed=6)
    whole = group(rows)
    want, _ = run(operator(), [whole.slice(3, 7)])
    assert run(operator(), [group(rows[3:10], first=3)])[0] == want
    swapped = pa.list_(
        pa.struct([pa.field("path", pa.large_string()), pa.field("more", pa.int8()), pa.field("bytes", pa.large_binary())])
    )
    images = [None if r[columns.IMAGES] is None else [{**i, "more": 1} for i in r[columns.IMAGES]] for r in rows]
    other = groups.set_column(whole, columns.IMAGES, pa.array(images, swapped))
    spans = pa.large_list(
        pa.struct([pa.field("image", pa.int64()), pa.field("stop", pa.int64()), pa.field("start", pa.int64())])
    )
    other = groups.set_column(other, columns.IMAGE_SPANS, pa.array([r[columns.IMAGE_SPANS] for r in rows], spans))
    assert run(operator(), [other.slice(3, 7)])[0] == want


def test_the_cost_column_counts_where_it_is_there() -> None:
    rows = [document(n, random.Random(n), images=1, text=3) for n in range(8)]
    given = groups.set_column(group(rows), columns.IMAGE_BLOCKS, pa.array([10, 5, 7, 8, 1, 2, 3, 4], pa.int32()))
    found, _ = run(operator(max_patches=15, max_length=10_000, open_bins=8), [given])
    assert sum(r[columns.IMAGE_BLOCKS] for r in found) == 40
    assert all(r[columns.IMAGE_BLOCKS] <= 15 for r in found)
    assert found[0][groups.DOC_ROW] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_length": 30}, "too many tokens"),
        ({"max_patches": 60}, "too many patches"),
        ({"max_images": 1}, "too many images"),
    ],
)
def test_documents_over_a_budget_are_errors_or_are_counted(settings: dict[str, Any], reason: str) -> None:
    rows = documents(20, seed=7)
    with pytest.raises(DataError, match=reason.split()[-1]) as caught:
        run(operator(**settings), [group(rows)])
    assert caught.value.where.row is not None
    assert caught.value.where.shard == 5
    found, drops = run(operator(**settings, over_long="drop"), split(rows, 6))
    gone = [6 * i + int(n) for i, d in enumerate(drops) for n in d.rows.get(reason, ())]
    empty = [n for n, r in enumerate(rows) if not r[groups.TOKENS]]
    assert gone
    assert sorted([n for r in found for n in r[groups.DOC_ROW]] + gone + empty) == list(range(20))


def test_without_packing_each_document_is_a_row() -> None:
    rows = [r for r in documents(15, seed=8) if r[groups.TOKENS]]
    found, _ = run(operator(packing=None), split(rows, 4))
    assert [shown(r) for r in found] == [joined([r], 200) for r in rows]


def test_every_sequence_has_an_image_when_asked_for() -> None:
    rows = [r for r in documents(60, seed=9) if r[groups.TOKENS]]
    text = sum(not r[columns.IMAGES] for r in rows)
    found, drops = run(operator(ensure_image=True, max_waiting=2), split(rows, 7))
    assert all(r[columns.IMAGES] for r in found)
    lost = sum(sum(d.records.get("no image", {}).values()) for d in drops)
    tokens = sum(sum(d.tokens.get("no image", {}).values()) for d in drops)
    out = [n for r in found for n in r[groups.DOC_ROW]]
    assert len(out) + lost == len(rows)
    assert lost <= text
    assert tokens == sum(len(r[groups.TOKENS]) for n, r in enumerate(rows) if n not in out)


def test_a_sequence_takes_along_its_own_documents_only_and_groups_shrink() -> None:
    """One document that waits must not keep a whole group of images alive."""
    size = 1 << 16
    rows = [document(n, random.Random(n), images=1, text=4) for n in range(64)]
    for n, row in enumerate(rows):
        row[columns.IMAGES][0] = {"bytes": bytes([n]) * size, "path": None}
    packer = operator(max_length=250, open_bins=2)
    accumulator = packer.accumulator(WINDOW)
    for number, part in enumerate(split(rows, 32)):
        for decision in accumulator.add(part, number):
            for i, source in decision.sources.items():
                pieces = groups.list_pieces(decision.rows)[1]
                assert len(source) == int((pieces["source"] == i).sum())
                assert groups.nbytes(source) < (len(source) + 1) * (size + 2000)
        waiting = len(accumulator._notes)
        assert accumulator.nbytes <= max(2 * waiting * (size + 2000), 1 << 18)
    list(accumulator.flush())
    assert accumulator.nbytes == 0


def test_what_waits_in_a_shuffle_is_in_memory_of_its_own() -> None:
    """A sequence that is shuffled to the end of a window must not keep whole groups of images alive."""
    size = 1 << 16
    rows = [document(n, random.Random(n), images=1, text=4) for n in range(64)]
    for n, row in enumerate(rows):
        row[columns.IMAGES][0] = {"bytes": bytes([n]) * size, "path": None}
    packer = operator(max_length=250, open_bins=2)
    deciders = Deciders((packer, Shuffle(buffer_size=4)), WINDOW)
    made = [*deciders.add(group(rows), Losses()), *deciders.flush(Losses())]
    memory = [(len(s), s.get_total_buffer_size()) for d in made for s in d.sources.values()]
    assert sum(documents for documents, _ in memory) == 64
    assert all(held < (documents + 1) * (size + 2000) for documents, held in memory)


def test_a_gather_whose_next_operator_takes_views_copies_no_file() -> None:
    """It shows files where the decisions' sources have them, and they are those that it else copies."""
    rows = [r for r in documents(30, seed=11) if r[groups.TOKENS]]
    for n, row in enumerate(rows):
        row[columns.IMAGES] = [{"bytes": bytes([n, i]) * 3000, "path": None} for i in range(len(row[columns.IMAGES]))]
    packer = operator()
    decisions, _ = decide(packer, split(rows, 9))
    copies, shows = packer.bind(), packer.bind_shown(frozenset((columns.IMAGES,)))

    def places(array: Any) -> list[int]:
        files = [f for f in buffers(array.flatten().field("bytes")) if f is not None]
        return [np.frombuffer(f, np.uint8).__array_interface__["data"][0] for f in files]

    for d in decisions:
        plain, shown = copies(d.rows, d.sources), shows(d.rows, d.sources)
        assert plain.to_pylist() == shown.to_pylist()
        there = {at for s in d.sources.values() for at in places(groups.column(s, columns.IMAGES))}
        assert set(places(groups.column(shown, columns.IMAGES))) <= there
        assert there.isdisjoint(places(groups.column(plain, columns.IMAGES)))


def test_rows_may_be_reordered_and_gathered_together() -> None:
    rows = [r for r in documents(40, seed=10) if r[groups.TOKENS]]
    packer = operator()
    decisions, _ = decide(packer, split(rows, 9))
    gather = packer.bind()
    single = [row for d in decisions for row in gather(d.rows, d.sources).to_pylist()]
    every = groups.concat([d.rows for d in decisions])
    sources = {n: s for d in decisions for n, s in d.sources.items()}
    order = np.random.default_rng(0).permutation(len(every))
    mixed = gather(groups.take(every, order), dict(sorted(sources.items(), reverse=True))).to_pylist()
    assert mixed == [single[i] for i in order]


def test_the_empty_row_is_padding_without_images() -> None:
    packer = operator(max_length=5)
    for schema in (None, packer.output_schema(group(documents(1)).schema)):
        (row,) = packer.empty_row(schema).to_pylist()
        assert row[groups.TOKENS] == [PAD] * 5
        assert row[groups.LOSS_MASK] == row[columns.MM_TYPES] == [0] * 5
        assert row[groups.PADDING] == 5
        assert row[columns.IMAGES] == row[columns.IMAGE_PLANS] == row[columns.IMAGE_SPANS] == row[groups.LENGTHS] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 0},
        {"max_patches": 0},
        {"max_images": -1},
        {"open_bins": 0},
        {"open_bins": None},
        {"least_room": 201},
        {"max_age": 0},
        {"over_long": "split"},
        {"packing": "wrap"},
        {"packing": None, "ensure_image": True},
        {"pad_token_id": -1},
        {"max_length": True},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        operator(**settings)


def test_columns_that_contradict_each_other_are_named() -> None:
    rows = documents(4, seed=11, images=2)
    short = groups.set_column(
        group(rows), columns.IMAGE_PLANS, pa.array([r[columns.IMAGE_PLANS][:1] for r in rows], columns.IMAGE_PLANS_TYPE)
    )
    with pytest.raises(DataError, match="2 images and 1 plans"):
        run(operator(), [short])
    mask = groups.set_column(group(rows), groups.LOSS_MASK, pa.array([[1]] * 4, pa.list_(pa.uint8())))
    with pytest.raises(DataError, match="loss_mask"):
        run(operator(), [mask])
    schema = pa.schema([f for f in group(rows).schema if f.name != columns.IMAGE_SPANS])
    with pytest.raises(RecipeError, match="image_spans"):
        operator().output_schema(schema)
    with pytest.raises(RecipeError, match="pad"):
        operator(pad_token_id=None).accumulator(WINDOW)

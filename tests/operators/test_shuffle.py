"""`shuffle`: keyed, complete, indifferent to how rows come in groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import keys
from zephon.errors import RecipeError
from zephon.operators.shuffle import Shuffle
from zephon.plugin import LaneWindow
from zephon.testing import check_operator

WINDOW = LaneWindow(seed=1, lane=2, window=3)


def rows(size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": np.arange(size)})


def order(operator: Shuffle, sizes: list[int], where: LaneWindow = WINDOW) -> list[int]:
    selector = operator.selector(where)
    emitted = [n for size in sizes for n in selector.add(rows(size)).tolist()]
    return emitted + selector.flush().tolist()


def oracle(size: int, buffer_size: int | None, where: LaneWindow) -> list[int]:
    """Row by row."""
    held: list[int] = []
    out = []
    draw = keys.key(where.seed, "shuffle", where.lane, where.window)
    for row in range(size):
        # while the buffer fills, every second row is held
        if buffer_size is None or (row % 2 == 0 and len(held) < buffer_size):
            held.append(row)
            continue
        place = int(keys.uniform_below(draw, np.array([row]), len(held))[0])
        out.append(held[place])
        held[place] = row
    rest = keys.permutation(keys.key(where.seed, "shuffle flush", where.lane, where.window), len(held))
    return out + [held[i] for i in rest]


@given(sizes=st.lists(st.integers(0, 40), max_size=8), buffer_size=st.one_of(st.none(), st.integers(1, 50)))
def test_the_order_is_that_of_a_reservoir_row_by_row(sizes: list[int], buffer_size: int | None) -> None:
    assert order(Shuffle(buffer_size=buffer_size), sizes) == oracle(sum(sizes), buffer_size, WINDOW)


@given(sizes=st.lists(st.integers(0, 40), max_size=8), buffer_size=st.one_of(st.none(), st.integers(1, 50)))
def test_every_row_comes_out_once(sizes: list[int], buffer_size: int | None) -> None:
    assert sorted(order(Shuffle(buffer_size=buffer_size), sizes)) == list(range(sum(sizes)))


def test_seed_lane_and_window_each_change_the_order() -> None:
    orders = [
        order(Shuffle(), [50], LaneWindow(seed=s, lane=x, window=w)) for s, x, w in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    ]
    assert len({tuple(o) for o in orders}) == 4


def test_a_seed_of_its_own_takes_the_place_of_the_sources() -> None:
    one = order(Shuffle(seed=9), [50], LaneWindow(seed=1, lane=0, window=0))
    assert one == order(Shuffle(seed=9), [50], LaneWindow(seed=2, lane=0, window=0))


def test_a_large_buffer_mixes_rows_evenly() -> None:
    """Mean distance of a row from its place; for a random permutation of n it is n/3."""
    moved = np.abs(np.array(order(Shuffle(), [3000])) - np.arange(3000)).mean()
    assert 900 < moved < 1100


def test_a_buffer_of_one_keeps_the_order() -> None:
    assert order(Shuffle(buffer_size=1), [3, 0, 4]) == list(range(7))


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(RecipeError, match="buffer_size"):
        Shuffle(buffer_size=0)


def test_shuffle_conforms() -> None:
    check_operator(Shuffle(buffer_size=5, seed=2**63), [rows(7), rows(0), rows(30), rows(1)])

"""Memory that is used again is never somebody else's."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from vision.pictures import jpeg, scene

from zephon_vision import columns
from zephon_vision._arena import Arena, Pool
from zephon_vision.decode_images import DecodeImages


@given(st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=6), min_size=1, max_size=6))
def test_pieces_of_an_arena_do_not_overlap_until_it_is_reset(rounds: list[list[int]]) -> None:
    arena = Arena()
    for sizes in rounds:
        arena.reset()
        pieces = [arena.take((size,)) for size in sizes]
        for number, piece in enumerate(pieces):
            piece[:] = number
        assert all((piece == number).all() and piece.flags.c_contiguous for number, piece in enumerate(pieces))
        used = arena.used
        arena.take((5000,))[:] = 255
        arena.back_to(used)
        arena.take((3000,))[:] = 255
        assert all((piece == number).all() for number, piece in enumerate(pieces)), "those that were taken before stay"


def test_the_target_is_given_once_and_only_for_its_shape() -> None:
    arena, target = Arena(), np.zeros((2, 3), np.uint8)
    arena.reset()
    arena.aim(target)
    assert arena.take((3, 2)) is not target
    assert arena.take((2, 3)) is target
    assert arena.take((2, 3)) is not target


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 3)), min_size=1, max_size=30))
def test_no_two_leases_share_memory_and_what_is_dropped_comes_back(steps: list[tuple[int, int]]) -> None:
    pool = Pool(most=500_000)
    held: list[tuple[int, pa.Buffer]] = []
    for number, (size, drop) in enumerate(steps):
        piece = pool.lease(size)
        piece[:] = number % 251
        held.append((number % 251, pa.py_buffer(piece)))
        del piece
        del held[:drop]
        assert all((np.frombuffer(buffer, np.uint8) == value).all() for value, buffer in held)
    held.clear()
    gc.collect()
    assert 0 < pool.kept <= 500_000


def test_a_view_keeps_what_it_is_a_view_of() -> None:
    pool = Pool()
    view = pool.lease(100)[10:60].reshape(5, 10)[1:]
    assert pool.kept == 0
    del view
    assert pool.kept > 0


def test_old_memory_is_given_back_to_the_system() -> None:
    pool = Pool(idle=-1.0)
    pool.lease(1000)
    assert pool.kept == 0


def test_what_has_waited_longest_goes_first() -> None:
    pool = Pool(most=100_000)
    first = [pool.lease(10_000) for _ in range(4)]
    second = [pool.lease(20_000) for _ in range(3)]
    del first
    gc.collect()
    del second
    gc.collect()
    assert 0 < pool.kept <= 100_000
    kept = pool.kept
    pool.lease(20_000)
    assert pool.kept == kept, "pieces that came back last are still there"


def test_pixels_stay_what_they_were_while_other_groups_are_decoded() -> None:
    """By any number of threads, each with memory of its own."""
    bound = DecodeImages(policy='qwen2_5_vl{"max_pixels": 12544}').bind()

    def decoded(number: int) -> pa.RecordBatch:
        files = [jpeg(scene(60 + number, 90, seed=number + i)) for i in range(2)]
        images = pa.array([[{"bytes": f, "path": None} for f in files]], columns.IMAGES_TYPE)
        return bound(pa.RecordBatch.from_pydict({"images": images})).group  # type: ignore[union-attr]

    alone = [decoded(number).column(columns.PIXELS).to_pylist() for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(decoded, range(12)))
    assert [group.column(columns.PIXELS).to_pylist() for group in together] == alone

"""Tokens per record are measured on a sample that periods in the data don't mislead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon import Dataset
from zephon.engine.priming import measure, spread


@given(st.integers(0, 300), st.integers(1, 60), st.integers(0, 2**63))
def test_a_spread_takes_one_number_of_each_part_and_all_where_there_are_no_more(total: int, count: int, key: int) -> None:
    taken = spread(total, count, key)
    if count >= total:
        assert taken.tolist() == list(range(total))
        return
    borders = [i * total // count for i in range(count + 1)]
    assert all(a <= n < z for a, z, n in zip(borders, borders[1:], taken.tolist(), strict=False))
    assert len(taken) == count
    assert taken.tolist() == spread(total, count, key).tolist()


def lengths(rows: int) -> list[int]:
    """Every second record is a hundred times as long."""
    return [1000 if number % 2 else 10 for number in range(rows)]


@pytest.mark.parametrize("shards", [1, 25, 400])
@pytest.mark.parametrize("samples", [128, 512])
def test_every_second_record_a_long_one_is_measured_as_half(shards: int, samples: int) -> None:
    sizes = np.array_split(np.array(lengths(4000)), shards)
    dataset = Dataset.from_dict("a", {f"s{i:03}": [{"n": int(n)} for n in part] for i, part in enumerate(sizes)})
    found = measure([dataset], [], columns=None, samples=samples, count=lambda row: row["n"])
    assert found["a"] == pytest.approx(505, rel=0.25)


def test_a_sample_of_all_records_is_exact_however_many_units_they_are_in() -> None:
    parts = {f"s{i:03}": [{"n": i}] * (1 + i % 3) for i in range(40)}
    whole = [row["n"] for rows in parts.values() for row in rows]
    found = measure([Dataset.from_dict("a", parts)], [], columns=None, samples=3 * len(whole), count=lambda row: row["n"])
    assert found["a"] == pytest.approx(sum(whole) / len(whole))

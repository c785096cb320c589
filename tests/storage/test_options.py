"""Options come from what adapters have: mappings, sizes with units, None."""

from __future__ import annotations

import pickle

import pytest

from zephon.errors import RecipeError
from zephon.io import CacheOptions, StoreOptions
from zephon.storage.options import parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50gb", 50 * 10**9),
        ("50 GB", 50 * 10**9),
        ("1.5t", 1500 * 10**9),
        ("512MiB", 512 << 20),
        ("2gib", 2 << 30),
        ("100", 100),
        ("10_000 b", 10_000),
        ("7k", 7000),
        (123, 123),
        (1e9, 10**9),
    ],
)
def test_sizes_have_units(text: str | int | float, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "gb", "-1gb", "5 apples", "1ib", True, None, 1.5, [1]])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(RecipeError, match="50gb"):
        CacheOptions(limit_bytes=text)  # type: ignore[arg-type]


def test_nested_mappings_become_options() -> None:
    made = StoreOptions.from_any({"retries": 2, "cache": {"enabled": True, "root": "/x", "limit_bytes": "50gb"}})
    assert made == StoreOptions(retries=2, cache=CacheOptions(root="/x", limit_bytes=50 * 10**9))
    assert StoreOptions.from_any(made) is made
    assert StoreOptions.from_any(None) == StoreOptions()
    assert not StoreOptions().cache.enabled
    assert pickle.loads(pickle.dumps(made)) == made
    assert {made: 1}[made] == 1


def test_a_cache_is_off_by_none_and_on_when_it_is_described() -> None:
    assert CacheOptions.from_any(None).enabled is False
    assert CacheOptions.from_any(False).enabled is False
    assert CacheOptions.from_any(True) == CacheOptions()
    assert CacheOptions.from_any({"root": "/x"}).enabled is True


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"retry": 2}, "did you mean 'retries'"),
        ({"cache": {"limit": 1}}, "did you mean 'limit_bytes'"),
        ({"retries": -1}, "≥ 0"),
        ({"read_timeout_s": 0}, "read_timeout_s"),
        ({"part_bytes": 0}, "part_bytes"),
        ("50gb", "mapping"),
    ],
)
def test_unknown_names_and_senseless_numbers_are_refused(given: object, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        StoreOptions.from_any(given)  # type: ignore[arg-type]

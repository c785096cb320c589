"""Randomness as a function of keys: no state, no call order, no global generator."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def key(*parts: int | str) -> int:
    """Mix integers of any size and sign, and strings, into one 64-bit key.

    The parts are hashed with their types and borders, so `key(1, 23) != key(12, 3)`.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        text = f"{type(part).__name__[0]}{part}"
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest(), "little")


def mix(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014) of one 64-bit integer."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def mix_array(values: U64) -> U64:
    """`mix` of each element, vectorised; uint64[N] to uint64[N]."""
    # numpy says nothing of integers that overflow in arrays, only in scalars
    out = values + np.uint64(_GOLDEN)
    out ^= out >> np.uint64(30)
    out *= np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(27)
    out *= np.uint64(0x94D049BB133111EB)
    out ^= out >> np.uint64(31)
    return out


def hashes(seed_key: int, indices: npt.ArrayLike) -> U64:
    """One pseudo-random uint64 per index, uint64[N], a function of (key, index) only."""
    spread = np.asarray(indices).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(seed_key & _MASK)
    return mix_array(mix_array(spread))


def placed(base: int, start: int, stop: int, place: int) -> U64:
    """uint64[stop - start]: what rows [start, stop) of an input with the key `base` are, the first of them at `place`."""
    rows = np.arange(start, stop, dtype=np.uint64) + np.uint64(base)
    places = np.arange(place, place + stop - start, dtype=np.uint64)
    return mix_array(mix_array(rows) + places * np.uint64(_GOLDEN))


def permutation(seed_key: int, size: int) -> I64:
    """A permutation of range(size), int64[size]: the order of the indices' hashes, ties by index.

    It does not use numpy's generators, whose streams may change between numpy releases.
    """
    return np.argsort(hashes(seed_key, np.arange(size, dtype=np.uint64)), kind="stable").astype(np.int64, copy=False)


def uniform_below(seed_key: int, indices: npt.ArrayLike, limit: npt.ArrayLike) -> I64:
    """One integer in [0, limit) per index, int64; `limit` is one for all or one per index, below 2**31.

    The bias is below limit / 2**32.
    """
    high = hashes(seed_key, indices) >> np.uint64(32)
    return ((high * np.asarray(limit).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def generator(*parts: int | str) -> np.random.Generator:
    """A numpy generator for user code, seeded by `key(*parts)` alone."""
    return np.random.Generator(np.random.Philox(key=[key(*parts), key("second", *parts)]))


def row_generator_keys(seed: int, purpose: str, columns: Sequence[npt.ArrayLike]) -> U64:
    """One key per row from its provenance columns (equal lengths): uint64[N]."""
    out = np.full(len(np.asarray(columns[0])), key(seed, purpose), dtype=np.uint64)
    for column in columns:
        out = mix_array(out * np.uint64(_GOLDEN) + np.asarray(column).astype(np.uint64))
    return out

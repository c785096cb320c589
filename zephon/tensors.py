"""Arrays for a trainer: torch tensors, numpy arrays or plain lists. Whatever comes out is new, writable memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon.arrays import is_number, to_numpy
from zephon.errors import DataError, RecipeError

Array = Any
"""A `pyarrow.Array` of any type."""
Made = TypeVar("Made")

_FIXED_LIST = pa.list_(pa.null(), 1).id
_ANY_LIST = {pa.list_(pa.null()).id, pa.large_list(pa.null()).id, _FIXED_LIST}


@dataclass(frozen=True)
class Output:
    """What arrays are turned into."""

    kind: Literal["torch", "numpy", "list"]
    dtype: np.dtype[Any]
    """Of token ids, labels and positions."""

    @staticmethod
    def of(dtype: Any) -> Output:
        """From a torch dtype, a numpy dtype, None (lists) or "auto" (int64 of torch where it is installed, else of numpy).

        Raises:
            RecipeError: not a dtype, or not one of integers.
        """
        if dtype is None:
            return Output("list", np.dtype(np.int64))
        if isinstance(dtype, str) and dtype == "auto":
            return Output("torch" if _torch_is_installed() else "numpy", np.dtype(np.int64))
        is_torch = type(dtype).__module__ == "torch"
        try:
            found = np.dtype(str(dtype).removeprefix("torch.") if is_torch else dtype)
        except TypeError as error:
            raise RecipeError(f"dtype {dtype!r} is not known", hint='give a torch or numpy dtype, None or "auto"') from error
        if found.kind not in "iu":
            raise RecipeError(f"dtype {dtype!r} does not hold token ids", hint="give an integer dtype")
        return Output("torch" if is_torch else "numpy", found)

    def check_fits(self, tokens: npt.NDArray[Any], ignore_index: int) -> None:
        """Raise where the dtype is too narrow, instead of wrapping round.

        Raises:
            DataError: the tokens are no integers.
            RecipeError: a token or `ignore_index` is out of range.
        """
        if tokens.dtype.kind not in "iu":
            raise DataError(f"token ids must be integers, got {tokens.dtype}")
        limits = np.iinfo(self.dtype)
        seen = [ignore_index]
        if tokens.size and not np.can_cast(tokens.dtype, self.dtype):
            seen += [int(tokens.min()), int(tokens.max())]
        for value in seen:
            if not limits.min <= value <= limits.max:
                raise RecipeError(f"{value} does not fit in {self.dtype}", hint="give a wider dtype=")

    def integers(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A new array of the wanted integer type, contiguous."""
        return array.astype(self.dtype, order="C", copy=True)

    @cached_property
    def finish(self) -> Callable[[npt.NDArray[Any]], Any]:
        """Makes of an array, which must be new and contiguous, a tensor or list; its dtype stays."""
        if self.kind == "numpy":
            return np.asarray
        return np.ndarray.tolist if self.kind == "list" else _torch().from_numpy

    def column(self, array: Array) -> Any:
        """A column of the user's: numbers as [B], lists of one length as [B, n] and so on inward, with the dtype as stored;
        lists of numbers of several lengths as a list of arrays; everything else, or with nulls, as a Python list."""
        if self.kind == "list":
            return array.to_pylist()
        if isinstance(array, pa.FixedShapeTensorArray) and not array.null_count:
            return self.finish(np.array(array.to_numpy_ndarray(), order="C"))
        if isinstance(array, pa.ExtensionArray):
            return self.column(array.storage)
        regular = _regular(array)
        if regular is not None:
            return self.finish(regular)
        if array.type.id in _ANY_LIST and not array.null_count:
            inner = _regular(array.flatten())
            if inner is not None and inner.ndim == 1:
                ends = np.cumsum(np.asarray(array.value_lengths()))
                return [self.finish(part.copy()) for part in np.split(inner, ends[:-1])] if len(ends) else []
        return array.to_pylist()


def _regular(array: Array) -> npt.NDArray[Any] | None:
    """A copy as [B, n, ..]; None where lengths differ, something is null or isn't a number."""
    shape = [len(array)]
    while array.type.id in _ANY_LIST:
        if array.null_count:
            return None
        if array.type.id == _FIXED_LIST:
            shape.append(array.type.list_size)
        else:
            lengths = np.asarray(array.value_lengths())
            if len(lengths) and lengths.min() != lengths.max():
                return None
            shape.append(int(lengths.max(initial=0)))
        array = array.flatten()
    if array.null_count or not is_number(array.type):
        return None
    return np.array(to_numpy(array), order="C").reshape(shape)


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    """`make`, whose value is kept from the first call on. `functools.cache` does that too, in 20 calls for each function that it wraps."""
    made: list[Made] = []

    def ask() -> Made:
        if not made:
            made.append(make())
        return made[0]

    return ask


@cache
def _torch_is_installed() -> bool:
    return importlib.util.find_spec("torch") is not None


@cache
def _torch() -> Any:
    import torch  # noqa: PLC0415 - optional, and seconds of import that only `to_training` may cost

    return torch

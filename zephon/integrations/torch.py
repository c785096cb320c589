"""PyTorch: a pipeline as an `IterableDataset`, the end of a finite run agreed over a process group, ranks from torchrun.

Nothing here initialises `torch.distributed`; that is the trainer's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Protocol, TypedDict

import cloudpickle
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from zephon.batch import Batch
from zephon.errors import CheckpointError, RecipeError, RunnerError

_NEVER, _RUNNING, _RAN = 0, 1, 2


class BatchSource(Protocol):
    """What is needed of a pipeline."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the current position on; a generator."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> Any:
        """Go to a position."""
        ...


class BatchDataset(IterableDataset[Any]):
    """The batches of a pipeline for `DataLoader(dataset, batch_size=None, num_workers=0)`.

    The pipeline reads ahead with workers of its own, so a loader needs none. One loader worker works too (the whole
    pipeline then runs in it); with more, each would deliver the same batches, so that is refused.
    """

    def __init__(self, pipeline: BatchSource, *, transform: Callable[[Batch], Any] | None = None) -> None:
        """Wrap a pipeline; `transform`, such as `Batch.to_training`, is applied to each batch where the pipeline runs."""
        self.pipeline = pipeline
        self.transform = transform
        # One byte that this process shares with a loader's worker. DataLoader tells the dataset object here nothing about
        # the copy that a worker iterates, and without it `state_dict` would give the start as the position.
        self._worker: torch.Tensor = torch.zeros(1, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        """The batches, transformed; closing this closes the pipeline's iterator.

        Raises:
            RunnerError: the loader has more than one worker.
        """
        info = get_worker_info()
        if info is None:
            self._worker.fill_(_NEVER)
            yield from self._batches()
            return
        if info.num_workers > 1:
            raise RunnerError(
                f"a DataLoader with {info.num_workers} workers would deliver every batch {info.num_workers} times",
                hint="use num_workers=0 (or 1); the pipeline has its own workers: `pipeline.options(workers=…)`",
            )
        self._worker.fill_(_RUNNING)
        try:
            yield from self._batches()
        finally:
            self._worker.fill_(_RAN)

    def __getstate__(self) -> dict[str, Any]:
        # cloudpickle, so that a pipeline with lambdas reaches a worker that was not forked
        return {"work": cloudpickle.dumps((self.pipeline, self.transform)), "worker": self._worker}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pipeline, self.transform = cloudpickle.loads(state["work"])
        self._worker = state["worker"]

    def _batches(self) -> Iterator[Any]:
        batches: Any = iter(self.pipeline)
        with closing(batches):
            for batch in batches:
                yield batch if self.transform is None else self.transform(batch)


class ZephonIterableDataset(BatchDataset):
    """The same with `state_dict()` and `load_state_dict()`, which are the pipeline's.

    With a loader worker, use a loader that asks its worker for the state (torchdata's `StatefulDataLoader`): the plain
    `DataLoader` cannot say what the worker delivered, so there both raise instead of giving a wrong position.
    """

    def state_dict(self) -> dict[str, Any]:
        """The pipeline's state.

        Raises:
            CheckpointError: a loader's worker has moved, and this is not that worker.
        """
        if get_worker_info() is None and int(self._worker) != _NEVER:
            raise CheckpointError(
                "the batches were delivered by a DataLoader worker, so the position is not known here",
                hint="use num_workers=0, or torchdata's StatefulDataLoader and its state_dict()",
            )
        return self.pipeline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position, before iterating.

        Raises:
            CheckpointError: a loader's worker is iterating and would not notice; or the pipeline refuses the state.
        """
        if get_worker_info() is None:
            if int(self._worker) == _RUNNING:
                raise CheckpointError(
                    "a DataLoader worker is iterating and would not notice the new position",
                    hint="load the state before iterating, into a new DataLoader",
                )
            self._worker.fill_(_NEVER)
        self.pipeline.load_state_dict(state)


def make_torch_dataset(
    pipeline: BatchSource, stateful: bool = True, *, transform: Callable[[Batch], Any] | None = None
) -> BatchDataset:
    """The pipeline as an `IterableDataset`; without `stateful` it has no `state_dict`, and loaders don't ask for one."""
    return (ZephonIterableDataset if stateful else BatchDataset)(pipeline, transform=transform)


def collate(batch: Any) -> Any:
    """A `collate_fn` that passes batches through, for loaders that insist on a batch size; where it isn't 1, a `RecipeError`."""
    if not isinstance(batch, list):
        return batch
    if len(batch) != 1:
        raise RecipeError(f"a DataLoader with batch_size={len(batch)} would batch batches", hint="give it batch_size=None")
    return batch[0]


def agree_over(group: dist.ProcessGroup | None = None) -> Callable[[bool], bool]:
    """The `agree` option for a finite run: `agree(done)` is True on all ranks once `done` is True on all of them.

    Every rank of `group` (default: all) must call it equally often; it is one all-reduce of one number, on the device that the
    group's backend works on. A process that isn't part of a distributed run agrees with itself.

    Raises (when called):
        RunnerError: the environment says that there are several ranks, but `torch.distributed` isn't initialised.
    """

    def agree(done: bool) -> bool:
        if not (dist.is_available() and dist.is_initialized()):
            if _env_int(os.environ, "WORLD_SIZE", 1) > 1:
                raise RunnerError(
                    "the ranks cannot agree on the end: torch.distributed is not initialised",
                    hint="call torch.distributed.init_process_group() before iterating, or give max_steps",
                )
            return done
        flag = torch.tensor([int(done)], dtype=torch.int32, device=_device_of(group))
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=group)
        return bool(flag.item())

    return agree


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """A device that the group can reduce on: the CPU where one of its backends can, else the current one of its kind."""
    kinds = [part.split(":")[0] for part in dist.get_backend_config(group).split(",")]  # "cpu:gloo,cuda:nccl"
    return torch.device("cpu" if "cpu" in kinds else kinds[0])


class DpOptions(TypedDict):
    """Where this process is among the data-parallel ranks."""

    dp_rank: int
    dp_size: int


def dp_options_from_env(environ: Mapping[str, str] | None = None) -> DpOptions:
    """`pipeline.options(**dp_options_from_env())`, for runs where every rank is a data-parallel rank.

    From `torch.distributed` where it is initialised, else from torchrun's `RANK` and `WORLD_SIZE`, else one rank.

    Raises:
        RecipeError: the variables are no numbers, or don't go together.
    """
    if environ is None and dist.is_available() and dist.is_initialized():
        return {"dp_rank": dist.get_rank(), "dp_size": dist.get_world_size()}
    environ = os.environ if environ is None else environ
    rank, size = _env_int(environ, "RANK", 0), _env_int(environ, "WORLD_SIZE", 1)
    if not 0 <= rank < size or ("RANK" in environ) != ("WORLD_SIZE" in environ):
        raise RecipeError(
            f"RANK={environ.get('RANK')} and WORLD_SIZE={environ.get('WORLD_SIZE')} don't go together",
            hint="start with torchrun, or give dp_rank= and dp_size= yourself",
        )
    return {"dp_rank": rank, "dp_size": size}


def _env_int(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, default))
    except ValueError as error:
        raise RecipeError(f"the environment variable {name} is {environ.get(name)!r}, not a number") from error

"""PyTorch's loaders around a pipeline, and ranks that agree over gloo."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.batch import Batch
from zephon.errors import CheckpointError, RecipeError, RunnerError
from zephon.integrations.torch import ZephonIterableDataset, agree_over, collate, dp_options_from_env, make_torch_dataset


class Counting:
    """The smallest thing that is a pipeline to this module: `size` batches, numbered by step."""

    def __init__(self, size: int = 6) -> None:
        self.size = size
        self.at = 0
        self.closed = 0

    def __iter__(self) -> Iterator[Batch]:
        try:
            while self.at < self.size:
                self.at += 1
                group = pa.RecordBatch.from_pydict({"input_ids": [[self.at, self.at + 1, self.at + 2]]})
                yield Batch(group, lane=0, step=self.at - 1, index=0)
        finally:
            self.closed += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.at = state["at"]


def loader_of(dataset: Any, workers: int, **keywords: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context="forkserver" if workers else None, **keywords
    )


def steps(batches: Any) -> list[int]:
    return [batch.step for batch in batches]


def test_a_loader_delivers_each_batch_once_in_order() -> None:
    assert steps(loader_of(make_torch_dataset(Counting()), 0)) == [0, 1, 2, 3, 4, 5]


def test_several_loader_workers_are_refused_with_the_way_out() -> None:
    with pytest.raises(RunnerError, match=r"every batch 2 times(.|\n)*num_workers=0"):
        list(loader_of(make_torch_dataset(Counting()), 2))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_restored_dataset_goes_on_where_the_state_was_taken(workers: int) -> None:
    dataset = ZephonIterableDataset(Counting())
    batches = iter(loader_of(dataset, 0))
    assert steps(next(batches) for _ in range(4)) == [0, 1, 2, 3]
    restored = ZephonIterableDataset(Counting())
    restored.load_state_dict(dataset.state_dict())
    assert steps(loader_of(restored, workers)) == [4, 5]


def test_a_state_that_only_the_loader_worker_knows_is_refused_and_not_wrong() -> None:
    """Case 1: never accept a state and ignore it, never give the start as the position."""
    dataset = ZephonIterableDataset(Counting(size=1000))
    assert dataset.state_dict() == {"at": 0}
    batches = iter(loader_of(dataset, 1))
    next(batches)
    with pytest.raises(CheckpointError, match="num_workers=0"):
        dataset.state_dict()
    with pytest.raises(CheckpointError, match="before iterating"):
        dataset.load_state_dict({"at": 3})
    del batches


def test_after_the_loader_worker_has_finished_a_state_can_be_loaded_again() -> None:
    dataset = ZephonIterableDataset(Counting())
    assert steps(loader_of(dataset, 1)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(CheckpointError, match="not known here"):
        dataset.state_dict()
    dataset.load_state_dict({"at": 4})
    assert dataset.state_dict() == {"at": 4}
    assert steps(loader_of(dataset, 1)) == [4, 5]


def packed_pipeline() -> Pipeline:
    datasets = []
    for seed, name in enumerate(("wiki", "news")):
        random = np.random.default_rng(seed)
        rows = [{"input_ids": random.integers(1, 100, int(random.integers(1, 30))).tolist()} for _ in range(60)]
        datasets.append(Dataset.from_records(name, rows))
    source = StaticMixtureWorkSource(datasets=datasets, mixture={"wiki": 0.5, "news": 0.5}, seed=1, stop_after_passes=1)
    return Pipeline(source).pack_flat(max_length=33, pad_token_id=0).shuffle(buffer_size=8, seed=1).batch(2)


def test_a_real_pipeline_gives_the_same_batches_through_a_loader_also_after_a_restore() -> None:
    want = [batch.sha256() for batch in packed_pipeline()]
    dataset = packed_pipeline().to_torch_dataset(stateful=True)
    batches = iter(loader_of(dataset, 0))
    first = [next(batches).sha256() for _ in range(5)]
    restored = packed_pipeline().to_torch_dataset(stateful=True)
    restored.load_state_dict(dataset.state_dict())
    del batches
    assert first + [batch.sha256() for batch in loader_of(restored, 0)] == want
    assert len(want) > 10


def test_real_packed_batches_balance_and_train_on_every_token_but_the_first_of_a_segment() -> None:
    for batch in packed_pipeline():
        got = batch.to_training(dtype=np.int64)
        assert batch.num_tokens + batch.padding == batch.group.num_rows * 33
        assert sum(batch.component_token_counts().values()) == batch.num_tokens
        pieces = sum(len(row) for row in batch.group.column("document_lengths").to_pylist())
        assert got["num_label_tokens"] == batch.num_tokens - pieces
        assert got["positions"].shape == (len(batch), 32)


def test_closing_the_iterator_closes_the_pipelines() -> None:
    pipeline = Counting()
    batches = iter(make_torch_dataset(pipeline))
    next(batches)
    assert pipeline.closed == 0
    with contextlib.closing(batches):
        pass
    assert pipeline.closed == 1


def test_without_stateful_there_is_no_state_to_ask_for() -> None:
    assert not hasattr(make_torch_dataset(Counting(), stateful=False), "state_dict")
    assert hasattr(make_torch_dataset(Counting(), stateful=True), "load_state_dict")


def test_a_transform_runs_where_the_pipeline_runs_and_may_be_a_lambda() -> None:
    dataset = make_torch_dataset(Counting(size=2), transform=lambda batch: batch.to_training()["labels"])
    assert [labels.tolist() for labels in loader_of(dataset, 1)] == [[[2, 3]], [[3, 4]]]


def test_a_batch_of_batches_is_refused_and_a_batch_of_one_is_passed_through() -> None:
    one = DataLoader(make_torch_dataset(Counting(size=2)), batch_size=1, collate_fn=collate)
    assert steps(one) == [0, 1]
    assert steps(loader_of(make_torch_dataset(Counting(size=2)), 0, collate_fn=collate)) == [0, 1]
    with pytest.raises(RecipeError, match="batch_size=None"):
        list(DataLoader(make_torch_dataset(Counting(size=2)), batch_size=2, collate_fn=collate))


def test_ranks_come_from_torchrun_or_are_one() -> None:
    assert dp_options_from_env({}) == {"dp_rank": 0, "dp_size": 1}
    assert dp_options_from_env({"RANK": "3", "WORLD_SIZE": "8"}) == {"dp_rank": 3, "dp_size": 8}


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2"},
        {"RANK": "0"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
    ],
)
def test_a_broken_environment_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RecipeError):
        dp_options_from_env(environ)


def test_a_single_process_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    agree = agree_over()
    assert (agree(False), agree(True)) == (False, True)


def test_several_ranks_without_a_process_group_are_an_error_and_no_group_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 25."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    agree = agree_over()
    assert dp_options_from_env() == {"dp_rank": 1, "dp_size": 2}
    with pytest.raises(RunnerError, match="init_process_group"):
        agree(True)
    assert not dist.is_initialized()


def agree_in_groups(rank: int, ports: list[int], results: Any) -> None:
    # None is torch's default; "undefined" is then the name of the group's backend
    for backend, port in zip(["gloo", None], ports, strict=True):
        dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        agree = agree_over()
        turns = [agree(done) for done in ([False, True, True, True] if rank else [False, False, True, True])]
        results.put((backend or "", rank, turns, dict(dp_options_from_env())))
        dist.destroy_process_group()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def test_ranks_are_done_when_all_are() -> None:
    context = multiprocessing.get_context("spawn")
    results, ports = context.Queue(), free_ports(2)
    ranks = [context.Process(target=agree_in_groups, args=(rank, ports, results)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    got = sorted(results.get(timeout=90) for _ in range(4))
    for rank in ranks:
        rank.join(timeout=90)
    turns = [False, False, True, True]
    assert got == [(backend, rank, turns, {"dp_rank": rank, "dp_size": 2}) for backend in ("", "gloo") for rank in range(2)]
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_only_this_module_imports_torch() -> None:
    code = "import sys, zephon.batch, zephon.integrations; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_tensors_of_a_batch_can_be_pinned_and_moved_as_a_loader_does() -> None:
    got = next(iter(loader_of(make_torch_dataset(Counting(size=1), transform=Batch.to_training), 0)))
    assert all(isinstance(value, (torch.Tensor, int)) for value in got.values())
    assert np.asarray(got["input_ids"]).tolist() == [[1, 2]]

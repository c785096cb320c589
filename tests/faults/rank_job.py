"""One rank of a small training job, run as a process: `python rank_job.py FOLDER RANK WORLD PORT LANES STOP`.

It takes its batches, hashes them into `hashes-RANK-WORLD.jsonl` line by line, and every second step saves the merged state of all ranks.
From step STOP on it stands still, to be killed; -1: it goes on to the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from zephon import Dataset, Pipeline, StaticMixtureWorkSource, merge_states
from zephon.torch import agree_over


def main() -> None:
    folder, rank, world, port, lanes, stop = Path(sys.argv[1]), *map(int, sys.argv[2:7])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    datasets = [Dataset.from_path(name, folder / f"{name}.parquet") for name in ("a", "b")]
    source = StaticMixtureWorkSource(datasets, {"a": 0.7, "b": 0.3}, seed=7, chunk_size=16, stop_after_passes=1)
    pipeline = (
        Pipeline(source)
        .pack_flat(max_length=32, algorithm="best_fit", num_bins=4, pad_token_id=0)
        .shuffle(buffer_size=8)
        .batch(2)
    )
    pipeline.options(lanes=lanes, dp_rank=rank, dp_size=world, flush_every_chunks=2, workers=2, agree=agree_over())
    saved = folder / "state.json"
    if saved.exists():
        pipeline.restore(json.loads(saved.read_text()))
    with open(folder / f"hashes-{rank}-{world}.jsonl", "a") as out:
        per_rank = lanes // world
        for number, batch in enumerate(pipeline, 1):
            out.write(json.dumps([batch.step, batch.lane, batch.sha256()]) + "\n")
            out.flush()
            if number % per_rank:
                continue
            if (batch.step + 1) % 2 == 0:
                states: list[object] = [None] * world
                dist.all_gather_object(states, pipeline.state_dict())
                if rank == 0:
                    part = saved.with_suffix(".part")
                    part.write_text(json.dumps(merge_states(states)))  # type: ignore[arg-type]
                    part.replace(saved)
            if 0 <= stop <= batch.step:
                import time

                time.sleep(60)  # the test kills us here
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"done-{rank}-{world}").touch()


if __name__ == "__main__":
    main()

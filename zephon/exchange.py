"""States of all ranks through a shared folder, for trainers that save one object for the whole run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon.atomic import write_whole
from zephon.errors import CheckpointError, writing
from zephon.options import Options


def exchange_states(state: Mapping[str, Any], options: Options, *, position: int) -> list[dict[str, Any]]:
    """Write this rank's state, wait for those of the others, and return all. Every rank must call it at the same position.

    Args:
        state: this rank's.
        options: where, for how long, and which ranks there are.
        position: sequences that this rank delivered in all, empty ones included: the same number on all ranks.

    Raises:
        CheckpointError: the folder can't be written, or a rank's file did not appear within `aggregate_timeout_s` seconds.
    """
    assert options.aggregate_dir is not None
    with writing(f"aggregate_dir={os.fspath(options.aggregate_dir)!r}", CheckpointError):
        return _exchange(state, options, Path(options.aggregate_dir), position)


def _exchange(state: Mapping[str, Any], options: Options, folder: Path, position: int) -> list[dict[str, Any]]:
    folder = folder / (options.run_id or "run")
    # named by recipe and position and not by a count of calls, which begins again with every process: what an earlier job left
    # behind under the same name is the same state
    place = f"{state['fingerprint'][:16]}-{position}"
    mine = folder / f"state-{place}-rank-{options.rank:05d}-of-{options.ranks:05d}.json"
    write_whole(mine, [json.dumps(state).encode()], sync=True)  # nobody reads half a file
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + options.aggregate_timeout_s
    for rank in range(options.ranks):
        path = folder / f"state-{place}-rank-{rank:05d}-of-{options.ranks:05d}.json"
        while not path.exists():
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"rank {rank} of {options.ranks} did not write {path} within {options.aggregate_timeout_s:.0f} s",
                    hint="all ranks must call checkpoint() together, and see the same aggregate_dir",
                )
            time.sleep(0.02)
        found.append(_read(path))
    return found


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"aggregate_dir: the state {str(path)!r} can't be read: {error}", hint="remove it, and let all ranks save again"
        ) from error

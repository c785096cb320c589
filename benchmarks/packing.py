"""Pre-tokenised packing: lists of tokens in memory into shuffled sequences of 2,048, against `numpy.concatenate` over the same arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.data import documents_of_tokens
from benchmarks.harness import Result, Setting, alternate, rates, script
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.options import RunnerName

_AT_ONCE = 4000
"""Documents per call of numpy.concatenate: about 2 million tokens."""


def measure(setting: Setting) -> list[Result]:
    """Tokens per second, from the first record planned to the last batch delivered."""
    documents = documents_of_tokens(10_000 if setting.quick else 200_000)
    source = StaticMixtureWorkSource([Dataset.from_records("documents", documents)], seed=1, stop_after_passes=1)
    column: Any = documents["input_ids"].combine_chunks()
    values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    arrays = np.split(values, offsets[1:-1])
    shuffled = [arrays[i] for i in np.random.default_rng(1).permutation(len(arrays))]

    def bare() -> float:
        return float(sum(len(np.concatenate(shuffled[i : i + _AT_ONCE])) for i in range(0, len(shuffled), _AT_ONCE)))

    def ours(runner: RunnerName) -> float:
        made = (
            Pipeline(source)
            .pack_flat(max_length=2048, algorithm="wrap", pad_token_id=0)
            .shuffle(buffer_size=1024)
            .batch(8)
            .options(lanes=8, runner=runner, workers=2)
        )
        for _ in made:
            pass
        assert made.accounting()["tokens"]["out"] == len(values)
        return float(len(values))

    b, threads, inline = alternate(bare, lambda: ours("threads"), lambda: ours("inline"), repeats=setting.repeats)
    return [
        rates("packing token lists, threads", b, threads, unit="tokens/s", at_least=0.3),
        rates("packing token lists, inline (one core, as the bare one)", b, inline, unit="tokens/s"),
    ]


if __name__ == "__main__":
    script(measure)

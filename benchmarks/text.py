"""Text: Parquet to tokenised, packed, shuffled batches, against the bare tokenizer on the same documents in memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer

from benchmarks.data import text
from benchmarks.harness import CORES, Result, Setting, alternate, rates, script, timed
from zephon import Dataset, Pipeline, StaticMixtureWorkSource

_AT_ONCE = 256
"""Documents per call of the bare tokenizer."""


def measure(setting: Setting) -> list[Result]:
    """Tokens per second over one whole pass, start-up included; the bare tokenizer in the quicker of its two ways to use two cores."""
    made = text(setting.folder, 2 if setting.quick else 24)
    documents = made.documents
    pieces = [documents[i : i + _AT_ONCE] for i in range(0, len(documents), _AT_ONCE)]
    tokenizer = Tokenizer.from_file(str(made.tokenizer))
    tokenizer.encode_special_tokens = True  # special strings in the text are text, as in ours

    def encode(piece: list[str]) -> int:
        return sum(map(len, tokenizer.encode_batch_fast(piece, add_special_tokens=False)))

    def own_threads() -> float:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        return float(sum(map(encode, pieces)))

    def thread_pool() -> float:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        with ThreadPoolExecutor(CORES) as pool:
            return float(sum(pool.map(encode, pieces)))

    def ours() -> float:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        source = StaticMixtureWorkSource([Dataset.from_path("text", made.parquet)], seed=1, stop_after_passes=1)
        pipeline = (
            Pipeline(source)
            .tokenize(tokenizer=tokenizer, field="text")
            .pack_flat(max_length=2048, algorithm="wrap", pad_token_id=0)
            .shuffle(buffer_size=1024)
            .batch(8)
            .options(lanes=8, runner="threads", workers=CORES)
        )
        for _ in pipeline:
            pass
        # each document got an end-of-text token, which the bare tokenizer did not make
        return float(pipeline.accounting()["tokens"]["out"] - len(documents))

    bare, way = min(((own_threads, "its own threads"), (thread_pool, "a thread pool")), key=lambda side: timed(side[0]).wall)
    theirs, mine = alternate(bare, ours, repeats=setting.repeats)
    assert theirs[0].work == mine[0].work, "not the same work"
    note = f"bare: `encode_batch_fast` with {way}, the quicker way"
    return [rates("text pipeline, threads", theirs, mine, unit="tokens/s", at_least=0.9, note=note)]


if __name__ == "__main__":
    script(measure)

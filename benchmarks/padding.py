"""Padding: what share of the tokens flushes add at the defaults, with ordinary text. (That every token comes out is checked by `text`.)"""

from __future__ import annotations

from tokenizers import Tokenizer

from benchmarks.data import documents_of_tokens, text
from benchmarks.harness import CORES, Result, Setting, script, value
from zephon import Dataset, Pipeline

_LOOK = 64
"""Sequences between two looks at which window the lane is in."""


def measure(setting: Setting) -> list[Result]:
    """One lane, over whole windows. A window pads one sequence, half of it on average: the more windows, the less chance."""
    made = text(setting.folder, 2 if setting.quick else 24)
    tokenizer = Tokenizer.from_file(str(made.tokenizer))
    written = Pipeline(Dataset.from_path("text", made.parquet)).tokenize(tokenizer=tokenizer)
    listed = Pipeline(Dataset.from_records("lists", documents_of_tokens(20_000)))
    return [_padding("text", written, 1 if setting.quick else 3), _padding("token lists", listed, 2 if setting.quick else 20)]


def _padding(what: str, pipeline: Pipeline, windows: int) -> Result:
    pipeline.pack_flat(max_length=2048, algorithm="wrap", pad_token_id=0).shuffle(buffer_size=1024).batch(_LOOK).options(
        workers=CORES
    )
    for _ in pipeline:
        if pipeline.checkpoint()["lanes"]["0"][0] >= windows:
            break
    made = pipeline.stats()
    share = made["padding_tokens"] / (made["padding_tokens"] + made["tokens"])
    note = f"{windows} windows, {made['tokens']:,} tokens; at worst {windows * 2047 / made['tokens']:.3%}"
    return value(f"padding at flushes, {what}", 100 * share, "% of tokens", at_most=0.03, note=note)


if __name__ == "__main__":
    script(measure)

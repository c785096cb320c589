"""Time to the first batch: a fresh process from its start, and `import zephon` alone."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.data import text
from benchmarks.harness import Result, Setting, script, value

_IMPORT = "import time; t = time.perf_counter(); import zephon; print(time.perf_counter() - t)"
_READ = "import pyarrow.parquet as pq; print(pq.ParquetFile({path!r}).read_row_group(0, columns=['text']).num_rows)"
_FIRST = """
from zephon import Dataset, Pipeline
pipeline = Pipeline(Dataset.from_path("text", {path!r})).batch(8)
print(len(next(iter(pipeline))))
"""
_TOKENS = """
from zephon import Dataset, Pipeline
pipeline = Pipeline(Dataset.from_path("text", {path!r})).tokenize(tokenizer_id={tokenizer!r}).pack_flat(max_length=2048, pad_token_id=0).batch(8)
print(len(next(iter(pipeline.options(flush_every_chunks=1)))))
"""


def measure(setting: Setting) -> list[Result]:
    """Seconds from the start of the interpreter to the first line that it prints; the bare twin reads one row group with pyarrow."""
    made = text(setting.folder, 2)
    _seconds(_FIRST.format(path=str(made.jsonl)))  # this writes the index of the JSONL file
    programs = {
        "bare": _READ.format(path=str(made.parquet)),
        "records from Parquet": _FIRST.format(path=str(made.parquet)),
        "records from JSONL with its index": _FIRST.format(path=str(made.jsonl)),
        "tokenised and packed, from Parquet": _TOKENS.format(path=str(made.parquet), tokenizer=str(made.tokenizer)),
    }
    repeats = 1 if setting.quick else max(5, setting.repeats)
    imports = [float(_run(_IMPORT)) for _ in range(repeats)]
    rounds = [{name: _seconds(program) for name, program in programs.items()} for _ in range(repeats)]
    bare = statistics.median(r["bare"] for r in rounds)
    results = [value("import zephon", statistics.median(imports), "s", at_most=0.3)]
    for name in list(programs)[1:]:
        ratios = [r[name] / r["bare"] for r in rounds]
        results.append(
            Result(
                what=f"first batch, {name}",
                ours=statistics.median(r[name] for r in rounds),
                bare=bare,
                unit="s",
                ratio=statistics.median(ratios),
                low=min(ratios),
                high=max(ratios),
                note="bare: pyarrow imported, the first row group read",
            )
        )
    return results


def _seconds(program: str) -> float:
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline()
    seconds = time.perf_counter() - began
    child.stdout.close()
    if child.wait() or not line:
        raise RuntimeError(f"the program ended with {child.returncode}: {program}")
    return seconds


def _run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    script(measure)

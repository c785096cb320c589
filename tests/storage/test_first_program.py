"""The first program that a user writes, as it stands: data sets and tokenizer of the hub (a local one), and the same with local paths."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operators.tokenizer_kinds import tokenizer
from storage.hub import HubHandler, put
from storage.servers import handler_server

PROGRAM = """
from zephon import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation

source = StaticMixtureWorkSource(
    datasets=[
        Dataset.from_path("wiki", "hf://Salesforce/wikitext/wikitext-2-raw-v1/train"),
        Dataset.from_path("news", "hf://fancyzhx/ag_news/default/train"),
    ],
    mixture={"wiki": 0.5, "news": 0.5},
    token_estimation=TokenEstimation(),
    seed=42,
)
pipeline = (
    Pipeline(source)
    .tokenize(tokenizer_id="gpt2", field="text", parallelism=4)
    .pack_flat(max_length=2048, algorithm="wrap")
    .shuffle(buffer_size=1024, seed=42)
    .batch(microbatch_size=8)
)
for batch in pipeline:
    inputs = batch.to_training()          # torch tensors if torch is there, else numpy
"""
FIRST_BATCHES = """
    shares = batch.component_token_counts()
    print(tuple(inputs["input_ids"].shape), sorted(shares), batch.sha256())
    if batch.step == 2:
        break
"""
CONFIGS = {
    "configs": [
        {"config_name": name, "data_files": [{"split": split, "path": f"{name}/{split}-*"} for split in ("test", "train")]}
        for name in ("wikitext-103-v1", "wikitext-2-raw-v1")
    ]
}


def parquet(texts: list[str], **columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": texts, **columns}), sink, row_group_size=100)
    return sink.getvalue()


@pytest.fixture
def files() -> dict[str, bytes]:
    """By the places that they have on the hub; only two of them are what the program asks for."""
    wiki = [f" = Heading {i} = \n" if i % 7 == 0 else f"Sentence {i} of an article. " * (i % 30) for i in range(1500)]
    news = [f"Headline {i}: something happened in {1900 + i}." for i in range(4000)]
    other = parquet(["not this"] * 3)
    return {
        "Salesforce/wikitext:wikitext-2-raw-v1/train-00000-of-00001.parquet": parquet(wiki),
        "Salesforce/wikitext:wikitext-2-raw-v1/test-00000-of-00001.parquet": other,
        "Salesforce/wikitext:wikitext-103-v1/train-00000-of-00001.parquet": other,
        "fancyzhx/ag_news:data/train-00000-of-00001.parquet": parquet(news, label=[i % 4 for i in range(4000)]),
        "fancyzhx/ag_news:data/test-00000-of-00001.parquet": other,
    }


def run(program: str, folder: Path, **environment: str) -> str:
    made = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + FIRST_BATCHES], env={**os.environ, "HF_HOME": str(folder / "home"), **environment},
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert not made.stderr
    return made.stdout


def test_the_first_program_runs_as_it_stands_on_the_hub_and_on_local_paths(tmp_path: Path, files: dict[str, bytes]) -> None:
    for place, data in files.items():
        repo, name = place.split(":")
        put(tmp_path / "repos", repo, {name: data})
    put(tmp_path / "repos" / "models", "gpt2", {"tokenizer.json": tokenizer("gpt2").to_str().encode()})
    handler: Any = type(
        "Handler", (HubHandler,), {"folder": tmp_path / "repos", "cards": {"Salesforce/wikitext": CONFIGS}, "log": []}
    )
    with handler_server(handler) as port:
        from_hub = run(PROGRAM, tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{port}")
    lines = from_hub.splitlines()
    assert len(set(lines)) == 3
    assert all(line.startswith("(8, 2047) ['news', 'wiki'] ") for line in lines)

    repos = tmp_path / "repos"
    local = PROGRAM.replace(
        "hf://Salesforce/wikitext/wikitext-2-raw-v1/train", f"{repos}/Salesforce/wikitext/main/wikitext-2-raw-v1/train-*"
    )
    local = local.replace("hf://fancyzhx/ag_news/default/train", f"{repos}/fancyzhx/ag_news/main/data/train-*")
    local = local.replace('"gpt2"', f'"{repos}/models/gpt2/main"')
    assert run(local, tmp_path, HF_HUB_OFFLINE="1") == from_hub

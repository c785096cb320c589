"""`zephon demo --quick`: the promise that it shows, and that it notices when the promise is broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from zephon.cli import demo, main


def test_the_demo_ends_with_all_hashes_in_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--size", "0.5", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "all hashes agree" in out.splitlines()[-1]
    for words in ("mixture by tokens", "packing efficiency", "tokens/s", "peak memory", "4 → 8 → 2"):
        assert words in out
    assert {"code.parquet", "docs.jsonl", "tokenizer.json"} <= {path.name for path in tmp_path.iterdir()}


def test_the_demo_says_so_and_fails_when_a_hash_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = demo.make_pipeline

    def skewed(source, tokenizer, size, *, rank, world):
        made = real(source, tokenizer, size, rank=rank, world=world)
        return made.map_batch(lambda batch: _last_first(batch)) if world == 2 else made

    monkeypatch.setattr(demo, "make_pipeline", skewed)
    monkeypatch.setattr(demo, "WORLDS", (1, 2))
    monkeypatch.setattr(demo, "RESUMES", (1,))
    monkeypatch.setattr(demo, "QUICK", replace(demo.QUICK, steps=2, vocabulary=512))
    assert main(["demo", "--quick", "--size", "0.2", "--dir", str(tmp_path)]) == 1
    assert "HASHES DIFFER" in capsys.readouterr().out


def _last_first(batch):
    batch.group = batch.group.take(list(range(len(batch)))[::-1])
    return batch

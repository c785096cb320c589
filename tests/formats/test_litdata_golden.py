"""Sets that an older litdata wrote (0.2.30, before Arrow chunks; see golden/write_litdata.py) are read as it read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from formats.reading import read_rows

from zephon.storage import LocalStore, expand
from zephon_formats.litdata import LitData

GOLDEN = Path(__file__).parent / "golden" / "litdata_0_2_30"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def rows(name: str, reader: LitData, tmp_path: Path) -> list[dict[str, Any]]:
    store = LocalStore(str(tmp_path))
    shards = reader.shards(store, expand(store, str(GOLDEN / name)))
    return [row for shard in shards for row in read_rows(reader.open(store, shard))]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the golden file has it: bytes in hexadecimal, the list of two types as a list."""
    return {**row, "blob": row["blob"].hex(), "parts": list(row["parts"].values())}


@pytest.mark.parametrize("name", ["dicts", "zstd"])
def test_dicts_of_an_older_writer(name: str, tmp_path: Path) -> None:
    found = [plain(row) for row in rows(name, LitData(), tmp_path)]
    assert found == EXPECTED[name]
    assert len(found) == 10


def test_texts_of_an_older_writer(tmp_path: Path) -> None:
    assert [row["text"] for row in rows("texts", LitData(), tmp_path)] == EXPECTED["texts"]


def test_tokens_of_an_older_writer(tmp_path: Path) -> None:
    assert [row["input_ids"] for row in rows("tokens", LitData(block_size=5), tmp_path)] == EXPECTED["tokens"]
    assert [row["input_ids"] for row in rows("tokens", LitData(), tmp_path)] == [list(range(i, 2 * i + 1)) for i in range(10)]

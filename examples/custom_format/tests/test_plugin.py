"""What the author of a plug-in runs: Zephon's own conformance kit, on the reader and on the operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from zephon_records.rec import Rec, write_rec
from zephon_records.strip_urls import StripUrls

from zephon import Dataset, Pipeline
from zephon.errors import DataError
from zephon.plugin import groups
from zephon.testing import check_format, check_operator

ROWS = [{"id": i * i - 50, "text": ["", "plain", "ünï → 日本語 😀", "two\nlines"][i % 4] * (i % 3)} for i in range(60)]


def write(folder: Path, rows: list[dict[str, Any]]) -> Sequence[Path]:
    return [write_rec(folder / "a.rec", rows[:20]), write_rec(folder / "b.rec", rows[20:])]


def test_the_reader_keeps_every_promise() -> None:
    check_format(Rec(unit_rows=15), write, rows=ROWS)


def test_the_operator_keeps_every_promise() -> None:
    texts = ["see https://example.org/a?b=c#d now", "http://x.org", None, "", "no URL", "https://a.b https://c.d"]
    given = groups.from_rows([{"text": t, "n": i} for i, t in enumerate(texts)])
    (made,) = check_operator(StripUrls(), [given])
    assert made.column("text").to_pylist() == ["see  now", None, "", "no URL"]
    check_operator(StripUrls(replacement="<url>", drop_empty=False), [given, given.slice(2, 2)])


def test_a_record_that_was_damaged_is_named(tmp_path: Path) -> None:
    path = write_rec(tmp_path / "a.rec", [{"id": i, "text": "abc"} for i in range(9)])
    data = bytearray(path.read_bytes())
    data[4 + 15 * 5] += 1
    path.write_bytes(data)
    dataset = Dataset.from_path("d", path)
    with pytest.raises(DataError, match=r"length of the record .*a\.rec.* row 5"):
        dataset.read(0, None)


def test_both_are_found_by_name_and_run_in_a_pipeline(tmp_path: Path) -> None:
    write(tmp_path, [{"id": i, "text": f"text {i} http://u.rl/{i}" if i % 10 else "http://u.rl"} for i in range(60)])
    data = Dataset.from_path("records", tmp_path)
    pipeline = Pipeline(data).strip_urls(replacement="").batch(6).options(max_steps=9)
    seen = [row for batch in pipeline for row in batch.to_pydict()["text"]]
    assert sorted(seen) == sorted(f"text {i} " for i in range(60) if i % 10)

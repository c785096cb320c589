"""Late decode: bins and shuffles hold files, and what is decided at once is not built at once. In counted bytes, without a clock."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from skimage import data
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg

from benchmarks.vision_early import DecodeFirst, Unwrap
from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_vision import decode_images
from zephon_vision.decoders import decode

MB = 1 << 20


@cache
def documents(count: int) -> list[dict[str, Any]]:
    photos = [jpeg(photo[:392, :392], quality=75) for photo in (data.astronaut(), data.coffee(), data.rocket())]
    return [{"texts": [f"page {n}", None], "images": [None, {"bytes": photos[n % 3], "path": None}]} for n in range(count)]


def recipe(first: bool, runner: str, max_bytes: int, count: int = 96) -> Pipeline:
    """Decoded first, or late."""
    source = StaticMixtureWorkSource(
        [Dataset.from_records("pages", documents(count))], seed=1, stop_after_passes=1, chunk_size=4
    )
    pipeline = Pipeline(source).interleave().probe_images().tokenize_interleaved(tokenizer=fast(QWEN), images="qwen2_5_vl")
    if first:
        pipeline.then(DecodeFirst())
    pipeline.pack_multimodal(max_length=256, open_bins=4, pad_token_id=0).shuffle()
    if first:
        pipeline.then(Unwrap())
    else:
        pipeline.decode_images()
    return pipeline.batch(1).options(lanes=1, runner=runner, max_bytes=max_bytes, flush_every_chunks=1000)


def run(first: bool, runner: str, max_bytes: int, count: int = 96) -> tuple[list[str], int]:
    """The batches' hashes, and the most bytes that lanes held at a time."""
    pipeline = recipe(first, runner, max_bytes, count)
    return [batch.sha256() for batch in pipeline], pipeline.stats()["peak_lane_bytes"]


def test_what_waits_is_an_eighth_of_what_decoding_first_makes_wait() -> None:
    """8 sequences are built at a time, 3.7 MB of pixels, beside 88 MB."""
    late, held = run(False, "inline", MB, 192)
    first, pixels = run(True, "inline", MB, 192)
    assert late == first
    assert len(late) == 192
    assert held <= pixels / 8


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_restore_decodes_the_images_of_what_it_delivers_and_no_other(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*given: Any, **more: Any) -> Any:
        calls.append(1)
        return decode(*given, **more)

    monkeypatch.setattr(decode_images, "decode", counted)
    first = recipe(False, runner, MB)
    batches = iter(first)
    before = [next(batches).sha256() for _ in range(60)]
    state = first.state_dict()
    batches.close()  # type: ignore[attr-defined]
    second = recipe(False, runner, MB)
    second.load_state_dict(state)
    calls.clear()
    after = [batch.sha256() for batch in second]
    assert len(calls) == len(after) == 36  # an image each
    assert before + after == run(False, "inline", MB)[0]


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_window_that_is_decided_at_once_is_built_as_the_budget_allows(runner: str) -> None:
    """96 sequences of 0.46 MB of pixels each, 44 MB, all decided at the flush, and built 8 at a time.

    With threads it is a matter of timing how many tasks run before the size of the first result is known.
    """
    _, held = run(False, runner, 4 * MB)
    assert held < (6 if runner == "inline" else 16) * MB


def spilled(runner: str, folder: Path | None) -> Pipeline:
    photos = [jpeg(photo[:392, :392], quality=95) for photo in (data.astronaut(), data.coffee(), data.rocket())]
    rows = [{"texts": [f"page {n}", None], "images": [None, {"bytes": photos[n % 3], "path": None}]} for n in range(48)]
    source = StaticMixtureWorkSource([Dataset.from_records("pages", rows)], seed=1, chunk_size=4)
    pipeline = Pipeline(source).interleave().probe_images().tokenize_interleaved(tokenizer=fast(QWEN), images="qwen2_5_vl")
    pipeline.pack_multimodal(max_length=512, open_bins=4, pad_token_id=0).shuffle().decode_images().batch(1)
    return pipeline.options(lanes=2, runner=runner, workers=1, max_bytes=MB, spill_dir=None if folder is None else str(folder))


@pytest.mark.parametrize("runner", ["inline", "threads", "processes"])
def test_files_that_wait_on_disk_change_no_batch_and_no_state(tmp_path: Path, runner: str) -> None:
    """And a run without the folder goes on where one with it stopped."""
    plain, on_disk = spilled("inline", None), spilled(runner, tmp_path)
    want = [batch.sha256() for _, batch in zip(range(40), plain, strict=False)]
    got = [batch.sha256() for _, batch in zip(range(24), on_disk, strict=False)]
    assert got == want[:24]
    assert list(tmp_path.iterdir()) == []
    stats = on_disk.stats()
    assert stats["peak_spilled_bytes"] > 0
    rest = spilled("inline", None)
    rest.load_state_dict(on_disk.state_dict())
    assert [batch.sha256() for _, batch in zip(range(16), rest, strict=False)] == want[24:]
    assert rest.state_dict() == plain.state_dict()
    if runner == "inline":  # with others it is a matter of timing what is in the works
        freed = plain.stats()["peak_lane_bytes"] - stats["peak_lane_bytes"]
        assert freed > stats["peak_spilled_bytes"] / 2  # which are whole pages

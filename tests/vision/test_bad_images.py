"""A run in which too many of a data set's images can't be used stops, whatever the policies are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError, LimitError, RecipeError, Where
from zephon_vision._bad_images import WINDOW, BadImages
from zephon_vision.decode_images import DecodeImages
from zephon_vision.probe_images import ProbeImages
from zephon_vision.tokenize_interleaved import TokenizeInterleaved

GOOD = jpeg(scene(30, 30))


def chat(path: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "Yes."}]
    return {"messages": messages, "images": [{"bytes": None, "path": path}]}


def pipeline(folder: Path, datasets: dict[str, list[dict[str, Any]]], **settings: Any) -> Pipeline:
    """`probe`, `tokenize`: further settings of these; the rest are options."""
    probe, tokenize = settings.pop("probe", {}), settings.pop("tokenize", {})
    sets = [Dataset.from_records(name, rows) for name, rows in datasets.items()]
    return (
        Pipeline(StaticMixtureWorkSource(sets, dict.fromkeys(datasets, 1.0), stop_after_passes=1, chunk_size=64))
        .interleave(media_root=str(folder))
        .probe_images(media_root=str(folder), **probe)
        .tokenize_interleaved(tokenizer=fast(QWEN), images='qwen2_5_vl{"max_pixels": 3136}', pad_token_id=0, **tokenize)
        .pack_multimodal(max_length=128)
        .batch(1)
        .options(lanes=1, runner="inline", **settings)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.jpg").write_bytes(GOOD)
    return tmp_path


@pytest.mark.parametrize(
    ("on_error", "probe"), [("raise", "keep"), ("skip", "keep"), ("skip", "drop_sample"), ("raise", "drop_image")]
)
def test_a_data_set_whose_images_are_not_there_stops_the_run_and_is_named(folder: Path, on_error: str, probe: str) -> None:
    mixed = {"right": [chat("good.jpg")] * 1100, "wrong": [chat("gone.jpg")] * 1100}
    run = pipeline(folder, mixed, on_error=on_error, probe={"on_bad_image": probe}, tokenize={"on_bad_image": "drop_image"})
    with pytest.raises(LimitError, match=r"\d+ of \d+ images can't be used") as caught:
        list(run)
    assert (caught.value.where.dataset, caught.value.where.shard) == ("wrong", "memory")
    assert caught.value.where.row is not None
    assert caught.value.where.operator == ("tokenize_interleaved" if probe == "keep" else "probe_images")


@pytest.mark.parametrize("runner", ["inline", "threads"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("operator", ["probe_images", "tokenize_interleaved", "decode_images"])
def test_a_media_root_that_isnt_there_stops_the_run_before_its_first_batch(
    folder: Path, operator: str, on_error: str, runner: str
) -> None:
    rows = [{"image": "good.jpg", "caption": "a"}]
    source = StaticMixtureWorkSource(Dataset.from_records("d", rows), stop_after_passes=1)
    run = Pipeline(source).options(lanes=1, runner=runner, workers=1, on_error=on_error)
    gone = str(folder / "gone")
    if operator == "decode_images":
        run.decode_images(column="image", policy="clip", media_root=gone)
    else:
        run.interleave(media_root=gone)  # which reads no file; those after it have the folder from here
        if operator == "probe_images":
            run.probe_images()
        run.tokenize_interleaved(tokenizer=fast(QWEN), images="qwen2_5_vl", pad_token_id=0)
    with pytest.raises(RecipeError, match=f"media_root of {operator} is .*gone', which doesn't exist"):
        list(run.batch(1))


def test_a_media_root_is_a_folder_here_or_not_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="which is no folder"):
        ProbeImages(media_root=str(folder / "good.jpg")).bind()
    monkeypatch.chdir(folder)
    for root in (None, "", ".", str(folder), "s3://bucket/images"):
        ProbeImages(media_root=root).bind()


def test_with_a_higher_limit_the_run_goes_on_from_where_it_was(folder: Path) -> None:
    rows = {"wrong": [chat("good.jpg")] * 300 + [chat("gone.jpg")] * 1100}
    first = pipeline(folder, rows)
    batches = iter(first)
    delivered = [next(batches) for _ in range(3)]
    state = first.checkpoint()
    with pytest.raises(LimitError):
        list(batches)
    second = pipeline(folder, rows, tokenize={"max_bad_ratio": None})
    second.restore(state)
    rest = list(second)
    whole = list(pipeline(folder, rows, tokenize={"max_bad_ratio": 1.0}))
    assert [b.sha256() for b in [*delivered, *rest]] == [b.sha256() for b in whole]


def test_sizes_that_a_data_set_claims_are_not_read(folder: Path) -> None:
    plain, claiming = (
        [batch.to_pydict() for batch in pipeline(folder, {"data": [chat("good.jpg") | claims] * 9})]
        for claims in ({}, {"image_wh": [[900, 600]], "width": 900, "height": 600})
    )
    assert plain == claiming
    assert plain


def test_limits_of_the_user_are_no_bad_images(folder: Path) -> None:
    run = pipeline(folder, {"small": [chat("good.jpg")] * 1100}, tokenize={"min_side": 100})
    assert not list(run)
    assert run.accounting()["rows"]["dropped"] == {"tokenize_interleaved: bad image: too small": 1100}


def test_the_share_is_of_the_last_images_of_each_data_set(caplog: pytest.LogCaptureFixture) -> None:
    seen = BadImages(0.05, "test")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            seen.count(0, 100, [])
            seen.count(1, 10, [("missing", Where(row=7))])
        with pytest.raises(LimitError, match=r"images can't be used, the last one because: missing \[row 7, component 0\]"):
            for _ in range(WINDOW):  # many good ones long ago don't help
                seen.count(0, 10, [("missing", Where(row=7))])
    assert sum("missing" in record.message for record in caplog.records) == 1


def lost(run: Pipeline) -> dict[str, dict[str, int]]:
    """How many images went and why, in all and by data set, of a whole run."""
    list(run)
    images = run.accounting()["parts"].get("images", {"dropped": {}, "by_dataset": {}})
    return {"all": images["dropped"], **{name: side["dropped"] for name, side in images["by_dataset"].items()}}


def page(*parts: str) -> dict[str, Any]:
    """A document; `parts` that end in .jpg are images."""
    images = [part if part.endswith(".jpg") else None for part in parts]
    return {"texts": [part if image is None else None for part, image in zip(parts, images, strict=True)], "images": images}


@pytest.mark.parametrize(
    ("probe", "tokenize", "who", "fate"),
    [
        ("drop_image", "error", "probe_images", "bad image"),
        ("keep", "drop_image", "tokenize_interleaved", "bad image"),
        ("keep", "blank", "tokenize_interleaved", "blank image"),
    ],
)
def test_images_that_rows_lose_are_counted_by_reason_and_data_set(
    folder: Path, probe: str, tokenize: str, who: str, fate: str
) -> None:
    (folder / "page.jpg").write_bytes(b"<html>")
    sets = {
        "left": [page("a", "gone.jpg", "b"), page("a", "good.jpg", "b", "gone.jpg")],
        "right": [page("c", "page.jpg"), page("d", "good.jpg")],
    }
    run = pipeline(folder, sets, probe={"on_bad_image": probe}, tokenize={"on_bad_image": tokenize})
    missing, html = f"{who}: {fate}: unreadable", f"{who}: {fate}: an HTML page, not an image"
    assert lost(run) == {"all": {missing: 2, html: 1}, "left": {missing: 2}, "right": {html: 1}}
    assert run.accounting()["rows"]["dropped"] == {}


@pytest.mark.parametrize("url", ["data:image/png;base64,@@@", "DATA:image/png;base64", "data:image/png,xx", "data:"])
def test_a_broken_data_url_is_a_bad_image_like_any_other(folder: Path, url: str) -> None:
    rows = [{"image": url, "caption": "a"}, {"image": "good.jpg", "caption": "b"}]
    made = list(lost(pipeline(folder, {"one": rows}, tokenize={"on_bad_image": "drop_image"}))["all"])
    assert [why.partition("bad image: ")[0] for why in made] == ["tokenize_interleaved: "]


def decoded(folder: Path, sets: dict[str, list[dict[str, Any]]], *, max_length: int, **decode: Any) -> Pipeline:
    """Packed without a look at the headers, then decoded."""
    base = [Dataset.from_records(name, rows) for name, rows in sets.items()]
    return (
        Pipeline(StaticMixtureWorkSource(base, dict.fromkeys(sets, 1.0), stop_after_passes=1))
        .interleave(media_root=str(folder))
        .tokenize_interleaved(tokenizer=fast(QWEN), images='qwen2_5_vl{"max_pixels": 3136}', pad_token_id=0)
        .pack_multimodal(max_length=max_length)
        .decode_images(**decode)
        .batch(1)
        .options(lanes=1)
    )


def test_images_that_cant_be_decoded_after_packing_are_counted_for_the_data_set_of_their_document(folder: Path) -> None:
    (folder / "half.jpg").write_bytes(GOOD[: len(GOOD) // 2])
    sets = {"left": [page("a", "good.jpg")] * 2, "right": [page("a", "good.jpg", "half.jpg"), page("c", "half.jpg")]}
    run = decoded(folder, sets, max_length=128).options(runner="inline")
    reason = "decode_images: blank image: undecodable"
    assert lost(run) == {"all": {reason: 2}, "left": {}, "right": {reason: 2}}


def test_an_image_that_cant_be_decoded_after_packing_is_an_error_that_names_its_document(folder: Path) -> None:
    (folder / "half.jpg").write_bytes(GOOD[: len(GOOD) // 2])
    sets = {"left": [page("a", "good.jpg")] * 3, "right": [page("b"), page("c", "good.jpg", "half.jpg"), page("d")]}
    run = decoded(folder, sets, max_length=256, on_bad_image="error")
    with pytest.raises(DataError, match="undecodable") as caught:
        list(run)
    where = caught.value.where
    assert (where.dataset, where.shard, where.row, where.operator) == ("right", "memory", 1, "decode_images")


def test_images_that_are_cut_off_are_counted(folder: Path) -> None:
    words = "word " * 30
    rows = [page(words, "good.jpg", "end", "good.jpg"), page("short", "good.jpg")]
    run = pipeline(folder, {"one": rows}, tokenize={"max_length": 24, "over_long": "truncate"})
    assert lost(run)["all"] == {"tokenize_interleaved: truncated": 2}
    assert not lost(pipeline(folder, {"one": rows}, tokenize={"max_length": 24, "over_long": "split"}))["all"]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_document_over_a_budget_stops_the_packer_under_every_policy_unless_those_are_dropped(
    folder: Path, on_error: str
) -> None:
    rows = [page("a", "good.jpg"), page("word " * 300)]

    def run(**pack: Any) -> Pipeline:
        source = StaticMixtureWorkSource(Dataset.from_records("one", rows), stop_after_passes=1)
        made = Pipeline(source).interleave(media_root=str(folder)).tokenize_interleaved(tokenizer=fast(QWEN), pad_token_id=0)
        return made.pack_multimodal(max_length=64, **pack).batch(1).options(lanes=1, runner="inline", on_error=on_error)

    with pytest.raises(DataError, match="does not fit a sequence of at most 64") as caught:
        list(run())
    assert (caught.value.where.row, caught.value.where.operator) == (1, "pack_multimodal")
    dropping = run(over_long="drop")
    assert len(list(dropping)) == 1
    assert dropping.accounting()["rows"]["dropped"] == {"pack_multimodal: too many tokens": 1}


@pytest.mark.parametrize("limit", [-0.1, 1.5])
def test_limits_that_are_no_shares_are_refused(limit: float) -> None:
    for make in (
        lambda: ProbeImages(max_bad_ratio=limit),
        lambda: DecodeImages(max_bad_ratio=limit),
        lambda: TokenizeInterleaved(tokenizer_id="x", max_bad_ratio=limit),
    ):
        with pytest.raises(RecipeError, match="max_bad_ratio"):
            make()

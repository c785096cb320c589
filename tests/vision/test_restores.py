"""A restore decodes no image whose sequence was delivered before: counted at the decoder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from vision.interleave.chat_tokenizers import QWEN, fast
from vision.pictures import jpeg, scene

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_vision import columns, decode_images, decoders

FILES = 60
BAD = (7, 8, 30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(scene(28, 28 + number % 3, seed=number)))
    return tmp_path


@pytest.fixture
def decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that the decoder gets."""
    seen: list[str] = []

    def noted(data: Any, *args: Any, **settings: Any) -> Any:
        seen.extend(path.name for path in folder.iterdir() if path.read_bytes() == bytes(data))
        return decoders.decode(data, *args, **settings)

    monkeypatch.setattr(decode_images, "decode", noted)
    return seen


def damage(folder: Path) -> None:
    """Some files end in the middle, which only decoding finds out."""
    for number in BAD:
        path = folder / f"{number}.jpg"
        path.write_bytes(path.read_bytes()[:-300])


def chats(folder: Path) -> Pipeline:
    rows = [
        {
            "messages": [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": f"{number}"}],
            "images": [{"bytes": None, "path": f"{number}.jpg"}],
        }
        for number in range(FILES)
    ]
    return (
        Pipeline(StaticMixtureWorkSource(Dataset.from_records("chats", rows), stop_after_passes=1, chunk_size=10))
        .interleave(media_root=str(folder))
        .probe_images()
        .tokenize_interleaved(tokenizer=fast(QWEN), images='qwen2_5_vl{"max_pixels": 3136}', pad_token_id=0)
        .pack_multimodal(max_length=60)
        .shuffle(buffer_size=4)
        .decode_images(on_bad_image="error", keep_images=True)
    )


def pairs(folder: Path, *, shuffled: bool = False) -> Pipeline:
    rows = [{"image": f"{number}.jpg", "text": f"{number}"} for number in range(FILES)]
    made = Pipeline(StaticMixtureWorkSource(Dataset.from_records("pairs", rows), stop_after_passes=1, chunk_size=10))
    made = made.shuffle(buffer_size=7) if shuffled else made
    return made.decode_images(
        column="image", policy='siglip{"size": 16, "patch_size": 8}', media_root=str(folder), keep_images=True
    )


def shuffled_pairs(folder: Path) -> Pipeline:
    return pairs(folder, shuffled=True)


KINDS = {"packed chats": chats, "pairs": pairs, "shuffled pairs": shuffled_pairs}


def names(batches: list[Any], column: str) -> list[str]:
    """Of the images in the batches."""
    rows = [row for batch in batches for row in batch.group.slice(0, len(batch) - batch.empty).column(column).to_pylist()]
    return [image["path"] for row in rows for image in row] if column == columns.IMAGES else rows


def resumed(kind: str, folder: Path, policy: str, cut: int, decoded: list[str]) -> tuple[list[str], list[str]]:
    """What a run delivers before it is cut, and what after a restore; `decoded` then is of the second part."""
    column = columns.IMAGES if kind == "packed chats" else "image"

    def make() -> Pipeline:
        return KINDS[kind](folder).batch(1).options(lanes=1, runner="inline", on_error=policy, quarantine=os.devnull)

    whole = names(list(make()), column)
    first = make()
    batches = iter(first)
    before = names([next(batches) for _ in range(cut)], column)
    state = json.loads(json.dumps(first.state_dict()))
    batches.close()  # type: ignore[attr-defined]
    second = make()
    second.load_state_dict(state)
    decoded.clear()
    after = names(list(second), column)
    assert before + after == whole
    assert after
    return before, after


@pytest.mark.parametrize("cut", [1, 5])
@pytest.mark.parametrize("policy", ["raise", "skip", "quarantine"])
def test_no_image_is_decoded_that_was_delivered(policy: str, cut: int, folder: Path, decoded: list[str]) -> None:
    _, after = resumed("packed chats", folder, policy, cut, decoded)
    assert sorted(decoded) == sorted(after)


@pytest.mark.parametrize("kind", ["pairs", "shuffled pairs"])
def test_where_bad_pairs_may_be_dropped_those_decoded_with_the_next_are_decoded_again(
    kind: str, folder: Path, decoded: list[str]
) -> None:
    before, after = resumed(kind, folder, "raise", 25, decoded)
    again = set(decoded) & set(before)
    assert set(decoded) - again == set(after)
    assert len(again) < 16


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_where_sequences_were_lost_at_most_those_built_with_the_next_are_decoded_again(
    policy: str, folder: Path, decoded: list[str]
) -> None:
    damage(folder)
    most = []
    for cut in (2, 5, 8, 9):
        before, after = resumed("packed chats", folder, policy, cut, decoded)
        assert set(after) <= set(decoded)
        most.append(len(set(decoded) & set(before)))
    assert min(most) == 0
    assert max(most) <= 3, "one sequence: packs are built two at a time"

"""`tokenize_chat`: chats without images, in the spelling of adapters of training frameworks."""

from __future__ import annotations

import pytest
from vision.interleave.kit import END, QWEN, START
from vision.interleave.samples import png

from zephon import Dataset, Pipeline, StaticMixtureWorkSource
from zephon.errors import DataError, RecipeError

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATS = [[("user", f"question {i} <image>"), ("assistant", f"answer {i} " * (i + 1))] for i in range(6)]
TALKS = [[{"role": role, "content": text} for role, text in chat] for chat in CHATS]


def pipeline(column: str = "messages") -> Pipeline:
    data = Dataset.from_records("chats", [{column: talk} for talk in TALKS])
    return Pipeline(StaticMixtureWorkSource(data, stop_after_passes=1)).options(runner="inline")


@pytest.mark.parametrize("template", [{"chat_template": TEMPLATE}, {"template": "chatml", "system": ""}], ids=["own", "chatml"])
def test_chats_become_the_tokens_of_their_template_with_the_answers_trained(template: dict[str, str]) -> None:
    run = pipeline("talk").tokenize_chat(tokenizer=QWEN, field="talk", parallelism=2, **template).batch(1)
    found = {row["_row"]: row for batch in run for row in batch.group.to_pylist()}
    for number, chat in enumerate(CHATS):
        text = "".join(f"{START}{role}\n{content}{END}\n" for role, content in chat)
        ids, mask = found[number]["input_ids"], found[number]["loss_mask"]
        assert ids == QWEN.encode(text, add_special_tokens=False).ids
        trained = [token for token, keep in zip(ids, mask, strict=True) if keep]
        assert QWEN.decode(trained, skip_special_tokens=False) == f"{chat[1][1]}{END}"


def test_chats_are_cut_packed_and_shifted_like_text() -> None:
    run = pipeline().tokenize_chat(tokenizer=QWEN, template="chatml", max_length=30, truncation=True)
    run.pack_flat(max_length=65, algorithm="first_fit", num_bins=2).batch(1)
    rows = [batch.to_training(dtype=None) for batch in run]
    assert {len(row["input_ids"][0]) for row in rows} == {64}
    assert sum(row["num_label_tokens"] for row in rows)
    for row in rows:
        assert all(label in (-100, token) for token, label in zip(row["input_ids"][0][1:], row["labels"][0], strict=False))
    assert run.accounting()["tokens"]["in_flight"] == 0
    assert run.accounting()["tokens"]["dropped"]


def test_a_chat_with_an_image_is_left_out_or_refused() -> None:
    parts = [{"type": "text", "text": "look", "image": None}, {"type": "image", "text": None, "image": png()}]
    talk = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts[:1]}]
    source = StaticMixtureWorkSource(Dataset.from_records("d", [{"messages": talk}]), stop_after_passes=1)
    run = Pipeline(source).tokenize_chat(tokenizer=QWEN, template="chatml").batch(1).options(runner="inline")
    assert list(run) == []
    assert sum(run.accounting()["rows"]["dropped"].values()) == 1
    strict = Pipeline(source).tokenize_chat(tokenizer=QWEN, template="chatml", on_bad_image="error").batch(1)
    with pytest.raises(DataError, match="images=None takes none"):
        list(strict.options(runner="inline"))


def test_a_misspelt_setting_is_answered_with_the_right_one() -> None:
    with pytest.raises(RecipeError, match="did you mean 'template'"):
        pipeline().tokenize_chat(tokenizer=QWEN, templat="own")

"""Ids, masks, spans and drops of `tokenize_interleaved`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer
from vision.interleave import chat_tokenizers as kinds
from vision.interleave.kit import END, PAD, QWEN, START, Strips, only, operator, outcome, shown
from vision.interleave.samples import canonical, chat, document, group, image, png

from zephon.errors import DataError, RecipeError
from zephon.recipe import operator_fingerprint
from zephon_vision import columns
from zephon_vision.policies.base import Policy
from zephon_vision.policies.idefics import Idefics3
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.llava import LlavaNext, LlavaOnevision
from zephon_vision.policies.qwen import Qwen2VL
from zephon_vision.tokenize_interleaved import TokenizeInterleaved

# ------------------------------------------------------------------------------------------------------- documents


def test_a_document_is_trained_but_for_its_images_and_ends_with_eos_once() -> None:
    row = only([document("Before ", image(), "after", image(56, 28))])
    assert shown(row) == ["[Before ]", "(5)", "[after]", "(3)", "[<|endoftext|>]"]
    assert row["images"] == [{"bytes": png(), "path": None}, {"bytes": png(56, 28), "path": None}]
    assert row["_row"] == 100
    assert row["mm_token_type_ids"].count(1) == 4
    assert [row["input_ids"][i] for i, t in enumerate(row["mm_token_type_ids"]) if t] == [PAD] * 4


def test_bos_stands_once_at_the_beginning_of_documents_and_chats() -> None:
    llama = kinds.fast(kinds.LLAMA3, "<|begin_of_text|>")
    given = {"tokenizer": llama, "images": LlavaNext(), "eos_token_id": llama.token_to_id("<|end_of_text|>")}
    row = only([document("text")], **given)
    assert shown(row, llama) == ["<|begin_of_text|>", "[text]", "[<|end_of_text|>]"]
    for name in ("llama3", "auto", "plain"):
        ids = only([chat("Q", "A")], template=name, **given)["input_ids"]
        assert ids.count(llama.token_to_id("<|begin_of_text|>")) == 1
        assert ids[0] == llama.token_to_id("<|begin_of_text|>")
    own = kinds.transformers_tokenizer(
        kinds.LLAMA3, kinds.LLAMA3_TEMPLATE, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )
    own.backend_tokenizer.post_processor = llama.post_processor
    ids = only([chat("Q", "A")], tokenizer=own, images=LlavaNext())["input_ids"]
    assert ids.count(llama.token_to_id("<|begin_of_text|>")) == 1


def test_bos_and_eos_may_be_chosen() -> None:
    assert shown(only([document("text")], eos=False)) == ["[text]"]
    given = {"bos": True, "bos_token_id": QWEN.token_to_id(START)}
    assert shown(only([document("text")], **given)) == [START, "[text]", "[<|endoftext|>]"]
    with pytest.raises(RecipeError, match="doesn't name its BOS"):
        operator(tokenizer=kinds.fast(kinds.QWEN[1:]), bos=True).bind()


def test_the_library_that_encodes_is_chosen_by_name_and_changes_no_row() -> None:
    told = canonical([document("Déjà vu ", image(), "ſ 12 😀"), chat([image(), "Q"], "A cat.")])
    made = {name: operator(backend=name) for name in ("auto", "tokenizers")}
    rows = {name: op.bind()(told).group for name, op in made.items()}
    assert rows["auto"].equals(rows["tokenizers"])
    assert operator_fingerprint(made["auto"]) == operator_fingerprint(made["tokenizers"])
    with pytest.raises(RecipeError, match="did you mean 'tokenizers'"):
        operator(backend="tokenizer")


# ----------------------------------------------------------------------------------------------------------- masks


def test_only_answers_and_the_tokens_that_end_them_are_trained() -> None:
    row = only([chat([image(), "\nWhat?"], "A cat.", "Sure?", "Yes")])
    assert shown(row) == [
        START, "user\n", "(5)", "\nWhat?", END, "\n", START, "assistant\n", "[A cat.]", f"[{END}]", "\n",
        START, "user\nSure?", END, "\n", START, "assistant\n", "[Yes]", f"[{END}]", "\n",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "answer", ["a", "  spaces  ", "\nnewline", "\n\nnewlines\n", "🙂", "ends with 🙂🙂", "é", " ", "x" * 300]
)
@pytest.mark.parametrize("template", ["chatml", "llava", "gemma", "mistral", "llama3"])
def test_each_character_of_an_answer_is_trained_and_none_before_it(answer: str, template: str) -> None:
    """Case 103: spans are exact, whatever the answer begins or ends with."""
    if template == "gemma" or template == "llama3":
        answer = answer.strip() or "x"  # these templates trim
    row = only([chat("Question", answer)], template=template)
    ids, mask = np.array(row["input_ids"]), np.array(row["loss_mask"], bool)
    trained = QWEN.decode(ids[mask].tolist(), skip_special_tokens=True)
    plain = np.flatnonzero(mask)
    assert (np.diff(plain) == 1).all()
    # text that the template ends an answer with, where the tokenizer doesn't know it as a token
    assert trained.removesuffix("<end_of_turn>").removesuffix("</s>").removesuffix("<|eot_id|>").endswith(answer)
    extra = trained[: trained.index(answer)]
    assert extra.strip() == ""  # at most a newline of the template's that is one token with the answer's own
    before = QWEN.decode(ids[: plain[0]].tolist(), skip_special_tokens=False)
    assert "Question" in before


def test_an_answer_first_with_one_token_is_trained() -> None:
    row = only([[("assistant", 0, True, "a"), ("user", 1, False, "b")]])
    assert shown(row)[:4] == [START, "assistant\n", "[a]", f"[{END}]"]


def test_segments_of_one_text_may_be_trained_in_parts() -> None:
    rows = [[("user", 0, False, "Q"), ("assistant", 1, False, "not this "), ("assistant", 1, True, "but this")]]
    assert shown(only(rows))[5:] == ["assistant\nnot this ", "[but this]", f"[{END}]", "\n"]


def test_train_on_all_trains_everything_but_images_and_bos_and_none_nothing() -> None:
    row = only([chat([image(), "Q"], "A")], train_on="all")
    assert all(m or any(s["start"] <= i < s["stop"] for s in row["image_spans"]) for i, m in enumerate(row["loss_mask"]))
    assert not any(only([chat([image(), "Q"], "A")], train_on="none")["loss_mask"])


def test_nothing_to_train_on_is_dropped_and_counted() -> None:
    """Case 107: no sequence without anything to learn from, whatever it is made of."""
    rows = [
        document(),
        document(""),
        chat("Q", ""),
        document(image()),
        chat("Q", "A", train=False),
        document("x"),
        document(" "),
    ]
    made = outcome(rows)
    assert made.group.column("_row").to_pylist() == [105, 106]
    assert {reason: places.tolist() for reason, places in made.drops.rows.items()} == {
        "empty": [0, 1],
        "nothing to train on": [2, 3, 4],
    }
    assert set(made.drops.tokens) == {"nothing to train on"}


def test_a_group_of_nothing_but_empty_documents_gives_no_rows() -> None:
    assert outcome([document(), document(), document("")]).group.num_rows == 0


# ------------------------------------------------------------------------------------- what users write stays text

LITERALS = "<image> <|image_pad|> <|vision_start|><|im_end|>\n<|im_start|>assistant\n<|endoftext|>"


@pytest.mark.parametrize("template", ["chatml", "own", "plain"])
def test_special_strings_in_texts_stay_text(template: str) -> None:
    """Case 98: neither an image's token nor the end of a turn can be written by a user."""
    tokenizer = kinds.transformers_tokenizer(kinds.QWEN, kinds.QWEN2_VL, eos_token=END)
    row = only([chat([LITERALS, image(), LITERALS], LITERALS)], tokenizer=tokenizer, template=template, images=Qwen2VL())
    special = {QWEN.token_to_id(token) for token in kinds.QWEN}
    inside = sum(s["stop"] - s["start"] for s in row["image_spans"])
    frame = {"chatml": 6, "own": 6, "plain": 1}[template]
    assert sum(n in special for n in row["input_ids"]) == inside + frame
    assert QWEN.decode(row["input_ids"], skip_special_tokens=False).count("<|endoftext|>") == 3
    assert row["input_ids"].count(PAD) == row["image_blocks"] // 4


def test_special_strings_that_the_tokenizer_does_not_mark_stay_text_too() -> None:
    plain = kinds.fast(kinds.QWEN).to_str().replace('"special":true', '"special":false')
    unmarked = Tokenizer.from_str(plain)
    row = only([document("a <|image_pad|> b", image())], tokenizer=unmarked, images=Strips(), eos=False)
    assert row["input_ids"].count(PAD) == 3


def test_code_points_that_mark_things_inside_survive() -> None:
    tokenizer = kinds.transformers_tokenizer(kinds.QWEN, kinds.CHATML, eos_token=END)
    text = "a\ufdd1\ufdd2\ufdd3\ufdd4b\ufdd5<|im_end|>\ufdd14"
    own = only([chat(text, text)], tokenizer=tokenizer)
    assert own == only([chat(text, text)], tokenizer=tokenizer, template="chatml")
    assert QWEN.decode(own["input_ids"], skip_special_tokens=False).count(text) == 2


# ------------------------------------------------------------------------------------------------------ bad images

BROKEN = (b"<html>not found</html>", None)


def test_bad_images_may_drop_the_sample_and_are_counted() -> None:
    made = outcome(
        [document("a", image()), document("a", BROKEN), document("a", (None, None)), document("a", (None, "/no/file"))],
        on_bad_image="drop_sample",
    )
    kinds = ("an HTML page, not an image", "missing", "unreadable")
    assert {why: rows.tolist() for why, rows in made.drops.rows.items()} == {
        f"bad image: {k}": [n] for n, k in enumerate(kinds, 1)
    }
    assert made.group.column("_row").to_pylist() == [100]


def test_bad_images_may_be_left_out_of_the_sample() -> None:
    made = outcome([document("a", BROKEN, "b", image(), "c")], on_bad_image="drop_image")
    assert shown(made.group.to_pylist()[0]) == ["[ab]", "(5)", "[c]", "[<|endoftext|>]"]
    made = outcome([document("a", BROKEN)], on_bad_image="drop_image", require_image=True)
    assert made.drops.rows["no image left"].tolist() == [0]


def test_by_default_a_bad_image_drops_a_chat_and_of_a_document_only_itself() -> None:
    rows = canonical([document("a", BROKEN, "b"), document("a", image())])
    place = rows.schema.get_field_index(columns.SEGMENTS)
    turned = [[{**s, "role": "assistant", "turn": 0} for s in row] for row in rows.column(place).to_pylist()]
    chats = rows.set_column(place, columns.SEGMENTS, pa.array(turned, columns.SEGMENTS_TYPE))
    apply = operator().bind()
    made, other = apply(rows), apply(chats)
    assert [len(row["images"]) for row in made.group.to_pylist()] == [0, 1]
    assert not made.drops.rows
    assert [len(row["images"]) for row in other.group.to_pylist()] == [1]
    assert other.drops.rows["bad image: an HTML page, not an image"].tolist() == [0]


def test_images_that_stand_for_too_few_tokens_are_bad_ones() -> None:
    rows = [document("a", image(56, 84)), document("a", image(28, 28)), document("a", BROKEN)]
    tokens = [row["image_tokens"] for row in outcome(rows[:2]).group.to_pylist()]
    assert tokens[0] > tokens[1] > 0
    made = outcome(rows[:2], on_bad_image="drop_sample", min_image_tokens=tokens[1] + 1)
    assert made.drops.rows["bad image: too small"].tolist() == [1]
    blank = outcome(rows[1:], on_bad_image="blank", min_image_tokens=tokens[1] + 1)
    assert len(blank.group) == 2


def test_a_blank_image_keeps_the_layout_and_trains_nothing() -> None:
    made = outcome([document("a", BROKEN, "b", image()), document("a", image())], on_bad_image="blank")
    bad, good = made.group.to_pylist()
    assert shown(bad) == ["a", "(10)", "b", "(5)", "<|endoftext|>"]
    assert bad["images"] == [{"bytes": None, "path": None}, {"bytes": png(), "path": None}]
    assert "[a]" in shown(good)


def test_a_bad_image_may_be_an_error_that_names_the_row() -> None:
    with pytest.raises(DataError, match="HTML page") as caught:
        operator(on_bad_image="error").bind()(canonical([document("a"), document("a", BROKEN)]))
    assert caught.value.where.row == 101


def test_sizes_that_the_policy_or_the_limits_refuse_are_bad_images() -> None:
    rows = [
        document("a", image(20, 300)),
        document("a", image(56, 84)),
        document("a", image(10, 10)),
        document("a", image(30, 240)),
    ]
    made = outcome(rows, min_side=14, max_aspect=8, on_bad_image="drop_sample")
    assert made.drops.rows["bad image: too long"].tolist() == [0]
    assert made.drops.rows["bad image: too small"].tolist() == [2]
    made = outcome(rows, on_bad_image="drop_image")
    assert [len(row["images"]) for row in made.group.to_pylist()] == [0, 1, 1, 1]


def test_too_many_images_drop_the_sample() -> None:
    made = outcome([document("a", image(), image()), document("a", image())], max_images=1)
    assert made.drops.rows["too many images"].tolist() == [0]


def test_sizes_come_from_image_info_where_it_is_there() -> None:
    rows = canonical([document("a", BROKEN), document("b", image(), (None, "gone.png"))])
    good = {"height": 56, "width": 84, "format": "PNG", "mode": "RGB", "orientation": 1, "frames": 1, "error": None}
    bad = dict(good, height=0, width=0, error="too large: 30000 × 30000 pixels")
    info: Any = pa.array([[good], [good, bad]], type=columns.IMAGE_INFO_TYPE)
    rows = rows.append_column(columns.IMAGE_INFO, info)
    made = outcome(rows, on_bad_image="drop_image")
    assert [row["image_tokens"] for row in made.group.to_pylist()] == [5, 5]


def test_images_on_disk_are_measured_by_their_headers(tmp_path: Any) -> None:
    path = tmp_path / "1.png"
    path.write_bytes(png(56, 140))
    for name in ("1.png", str(path)):
        row = only([document("a", (None, name))], media_root=str(tmp_path))
        assert row["image_tokens"] == 7
        assert row["images"] == [{"bytes": None, "path": name}]
    assert only([document("a", (None, str(path)))])["images"] == []  # decoding wouldn't read it either


def test_the_same_image_twice_is_planned_and_kept_twice() -> None:
    rows = canonical([document("a", image())])
    segments = rows.column(columns.SEGMENTS).to_pylist()
    segments[0].append(dict(segments[0][1]))
    twice = rows.set_column(0, columns.SEGMENTS, pa.array(segments, type=columns.SEGMENTS_TYPE))
    row = only(twice)
    assert len(row["images"]) == len(row["image_spans"]) == 2


def test_a_segment_without_its_image_is_an_error_that_names_the_row() -> None:
    rows = canonical([document("a", image())])
    none: Any = pa.array([[]], type=columns.IMAGES_TYPE)
    with pytest.raises(DataError, match="doesn't have") as caught:
        operator().bind()(rows.set_column(1, columns.IMAGES, none))
    assert caught.value.where.row == 100


# ------------------------------------------------------------------------------------------------- policies, sizes


@pytest.mark.parametrize("policy", [Qwen2VL(max_pixels=28 * 28 * 64), InternVL(), LlavaNext(), LlavaOnevision(), Idefics3()])
def test_every_policys_runs_are_what_was_planned(policy: Policy) -> None:
    tokenizer = kinds.fast((*kinds.INTERN_ONLY, *kinds.QWEN[3:6], *policy.special_tokens))
    row = only([document("a", image(300, 200), "b", image(90, 120))], images=policy, tokenizer=tokenizer)
    own = {n for n, t in zip(row["input_ids"], row["mm_token_type_ids"], strict=True) if t}
    assert len(own) == 1
    names = [p["policy"] for p in row["image_plans"]]
    assert names == [policy.spec()] * 2


def test_a_tokenizer_without_the_policys_tokens_is_refused() -> None:
    with pytest.raises(RecipeError, match="has no '<img>'"):
        operator(images=InternVL()).bind()


# -------------------------------------------------------------------------------------------- settings, fingerprint


def test_the_fingerprint_knows_vocabulary_policy_and_template_and_not_where_they_came_from(tmp_path: Any) -> None:
    base = operator_fingerprint(operator())
    assert base == operator_fingerprint(operator(tokenizer=kinds.fast(kinds.QWEN), parallelism=3))
    QWEN.save(str(tmp_path / "tokenizer.json"))
    assert base == operator_fingerprint(operator(tokenizer=None, tokenizer_id=str(tmp_path)))
    others = [
        operator(images=Strips(max_tiles=3)),
        operator(images=Qwen2VL()),
        operator(tokenizer=kinds.fast((*kinds.QWEN, "<more>"))),
        operator(template="plain"),
        operator(template="own", chat_template=kinds.CHATML),
        operator(template="own", chat_template=kinds.GENERATION),
        operator(train_on="all"),
        operator(eos=False),
    ]
    assert len({base, *map(operator_fingerprint, others)}) == len(others) + 1


def test_the_special_tokens_are_known_to_operators_that_follow() -> None:
    assert operator(pad_token_id=3).special_ids()["pad_token_id"] == 3
    assert operator().special_ids()["eos_token_id"] == QWEN.token_to_id("<|endoftext|>")
    assert operator().token_column() == "input_ids"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokenizer_id": "x", "tokenizer": QWEN}, "either tokenizer_id= or tokenizer="),
        ({"template": "chatlm"}, "did you mean 'chatml'"),
        ({"over_long": "cut", "max_length": 5}, "over_long"),
        ({"over_long": "drop"}, "needs max_length="),
        ({"on_bad_image": "drop"}, "on_bad_image"),
        ({"max_length": 0}, "must be ≥ 1"),
        ({"min_image_tokens": 0}, "must be ≥ 1"),
        ({"train_on": "user"}, "train_on"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        TokenizeInterleaved(**{"tokenizer": QWEN, **given})


def test_templates_that_can_not_be_used_are_refused_in_words() -> None:
    with pytest.raises(RecipeError, match="has no chat template"):
        operator(template="own").bind()
    with pytest.raises(RecipeError, match="can't be read"):
        operator(template="own", chat_template="{% if %}").bind()
    with pytest.raises(DataError, match="refuses the chat: no"):
        operator(template="own", chat_template="{{ raise_exception('no') }}").bind()(canonical([chat("Q", "A")]))
    with pytest.raises(DataError, match="doesn't write each image once"):
        operator(template="own", chat_template="nothing").bind()(canonical([chat([image(), "Q"], "A")]))
    backwards = "{{ messages | length }}{% for m in messages %}{{ m['content'] | reverse }}{% endfor %}"
    with pytest.raises(DataError, match="changes the answers"):
        operator(template="own", chat_template=backwards).bind()(canonical([chat("Q", "a", "Q", "b")]))


def test_a_template_that_rewrites_earlier_answers_is_still_masked_exactly() -> None:
    """Templates that drop the thoughts of earlier turns: the prefix is no prefix, so answers are found by marks."""
    source = (
        "{{ 'n=' ~ messages | length ~ ' ' }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{{ m['content'] | trim }}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
    )
    row = only([chat("Q", " first ", "Q", "second\n")], template="own", chat_template=source)
    assert [w for w in shown(row) if w.startswith("[")] == ["[first]", f"[{END}]", "[second]", f"[{END}]"]


def test_output_is_frozen() -> None:
    """The same bytes in every release, or the operator's version goes up."""
    rows = [
        chat([image(), LITERALS], "A 🙂", "Q", "B"),
        document("a", image(56, 140), "b" * 30),
        chat([image(), "Q"], "x" * 90),
    ]
    made = operator(max_length=40, over_long="split").bind()(canonical(rows)).group
    plain = [{name: value for name, value in row.items() if name != "images"} for row in made.to_pylist()]
    assert hashlib.sha256(repr(plain).encode()).hexdigest()[:16] == "f7721b96ba83ea91"


def test_groups_with_no_rows_keep_their_schema() -> None:
    source = canonical([document("a", image())])
    made = operator().bind()(source.slice(0, 0)).group
    assert made.schema == operator().output_schema(source.schema)
    assert operator().bind()(source).group.schema == made.schema
    with pytest.raises(RecipeError, match=r"put interleave\(\) before it"):
        operator().output_schema(group([{"text": "x"}]).schema)

"""Long samples: cut where it does no harm, never inside an image, and counted to the last token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples
from vision.interleave import chat_tokenizers as kinds
from vision.interleave.kit import END, QWEN, check_row, only, operator, outcome, shown
from vision.interleave.samples import Segment, canonical, chat, document, image

from zephon.errors import DataError
from zephon.testing import check_operator
from zephon_vision.chat.base import IMAGE, SPECIAL, TEXT
from zephon_vision.policies.base import Plan
from zephon_vision.policies.gemma import Gemma4
from zephon_vision.policies.idefics import Idefics3
from zephon_vision.policies.internvl import InternVL
from zephon_vision.policies.pixtral import Pixtral
from zephon_vision.policies.qwen import Qwen2VL
from zephon_vision.tokenize_interleaved import TokenizeInterleaved
from zephon_vision.truncate import cut_chat, cut_document

BODY = st.lists(st.tuples(st.sampled_from([TEXT, IMAGE]), st.integers(1, 12)), max_size=8)


@given(body=BODY, bos=st.booleans(), eos=st.booleans(), limit=st.integers(1, 30), split=st.booleans())
def test_documents_are_cut_between_images_and_framed(
    body: list[tuple[int, int]], bos: bool, eos: bool, limit: int, split: bool
) -> None:
    pieces = [*[(SPECIAL, 1)] * bos, *body, *[(SPECIAL, 1)] * eos]
    kinds_, lengths = [k for k, _ in pieces], [n for _, n in pieces]
    made = cut_document(kinds_, lengths, limit, split=split)
    inner: list[tuple[int, int]] = []
    for cuts in made:
        assert sum(stop - start for _, start, stop in cuts) <= limit
        assert (cuts[0] == (0, 0, 1)) or not bos
        assert (cuts[-1] == (len(pieces) - 1, 0, 1)) or not eos
        for piece, start, stop in cuts:
            assert 0 <= start < stop <= lengths[piece]
            assert kinds_[piece] == TEXT or (start, stop) == (0, lengths[piece])
            if kinds_[piece] != SPECIAL:
                inner += [(piece, n) for n in range(start, stop)]
    room = limit - bos - eos
    whole = [
        (piece, n)
        for piece, (kind, length) in enumerate(pieces)
        if kind == TEXT or (kind == IMAGE and length <= room)
        for n in range(length)
    ]
    if split:
        assert inner == (whole if room > 0 else [])
    else:
        assert len(made) <= 1
        assert inner == [(p, n) for p, (k, length) in enumerate(pieces) if k != SPECIAL for n in range(length)][: len(inner)]


@given(body=BODY, turns=st.lists(st.integers(1, 8), max_size=3), limit=st.integers(1, 40))
def test_chats_end_with_the_last_answer_that_fits(body: list[tuple[int, int]], turns: list[int], limit: int) -> None:
    kinds_, lengths = [k for k, _ in body], [n for _, n in body]
    ends = sorted({t for t in turns if t <= len(body)})
    made = cut_chat(kinds_, lengths, ends, limit)
    assert sum(stop - start for _, start, stop in made) <= limit
    assert all(start == 0 and (kinds_[p] == TEXT or stop == lengths[p]) for p, start, stop in made)
    fitting = [t for t in ends if sum(lengths[:t]) <= limit]
    if fitting:
        assert made == [(p, 0, lengths[p]) for p in range(fitting[-1])]


VALUES = st.one_of(
    st.sampled_from(["word", " more words", "\n", "🙂 猫", "x" * 40]),
    st.sampled_from([image(56, 28), image(56, 140), image(28, 280), (b"broken", None)]),
)


@st.composite
def samples(draw: st.DrawFn) -> list[Segment]:
    if draw(st.booleans()):
        return document(*draw(st.lists(VALUES, max_size=6)))
    turns: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        turns += [draw(st.lists(VALUES, min_size=1, max_size=3)), draw(st.sampled_from(["A", "an answer", "", "y" * 30]))]
    return chat(*turns)


@settings(max_examples=examples(25), deadline=None)
@given(
    rows=st.lists(samples(), min_size=1, max_size=4),
    limit=st.integers(4, 60),
    over_long=st.sampled_from(["drop", "truncate", "split", "fit_images"]),
    on_bad=st.sampled_from(["drop_sample", "drop_image", "blank"]),
)
def test_no_policy_ever_cuts_an_image_or_loses_a_token_uncounted(
    rows: list[list[Segment]], limit: int, over_long: Any, on_bad: Any
) -> None:
    source = canonical(rows)
    free = operator(on_bad_image=on_bad, train_on="none").bind()(source)
    made = operator(max_length=limit, over_long=over_long, on_bad_image=on_bad).bind()(source)
    before = {row["_row"]: len(row["input_ids"]) for row in free.group.to_pylist()}
    after: dict[int, int] = {}
    for row in made.group.to_pylist():
        check_row(row)
        assert 0 < len(row["input_ids"]) <= limit
        after[row["_row"]] = after.get(row["_row"], 0) + len(row["input_ids"])
    lost = sum(sum(tokens.values()) for tokens in made.drops.tokens.values())
    if over_long in ("drop", "truncate"):
        assert sum(after.values()) + lost == sum(before.values())
    gone = {100 + int(n) for places in made.drops.rows.values() for n in places}
    assert gone.isdisjoint(after)
    assert gone | set(after) == {100 + n for n in range(len(rows))}


@settings(max_examples=examples(6), deadline=None)
@given(rows=st.lists(samples(), min_size=2, max_size=5), over_long=st.sampled_from(["drop", "truncate", "split", "fit_images"]))
def test_the_operator_keeps_its_contract_whatever_comes(rows: list[list[Segment]], over_long: Any) -> None:
    check_operator(operator(max_length=25, over_long=over_long, on_bad_image="drop_image"), [canonical(rows)])


def test_too_long_is_an_error_by_default_that_names_the_row_and_both_numbers() -> None:
    with pytest.raises(DataError, match=r"has 13 tokens, the limit is 12") as caught:
        operator(max_length=12).bind()(canonical([document("short"), document("x" * 12)]))
    assert caught.value.where.row == 101


def test_truncation_before_an_image_leaves_it_and_all_after_it_out() -> None:
    """Case 97: an image that does not fit goes as a whole, and its pixels with it."""
    rows = [document("ab", image(56, 140), "c", image(56, 28))]
    row = only(rows, max_length=8, over_long="truncate")
    assert shown(row) == ["[ab]", "[<|endoftext|>]"]
    assert row["images"] == []
    row = only(rows, max_length=12, over_long="truncate")
    assert shown(row) == ["[ab]", "(7)", "[c]", "[<|endoftext|>]"]
    assert len(row["images"]) == 1


def test_an_image_that_fits_nowhere_is_left_out_of_split_documents_and_counted() -> None:
    made = outcome([document("ab", image(28, 252), "cd")], max_length=6, over_long="split")
    assert [shown(row) for row in made.group.to_pylist()] == [["[abcd]", "[<|endoftext|>]"]]
    assert made.drops.tokens["truncated"] == {0: 11}


def test_split_documents_go_on_at_the_next_item_with_their_own_frame() -> None:
    rows = [document("abcde", image(56, 84), "fg", image(56, 84), "h")]
    made = outcome(rows, max_length=8, over_long="split", bos=True, bos_token_id=QWEN.token_to_id(END))
    assert all(len(row["input_ids"]) <= 8 for row in made.group.to_pylist())
    assert made.group.column("_row").to_pylist() == [100] * made.group.num_rows
    for row in made.group.to_pylist():
        assert shown(row)[0] == END
        assert shown(row)[-1] == "[<|endoftext|>]"
    assert sum(len(row["images"]) for row in made.group.to_pylist()) == 2


def test_a_chat_is_never_split_into_fragments() -> None:
    """Case 112: a chat of 13 tokens in 10."""
    rows = [chat("Q", "A", "Q", "B" * 30)]
    for over_long in ("split", "truncate"):
        row = only(rows, max_length=30, over_long=over_long)
        assert shown(row)[-2:] == ["[A]", f"[{END}]"]


def test_a_first_answer_that_is_too_long_is_cut_inside_and_still_trained() -> None:
    """Case 103: a truncated answer is trained up to the cut."""
    row = only([chat("Q", "y" * 200)], max_length=30, over_long="truncate")
    assert len(row["input_ids"]) == 30
    first = row["loss_mask"].index(1)
    assert all(row["loss_mask"][first:])
    made = outcome([chat("Q" * 100, "answer")], max_length=30, over_long="truncate")
    assert made.drops.rows["nothing to train on"].tolist() == [0]


POLICIES = [
    Qwen2VL(),
    InternVL(size=28, image_seq_length=4),
    Idefics3(image_seq_len=4, tile=364),
    Pixtral(),
    Gemma4(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=[p.name for p in POLICIES])
def test_images_are_planned_smaller_until_the_sample_fits(policy: Any) -> None:
    tokenizer = kinds.fast(("<|endoftext|>", *policy.special_tokens))
    rows = [document("word", image(600, 800), "more", image(400, 300)), document("word", image(60, 60))]
    source = canonical(rows)

    def made(**given: Any) -> list[dict[str, Any]]:
        return TokenizeInterleaved(tokenizer=tokenizer, images=policy, **given).bind()(source).group.to_pylist()

    whole = made()
    limit = len(whole[0]["input_ids"]) - 20
    fitted = made(max_length=limit, over_long="fit_images")
    assert [row["_row"] for row in fitted] == [100, 101]
    assert len(fitted[0]["input_ids"]) <= limit
    assert len(fitted[0]["input_ids"]) > limit // 4
    assert fitted[1] == whole[1]  # what fits is left alone
    text = [n for n, t in zip(fitted[0]["input_ids"], _in_spans(fitted[0]), strict=True) if not t]
    assert text == [n for n, t in zip(whole[0]["input_ids"], _in_spans(whole[0]), strict=True) if not t]
    for plan in fitted[0]["image_plans"]:
        made_plan = Plan.unpack(plan["numbers"])
        assert (made_plan.height, made_plan.width) in [(600, 800), (400, 300)]
    assert {p["policy"] for p in fitted[0]["image_plans"]} != {policy.spec()}
    for row in fitted:
        check_row(row)


def _in_spans(row: dict[str, Any]) -> Any:
    inside = np.zeros(len(row["input_ids"]), bool)
    for span in row["image_spans"]:
        inside[span["start"] : span["stop"]] = True
    return inside


def test_samples_that_do_not_fit_with_the_smallest_images_are_dropped_and_counted() -> None:
    made = outcome([document("x" * 100, image())], max_length=20, over_long="fit_images")
    assert made.drops.rows["over-long"].tolist() == [0]

"""The quicker libraries give the ids of `tokenizers`, or are not used.

Borders of the pre-tokenizer are what libraries get wrong, and an ordinary vocabulary hides most of them. So these tokenizers have
merges for any two bytes, a fifth of all pairs: they become one token where no border is between them, and never across it.
"""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operators.tokenizer_kinds import real_texts, tokenizer
from thoroughness import examples
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from zephon.errors import PluginError, RecipeError
from zephon.keys import I64
from zephon.operators.text_encoder import TextEncoder
from zephon.operators.token_backends import Backend, Library, Ready, RefusedError, checked, choose
from zephon.operators.token_backends.base import I32
from zephon.operators.token_backends.checked import Checked, drawn
from zephon.operators.token_backends.fastokens import Fastokens
from zephon.operators.token_backends.gigatoken import Gigatoken
from zephon.operators.token_backends.hugging_face import HuggingFace
from zephon.operators.token_backends.sample import sample
from zephon.operators.token_backends.shapes import PATTERNS
from zephon.operators.tokenize import Tokenize
from zephon.operators.tokenizer_files import load_tokenizer
from zephon.recipe import operator_fingerprint

SHAPES = ("gpt-2", "gpt-2 with a space before", "digits", "bytes", *PATTERNS)
PIECES = [
    *"aAsStTzZ1290 '’_-.!/", "'s", "'S", "'ll", "'VE", "  ", "\n", "\r\n", "\t", "\x00", "\x0b", "\x1c", "\x85", "\u00a0", "\u2028",
    "\u3000", "\u200b", "\u200d", "\ufeff", "é", "e\u0301", "\u0327\u0301", "ß", "İ", "ı", "ſ", "\u212a", "ǅ", "ʰ", "日本", "한", "ㄱ",
    "क", "ि", "्", "ع", "😀", "👩\u200d👩", "🇩🇪", "٣", "Ⅷ", "½", "\u180e", "\ufffd", "\ufdd0", "\U0010ffff", "\u0378", "\U00010940",
    "<|end|>", "<|e", "nd|>", "<tool>", "|><", "return", "http://x.y/z?a=1",
]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.integers(1, 300)),
)


@cache
def pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in letters for b in letters]
    merges = random.Random(5).sample(merges, len(merges) // 5)
    return {token: i for i, token in enumerate([*letters, *(a + b for a, b in merges)])}, merges


@cache
def shaped(shape: str) -> Tokenizer:
    vocab, merges = pairs()
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if shape in PATTERNS:
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[shape]]
        made.pre_tokenizer = pre_tokenizers.Sequence([*steps, split])
        made.normalizer = normalizers.NFC() if shape.startswith("qwen") else normalizers.Sequence([])
    elif shape == "digits":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])
    else:
        made.pre_tokenizer = split if shape == "bytes" else pre_tokenizers.ByteLevel(shape.endswith("before"))
    made.add_special_tokens(["<|end|>", "<|e"])
    made.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("return", single_word=True)])
    return made


def by_tokenizers(made: Tokenizer, texts: Sequence[str], *, allow_special: bool = False) -> list[list[int]]:
    made.encode_special_tokens = not allow_special
    return [encoded.ids for encoded in made.encode_batch(list(texts), add_special_tokens=False)]


def rows(made: tuple[I32, I64]) -> list[list[int]]:
    ids, lengths = made
    assert (str(ids.dtype), str(lengths.dtype)) == ("int32", "int64")
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(lengths) else []


@cache
def encoder(shape: str, allow_special: bool) -> TextEncoder:
    made = TextEncoder(load_tokenizer(shaped(shape)), allow_special=allow_special, backends=(Fastokens(),))
    assert isinstance(made._encoder, Checked)
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("allow_special", [False, True])
@given(texts=st.lists(TEXTS, max_size=8))
@settings(max_examples=examples(25), deadline=None)
def test_fastokens_gives_the_ids_of_tokenizers_for_any_text(shape: str, allow_special: bool, texts: list[str]) -> None:
    want = by_tokenizers(shaped(shape), texts, allow_special=allow_special)
    assert rows(encoder(shape, allow_special).encode(texts)) == want


@pytest.mark.parametrize("shape", SHAPES)
def test_fastokens_gives_the_ids_of_tokenizers_for_code_points_of_all_planes(shape: str) -> None:
    points = [
        c
        for start, stop, step in ((0, 0x3100, 5), (0x3100, 0x20000, 61), (0x20000, 0x110000, 4001))
        for c in range(start, stop, step)
    ]
    shapes = ("a{0}b'{0}c", " {0}1{0}{0}!{0}'s\n{0} {0}\u0301")
    texts = [form.format(chr(c)) for c in points if not 0xD800 <= c < 0xE000 for form in shapes]
    texts += [f"{a}{odd}{b}" for a in "xK1( " for odd in ("'ſ", "\u180e", "'\u212a", "ſ") for b in map(chr, range(0x21, 0x7F))]
    assert rows(encoder(shape, False).encode(texts)) == by_tokenizers(shaped(shape), texts)


@pytest.mark.parametrize("ignore_merges", [True, False])
@pytest.mark.parametrize("shape", ["llama-3", "qwen-2", "gpt-2"])
def test_a_trained_vocabulary_gives_equal_ids_on_real_and_odd_text(shape: str, ignore_merges: bool) -> None:
    plain = json.loads(tokenizer("gpt2").to_str())
    plain["pre_tokenizer"] = json.loads(shaped(shape).to_str())["pre_tokenizer"]
    plain["model"]["ignore_merges"] = ignore_merges
    made = Tokenizer.from_str(json.dumps(plain))
    texts = [*real_texts(), "\n\n".join(real_texts()), *sample(["<|endoftext|>"])]
    encode = TextEncoder(load_tokenizer(made), allow_special=False, backends=(Fastokens(),))
    assert isinstance(encode._encoder, Checked)
    assert rows(encode.encode(texts)) == by_tokenizers(made, texts)


def test_a_group_without_texts_and_texts_without_tokens_are_fine() -> None:
    encode = encoder("gpt-2", False)
    assert rows(encode.encode([])) == []
    assert rows(encode.encode(["", ""])) == [[], []]
    assert rows(encode.encode(["", "\u180e", "", "a"])) == by_tokenizers(shaped("gpt-2"), ["", "\u180e", "", "a"])


def test_threads_that_encode_at_once_don_t_disturb_each_other() -> None:
    encode = encoder("llama-3", False)
    parts = [[text[i:] for text in (*real_texts()[:200], "x'ſ")] for i in range(12)]
    want = [by_tokenizers(shaped("llama-3"), part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        assert [rows(made) for made in pool.map(encode.encode, parts)] == want


def test_the_library_starts_no_threads_beside_the_runner_s() -> None:
    code = (
        "import psutil, sys; sys.path.insert(0, 'tests')\n"
        "from operators.test_token_backends import encoder\n"
        "from operators.tokenizer_kinds import real_texts\n"
        "made = encoder('llama-3', False); before = psutil.Process().num_threads()\n"
        "made.encode([' '.join(real_texts()) * 3] * 8); print(psutil.Process().num_threads() - before)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout == "0\n"


# ------------------------------------------------------------------------------------------------------ when it isn't used


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "zephon.operators.tokenize"]


def odd_tokenizer(what: str) -> Tokenizer:
    plain = json.loads(shaped("gpt-2").to_str())
    if what == "pattern":
        split = {"type": "Split", "pattern": {"Regex": r"\w+|[^\w\s]+|\s+"}, "behavior": "Isolated", "invert": False}
        last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        plain["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, last]}
    elif what == "normalizer":
        plain["normalizer"] = {"type": "NFKC"}
    elif what == "bytes":
        plain["model"]["merges"] = []
        plain["model"]["vocab"] = {c: i for i, c in enumerate("abc")}
    elif what == "overlap":
        token = {"special": False, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
        plain["added_tokens"].append({"id": 99_999, "content": "|><", **token})
    else:
        plain["model"]["end_of_word_suffix"] = "</w>"
        plain["model"]["merges"] = []
    return Tokenizer.from_str(json.dumps(plain))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        *(("pattern", "pre-tokenizer"), ("normalizer", "NFKC"), ("bytes", "256 bytes"), ("suffix", "suffix"), ("overlap", "can overlap")),
        *(("bert", "WordPiece"), ("t5", "Unigram"), ("llama", "byte_fallback"), ("words", "WordLevel")),
    ],
)  # fmt: skip
def test_a_tokenizer_that_was_not_compared_is_left_to_tokenizers_with_one_reason(
    made: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    own = tokenizer(made) if made in ("bert", "t5", "llama", "words") else odd_tokenizer(made)
    own.add_special_tokens([f"<|{made} of this test|>"])  # another test may have had this tokenizer, and a reason is given once
    encode = TextEncoder(load_tokenizer(own), allow_special=False)
    TextEncoder(load_tokenizer(own), allow_special=False)
    assert isinstance(encode._encoder, HuggingFace)
    assert len(reasons(caplog)) == 1
    assert reason in reasons(caplog)[0]
    texts = ["abc déjà", "bca", "x<|end|><y"]
    assert rows(encode.encode(texts)) == by_tokenizers(own, texts)


class Other:
    """A back-end as somebody else might write it: `tokenizers` with settings of its own."""

    def __init__(self, name: str, **changes: Any) -> None:
        self.name = name
        self.changes = changes
        self.loads = 0

    def version(self) -> str:
        return "1.0"

    def unsure(self, ready: Ready) -> Sequence[str]:
        return ()

    def load(self, ready: Ready) -> HuggingFace:
        self.loads += 1
        made = Tokenizer.from_str(json.dumps({**ready.plain, **self.changes}))
        made.encode_special_tokens = not ready.allow_special
        return HuggingFace(made)


class Missing(Other):
    def version(self) -> str:
        raise RefusedError("not installed")


class Panics(Other):
    def load(self, ready: Ready) -> HuggingFace:
        class PanicException(BaseException):
            """As Rust raises it."""

        raise PanicException("index out of bounds")


class Fails:
    """An encoder that gives up on long texts."""

    def __init__(self, inner: HuggingFace) -> None:
        self.inner = inner

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        if any(len(text) > 100_000 for text in texts):
            raise OverflowError("too long")
        return self.inner.encode(texts)


class Never:
    """A reference that must not be asked."""

    def encode(self, texts: Sequence[str]) -> tuple[I32, I64]:
        raise AssertionError(f"asked for {texts}")


def forgets(text: str) -> dict[str, Any]:
    return {"normalizer": {"type": "Replace", "pattern": {"String": text}, "content": ""}}


def with_backends(*backends: Backend) -> Any:
    return TextEncoder(load_tokenizer(shaped("gpt-2")), allow_special=False, backends=backends)._encoder


def test_other_ids_on_one_string_of_the_sample_are_enough_to_refuse_a_library(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = with_backends(Other("forgetful", **forgets("Ёлка")), Missing("absent"), Panics("panics"))
    assert isinstance(made, HuggingFace)
    (said,) = reasons(caplog)
    for part in ("forgetful: other ids for", "absent: not installed", "panics: PanicException: index out of bounds"):
        assert part in said


def test_the_first_library_that_is_proven_is_taken_and_proven_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bad, good = Other("bad of this test", **forgets("Ёлка")), Other("good of this test")
    first, second = with_backends(bad, good), with_backends(bad, good)
    assert isinstance(first, Checked)
    assert first is second
    assert (bad.loads, good.loads) == (1, 1)
    del first, second
    third = with_backends(bad, good)
    assert (bad.loads, good.loads) == (1, 2)
    assert isinstance(third, Checked)
    assert len(reasons(caplog)) == 1


def test_a_difference_in_the_run_is_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample doesn't hold this word; the check of some texts finds it."""
    monkeypatch.setattr(checked, "UNCHECKED", 100_000)
    operator = with_backends(Other("careless", **forgets("zyxwv")))
    assert isinstance(operator, Checked)
    texts = [f"a zyxwv number {i}" for i in range(80_000)]
    with pytest.raises(PluginError, match=r"careless 1\.0 and tokenizers \d.* give different ids .*'a zyxwv number") as failure:
        operator.encode(texts)
    assert "backend='tokenizers'" in str(failure.value)
    assert (
        rows(operator.encode(["nothing odd", *map(str, range(5000))]))[0] == by_tokenizers(shaped("gpt-2"), ["nothing odd"])[0]
    )


def test_the_texts_to_check_depend_on_the_texts_and_on_nothing_else() -> None:
    texts = [f"text number {i * i}" for i in range(9000)]
    ids, lengths = encoder("gpt-2", False).encode(texts)
    chosen = {texts[row] for row in drawn(ids, lengths, 64)}
    assert 60 < len(chosen) < 250
    again: set[str] = set()
    for part in (texts[4000:], texts[:1000], texts[1000:4000]):
        again |= {part[row] for row in drawn(*encoder("gpt-2", False).encode(part), 64)}
    assert again == chosen


def test_repeated_texts_are_not_all_checked() -> None:
    ids, lengths = encoder("gpt-2", False).encode([str(number) for number in range(3000) for _ in range(4)])
    for number in range(3000):
        begin = int(lengths[: 4 * number].sum())
        part = slice(4 * number, 4 * number + 4)
        many = np.tile(ids[begin : begin + int(lengths[part].sum())], 1000), np.tile(lengths[part], 1000)
        assert len(drawn(*many, 4096)) <= 1 + 8 * 4000 // 4096


def test_while_a_run_begins_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make the reference takes longer than all else then."""
    own = HuggingFace(shaped("gpt-2"))
    made = Checked("own", own, reference=Never(), reference_name="never", unsure=(), one_in=64)
    texts = [f"text number {i * i}" for i in range(2000)]
    (first, *_) = [text for text in texts if drawn(*own.encode([text]), 64)]
    monkeypatch.setattr(checked, "UNCHECKED", 63 * len(own.encode([first])[0]))
    made.encode([first] * 63)
    with pytest.raises(AssertionError, match="asked"):
        made.encode([first])


@cache
def guarded() -> Checked:
    own = HuggingFace(shaped("llama-3"))
    text = shaped("llama-3").to_str()
    wrong = Other("drops", **forgets("'ſ")).load(Ready(text, json.loads(text), True))
    return Checked("drops", wrong, reference=own, reference_name="own", unsure=("'ſ", "\u180e"), one_in=1)


@given(texts=st.lists(st.sampled_from(["", "a b", "ſ", "x'ſy", "long enough 12", "\u180e", "é"]), max_size=12))
def test_texts_that_a_library_is_unsure_of_are_encoded_in_place_by_the_reference(texts: list[str]) -> None:
    assert rows(guarded().encode(texts)) == by_tokenizers(shaped("llama-3"), texts, allow_special=True)


def test_where_the_library_fails_the_reference_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = HuggingFace(shaped("gpt-2"))
    made = Checked("weak", Fails(own), reference=own, reference_name="own", unsure=())
    texts = ["short", "x " * 60_000]
    assert rows(made.encode(texts)) == rows(made.encode(texts)) == by_tokenizers(shaped("gpt-2"), texts, allow_special=True)
    assert reasons(caplog) == ["weak failed, own takes over where it does: OverflowError: too long"]


# ------------------------------------------------------------------------------------------------------------ the choice


@pytest.mark.parametrize("wish", get_args(Library))
def test_a_setting_chooses_the_library_and_nothing_in_the_output_or_the_recipe(wish: Library) -> None:
    group = pa.record_batch({"text": ["déjà vu", "x ſ 12", "", *real_texts()[:50]]})
    operator = Tokenize(tokenizer=shaped("llama-3"), special_tokens="none", backend="tokenizers")
    want, before = operator.bind()(group).group, operator_fingerprint(operator)
    operator = Tokenize(tokenizer=shaped("llama-3"), special_tokens="none", backend=wish)
    assert operator.bind()(group).group.equals(want)
    assert operator_fingerprint(operator) == before
    kind = Checked if wish in ("fastokens", "auto") else HuggingFace
    assert isinstance(operator.bind()._encoder._encoder, kind)


def test_an_unknown_name_is_an_error_before_the_run() -> None:
    with pytest.raises(RecipeError, match="did you mean 'fastokens'"):
        Tokenize(tokenizer=shaped("gpt-2"), backend="fasttokens")  # type: ignore[arg-type]


def test_a_library_can_be_wished_for_by_name() -> None:
    text = shaped("gpt-2").to_str()
    ready = Ready(text, json.loads(text), True)
    one, two = Other("one"), Other("two")
    choose(ready, lambda: shaped("gpt-2"), backends=(one, two), wish="two")
    assert (one.loads, two.loads) == (0, 1)


# ------------------------------------------------------------------------------------------------------------- gigatoken


def plain_gpt2() -> Ready:
    plain = json.loads(tokenizer("gpt2").to_str())
    return Ready(json.dumps(plain), plain, False)


def test_gigatoken_gives_the_ids_of_tokenizers_on_text_that_unicode_17_did_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is made anew, since it never forgets a word."""
    monkeypatch.setattr("zephon.operators.token_backends.gigatoken.CHARACTERS_KEPT", 10_000)
    made = Gigatoken().load(plain_gpt2())
    for texts in (real_texts(), real_texts()[:1], [], [""], ["", "x<|endoftext|>y", "日本語 😀"]):
        assert rows(made.encode(texts)) == by_tokenizers(tokenizer("gpt2"), texts)


def test_with_gigatoken_the_letters_of_a_newer_unicode_keep_their_ids() -> None:
    """Its tables know 4,657 letters that those of `tokenizers` 0.22 don't; the proof must see that."""
    made = TextEncoder(load_tokenizer(shaped("llama-3")), allow_special=True, backends=(Gigatoken(),))
    newer = [f"a{c}'s" for c in "\u088f\ua7ce\U00010940"]
    assert rows(made.encode(newer)) == by_tokenizers(shaped("llama-3"), newer, allow_special=True)

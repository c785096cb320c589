"""`tokenize` against the tokenizers themselves, on real text and on awkward text (cases 104, 106, 107)."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operators.tokenizer_kinds import KINDS, real_texts, tokenizer
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from zephon.errors import DataError, RecipeError
from zephon.operators.tokenize import Tokenize
from zephon.operators.tokenizer_files import special_ids
from zephon.plugin import CountsTokens, Drops
from zephon.recipe import operator_fingerprint
from zephon.testing import check_operator

AWKWARD = [
    "", " ", "\n\n", "\x00", "ünï → 日本語 😀", "a" * 300, "_" * 300, " " * 300, "\u200b", "e\u0301", "\ufffd",
    "tab\tand\r\nline", "<s>", "</s>", "[CLS] [SEP]", "<|endoftext|>", "x<|endoftext|>y", " <s> a </s>", "[BOS] a [EOS]", "<0x0A>",
]  # fmt: skip
SPECIAL = ("<|endoftext|>", "[CLS]", "[SEP]", "[PAD]", "<pad>", "<s>", "</s>", "[BOS]", "[EOS]")


def texts_group(texts: list[Any] | pa.Array, **columns: Any) -> pa.RecordBatch:
    size = len(texts)
    given = {"text": texts if isinstance(texts, pa.Array) else pa.array(texts, type=pa.string()), **columns}
    return pa.RecordBatch.from_pydict(
        {
            **given,
            "_component": pa.array([i % 2 for i in range(size)], type=pa.int32()),
            "_pass": pa.array([0] * size, type=pa.int64()),
            "_shard": pa.array([1] * size, type=pa.int32()),
            "_row": pa.array(range(100, 100 + size), type=pa.int64()),
        }
    )


def tokens(operator: Tokenize, texts: list[Any]) -> list[list[int]]:
    made: list[list[int]] = operator.bind()(texts_group(texts)).group.column(0).to_pylist()
    return made


def dropped(operator: Tokenize, texts: list[Any]) -> Drops:
    return operator.bind()(texts_group(texts)).drops


def plain(kind: str, text: str) -> list[int]:
    """The tokenizer's own ids, without special tokens."""
    ids: list[int] = tokenizer(kind).encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("kind", KINDS)
def test_text_gives_the_ids_that_the_tokenizer_gives(kind: str) -> None:
    texts = [*real_texts()[:200], *(t for t in AWKWARD if not any(s in t for s in SPECIAL))]
    want = [ids for ids in (plain(kind, t) for t in texts) if ids]
    assert tokens(Tokenize(tokenizer=tokenizer(kind), special_tokens="none"), texts) == want


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_default_gives_what_the_tokenizer_gives_with_its_special_tokens(kind: str) -> None:
    texts = list(real_texts()[:50])
    want = [e.ids for e in tokenizer(kind).encode_batch(texts)]
    assert tokens(Tokenize(tokenizer=tokenizer(kind), special_tokens="tokenizer_default"), texts) == want


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_text_can_spell_a_special_token(kind: str, data: st.DataObject) -> None:
    parts = st.one_of(st.sampled_from(SPECIAL), st.sampled_from([" ", "a", "<", ">", "\n", "s", "]"]), st.text(max_size=3))
    text = "".join(data.draw(st.lists(parts, max_size=8)))
    made = tokens(Tokenize(tokenizer=tokenizer(kind), special_tokens="none"), [text])
    marked = {i: t.content for i, t in tokenizer(kind).get_added_tokens_decoder().items() if t.special}
    found = {marked[i] for ids in made for i in ids if i in marked}
    assert found <= {"<unk>", "[UNK]"}


def test_special_strings_are_text_as_with_split_special_tokens_of_transformers() -> None:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer("gpt2"), eos_token="<|endoftext|>")
    texts = ["x<|endoftext|>y", "<|endoftext|>"]
    want = fast(texts, split_special_tokens=True)["input_ids"]
    assert tokens(Tokenize(tokenizer=fast, special_tokens="none"), texts) == want


@pytest.mark.parametrize("kind", ["gpt2", "t5", "llama", "words"])
def test_special_strings_become_special_tokens_when_that_is_asked_for(kind: str) -> None:
    text = "a<|endoftext|>b</s>c [EOS] d"
    operator = Tokenize(tokenizer=tokenizer(kind), special_tokens="none", allow_special=True)
    assert tokens(operator, [text]) == [plain(kind, text)]
    assert operator.special_ids()["eos_token_id"] in tokens(operator, [text])[0]


@pytest.mark.parametrize("mode", ["bos_eos", "bos", "eos", "none", "tokenizer_default", "auto"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("text", ["word", "{bos}word", "{bos}{bos}word{eos}", "word{eos}{eos}", "{bos}word{eos}"])
def test_there_is_one_bos_and_one_eos_also_where_the_text_has_them(mode: Any, kind: str, text: str) -> None:
    """Case 104: a template that renders BOS, and a tokenizer that adds a second one."""
    bos, eos = ("<|endoftext|>", "<|endoftext|>") if kind == "gpt2" else ("<s>", "</s>")
    operator = Tokenize(tokenizer=tokenizer(kind), special_tokens=mode, allow_special=True)
    made = tokens(operator, [text.format(bos=bos, eos=eos)])[0]
    known = operator.special_ids()
    before, after = operator.frame
    if before:
        assert before == (known["bos_token_id"],) == tuple(made[:1])
        assert made[1] != known["bos_token_id"]
    if after:
        assert after == (known["eos_token_id"],) == tuple(made[-1:])
        assert made[-2] != known["eos_token_id"]
    assert len(made) > len(before) + len(after)


def test_auto_marks_the_border_of_documents_where_the_tokenizer_does_not() -> None:
    frames = {kind: Tokenize(tokenizer=tokenizer(kind)).frame for kind in KINDS}
    assert frames == {"gpt2": ((), (0,)), "bert": ((2,), (3,)), "t5": ((), (1,)), "llama": ((1,), ()), "words": ((), (2,))}


@pytest.mark.parametrize("mode", ["bos_eos", "none", "eos"])
@pytest.mark.parametrize("allow_special", [True, False])
def test_a_text_without_tokens_of_its_own_is_dropped_and_counted(mode: Any, allow_special: bool) -> None:
    """Case 107."""
    operator = Tokenize(tokenizer=tokenizer("llama"), special_tokens=mode, allow_special=allow_special, missing_field="empty")
    empty = ["", None] + (["<s>", "<s></s>", "</s>", "<s><s></s></s>"] if allow_special else [])
    for texts in (empty, [*empty, "a", *empty], empty[:1]):
        made = tokens(operator, texts)
        assert len(made) == texts.count("a")
        assert all(made)
        assert len(dropped(operator, texts).rows["empty"]) == len(texts) - texts.count("a")


@pytest.mark.parametrize("policy", ["split", "truncate", "drop"])
@pytest.mark.parametrize("mode", ["bos_eos", "eos", "none"])
@given(limit=st.integers(3, 12), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_no_row_is_longer_than_max_length_and_every_token_is_there_or_counted(
    policy: Any, mode: Any, limit: int, sizes: list[int]
) -> None:
    texts = [" ".join(f"w{i}{j}" for j in range(size)) for i, size in enumerate(sizes)]
    settings: dict[str, Any] = {"tokenizer": tokenizer("llama"), "special_tokens": mode}
    whole = Tokenize(**settings).bind()(texts_group(texts)).group
    cut = Tokenize(**settings, max_length=limit, over_long=policy).bind()(texts_group(texts))
    before, after = Tokenize(**settings).frame
    full = dict(zip(whole.column("_row").to_pylist(), whole.column(0).to_pylist(), strict=True))
    got: dict[int, list[list[int]]] = {}
    for row, ids in zip(cut.group.column("_row").to_pylist(), cut.group.column(0).to_pylist(), strict=True):
        assert len(before) + len(after) < len(ids) <= limit
        assert tuple(ids[: len(before)]) == before
        assert tuple(ids[len(ids) - len(after) :]) == after
        got.setdefault(row, []).append(ids[len(before) : len(ids) - len(after)])
    room = limit - len(before) - len(after)
    lost = 0
    for row, ids in full.items():
        content = ids[len(before) : len(ids) - len(after)]
        if len(content) <= room or policy == "split":
            assert [t for part in got[row] for t in part] == content
        elif policy == "truncate":
            assert got[row] == [content[:room]]
            lost += len(content) - room
        else:
            assert row not in got
            lost += len(ids)
    assert sum(n for counts in cut.drops.tokens.values() for n in counts.values()) == lost


@pytest.mark.parametrize("kind", KINDS)
def test_long_runs_are_encoded_in_time_and_as_the_tokenizer_does(kind: str) -> None:
    """Case 106: runs without a border. The models of `tokenizers` are linear here; a quadratic one would take minutes."""
    size = 1_000_000 if kind == "llama" else 200_000
    code = base64.b64encode(np.random.Generator(np.random.Philox(key=3)).bytes(size * 3 // 4)).decode()
    texts = ["_" * size, "a" * size, " " * size, code, "".join(chr(0x4E00 + i * 7919 % 20000) for i in range(size // 3))]
    operator = Tokenize(tokenizer=tokenizer(kind), special_tokens="none")
    assert sum(map(len, tokens(operator, texts))) > 0
    short = [text[:20_000] for text in texts]
    assert tokens(operator, short) == [ids for ids in (plain(kind, t) for t in short) if ids]


def test_other_columns_stay_only_when_asked_for() -> None:
    group = texts_group(["a", "", "b"], label=[1, 2, 3])
    bare = Tokenize(tokenizer=tokenizer("gpt2")).bind()(group).group
    assert bare.schema.names == ["input_ids", "_component", "_pass", "_shard", "_row"]
    full = Tokenize(tokenizer=tokenizer("gpt2"), preserve_upstream_payload=True, output="ids").bind()(group).group
    assert full.schema.names == ["text", "label", "ids", "_component", "_pass", "_shard", "_row"]
    assert full.column("label").to_pylist() == [1, 3]


def test_the_attention_mask_is_all_ones() -> None:
    row = Tokenize(tokenizer=tokenizer("gpt2"), add_attention_mask=True).bind()(texts_group(["some text"])).group.to_pylist()[0]
    assert row["attention_mask"] == [1] * len(row["input_ids"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_any_text_column_will_do(kind: pa.DataType) -> None:
    texts = ["one", "two", "one", None]
    array = (
        pa.array(texts, type=pa.string()).cast(kind)
        if not pa.types.is_dictionary(kind)
        else pa.array(texts).dictionary_encode()
    )
    made = Tokenize(tokenizer=tokenizer("gpt2"), missing_field="empty").bind()(texts_group(array)).group
    assert made.column(0).to_pylist() == tokens(Tokenize(tokenizer=tokenizer("gpt2")), ["one", "two", "one"])


def test_a_null_text_is_an_error_that_names_the_row_unless_it_may_be_missing() -> None:
    with pytest.raises(DataError, match="null") as failure:
        tokens(Tokenize(tokenizer=tokenizer("gpt2")), ["a", None])
    assert (failure.value.where.row, failure.value.where.shard) == (101, 1)


def test_a_missing_column_is_an_error_before_the_run_unless_it_may_be_missing() -> None:
    schema = pa.schema([pa.field("body", pa.string()), pa.field("texts", pa.string())])
    with pytest.raises(RecipeError, match="did you mean 'texts'"):
        Tokenize(tokenizer=tokenizer("gpt2")).output_schema(schema)
    operator = Tokenize(tokenizer=tokenizer("gpt2"), field="nowhere", missing_field="empty")
    assert operator.bind()(texts_group(["a", "b"])).drops.rows["empty"].tolist() == [0, 1]


def test_bytes_are_refused_with_the_way_out() -> None:
    with pytest.raises(RecipeError, match="decode_text"):
        Tokenize(tokenizer=tokenizer("gpt2")).output_schema(pa.schema([pa.field("text", pa.binary())]))


def test_text_that_is_not_utf8_is_an_error() -> None:
    raw = pa.array([b"fine", b"\xff\xfe"], type=pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    with pytest.raises(DataError, match="not UTF-8"):
        Tokenize(tokenizer=tokenizer("gpt2")).bind()(texts_group(broken))


# --------------------------------------------------------------------------------------------------- where tokenizers come from


def saved(kind: str, folder: Path, **names: Any) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer(kind).save(str(folder / "tokenizer.json"))
    if names:
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def test_a_file_a_folder_an_object_and_transformers_give_the_same(tmp_path: Path) -> None:
    folder = saved("llama", tmp_path / "model")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer("llama"), bos_token="<s>", eos_token="</s>")
    texts = list(real_texts()[:20])
    made = [
        tokens(Tokenize(**spec, special_tokens="bos_eos"), texts)
        for spec in (
            {"tokenizer_id": str(folder)},
            {"tokenizer_id": str(folder / "tokenizer.json")},
            {"tokenizer": tokenizer("llama")},
            {"tokenizer": fast},
        )
    ]
    assert made[0] == made[1] == made[2] == made[3]


def test_the_fingerprint_is_the_vocabulary_and_not_the_path(tmp_path: Path) -> None:
    one, two = saved("llama", tmp_path / "one"), saved("llama", tmp_path / "two")
    other = saved("gpt2", tmp_path / "other")
    prints = [operator_fingerprint(Tokenize(tokenizer_id=str(p))) for p in (one, two, other)]
    assert prints[0] == prints[1] != prints[2]
    assert prints[0] == operator_fingerprint(Tokenize(tokenizer=tokenizer("llama")))
    assert prints[0] == operator_fingerprint(Tokenize(tokenizer=tokenizer("llama"), parallelism=8))


def test_files_beside_the_tokenizer_name_its_special_tokens(tmp_path: Path) -> None:
    folder = saved("words", tmp_path / "m", eos_token={"content": "[BOS]"}, pad_token="[EOS]")
    assert special_ids(str(folder)) == {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 2, "unk_token_id": 0}


def test_a_given_id_is_stronger_than_the_tokenizers() -> None:
    operator = Tokenize(tokenizer=tokenizer("llama"), special_tokens="bos_eos", bos_token_id=77, eos_token_id=78)
    made = tokens(operator, ["a b"])[0]
    assert (made[0], made[-1]) == (77, 78)
    assert operator.special_ids()["eos_token_id"] == 78


def test_a_slow_tokenizer_of_transformers_works() -> None:
    class Letters(PreTrainedTokenizer):
        def __init__(self, **settings: Any) -> None:
            self.letters = {"<eos>": 0, "<unk>": 1, **{c: i + 2 for i, c in enumerate("abc ")}}
            super().__init__(eos_token="<eos>", unk_token="<unk>", **settings)

        @property
        def vocab_size(self) -> int:
            return len(self.letters)

        def get_vocab(self) -> dict[str, int]:
            return dict(self.letters)

        def _tokenize(self, text: str, **_: Any) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return self.letters.get(token, 1)

        def _convert_id_to_token(self, index: int) -> str:
            return next(t for t, i in self.letters.items() if i == index)

    operator = Tokenize(tokenizer=Letters(), special_tokens="eos")
    assert tokens(operator, ["abc", "ca"]) == [[2, 3, 4, 0], [4, 2, 0]]
    assert len(operator.fingerprint_parts()["vocabulary"]) == 16


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/at/all", "no such name!"])
def test_a_tokenizer_that_is_not_there_is_an_error_without_a_look_at_the_hub(spec: str) -> None:
    with pytest.raises(RecipeError, match="no tokenizer file or folder"):
        Tokenize(tokenizer_id=spec).bind()


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(RecipeError, match="not a tokenizer file"):
        Tokenize(tokenizer_id=str(file)).bind()


def test_an_object_that_is_no_tokenizer_is_an_error() -> None:
    with pytest.raises(RecipeError, match="not a tokenizer"):
        Tokenize(tokenizer=object()).bind()


def test_a_special_token_that_is_not_known_is_an_error_before_the_run() -> None:
    with pytest.raises(RecipeError, match="BOS"):
        Tokenize(tokenizer=tokenizer("t5"), special_tokens="bos").bind()


def test_dropout_is_off_since_tokens_must_not_be_chance() -> None:
    made = tokenizer("gpt2")
    assert isinstance(made.model, models.BPE)
    made.model.dropout = 0.9
    texts = list(real_texts()[:5])
    assert tokens(Tokenize(tokenizer=made), texts) == tokens(Tokenize(tokenizer=tokenizer("gpt2")), texts)


def test_truncation_and_padding_of_the_tokenizer_do_not_count() -> None:
    made = tokenizer("bert")
    made.enable_truncation(5)
    made.enable_padding(length=9)
    texts = list(real_texts()[:5])
    assert tokens(Tokenize(tokenizer=made), texts) == tokens(Tokenize(tokenizer=tokenizer("bert")), texts)


def test_the_users_tokenizer_is_left_as_it_was() -> None:
    made: Tokenizer = tokenizer("llama")
    before = made.to_str()
    tokens(Tokenize(tokenizer=made), ["</s> a"])
    assert made.to_str() == before
    assert not made.encode_special_tokens


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_pickled_operator_is_equal_and_carries_nothing_that_was_loaded(dumps: Any, tmp_path: Path) -> None:
    by_path = Tokenize(tokenizer_id=str(saved("llama", tmp_path / "m")))
    by_path.bind()
    assert len(dumps(by_path)) < 1000
    for operator in (by_path, Tokenize(tokenizer=tokenizer("llama"))):
        assert pickle.loads(dumps(operator)) == operator
        assert hash(pickle.loads(dumps(operator))) == hash(operator)
    assert by_path != Tokenize(tokenizer=tokenizer("llama"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "tokenizer_id"),
        ({"tokenizer_id": "a", "tokenizer": 1}, "tokenizer_id"),
        ({"tokenizer_id": "a", "special_tokens": "bos-eos"}, "did you mean 'bos_eos'"),
        ({"tokenizer_id": "a", "over_long": "cut"}, "over_long"),
        ({"tokenizer_id": "a", "missing_field": "skip"}, "missing_field"),
        ({"tokenizer_id": "a", "max_length": 0}, "max_length"),
        ({"tokenizer_id": "a", "parallelism": 0}, "parallelism"),
    ],
)
def test_wrong_settings_are_refused_when_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Tokenize(**settings)


def test_max_length_must_leave_room_for_text() -> None:
    with pytest.raises(RecipeError, match="2 of them are special"):
        Tokenize(tokenizer=tokenizer("bert"), max_length=2).bind()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_length": 7, "over_long": "split", "add_attention_mask": True},
        {"max_length": 7, "over_long": "truncate", "preserve_upstream_payload": True},
        {"max_length": 7, "over_long": "drop", "allow_special": True},
    ],
)
def test_tokenize_conforms(kind: str, settings: dict[str, Any]) -> None:
    texts = [*AWKWARD, *real_texts()[:10]]
    given = [
        texts_group(texts, label=list(range(len(texts)))),
        texts_group([], label=[]).cast(texts_group(["a"], label=[1]).schema),
    ]
    operator = Tokenize(tokenizer=tokenizer(kind), missing_field="empty", **settings)
    assert isinstance(operator, CountsTokens)
    check_operator(operator, given)

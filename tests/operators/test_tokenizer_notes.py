"""What is noted of a tokenizer's file, and what loads ahead of its use: quicker, and never anything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operators.tokenizer_kinds import KINDS, real_texts, tokenizer
from tokenizers import Tokenizer

from zephon.errors import RecipeError
from zephon.notes import Notes, kept_text
from zephon.operators.text_encoder import TextEncoder, begin_file, default_frame
from zephon.operators.token_backends.brief import shortened
from zephon.operators.token_backends.checked import Checked
from zephon.operators.tokenize import Tokenize
from zephon.operators.tokenizer_files import LoadedTokenizer, content_hash, load_tokenizer


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(kind: str, folder: Path) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(tokenizer(kind).to_str(), encoding="utf-8")
    return file


def known(loaded: LoadedTokenizer) -> dict[str, Any]:
    has = [number for number in range(-2, 3000) if loaded.has(number)]
    return {"special": dict(loaded.special), "content": content_hash(loaded), "frame": default_frame(loaded), "has": has}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_noted_of_a_file_is_what_the_tokenizer_says(kind: str, tmp_path: Path) -> None:
    want = known(load_tokenizer(tokenizer(kind)))
    file = written(kind, tmp_path)
    assert known(load_tokenizer(str(file))) == want
    again = load_tokenizer(str(file))
    assert known(again) == want
    encode = TextEncoder(again, allow_special=False)
    if kind == "gpt2":
        assert isinstance(encode._encoder, Checked)
        noted = load_tokenizer(str(file))
        assert known(noted) == want
        del encode
        made = TextEncoder(noted, allow_special=False).encode(["a b"])[0].tolist()
        assert made == tokenizer(kind).encode("a b").ids
        assert "fast" not in vars(noted)


def test_another_content_at_the_same_path_has_other_facts(tmp_path: Path) -> None:
    first = known(load_tokenizer(str(written("gpt2", tmp_path))))
    assert known(load_tokenizer(str(written("bert", tmp_path)))) != first
    assert known(load_tokenizer(str(written("gpt2", tmp_path)))) == first


def test_the_names_beside_a_tokenizer_count(tmp_path: Path) -> None:
    file = written("gpt2", tmp_path)
    assert "pad_token_id" not in load_tokenizer(str(file)).special
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "a"}))
    assert load_tokenizer(str(file)).special["pad_token_id"] == tokenizer("gpt2").token_to_id("a")


@pytest.mark.parametrize("harm", ["not json", "[1]", ""])
def test_a_note_that_cant_be_read_is_made_again(harm: str, tmp_path: Path) -> None:
    file = written("gpt2", tmp_path)
    want = known(load_tokenizer(str(file)))
    notes = list((tmp_path / "cache" / "zephon" / "notes").iterdir())
    assert notes
    for note in notes:
        note.write_text(harm)
    assert known(load_tokenizer(str(file))) == want


def test_without_a_cache_directory_nothing_is_noted_and_all_is_as_before(tmp_path: Path) -> None:
    file = written("gpt2", tmp_path)
    (tmp_path / "cache").write_text("a file where the directory would be")
    assert known(load_tokenizer(str(file))) == known(load_tokenizer(tokenizer("gpt2")))


def test_notes_of_several_writers_are_joined(tmp_path: Path) -> None:
    one, two = Notes("thing", "content"), Notes("thing", "content")
    one.put("first", 1)
    two.put("second", [2])
    three = Notes("thing", "content")
    assert (three.get("first"), three.get("second"), Notes("thing", "other").get("first")) == (1, [2], None)


def test_wrong_noted_ids_leave_the_text_to_tokenizers(tmp_path: Path) -> None:
    made_of = tokenizer("gpt2")
    made_of.add_special_tokens(["<|of this test|>"])  # which nothing was proven of in this process
    file = tmp_path / "tokenizer.json"
    made_of.save(str(file))
    program = "import sys; from zephon.operators.tokenize import Tokenize; Tokenize(tokenizer_id=sys.argv[1]).bind()"
    subprocess.run([sys.executable, "-c", program, str(file)], check=True, timeout=60)
    loaded = load_tokenizer(str(file))
    notes = vars(loaded)["_notes"]
    (name,) = [n for n in notes._known if n.startswith("ids of")]
    notes.put(name, "0" * 32)
    made = TextEncoder(loaded, allow_special=False)
    assert not isinstance(made._encoder, Checked)
    texts = list(real_texts())[:20]
    assert made.encode(texts)[0].tolist() == [i for e in tokenizer("gpt2").encode_batch(texts) for i in e.ids]


# --------------------------------------------------------------------------------------------------------- short text


@pytest.mark.parametrize("kind", KINDS)
def test_a_shortened_tokenizer_has_the_same_vocabulary_and_merges(kind: str) -> None:
    plain = json.loads(tokenizer(kind).to_str())
    short = shortened(plain)
    assert json.loads(Tokenizer.from_str(short).to_str()) == plain
    assert len(short) < len(tokenizer(kind).to_str(pretty=True))


def test_merges_of_parts_with_spaces_stay_in_two_parts() -> None:
    merges: list[Any] = [["a", "b"], ["a ", "b"], ["a", " "], "c d"]
    plain = {"model": {"vocab": {}, "merges": merges}, "added_tokens": []}
    want = {"model": {"vocab": {}, "merges": ["a b", ["a ", "b"], ["a", " "], "c d"]}, "added_tokens": []}
    assert json.loads(shortened(plain)) == want
    assert plain["model"]["merges"] is merges


@pytest.mark.parametrize("harm", [b"", b"short", None], ids=["empty", "too short", "cut"])
def test_a_kept_text_that_was_cut_is_made_again(harm: bytes | None, tmp_path: Path) -> None:
    text = 'ein "längerer" Text \ud800'
    assert kept_text("thing", "1", lambda: text) == text
    (file,) = (tmp_path / "cache" / "zephon" / "notes").iterdir()
    whole = file.read_bytes()
    assert kept_text("thing", "1", lambda: "another") == text
    file.write_bytes(whole[:-1] if harm is None else harm)
    assert kept_text("thing", "1", lambda: text) == text
    assert file.read_bytes() == whole
    assert kept_text("thing", "2", lambda: "another") == "another"


# ------------------------------------------------------------------------------------------------------------ ahead


def encoded(operator: Tokenize) -> list[int]:
    group = pa.record_batch({"text": ["a text, isn't it"]})
    ids: list[list[int]] = operator.bind()(group).group.column("input_ids").to_pylist()
    return ids[0]


def test_the_vocabulary_of_the_recipe_encodes_also_where_the_file_is_replaced_meanwhile(tmp_path: Path) -> None:
    file = written("gpt2", tmp_path)
    plain = json.loads(file.read_text())
    operator = Tokenize(tokenizer_id=str(file), special_tokens="none")
    operator.prepare()
    ahead = vars(operator)["_ahead"]
    if ahead._backend is not None:  # None: an earlier test's encoder of the same vocabulary is still there
        ahead.wait(30)
    vocab = plain["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(plain))
    want = Tokenize(tokenizer_id=str(file), special_tokens="none")
    assert encoded(operator) == encoded(want)
    assert operator.fingerprint_parts() == want.fingerprint_parts()


@pytest.mark.parametrize("special", [False, True], ids=["special strings are text", "special strings count"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_known_gives_the_same_ids_and_isnt_parsed_where_a_quicker_library_takes_it(
    kind: str, special: bool, tmp_path: Path
) -> None:
    file, texts = written(kind, tmp_path), list(real_texts())[:30]
    want = TextEncoder(load_tokenizer(tokenizer(kind)), allow_special=special).encode(texts)[0].tolist()
    for known_before in (False, True):
        ahead = begin_file(str(file), allow_special=special, backend="auto")
        assert ahead is not None
        made = TextEncoder(load_tokenizer(str(file)), allow_special=special, ahead=ahead)
        assert made.encode(texts)[0].tolist() == want
        ready, backend = ahead._ready, ahead._backend
        quick = backend is not None and isinstance(made._encoder, Checked)
        assert ("plain" in vars(ready) or ready.parsed is not None) == (not known_before) or not quick
        del made
    if kind == "gpt2":
        assert quick


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"model": {}}', "\x00"])
def test_what_goes_wrong_ahead_is_told_when_the_tokenizer_is_used(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(text)
    operator = Tokenize(tokenizer_id=str(file))
    operator.prepare()
    operator.prepare()
    with pytest.raises(RecipeError, match="is not a tokenizer file"):
        operator.bind()


def test_a_file_that_goes_while_it_loads_ahead_is_told(tmp_path: Path) -> None:
    file = written("gpt2", tmp_path)
    operator = Tokenize(tokenizer_id=str(file))
    operator.prepare()
    os.unlink(file)
    with pytest.raises(RecipeError, match="no tokenizer file or folder|neither a local path"):
        operator.bind()


def test_a_program_may_end_while_a_vocabulary_loads(tmp_path: Path) -> None:
    """It ended with a signal: a daemon thread can't be ended inside of Rust."""
    program = "import sys; from zephon.operators.tokenize import Tokenize; Tokenize(tokenizer_id=sys.argv[1]).prepare()"
    ended = subprocess.run(
        [sys.executable, "-c", program, str(written("gpt2", tmp_path))], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("allow_special", [False, True])
def test_one_tokenizer_of_a_file_serves_readers_of_special_strings_and_others(allow_special: bool, tmp_path: Path) -> None:
    loaded = load_tokenizer(str(written("gpt2", tmp_path)))
    encoders = {way: TextEncoder(loaded, allow_special=way) for way in (allow_special, not allow_special)}
    text = "a<|endoftext|>b"
    own = tokenizer("gpt2")
    for way, encoder in encoders.items():
        own.encode_special_tokens = not way
        want = own.encode(text).ids
        assert encoder.encode([text])[0].tolist() == want
        reference: Any = encoder._encoder
        assert reference._reference.encode([text])[0].tolist() == want

"""A tokenizer of the hub without a network: what the cache holds is enough, what it doesn't know is an error and never other ids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from operators.tokenizer_kinds import tokenizer
from storage.hub import HubHandler, put
from storage.servers import handler_server

from zephon.errors import RecipeError
from zephon.operators.tokenizer_files import special_ids

_LOAD = """
from zephon.errors import RecipeError
from zephon.operators.tokenizer_files import special_ids
try:
    print(special_ids("org/name"))
except RecipeError as error:
    print("refused:", error)
"""


def loaded(home: Path, **more: str) -> str:
    """What a process says that has only this cache, or also what `more` names."""
    environment = {**os.environ, "HF_HOME": str(home), **(more or {"HF_HUB_OFFLINE": "1"})}
    ran = subprocess.run([sys.executable, "-c", _LOAD], env=environment, capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.strip()


@pytest.mark.parametrize(
    ("files", "missing", "want"),
    [
        ([], [], "refused: "),
        (["tokenizer.json"], [], "refused: "),  # the names of its special tokens may be in a file that is not here
        (["tokenizer.json"], ["special_tokens_map.json"], "refused: "),
        (["tokenizer.json"], ["special_tokens_map.json", "tokenizer_config.json"], "{"),
    ],
)
def test_only_what_the_cache_knows_to_be_missing_is_missing(
    tmp_path: Path, files: list[str], missing: list[str], want: str
) -> None:
    model = tmp_path / "hub" / "models--org--name"
    for folder in ("refs", "snapshots/abc", ".no_exist/abc"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    for name in files:
        (model / "snapshots" / "abc" / name).write_text(tokenizer("gpt2").to_str())
    for name in missing:
        (model / ".no_exist" / "abc" / name).touch()
    assert loaded(tmp_path).startswith(want)


def test_of_a_cached_tokenizer_the_hub_is_asked_for_one_file(tmp_path: Path) -> None:
    """The others are the commit's: without a network, each file that is asked for costs half a minute of the hub library's retries."""
    handler = type("Handler", (HubHandler,), {"folder": tmp_path / "repos", "cards": {}, "log": []})
    files = {"tokenizer.json": tokenizer("gpt2").to_str().encode(), "tokenizer_config.json": b'{"eos_token": "a"}'}
    put(tmp_path / "repos", "models/org/name", files)
    with handler_server(handler) as port:
        endpoint = f"http://127.0.0.1:{port}"
        first = loaded(tmp_path / "home", HF_ENDPOINT=endpoint)
        assert {line.rsplit("/", 1)[-1] for line in handler.log} == {*files, "special_tokens_map.json"}
        handler.log.clear()
        assert loaded(tmp_path / "home", HF_ENDPOINT=endpoint) == first
        assert [line.rsplit("/", 1)[-1] for line in handler.log] == ["tokenizer.json"]
    assert loaded(tmp_path / "home") == first
    assert "eos_token_id" in first


def test_a_file_name_is_no_name_of_the_hub() -> None:
    """`tokenizer.json` in another folder than the one that was meant."""
    with pytest.raises(RecipeError, match=r"no tokenizer file or folder 'tokenizer\.json'"):
        special_ids("tokenizer.json")

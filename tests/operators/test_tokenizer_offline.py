"""A tokenizer of the hub without a network: what the cache holds is enough, what it doesn't know is an error and never other ids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from operators.tokenizer_kinds import tokenizer

_LOAD = """
from zephon.errors import RecipeError
from zephon.operators.tokenizer_files import special_ids
try:
    print(special_ids("org/name"))
except RecipeError as error:
    print("refused:", error)
"""


def loaded(home: Path) -> str:
    """What a process says that has only this cache."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
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

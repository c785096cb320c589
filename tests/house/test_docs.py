"""The documents are under test: what they show runs, and what there is, they mention."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from argparse import _SubParsersAction
from pathlib import Path

import pytest

import zephon
from zephon import errors
from zephon.cli import make_parser
from zephon.compat import OPERATOR_NAMES, OPTION_NAMES
from zephon.options import Options
from zephon.registry import available

ROOT = Path(zephon.__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EVERYTHING = "\n".join(path.read_text(encoding="utf-8") for path in [README, *PAGES])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def script_of(page: Path) -> str:
    """The page's blocks as one program, on the lines where they stand, so that a traceback names the line of the page."""
    text = page.read_text(encoding="utf-8")
    out, line = "", 1
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1)) + 1
        out += "\n" * (start - line) + block[1]
        line = start + block[1].count("\n")
    return out


def run(program: Path | str, folder: Path, name: str, *arguments: str) -> str:
    path = program if isinstance(program, Path) else folder / f"{name}.py"
    if isinstance(program, str):
        path.write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(path), *arguments]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.fixture(scope="session")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which somebody followed the README from top to bottom, and what was printed."""
    folder = tmp_path_factory.mktemp("newcomer")
    return folder, run(script_of(README), folder, "readme")


def test_the_readme_runs_from_top_to_bottom(newcomer: tuple[Path, str]) -> None:
    folder, printed = newcomer
    assert "torch.Size([8, 512])" in printed
    assert "\n0 1\n" in printed  # resumed at lane 0, step 1
    assert "\n100\n" in printed
    assert "'in': 3" in printed
    assert (folder / "bad.jsonl").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page)], ids=lambda page: page.name)
def test_a_page_runs_in_the_folder_that_the_readme_made(page: Path, newcomer: tuple[Path, str]) -> None:
    run(script_of(page), newcomer[0], page.stem)


ONE_AFTER_THE_OTHER = """
import contextlib, io, json, runpy, sys, traceback
ran = {}
for path in sys.argv[1:]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(path, run_name="__main__")
        ran[path] = [printed.getvalue(), ""]
    except Exception:
        ran[path] = [printed.getvalue(), traceback.format_exc()]
print(json.dumps(ran))
"""


@pytest.fixture(scope="session")
def with_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What those examples printed that train a model of transformers, and why one failed: run in one program, which loads it once."""
    paths = [str(path) for path in EXAMPLES if trains_a_model(path)]
    printed = run(ONE_AFTER_THE_OTHER, tmp_path_factory.mktemp("models"), "examples", *paths)
    ran: dict[str, list[str]] = json.loads(printed)
    return ran


def trains_a_model(example: Path) -> bool:
    return "from transformers import" in example.read_text(encoding="utf-8")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_runs(example: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60
    if trains_a_model(example):
        printed, failure = request.getfixturevalue("with_models")[str(example)]
        assert not failure, failure
    else:
        printed = run(example, tmp_path, example.stem)
    assert printed


@pytest.mark.parametrize("group", ["zephon.formats", "zephon.operators"])
def test_every_reader_and_operator_of_ours_is_documented(group) -> None:
    ours = [name for name, claims in available(group).items() if claims[0].distribution == "zephon"]
    assert [name for name in ours if f"`{name}`" not in EVERYTHING] == []


def test_every_command_and_its_flags_are_documented() -> None:
    commands = next(action for action in make_parser()._actions if isinstance(action, _SubParsersAction))
    for name, parser in commands.choices.items():
        assert f"zephon {name}" in EVERYTHING
        flags = [flag for action in parser._actions for flag in action.option_strings if flag not in ("-h", "--help")]
        assert [flag for flag in flags if flag not in EVERYTHING] == []


def test_every_option_is_in_the_readme() -> None:
    names = [field.name for field in dataclasses.fields(Options)]
    assert [name for name in names if f"`{name}`" not in README.read_text(encoding="utf-8")] == []


def test_every_spelling_of_adapters_is_documented() -> None:
    text = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    assert [name for name in [*OPTION_NAMES, *OPERATOR_NAMES] if name not in text] == []


def test_the_readme_states_the_defaults_of_numeric_and_chosen_options() -> None:
    text = README.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)`[ *]* \| (\S+) \|", text, re.MULTILINE))
    plain = {f.name: f.default for f in dataclasses.fields(Options) if isinstance(f.default, int | float | str)}
    stated = {name: rows[name].strip('"`') for name in plain if name in rows}
    assert stated == {name: f"{plain[name]:g}" if isinstance(plain[name], float) else str(plain[name]) for name in stated}
    assert {"uneven_lanes", "runner", "prefetch_batches", "flush_every_chunks", "on_error", "watchdog_s"} <= set(stated)


def test_every_error_class_is_explained() -> None:
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.ZephonError)]
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [name for name in kinds if f"`{name}`" not in text] == []


def test_links_between_documents_lead_somewhere() -> None:
    pages = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} → {target}"


def test_the_changelog_knows_this_version() -> None:
    assert f"[{zephon.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") or "[Unreleased]" in (
        ROOT / "CHANGELOG.md"
    ).read_text(encoding="utf-8")

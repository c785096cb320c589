"""The command line: what it prints, its exit codes, and that a broken plug-in breaks nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import zephon.cli
from zephon.cli import main
from zephon.errors import PluginError


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a distribution whose plug-ins are broken in two ways, and one that works."""
    info = tmp_path / "strangers-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[zephon.operators]\nlost = no_such_module_at_all:Lost\nodd = strangers_odd:Odd\nshout = strangers_good:Shout\n"
        "plain = strangers_good:Plain\nscript = strangers_script:Main\n"
        "[zephon.formats]\nparquet = strangers_good:Shout\nplain = strangers_good:Plain\nendings = strangers_good:Endings\n"
    )
    (tmp_path / "strangers_odd.py").write_text("raise OSError('the disk is on fire')\n")
    (tmp_path / "strangers_script.py").write_text("import sys\nsys.exit('usage: …')\n")
    (tmp_path / "strangers_good.py").write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom zephon.plugin import Operator\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Shout(Operator):\n    name: ClassVar[str] = 'shout'\n"
        "    def bind(self):\n        return lambda group: group\n"
        "class Plain:\n    name = 'plain'\n    suffixes = ('.jsonl',)\n"
        "from zephon.plugin import Reader\n"
        "class Endings(Reader):\n    name = 'endings'\n    suffixes = '.jsonl'\n    def open(self, store, shard): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def lines_of(text: str) -> dict[str, str]:
    return {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}


def test_plugins_lists_every_plugin_with_package_state_and_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    lines = lines_of(capsys.readouterr().out)
    for name, parts in {
        "jsonl": (f"zephon {zephon.__version__}", "zephon_formats.jsonl:Jsonl", ".jsonl.zst"),
        "parquet": ("zephon_formats.parquet:Parquet", ".parquet"),
        "pack_flat": ("zephon.operators.pack:PackFlat", "stateful"),
        "shuffle": ("zephon.operators.shuffle:Shuffle", "stateful"),
        "tokenize": ("zephon.operators.tokenize:Tokenize", "stateless"),
    }.items():
        assert all(part in lines[name] for part in parts), lines[name]
    assert not any("BROKEN" in line for line in lines.values())


def test_plugins_shows_broken_ones_with_their_error_and_lists_the_rest(
    strangers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins"]) == 0
    lines = lines_of(capsys.readouterr().out)
    assert "BROKEN" in lines["lost"]
    assert "no_such_module_at_all" in lines["lost"]
    assert "the disk is on fire" in lines["odd"]
    assert "SystemExit: usage" in lines["script"]  # a module that ends the program ends none
    assert "strangers_good:Plain of strangers must be a subclass of zephon.plugin.Operator" in lines["plain"]
    assert "suffixes of strangers_good:Endings of strangers must be a tuple of texts, not '.jsonl'" in lines["endings"]
    assert "strangers 1.2" in lines["shout"]
    assert lines["shout"].endswith("stateless")
    assert lines["tokenize"].endswith("stateless")


def test_broken_formats_of_strangers_leave_files_of_others_readable(strangers: Path) -> None:
    """Also where they have the files' suffix, and a class that is no reader can't be asked for it."""
    (strangers / "a.jsonl").write_text('{"x": 1}\n')
    assert zephon.Dataset.from_path("d", strangers / "a.jsonl").schema.names == ["x"]
    with pytest.raises(PluginError, match="subclass of zephon.plugin.Reader"):
        zephon.Dataset.from_path("d", strangers / "a.jsonl", format="plain")


def test_plugins_shows_both_claims_to_one_name(strangers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    claims = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  parquet")]
    assert len(claims) == 2
    assert all("is claimed by" in line and "strangers 1.2" in line for line in claims)


def test_python_dash_m_zephon_is_the_command() -> None:
    made = subprocess.run([sys.executable, "-m", "zephon", "--version"], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == f"zephon {zephon.__version__}"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--size", "0"], ["plugins", "--what"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_an_error_of_ours_is_one_message_on_stderr_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The demo without the package that it needs: the way out is named, and there is no traceback."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.delitem(sys.modules, "zephon.cli.demo_data", raising=False)
    monkeypatch.delattr(zephon.cli, "demo_data", raising=False)
    assert main(["demo", "--quick", "--dir", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "tokenizers" in captured.err
    assert "pip install 'zephon[demo]'" in captured.err
    assert "Traceback" not in captured.err


MINE = """
from zephon import Dataset, Pipeline
pipeline = Pipeline(Dataset.from_records("d", [{"text": f"{i} " * 99} for i in range(500)])).batch(500)
"""


@pytest.mark.parametrize(("arguments", "first"), [("plugins", "formats"), ("preview mine.py:pipeline", "mine.py:pipeline")])
def test_a_reader_that_closes_the_pipe_early_is_no_failure(arguments: str, first: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    command = f"set -o pipefail; {sys.executable} -m zephon {arguments} | head -n 1"
    made = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (made.returncode, made.stdout.strip(), made.stderr) == (0, first, "")


@pytest.mark.parametrize("command", ["preview mine.py:pipeline --html", "demo --quick --dir", "demo --quick --vlm --dir"])
def test_a_place_that_can_not_be_written_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "file").touch()
    assert main([*command.split(), "file/out"]) == 1
    assert capsys.readouterr().err.startswith("zephon: file/out can't be written: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("arguments", ["plugins", "preview mine.py:pipeline"])
def test_output_that_finds_no_room_is_told_in_a_line(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "zephon", *arguments.split()]
        made = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert (made.returncode, made.stderr) == (1, "zephon: the output can't be written: No space left on device\n")


_LIMITED = """
import resource, sys
from zephon.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize(
    ("words", "out"),
    [("preview mine.py:pipeline --html page", "page"), ("convert long.jsonl folder --to vortex", "folder")],
)
def test_without_room_there_is_no_half_of_a_file(words: str, out: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "long.jsonl").write_text("".join(f'{{"x": "{hash((i, "y"))}"}}\n' for i in range(2000)))
    (tmp_path / "page").write_text("an older page")
    made = subprocess.run(
        [sys.executable, "-c", _LIMITED, *words.split()], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120
    )
    assert made.returncode == 1
    assert f"zephon: {out} can't be written: File too large\n" in made.stderr
    assert (tmp_path / "page").read_text() == "an older page"
    assert not [path for path in tmp_path.rglob("*.vortex*") if not path.name.startswith(".")]

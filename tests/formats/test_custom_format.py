"""The example plug-in package, installed next to Zephon in a fresh environment, is found by name and keeps the promises of the API."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import zephon
from zephon.errors import PluginError

EXAMPLE = Path(zephon.__file__).parents[1] / "examples" / "custom_format"


def run(python: Path, *arguments: str | Path, folder: Path) -> str:
    """What a program of the environment prints; nothing of this process's search path leaks into it."""
    made = subprocess.run(
        [python, "-I", *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )  # -I: neither PYTHONPATH nor the current folder
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """`(its Python, a folder with the example's tests)`: an environment that sees what this one has, and the example besides.

    The packages of this environment come in through a .pth file, so nothing is downloaded and Zephon is the one under test.
    """
    folder = tmp_path_factory.mktemp("custom")
    made = folder / "venv"
    venv.create(made, with_pip=False, symlinks=True)
    python = made / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    here = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()])
    (packages / "host.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    source = folder / "source"
    shutil.copytree(
        EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    )  # a build writes beside it
    pip = ["-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-input", str(source)]
    made_pip = subprocess.run([sys.executable, *pip, *install], capture_output=True, text=True, timeout=120, check=False)
    assert made_pip.returncode == 0, made_pip.stdout + made_pip.stderr
    tests = folder / "tests"
    shutil.copytree(source / "tests", tests)
    return python, tests


def test_it_is_listed_with_its_package(environment: tuple[Path, Path], tmp_path: Path) -> None:
    lines = run(environment[0], "-m", "zephon", "plugins", folder=tmp_path).splitlines()
    (rec,) = (line.split() for line in lines if line.split()[:1] == ["rec"])
    (strip,) = (line.split() for line in lines if line.split()[:1] == ["strip_urls"])
    assert rec[1:3] == strip[1:3] == ["zephon-records", "0.1.0"]
    assert ".rec" in rec
    assert "stateless" in strip
    assert any(line.split()[:2] == ["parquet", "zephon"] for line in lines)


def test_it_is_found_by_suffix_and_its_operator_is_a_method(environment: tuple[Path, Path], tmp_path: Path) -> None:
    program = """
import zephon_records.rec as rec, pathlib
from zephon import Dataset, Pipeline
assert "site-packages" in rec.__file__, rec.__file__
pathlib.Path("data").mkdir()
rec.write_rec(pathlib.Path("data/a.rec"), [{"id": i, "text": f"text {i} https://example.org/{i}"} for i in range(20)])
data = Dataset.from_path("notes", "data")
print(len(data), *data.schema.names)
batch = next(iter(Pipeline(data).strip_urls(field="text", replacement="<url>").batch(20).options(max_steps=1)))
print(sorted(batch.to_pydict()["text"])[0])
"""
    printed = run(environment[0], "-c", program, folder=tmp_path)
    assert printed.splitlines() == ["20 id text", "text 0 <url>"]


def test_its_own_tests_pass_there(environment: tuple[Path, Path]) -> None:
    """They are `check_format` and `check_operator`, a damaged file, and a run from a file to batches."""
    python, tests = environment
    printed = run(python, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, folder=tests)
    assert "4 passed" in printed


def test_without_it_installed_nobody_knows_the_format(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(b"REC1")
    with pytest.raises(PluginError, match="unknown format 'rec'"):
        len(zephon.Dataset.from_path("notes", tmp_path, "rec"))

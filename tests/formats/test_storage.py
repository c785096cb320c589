"""Addresses stand for the files that their reader would expect, whatever is in their names."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from zephon import Dataset
from zephon.errors import DataError, RecipeError
from zephon.storage import LocalStore, default_cache_dir, expand, open_store

ODD = [
    "a b.txt",
    "50%25.txt",
    "a#b.txt",
    "what?.txt",
    "日本ü.txt",
    "x[1].txt",
    "s*r.txt",
    "{a,b}.txt",
    "semi;&.txt",
    "a::b.txt",
]


def found(path: Path | str) -> list[str]:
    store, inner = open_store(str(path), None, None)
    return [info.path for info in expand(store, inner)]


@pytest.mark.parametrize("name", ODD)
def test_a_name_that_exists_is_taken_literally(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"content")
    (tmp_path / "sbr.txt").write_bytes(b"other")
    store, inner = open_store(str(tmp_path / name), None, None)
    (info,) = expand(store, inner)
    assert info.path == str(tmp_path / name)
    assert info.size == 7
    assert store.read(info.path) == b"content"
    assert store.read(info.path, 2, 4) == b"nt"
    assert store.read(info.path, 5, 100) == b"nt"
    with store.open(info.path) as file:
        assert file.read() == b"content"


def test_a_directory_is_read_to_its_depth_without_hidden_files_and_indices(tmp_path: Path) -> None:
    for name in ["b.x", "a/c.x", "a/.hidden", "_tmp/d.x", ".git/e.x", "_SUCCESS", "b.x.zidx", "train.v1/f.x"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    expected = [str(tmp_path / name) for name in ["a/c.x", "b.x", "train.v1/f.x"]]
    assert found(tmp_path) == expected
    assert found(f"{tmp_path}/") == expected
    assert found(f"{tmp_path}/**") == expected
    assert found(f"{tmp_path}/*") == expected
    assert found(tmp_path / "*.x") == [str(tmp_path / "b.x")]
    assert found(tmp_path / "_tmp") == [str(tmp_path / "_tmp/d.x")]
    assert found(tmp_path / "_tmp" / "*") == [str(tmp_path / "_tmp/d.x")]
    assert found(tmp_path / "_*/*.x") == [str(tmp_path / "_tmp/d.x")]


def test_braces_are_written_out_with_padding_and_each_must_match(tmp_path: Path) -> None:
    for number in range(8, 12):
        (tmp_path / f"p-{number:03d}.x").write_bytes(b"1")
    assert found(tmp_path / "p-{008..011}.x") == [str(tmp_path / f"p-{n:03d}.x") for n in range(8, 12)]
    assert found(tmp_path / "p-{008,01*}.x") == [str(tmp_path / f"p-{n:03d}.x") for n in (8, 10, 11)]
    with pytest.raises(RecipeError, match=r"p-012.x' does not exist"):
        found(tmp_path / "p-{008..012}.x")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("none", "does not exist"),
        ("*.none", "no file matches"),
        ("empty", "no data file"),
        ("x" * 300, "looked up"),
        ("nul\0", "looked up"),
    ],
)
def test_nothing_there_is_an_error_that_says_so(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match=says):
        found(f"{tmp_path}/{path}")


def test_unknown_protocols_and_wrong_options_are_recipe_errors() -> None:
    with pytest.raises(RecipeError, match="nosuch"):
        open_store("nosuch://bucket/x", None, None)
    with pytest.raises(RecipeError, match="empty"):
        open_store("", None, None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_waited_for_by_nobody(tmp_path: Path) -> None:
    """Beside files it is none of them; named itself it is an error."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    os.mkfifo(tmp_path / "b.jsonl")
    assert len(Dataset.from_path("d", tmp_path)) == 1
    with pytest.raises(DataError, match=r"b\.jsonl' is a pipe or a device"):
        len(Dataset.from_path("d", tmp_path / "b.jsonl"))


def test_links_are_followed_once_and_a_broken_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.x").write_bytes(b"1")
    (tmp_path / "d/loop").symlink_to(tmp_path / "d")
    (tmp_path / "d/file.x").symlink_to(tmp_path / "d/a.x")
    assert found(tmp_path / "d") == [str(tmp_path / "d/a.x"), str(tmp_path / "d/file.x")]
    assert found(tmp_path / "**" / "*.x") == [str(tmp_path / "d/a.x"), str(tmp_path / "d/file.x")]
    (tmp_path / "self.x").symlink_to(tmp_path / "self.x")
    with pytest.raises(RecipeError, match=r"self\.x"):
        found(tmp_path / "self.x")
    (tmp_path / "d/gone.x").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"gone\.x"):
        found(tmp_path / "d")


def test_relative_paths_become_absolute_and_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("a.x").write_bytes(b"1")
    expected = [str(tmp_path / "a.x")]
    assert found("a.x") == found("./a.x") == found("~/a.x") == found(f"file://{tmp_path}/a.x") == expected


def test_a_missing_or_forbidden_file_is_a_data_error_that_names_it(tmp_path: Path) -> None:
    store = LocalStore()
    for call in (store.open, store.read):
        with pytest.raises(DataError, match=r"nothing\.x"):
            call(str(tmp_path / "nothing.x"))
    with pytest.raises(DataError, match="can't be read"):
        store.read(str(tmp_path))


@pytest.fixture
def memory() -> str:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs.clear()
    for name in ["/d/a.x", "/d/s/b.x", "/d/_h/c.x", "/d/.c.x"]:
        fs.pipe(name, name.encode())
    return "memory://d"


def test_fsspec_files_are_full_urls_and_read_by_range(memory: str) -> None:
    store, inner = open_store(memory, None, "/cache")
    assert [info.path for info in expand(store, inner)] == ["memory:///d/a.x", "memory:///d/s/b.x"]
    assert [info.path for info in expand(*open_store("memory://d/*.x", None, None))] == ["memory:///d/a.x"]
    (info,) = expand(*open_store("memory://d/a.x", None, None))
    assert info.size == 6
    again = pickle.loads(pickle.dumps(store))
    assert again.read(info.path, 1, 4) == b"d/a"
    assert again.read(info.path, 3, 3) == b""
    with again.open(info.path) as file:
        assert file.read() == b"/d/a.x"
    assert again.local(info.path) is None
    with pytest.raises(RecipeError, match="does not exist"):
        expand(*open_store("memory://d/none.x", None, None))
    with pytest.raises(DataError, match=r"none\.x"):
        again.read("memory://d/none.x")


def test_sidecars_are_beside_local_data_then_in_the_cache_under_the_whole_path(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "cache"))
    beside, cached = store.sidecar("/x/0.jsonl", ".zidx")
    assert beside == "/x/0.jsonl.zidx"
    assert cached.startswith(str(tmp_path / "cache"))
    assert cached != store.sidecar("/y/0.jsonl", ".zidx")[1]
    assert len(os.path.basename(store.sidecar("/" + "n" * 250, ".zidx")[1])) < 200
    remote, _ = open_store("memory://b", None, str(tmp_path))
    assert len(remote.sidecar("memory://b/k", ".zidx")) == 1


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c"}, "/c/zephon"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/zephon"),
        ({"XDG_CACHE_HOME": "relative"}, None),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the rules of this platform")
def test_the_cache_directory_follows_the_platform(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str | None
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert os.path.isabs(default_cache_dir())
    assert expected in (None, default_cache_dir())


def test_local_paths_do_not_import_fsspec(tmp_path: Path) -> None:
    code = f"import sys; from zephon.storage import *; expand(*open_store({str(tmp_path)!r} + '/*.py')); print('fsspec' in sys.modules)"
    (tmp_path / "a.py").write_bytes(b"1")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "False"

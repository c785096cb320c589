"""`zephon cache` says what is there and removes what nobody uses."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from zephon.cli.cache import show_cache
from zephon.errors import DataError
from zephon.storage.disk import Key, ShardCache


def filled(root: Path) -> tuple[ShardCache, Key]:
    cache = ShardCache(str(root), 50_000_000)
    keys = [Key("", f"s3://b/{name}.bin", 1_000_000, "v") for name in "ab"]
    for key in keys:
        held = cache.fetch(key, lambda fd: os.pwrite(fd, b"x" * 1_000_000, 0) and None)
        assert held is not None
        held.close()
    return cache, keys[0]


def test_it_shows_root_limit_bytes_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path)
    assert show_cache(str(tmp_path), clear=False) == 0
    printed = capsys.readouterr().out
    assert str(tmp_path) in "".join(printed.split())  # a narrow terminal breaks the path
    assert "50.0 MB" in printed
    assert "2.0 MB (2,000,000)" in printed
    assert "2" in printed


def test_it_clears_what_nobody_reads_and_says_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache, key = filled(tmp_path)
    held = cache.find(key)
    assert held is not None
    with held:
        show_cache(str(tmp_path), clear=True)
        printed = capsys.readouterr().out
        assert "1 files, 1.0 MB" in printed
        assert "in use" in printed
    show_cache(str(tmp_path), clear=True)
    assert cache.usage().files == 0
    assert cache.usage().limit_bytes == 50_000_000


def test_it_speaks_plainly_without_rich_and_of_a_cache_that_was_never_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_rich(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    show_cache(None, clear=True)
    assert capsys.readouterr().out.split("\n")[:2] == [f"root     {tmp_path}/zephon/shards", "limit    never used"]
    assert not (tmp_path / "zephon").exists()


def test_a_cache_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    cache, _ = filled(tmp_path)
    index = Path(cache.folder, "INDEX")
    index.unlink()
    with pytest.raises(DataError, match="can't be used"):
        show_cache(str(tmp_path), clear=True)

"""What is kept in files is there whole or not at all, and nothing is left beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from interrupts import interrupted_at

from zephon.atomic import write_whole

FULL_DISK = """
import json, resource, sys
from pathlib import Path
import numpy as np
from zephon.atomic import write_whole
from zephon.exchange import exchange_states
from zephon.errors import CheckpointError
from zephon.notes import Notes, default_cache_dir, kept_text
from zephon.options import Options
from zephon.selection import Kept, save_kept
from zephon_formats._sidecar import Stamp, write_sidecar

root, notes = Path(sys.argv[1]), Path(default_cache_dir())
(root / "old").write_bytes(b"old")
Notes("kind", "old").put("fact", 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # what a full disk does, for each file
much = bytes(np.arange(100_000, dtype=np.int32))
for name in ("old", "new"):
    try:
        write_whole(root / name, [b"a beginning", much])
    except OSError as error:
        assert error.filename == str(root / name), error
    else:
        raise AssertionError("it has room")
assert (root / "old").read_bytes() == b"old"
save_kept(str(root / "rows.kept"), Kept(np.frombuffer(much, dtype=np.uint8), 8 * len(much)))
write_sidecar([str(root / "a.zidx"), str(root / "b" / "b.zidx")], b"magic", Stamp(1, "", ""), {}, np.arange(100_000))
try:
    exchange_states({"fingerprint": "f" * 32, "much": "x" * 100_000}, Options(aggregate_dir=root / "states"), position=1)
except CheckpointError as error:
    assert "states" in str(error)
else:
    raise AssertionError("it has room")
assert Notes("kind", "old").get("fact") == 1
Notes("kind", "old").put("fact", "x" * 100_000)
assert Notes("kind", "old").get("fact") == 1
assert kept_text("kind", "ab", lambda: "x" * 100_000) == "x" * 100_000
print(json.dumps(sorted(p.name for where in (root, notes) for p in where.rglob("*") if p.is_file())))
"""


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "data")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout)
    assert names[1:] == ["old"]
    assert names[0].startswith("kind-")


# Python closes, and says so, what was opened when a Ctrl-C came before the `with` knew
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_wherever_it_comes_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "file"

    def parts() -> Iterator[bytes]:
        yield b"new "
        yield b"content"

    for number in count():
        write_whole(place, [b"old"])
        came = interrupted_at(number, lambda: write_whole(place, parts(), sync=True))
        assert place.read_bytes() in (b"old", b"new content")
        assert list(place.parent.iterdir()) == [place], f"interrupted at place {number}"
        if not came:
            break
    assert number > 10
    assert place.read_bytes() == b"new content"


def test_an_error_of_what_is_written_passes_as_it_is(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"a beginning"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(tmp_path / "file", parts())
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cant_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file") as raised:
        write_whole(tmp_path / "file" / "below", [b"content"])
    assert raised.value.filename == str(tmp_path / "file" / "below")

"""Records that failed: how many, in how many places one after the other, and the file that names them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any

from zephon.dataset import Dataset
from zephon.engine.faults import Losses
from zephon.engine.ledger import Ledger
from zephon.errors import DataError, RecipeError, RunnerError, Where, writing
from zephon.options import Options


class Quarantine:
    """Counts failed records, writes them down, and stops the run when there are too many.

    Raises:
        RecipeError: the file of `quarantine=` can't be written. (It is made with its first line.)
    """

    def __init__(self, options: Options, datasets: Sequence[Dataset], ledger: Ledger) -> None:
        self._options = options
        self._datasets = datasets
        self._ledger = ledger
        self._in_a_row: dict[tuple[int, int], dict[str, int]] = {}
        """By lane and level: how many failed last in each operator."""
        self._file: FileIO | None = None
        if options.quarantine is not None:
            with writing(f"quarantine={options.quarantine!r}", RecipeError):
                _check_writable(Path(options.quarantine))

    def take(self, lane: int, level: int, losses: Losses) -> None:
        """What failed in a task of a lane. Raises `DataError` beyond the limits."""
        before = self._in_a_row.pop((lane, level), {})
        if not losses.failures:
            return
        streaks = {name: streak.after(before.get(name, 0)) for name, streak in losses.streaks.items()}
        self._in_a_row[lane, level] = {name: last for name, (_, last) in streaks.items()}
        row = max(most for most, _ in streaks.values())
        last = losses.failures[-1]
        for failure in losses.failures:
            self._write(
                {
                    **asdict(failure),
                    "dataset": self._name(failure.component),
                    "shard": self._path(failure.component, failure.shard),
                }
            )
        place = Where(
            dataset=self._name(last.component),
            shard=self._path(last.component, last.shard),
            row=last.row,
            operator=last.operator,
        )
        limit = self._options.max_failures
        if limit is not None and self._ledger.failures > limit:
            raise DataError(
                f"{self._ledger.failures} records failed, more than max_failures={limit}; the last: {last.error}", where=place
            )
        limit = self._options.max_failures_in_a_row
        if limit is not None and row > limit:
            raise DataError(
                f"{row} records in a row failed, more than max_failures_in_a_row={limit}; the last: {last.error}", where=place
            )

    def _name(self, component: int) -> str:
        return self._datasets[component].name if 0 <= component < len(self._datasets) else "?"

    def _path(self, component: int, shard: str | int | None) -> str | None:
        if isinstance(shard, int) and 0 <= component < len(self._datasets):
            return self._datasets[component].shards[shard].path
        return None if shard is None else str(shard)

    def _write(self, line: dict[str, Any]) -> None:
        """Raises `RunnerError` where the disk is full, say."""
        if self._options.quarantine is None:
            return
        with writing(f"quarantine={self._options.quarantine!r}", RunnerError):
            if self._file is not None and not os.fstat(self._file.fileno()).st_nlink:
                self.close()  # somebody removed it: what is written to it nobody would find
            if self._file is None:
                self._file = _opened(self._options.quarantine)
            _append(self._file, json.dumps(line, sort_keys=True).encode() + b"\n")

    def close(self) -> None:
        """Close the file, if one was opened. What could not be written stays so, which was an error then."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _opened(path: str) -> FileIO:
    """The file, to add to; a last line that lost its end (the machine stopped, say) does not swallow the next one."""
    torn = False
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as before:
            before.seek(-1, os.SEEK_END)
            torn = before.read() != b"\n"
    file = FileIO(path, "a")
    if torn:
        _append(file, b"\n")
    return file


def _append(file: FileIO, line: bytes) -> None:
    """Add all of a line or nothing, since a file with a part of one can't be given back as `exclude=`. Raises `OSError`."""
    done = 0
    try:
        while done < len(line):
            done += file.write(line[done:])
    except OSError:
        with contextlib.suppress(OSError):
            if done and os.fstat(file.fileno()).st_size == file.tell():  # no other rank has added to it since
                file.truncate(file.tell() - done)
        raise


def _check_writable(path: Path) -> None:
    """Raises `OSError` for a file that can neither be made nor added to. Nothing is made."""
    if path.exists():
        with open(path, "a", encoding="utf-8"):
            return
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(path.parent)!r}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

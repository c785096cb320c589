"""Files that are there whole or not at all, whatever stops the writer: a full disk, a limit, a Ctrl-C, a crash."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any


def write_whole(path: str | os.PathLike[str], parts: Iterable[Any], *, sync: bool = False) -> None:
    """Write a file, in place of an older one; its directory is made where it isn't there.

    It is written beside its place under a hidden name, and renamed when it is complete, so nobody reads a part of it. What can't be
    completed is removed, whatever the error; only a killed process leaves its hidden file.

    Args:
        path: where.
        parts: bytes, or arrays of anything, one after the other.
        sync: wait until it is on the disk, so that also a machine that loses its power leaves the old or the new file. Without, such a
            machine may leave an empty one: enough where the content tells that it isn't whole, and is made again then.

    Raises:
        OSError: it can't be written; it names `path`, not the hidden file.
    """
    place = os.fspath(path)
    temporary = hidden_beside(place)
    try:
        os.makedirs(os.path.dirname(temporary), exist_ok=True)
        with open(temporary, "xb") as file:
            file.writelines(parts)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, place) from error
        raise


def hidden_beside(path: str) -> str:
    """A new name in the directory of `path`, which listings of data leave out."""
    return os.path.join(os.path.dirname(os.path.abspath(path)), f".{os.getpid()}-{os.urandom(8).hex()}.part")

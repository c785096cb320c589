"""The shard cache's files: whole shards below one folder, shared by all processes of a node.

    ROOT/zephon-shards/  MARKER                         a folder without it is not ours
                         INDEX                          bytes counted, limit; its lock guards the accounting
                         CLOCK                          a counter; the order of uses, without any clock
                         3f/3f…(32 digits)-train-0.bin  a whole shard; its lock pins it (shared) or evicts it (exclusive)
                         3f/3f….part                    a shard on its way; the lock is its downloader's

Locks are `flock`s, which the kernel drops when their process dies, on the very files that they protect. A `.part` has the shard's
full size from the beginning, so that what is promised counts; it becomes a shard by one `rename`. Only names of these patterns are
ever removed. Nothing is kept open between calls, so the object may be pickled and survives a fork.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from zephon.errors import RecipeError
from zephon.storage.names import digest_of, plain_name

try:
    import fcntl
except ImportError:  # pragma: no cover - this platform has no flock: no cache
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("zephon.storage")

FOLDER = "zephon-shards"
_MARKER, _INDEX, _CLOCK = "MARKER", "INDEX", "CLOCK"
_SHARD = re.compile(r"^[0-9a-f]{32}-[A-Za-z0-9._-]*$")
_GROUP = re.compile(r"^[0-9a-f]{2}$")
_PART = re.compile(r"^[0-9a-f]{32}\.part$")
_TOLD = (
    "This folder is Zephon's shard cache. It may be removed as a whole while nothing runs; `zephon cache --clear` empties it.\n"
)
_STATE = struct.Struct("<8sqq")
_MAGIC = b"zshards1"
_LOCK_PATIENCE_S = 30.0
_FULL = {errno.ENOSPC, errno.EDQUOT}
_MOMENT_S = 1.0
_MANY = 1000
"""From so many files on, an eviction makes 5 % more room than asked, so that not each download has to look at all of them."""


@dataclass(frozen=True)
class Key:
    """Which object: service and full URL, size and version. Equal base names never meet."""

    identity: str
    url: str
    size: int
    version: str

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        return digest_of(self.identity, self.url, str(self.size), self.version)


class Held:
    """A cached shard, open and pinned until it is closed. Reading works even when the file is removed by hand."""

    def __init__(self, fd: int, path: str, *, pinned: bool = True) -> None:
        self.fd = fd
        self.path = path
        self._pinned = pinned

    def in_place(self) -> bool:
        """Whether `path` is this file, and will be as long as it is held."""
        try:
            return self._pinned and os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release it; twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Usage:
    """What a cache holds."""

    files: int
    nbytes: int
    limit_bytes: int
    """0: never used."""


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int
    used: int
    is_part: bool


class ShardCache:
    """Whole shards on local disk, at most `limit_bytes` of them, the least recently used ones evicted first."""

    def __init__(self, root: str, limit_bytes: int, wait_s: float = 120.0) -> None:
        self.folder = os.path.join(root, FOLDER)
        self.limit_bytes = limit_bytes
        self.wait_s = wait_s
        self._broken: str | None = None
        self._counted = False
        self._last_used = ""

    # ------------------------------------------------------------------------------------------------- for readers

    def find(self, key: Key) -> Held | None:
        """The shard, pinned, if it is there."""
        path = self._shard_path(key)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        held = Held(fd, path)
        with contextlib.suppress(OSError):
            # where an evictor is at work, it has the exclusive lock: the file is as good as gone
            if _lock(fd, shared=True) and os.fstat(fd).st_size == key.size:
                self._touch(fd, path)
                return held
        held.close()
        return None

    def holds(self, key: Key) -> bool:
        """Whether the shard is there; says nothing of how long."""
        return os.path.exists(self._shard_path(key))

    def fetch(self, key: Key, fill: Callable[[int], None]) -> Held | None:
        """The shard, pinned: found, or downloaded by `fill(fd)`, by this process or by another one that it waits for.

        Returns:
            None where it must be read directly: the others take too long, all room is pinned, or the disk fails (told once).

        Raises:
            RecipeError: the limit is below this shard.
            Exception: what `fill` raises; nothing is left of the download then.
        """
        self.check_limit(key.size, key.url)
        give_up = time.monotonic() + self.wait_s
        pause_s = 0.002
        while True:
            held = self.find(key)
            if held is not None:
                return held
            if not self._ready():
                return None
            try:
                part = self._claim(key)
                if part is not None:
                    return self._filled(key, part, fill)
            except FileNotFoundError:
                log.info("somebody removed files of the shard cache at %s", self.folder)
            except OSError as error:
                self._give_up_on(error)
                return None
            if time.monotonic() > give_up:
                return None
            time.sleep(pause_s)
            pause_s = min(0.02, 2 * pause_s)

    def check_limit(self, size: int, name: str) -> None:
        """Raises `RecipeError` where a shard of this size can't be cached."""
        if size > self.limit_bytes:
            raise RecipeError(
                f"the shard cache may hold {self.limit_bytes} bytes, and the shard {name!r} alone has {size}",
                hint=f"set limit_bytes of CacheOptions to {size} at the very least, or switch the cache off",
            )

    def discard(self, key: Key) -> None:
        """Remove a shard that turned out to be damaged, unless somebody reads it."""
        self._remove(_Entry(self._shard_path(key), key.size, 0, is_part=False))

    def usage(self) -> Usage:
        """Files and bytes as they are on disk now, and the limit of who used it last."""
        entries = self._scan()
        return Usage(len(entries), sum(e.size for e in entries), self._read_state()[1])

    def clear(self) -> Usage:
        """Remove all that nobody uses; what remains."""
        if not os.path.exists(os.path.join(self.folder, _MARKER)):
            return Usage(0, 0, 0)
        limit = self._read_state()[1]
        with self._accounts() as accounts:
            for entry in self._scan():
                self._remove(entry)
            accounts.total = sum(e.size for e in self._scan())
            accounts.limit_bytes = limit
        return self.usage()

    # --------------------------------------------------------------------------------------------------- downloads

    def _claim(self, key: Key) -> int | None:
        """The open and exclusively locked `.part` of this shard; None: another process has it."""
        path = self._part_path(key)
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if not _lock(fd):
                    os.close(fd)
                    return None
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            except FileNotFoundError:
                pass  # became a shard, or was cleaned up, between the two calls
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _filled(self, key: Key, fd: int, fill: Callable[[int], None]) -> Held | None:
        """Download into the claimed part and put it in its place. Takes over `fd`."""
        part, path, kept = self._part_path(key), self._shard_path(key), False
        _filling.add(fd)
        try:
            found = self._settled(key)  # another process finished between our look and our claim
            if found is not None or not self._reserve(fd, key.size):
                return found
            fill(fd)
            os.fsync(fd)  # else a crash of the machine could leave a whole-looking shard of zeros
            with self._accounts():  # a count that goes on now would see neither name, or both
                os.rename(part, path)
            kept = True
            pinned = _lock(fd, shared=True)  # an evictor may come between the two locks; the open file stays readable
            self._touch(fd, path)
            return Held(fd, path, pinned=pinned)
        finally:
            _filling.discard(fd)
            if not kept:
                self._release(fd, part)
                os.close(fd)

    def _settled(self, key: Key) -> Held | None:
        """`find`, which finds nothing for a moment where a shard has its name and its downloader's lock still, or an evictor's already."""
        end = time.monotonic() + _MOMENT_S
        while (held := self.find(key)) is None and self.holds(key) and time.monotonic() < end:
            time.sleep(0.002)
        return held

    def _reserve(self, fd: int, size: int) -> bool:
        """Make the part as long as the shard, if room for it can be made. What a killed process had left in it goes."""
        with self._accounts() as accounts:
            before = os.fstat(fd).st_size
            os.ftruncate(fd, 0)
            if not self._counted or accounts.total < 0 or accounts.total - before + size > self.limit_bytes:
                accounts.total = self._make_room(size)
                self._counted = True
            else:
                accounts.total -= before
            if accounts.total + size > self.limit_bytes:
                return False
            accounts.total += size
            accounts.save()  # counted before it is there: killed in between, we have counted too much, never too little
            os.ftruncate(fd, size)
            return True

    def _release(self, fd: int, part: str) -> None:
        """Remove a part that came to nothing, on disk and in the accounts together."""
        with contextlib.suppress(OSError):
            if not os.fstat(fd).st_size:
                os.unlink(part)
                return
            with self._accounts() as accounts:
                accounts.total -= os.fstat(fd).st_size
                os.unlink(part)
            return
        with contextlib.suppress(OSError):
            os.unlink(part)

    def _make_room(self, size: int) -> int:
        """Evict until `size` bytes fit; the bytes that are left."""
        entries = self._scan()
        total = sum(e.size for e in entries)
        goal = self.limit_bytes - size
        if total <= goal:
            return total
        goal -= self.limit_bytes // 20 if len(entries) > _MANY else 0
        now = self._read_clock()
        # a part without a downloader goes first; a time of use from the future is from before the counter was lost: the oldest
        for entry in sorted(entries, key=lambda e: (not e.is_part, e.used if e.used <= now else 0, e.path)):
            if total <= goal:
                break
            if self._remove(entry):
                total -= entry.size
        return total

    def _remove(self, entry: _Entry) -> bool:
        """Unlink one of our files, unless somebody has it open."""
        with contextlib.suppress(OSError):
            fd = os.open(entry.path, os.O_RDWR)
            try:
                if _lock(fd):
                    os.unlink(entry.path)
                    return True
            finally:
                os.close(fd)
        return not os.path.exists(entry.path)

    def _scan(self) -> list[_Entry]:
        """What is there, by names that are ours."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for group in sorted(os.listdir(self.folder)):
                folder = os.path.join(self.folder, group)
                if not _GROUP.match(group) or os.path.islink(folder):
                    continue
                with os.scandir(folder) as files:
                    for file in files:
                        is_part = _PART.match(file.name) is not None
                        if is_part or _SHARD.match(file.name):
                            with contextlib.suppress(FileNotFoundError):
                                status = file.stat(follow_symlinks=False)
                                found.append(_Entry(file.path, status.st_size, int(status.st_mtime), is_part))
        return found

    # ---------------------------------------------------------------------------------------------- shared numbers

    @contextlib.contextmanager
    def _accounts(self) -> Iterator[_Accounts]:
        """The counted bytes, under the lock; written back afterwards."""
        fd = os.open(os.path.join(self.folder, _INDEX), os.O_RDWR)
        try:
            give_up = time.monotonic() + _LOCK_PATIENCE_S
            while not _lock(fd):
                if time.monotonic() > give_up:
                    raise TimeoutError(errno.ETIMEDOUT, f"the lock of {self.folder!r} was held for {_LOCK_PATIENCE_S:.0f} s")
                time.sleep(0.002)
            accounts = _Accounts(fd, self._read_state()[0], self.limit_bytes)
            yield accounts
            accounts.save()
        finally:
            os.close(fd)

    def _read_state(self) -> tuple[int, int]:
        """Counted bytes and limit; -1 where they are not to be read."""
        try:
            with open(os.path.join(self.folder, _INDEX), "rb") as file:
                magic, total, limit = _STATE.unpack(file.read(_STATE.size))
        except (OSError, struct.error):
            return -1, 0
        return (total, limit) if magic == _MAGIC else (-1, 0)

    def _read_clock(self) -> int:
        try:
            with open(os.path.join(self.folder, _CLOCK), "rb") as file:
                return int.from_bytes(file.read(8), "little")
        except OSError:
            return 0

    def _touch(self, fd: int, path: str) -> None:
        """Note a use as the file's time of change, in seconds of the counter. Two processes may count the same number: a tie."""
        if path == self._last_used:
            return
        self._last_used = path
        with contextlib.suppress(OSError):  # a read-only disk serves what it has, without an order of uses
            clock = os.open(os.path.join(self.folder, _CLOCK), os.O_RDWR)
            try:
                now = int.from_bytes(os.pread(clock, 8, 0), "little") + 1
                os.pwrite(clock, now.to_bytes(8, "little"), 0)
            finally:
                os.close(clock)
            os.utime(fd, (now, now))

    # ------------------------------------------------------------------------------------------------------ set-up

    def _ready(self) -> bool:
        """Whether shards can be put there. The folder is made with its marker in one step.

        Raises:
            RecipeError: somebody else's folder has this name.
        """
        if self._broken is not None:
            return False
        if os.path.exists(os.path.join(self.folder, _MARKER)):
            return True
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "this platform has no flock")
            self._make_folder()
        except OSError as error:
            self._give_up_on(error)
            return False
        if not os.path.exists(os.path.join(self.folder, _MARKER)):
            raise RecipeError(
                f"{self.folder!r} is there and is not a shard cache of ours", hint="choose another root for CacheOptions"
            )
        return True

    def _make_folder(self) -> None:
        root = os.path.dirname(self.folder)
        os.makedirs(root, exist_ok=True)
        draft = f"{self.folder}.{os.getpid()}-{threading.get_ident()}.new"
        os.mkdir(draft, 0o700)
        try:
            for name, content in (
                (_MARKER, _TOLD.encode()),
                (_INDEX, _STATE.pack(_MAGIC, 0, self.limit_bytes)),
                (_CLOCK, bytes(8)),
            ):
                with open(os.path.join(draft, name), "wb") as file:
                    file.write(content)
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                try:
                    os.rename(draft, self.folder)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _give_up_on(self, error: OSError) -> None:
        """From now on this process reads directly; said once."""
        if self._broken is None:
            self._broken = error.strerror or str(error)
            what = "is full" if error.errno in _FULL else f"can't be used: {self._broken}"
            log.warning("the shard cache's disk at %s %s; shards that it doesn't hold are read directly", self.folder, what)

    def _shard_path(self, key: Key) -> str:
        digest = key.digest
        return os.path.join(self.folder, digest[:2], f"{digest}-{plain_name(key.url)}")

    def _part_path(self, key: Key) -> str:
        digest = key.digest
        return os.path.join(self.folder, digest[:2], f"{digest}.part")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_counted": False, "_last_used": ""}

    def __repr__(self) -> str:
        return f"ShardCache({self.folder!r}, {self.limit_bytes})"


@dataclass
class _Accounts:
    fd: int
    total: int
    limit_bytes: int

    def save(self) -> None:
        os.pwrite(self.fd, _STATE.pack(_MAGIC, self.total, self.limit_bytes), 0)


_filling: set[int] = set()
# Open parts of this process, for the one moment when they must be known: a forked child would keep their locks after our death.


def _after_fork() -> None:
    for fd in _filling:
        with contextlib.suppress(OSError):
            os.close(fd)
    _filling.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _lock(fd: int, *, shared: bool = False) -> bool:
    """Take the file's lock now, if that is possible."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""A remote store behind the shard cache: whole files from local disk, as soon as enough of one is wanted."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from zephon.errors import DataError, Where
from zephon.notes import default_cache_dir
from zephon.plugin import FileInfo
from zephon.storage.disk import Held, Key, ShardCache
from zephon.storage.local import read_fully
from zephon.storage.options import CacheOptions
from zephon.storage.prefetch import Prefetcher
from zephon.storage.ranges import open_ranges
from zephon.storage.remote import Facts, FsspecStore, StoppedError
from zephon.waiting import Flag

log = logging.getLogger("zephon.storage")

_LITTLE = 256 << 10
_COUNTED_FILES = 4096
_HASH_BLOCK = 4 << 20


class CachedStore:
    """A store of URLs whose files are kept on local disk.

    A read of a few bytes (a footer, an index) goes to the store itself: planning must not download the data. When a process
    has asked for more than a sixteenth of a file (of a small one 256 KiB, or half), the whole file is fetched, once per node.
    """

    def __init__(self, inner: FsspecStore, options: CacheOptions) -> None:
        self.inner = inner
        self.options = options
        root = options.root or os.path.join(inner.cache_dir or default_cache_dir(), "shards")
        self.cache = ShardCache(os.path.abspath(os.path.expanduser(root)), options.limit_bytes, options.wait_s)
        self._make_state()

    def _make_state(self) -> None:
        self._guard = threading.Lock()
        self._asked: OrderedDict[str, int] = OrderedDict()
        self._ahead: dict[str, Key] = {}
        self._prefetcher = Prefetcher(self._load_ahead, self.options.prefetch_threads)
        self._told_of_versions = False

    @property
    def fs(self) -> Any:
        """The fsspec file system."""
        return self.inner.fs

    # ------------------------------------------------------------------------------------------------- look-ups

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_file(self, path: str) -> bool:
        return self.inner.is_file(path)

    def glob(self, pattern: str) -> list[str]:
        return self.inner.glob(pattern)

    def look(self, path: str) -> Sequence[FileInfo] | None:
        return self.inner.look(path)

    def match(self, pattern: str, keep: Callable[[str], bool]) -> Sequence[Sequence[FileInfo]]:
        return self.inner.match(pattern, keep)

    def files(self, path: str) -> Sequence[FileInfo]:
        return self.inner.files(path)

    def local(self, path: str) -> str | None:  # noqa: ARG002 - only pinned files have a path that lasts: `on_disk`
        return None

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        return self.inner.sidecar(path, suffix)

    def check_limits(self, files: Iterable[FileInfo]) -> None:
        for file in files:
            self.cache.check_limit(file.size, file.path)

    # ---------------------------------------------------------------------------------------------------- reads

    def open(self, path: str) -> BinaryIO:
        size = self.inner.facts(path).size
        return open_ranges(path, size, lambda start, stop: self.read(path, start, stop))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        facts = self.inner.facts(path)
        stop = facts.size if stop is None else min(stop, facts.size)
        if stop <= start:
            return b""
        key = self._key(path, facts)
        held = self._held(key, facts, whole=self._is_worth_it(path, stop - start, facts.size))
        if held is None:
            return self.inner.read(path, start, stop)
        with held:
            try:
                data = read_fully(held.fd, start, stop)
            except OSError as error:  # a bad sector of the local disk
                log.warning("%s can't be read from the shard cache: %s", path, error)
                data = b""
        if len(data) == stop - start:
            return data
        self.cache.discard(key)
        return self.inner.read(path, start, stop)

    @contextlib.contextmanager
    def on_disk(self, path: str) -> Iterator[str]:
        facts = self.inner.facts(path)
        key = self._key(path, facts)
        for _ in range(3):  # a shard may be removed by hand between our finding it and our caller's opening it
            held = self._held(key, facts, whole=True)
            if held is None:
                break
            with held:
                if held.in_place():
                    yield held.path
                    return
        with self.inner.on_disk(path) as copy:
            yield copy

    def prefetch(self, paths: Iterable[str]) -> None:
        self._prefetcher.add(paths)

    def cancel_prefetch(self) -> None:
        self._prefetcher.cancel()
        with self._guard:
            self._ahead.clear()

    # --------------------------------------------------------------------------------------------------- the cache

    def _key(self, path: str, facts: Facts) -> Key:
        return Key(self.inner.identity, path, facts.size, facts.version)

    def _is_worth_it(self, path: str, count: int, size: int) -> bool:
        """Whether so much of the file is wanted now that the whole file should be fetched."""
        with self._guard:
            asked = self._asked.pop(path, 0) + count
            self._asked[path] = asked
            if len(self._asked) > _COUNTED_FILES:
                self._asked.popitem(last=False)
        return asked > min(max(_LITTLE, size // 16), size // 2)

    def _held(self, key: Key, facts: Facts, *, whole: bool, stopped: Flag | None = None) -> Held | None:
        if not facts.version:
            if not self._told_of_versions:
                self._told_of_versions = True
                log.warning("%s has no version in its store (no tag, no time); such files are not cached", key.url)
            return None
        with self._guard:
            self._ahead.pop(key.url, None)
        found = self.cache.find(key)
        if found is not None or not whole:
            return found
        return self.cache.fetch(key, lambda fd: self._fill(key, facts, fd, stopped))

    def _fill(self, key: Key, facts: Facts, fd: int, stopped: Flag | None) -> None:
        """Download, and compare with the store's checksum; a download that doesn't match it is made once more."""
        self.inner.download(key.url, fd, key.size, stopped)
        if facts.checksum is None or not self.options.verify:
            return
        algorithm, expected = facts.checksum
        first = _hash_file(fd, algorithm.rstrip("?"))
        if first == expected:
            return
        log.warning("%s: the %s of the download is %s, the store says %s; once more", key.url, algorithm, first, expected)
        self.inner.download(key.url, fd, key.size, stopped)
        second = _hash_file(fd, algorithm.rstrip("?"))
        if second == expected or (algorithm == "md5?" and first == second):
            return  # encrypted objects have tags that only look like an MD5: two equal downloads are right
        raise DataError(
            f"{key.url!r} is damaged: its {algorithm.rstrip('?')} is {second}, the store says {expected}; downloaded twice",
            where=Where(shard=key.url),
        )

    def _load_ahead(self, path: str, stopped: Flag) -> None:
        facts = self.inner.facts(path)
        key = self._key(path, facts)
        if not self._has_room_ahead(facts.size):
            return
        with contextlib.suppress(StoppedError):
            held = self._held(key, facts, whole=True, stopped=stopped)
            if held is not None:
                held.close()
                with self._guard:
                    self._ahead[path] = key

    def _has_room_ahead(self, size: int) -> bool:
        """More than half of the cache fetched ahead and not read yet would evict what is being read."""
        with self._guard:
            self._ahead = {path: key for path, key in self._ahead.items() if self.cache.holds(key)}
            return sum(key.size for key in self._ahead.values()) + size <= self.options.limit_bytes // 2

    def __getstate__(self) -> dict[str, Any]:
        names = ("inner", "options", "cache")
        return {name: value for name, value in vars(self).items() if name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._make_state()

    def __repr__(self) -> str:
        return f"CachedStore({self.inner!r}, {self.cache!r})"


def _hash_file(fd: int, algorithm: str) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=False)
    at_byte = 0
    while block := os.pread(fd, _HASH_BLOCK, at_byte):
        digest.update(block)
        at_byte += len(block)
    return digest.hexdigest()

"""Files of one fsspec file system: range reads that are complete or fail, tried again where that helps."""

from __future__ import annotations

import base64
import contextlib
import logging
import math
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from zephon.errors import DataError, Where, trace_of
from zephon.plugin import FileInfo
from zephon.storage.client import Client
from zephon.storage.conditional import Answer, conditional_range
from zephon.storage.faults import Fault, TruncatedError
from zephon.storage.names import base_name, cached_name, is_hidden
from zephon.storage.options import StoreOptions
from zephon.storage.ranges import open_ranges
from zephon.storage.retry import FailedError, retrying
from zephon.waiting import Flag

log = logging.getLogger("zephon.storage")

T = TypeVar("T")

_REMEMBERED = 4096
_INFOS_AT_ONCE = 16
_CHECK_EVERY_S = 1.0


@dataclass(frozen=True)
class Facts:
    """What a store says of one object: size, entity tag, and what changes with its content, for the cache: the tag, or a time."""

    size: int
    etag: str = ""
    version: str = ""
    generation: str = ""
    """Google's number for this version."""
    checksum: tuple[str, str] | None = None
    """An algorithm of hashlib and the hexadecimal digest; for "md5?" the tag of an object that looks like one."""


class StoppedError(Exception):
    """A download was told to stop. Internal."""


class FsspecStore:
    """Files of one fsspec file system. Paths are full URLs, so that they name a file wherever they appear."""

    def __init__(
        self, client: Client, cache_dir: str | None = None, *, options: StoreOptions | None = None, scheme: str | None = None
    ) -> None:
        self.client = client
        self.cache_dir = cache_dir
        self.options = options or StoreOptions()
        self.scheme = scheme
        self._facts: OrderedDict[str, Facts] = OrderedDict()
        self._facts_guard = threading.Lock()
        self._checked: dict[str, float] = {}
        self._told_of_ranges = False

    @property
    def fs(self) -> Any:
        """The fsspec file system; stores with equal options have the same one."""
        return self.client.fs

    @property
    def identity(self) -> str:
        """Which service it is, beyond what a URL says: the same bucket name on two endpoints is two buckets."""
        given = self.client.given
        parts = [given.get(name) for name in ("endpoint_url", "endpoint", "account_name", "account_host", "fo")]
        parts += [(given.get("client_kwargs") or {}).get("endpoint_url"), getattr(self.fs, "endpoint", None)]
        return "|".join(str(part) for part in parts if isinstance(part, str))

    def address(self, inner: str) -> str:
        """The full URL of what the file system calls `inner`."""
        return self._url(inner)

    # ------------------------------------------------------------------------------------------------- look-ups

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_file(self, path: str) -> bool:
        info = self._find(path)
        return info is not None and info["type"] != "directory"

    def glob(self, pattern: str) -> list[str]:
        return sorted(self._url(name) for name in self._globbed(pattern))

    def look(self, path: str) -> Sequence[FileInfo] | None:
        info = self._find(path)
        if info is None:
            return None
        return self._below(path) if info["type"] == "directory" else [self._info(info)]

    def match(self, pattern: str, keep: Callable[[str], bool]) -> Sequence[Sequence[FileInfo]]:
        found = {self._url(name): info for name, info in sorted(self._globbed(pattern).items())}
        kept = {url: info for url, info in found.items() if keep(url)}
        folders = [url for url, info in kept.items() if info["type"] == "directory"]
        files = self._infos([info for info in kept.values() if info["type"] != "directory"])
        return [*([files] if files else []), *(self._below(url) for url in folders)]

    def files(self, path: str) -> Sequence[FileInfo]:
        """See `Store.files`. Raises `DataError` where it can't be listed."""
        found = self.look(path)
        if found is None:
            raise DataError(f"{path!r} does not exist", where=Where(shard=path))
        return found

    def facts(self, path: str, *, fresh: bool = False) -> Facts:
        """Size and version of a file. What a listing said is remembered, unless `fresh`. Raises `DataError`."""
        known = self._remembered(path)
        if known is not None and not fresh:
            return known
        info = self._find(path, fresh=fresh)
        if info is None or info["type"] == "directory":
            what = "does not exist" if info is None else "is a directory"
            raise DataError(f"{path!r} {what}", where=Where(shard=path))
        made = self._told(info)
        self._remember(path, made)
        return made

    def _find(self, path: str, *, fresh: bool = False) -> Mapping[str, Any] | None:
        """fsspec's answer about this address, None where there is nothing."""
        inner = self._inner(path)

        def ask(fs: Any) -> Mapping[str, Any]:
            if fresh:
                fs.invalidate_cache(inner)
            return self._ask_info(fs, inner)

        try:
            found: Mapping[str, Any] = self._asked(path, ask)
        except FailedError as error:
            if error.fault is Fault.GONE:
                return None
            raise self._failure(path, error, "can't be looked up") from error
        return found

    def _ask_info(self, fs: Any, inner: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = fs.info(inner, **self.client.deadline)
        return found

    def _globbed(self, pattern: str) -> Mapping[str, Mapping[str, Any]]:
        inner = self._inner(pattern)
        found: Mapping[str, Mapping[str, Any]] = self._listed(pattern, lambda fs: fs.glob(inner, detail=True))
        return found

    def _below(self, path: str) -> Sequence[FileInfo]:
        root = self._inner(path).rstrip("/")
        found = self._listed(path, lambda fs: fs.find(root, detail=True))
        files = [
            i for name, i in found.items() if i["type"] != "directory" and name[-1:] != "/" and not is_hidden(name[len(root) :])
        ]
        return self._infos(files)

    def _listed(self, path: str, ask: Callable[[Any], Any]) -> Any:
        try:
            return self._asked(path, ask)
        except FailedError as error:
            if error.fault is Fault.GONE:
                return {}
            raise self._failure(path, error, "can't be listed") from error

    def _infos(self, found: Sequence[Mapping[str, Any]]) -> list[FileInfo]:
        """Sorted by path; what a listing gave without a size is looked up, many at once."""
        bare = [info for info in found if info.get("size") is None]
        whole = [self._info(info) for info in found if info.get("size") is not None]
        if bare:
            with ThreadPoolExecutor(min(_INFOS_AT_ONCE, len(bare)), "zephon-look-up") as pool:
                asked = pool.map(lambda info: self._find(self._url(info["name"])), bare)
                whole += [self._info(info) for info in asked if info is not None]
        return sorted(whole, key=lambda file: file.path)

    # ---------------------------------------------------------------------------------------------------- reads

    def open(self, path: str) -> BinaryIO:
        return open_ranges(path, self.facts(path).size, lambda start, stop: self.read(path, start, stop))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        known = self._remembered(path)
        if stop is None or known is not None or stop - start > self.options.part_bytes:
            size = self.facts(path).size
            stop = size if stop is None else min(stop, size)
        if stop <= start:
            return b""
        cuts = self._cuts(start, stop)
        if len(cuts) == 1:
            return self._range(path, start, stop)
        with ThreadPoolExecutor(min(self.options.parallel_parts, len(cuts)), "zephon-part") as pool:
            return b"".join(pool.map(lambda cut: self._range(path, *cut), cuts))

    def download(self, path: str, fd: int, size: int, stopped: Flag | None = None) -> None:
        """Write the bytes [0, size) of a file into an open local one, part by part.

        Raises:
            DataError: it can't be read.
            OSError: it can't be written.
            StoppedError: `stopped` was set.
        """

        def copy(cut: tuple[int, int]) -> None:
            if stop_now.is_set() or (stopped is not None and stopped.is_set()):
                raise StoppedError(f"the download of {path!r} was stopped")
            try:
                write_fully(fd, self._range(path, *cut), cut[0])
            except BaseException:
                stop_now.set()  # the parts that wait need not be fetched
                raise

        stop_now = Flag()
        cuts = self._cuts(0, size)
        if len(cuts) <= 1:
            for cut in cuts:
                copy(cut)
            return
        with ThreadPoolExecutor(min(self.options.parallel_parts, len(cuts)), "zephon-part") as pool:
            made = [pool.submit(copy, cut) for cut in cuts]
        errors = [error for future in made if (error := future.exception()) is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, StoppedError)), errors[0])

    def local(self, path: str) -> str | None:  # noqa: ARG002 - the protocol's
        return None

    @contextlib.contextmanager
    def on_disk(self, path: str) -> Iterator[str]:
        size = self.facts(path).size
        with contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="zephon-"))
                copy = os.path.join(directory, base_name(path))
                fd = os.open(copy, os.O_RDWR | os.O_CREAT, 0o600)
                try:
                    self.download(path, fd, size)
                finally:
                    os.close(fd)
            except OSError as error:
                where = f"a temporary directory in {tempfile.gettempdir()!r}"
                raise DataError(
                    f"{path!r} ({size} bytes) can't be copied to {where}: {error.strerror or error}",
                    where=Where(shard=path),
                    hint="set TMPDIR to a disk with room, or use the shard cache",
                ) from error
            yield copy

    def sidecar(self, path: str, suffix: str) -> Sequence[str]:
        return [cached_name(self.cache_dir, path, suffix)]

    def check_limits(self, files: Iterable[FileInfo]) -> None:
        """There is no cache here."""

    def prefetch(self, paths: Iterable[str]) -> None:
        """There is no cache to fetch into."""

    def cancel_prefetch(self) -> None:
        """Nothing runs."""

    def _cuts(self, start: int, stop: int) -> list[tuple[int, int]]:
        step = self.options.part_bytes
        return [(at, min(at + step, stop)) for at in range(start, stop, step)]

    def _range(self, path: str, start: int, stop: int) -> bytes:
        """One request for [start, stop), with as many bytes as there must be."""
        inner = self._inner(path)

        def attempt(fs: Any) -> Answer:
            data, sure = self._fetch(fs, inner, start, stop)
            return (data if len(data) == stop - start else self._settle(path, data, start, stop)), sure

        try:
            data, sure = self._asked(path, attempt)
            if not sure:
                self._check_version(path)
            return data
        except FailedError as error:
            if error.fault is Fault.CHANGED:
                raise self._changed(path, self._remembered(path)) from error
            if error.fault is Fault.RANGE and start >= self._check_unchanged(path, stop):
                return b""
            if error.fault is Fault.GONE:
                listed = self._remembered(path) is not None
                what = "does not exist any more; it was there when it was listed" if listed else "does not exist"
                raise DataError(f"{path!r} {what}", where=Where(shard=path)) from error
            raise self._failure(path, error, f"can't be read at bytes {start}..{stop}") from error

    def _fetch(self, fs: Any, inner: str, start: int, stop: int) -> Answer:
        known = self._remembered(self._url(inner))
        conditional = conditional_range(self.scheme)
        if known is not None and conditional is not None:
            return conditional(fs, inner, start, stop, known, self.client.deadline)
        return bytes(fs.cat_file(inner, start=start, end=stop, **self.client.deadline)), False

    def _settle(self, path: str, data: bytes, start: int, stop: int) -> bytes:
        """The right bytes out of an answer of another length than asked."""
        size = self._check_unchanged(path, stop)
        expected = max(0, min(stop, size) - start)
        if len(data) == expected:
            return data
        if len(data) == size and expected < size:
            if not self._told_of_ranges:
                self._told_of_ranges = True
                log.warning("%s: the server sends whole files where a range is asked; use the shard cache", path)
            return data[start:stop]
        raise TruncatedError(f"{len(data)} bytes came of {expected}")

    def _check_version(self, path: str) -> None:
        """Whether the bytes that just came are of the object that was listed: one that was replaced by a longer one has all ranges,
        and the wrong rows in them. In a process's own memory it costs nothing; of others that didn't say it with the bytes it is asked
        with the first range of a file, and then at most once in `_CHECK_EVERY_S`."""
        known = self._remembered(path)
        if known is None:
            return
        with self._facts_guard:
            due = time.monotonic() - self._checked.get(path, -math.inf) >= _CHECK_EVERY_S
        if not due and self.scheme != "memory":
            return
        now = self.facts(path, fresh=True)
        # a look-up and a listing may tell the time of one version in two ways (not in memory): the cache's keys stay
        self._remember(path, known)
        same_time = self.scheme != "memory" or now.version == known.version
        if now.size != known.size or not same_time or (now.etag and known.etag and now.etag != known.etag):
            raise self._changed(path, known, now)
        with self._facts_guard:
            self._checked[path] = time.monotonic()
            if len(self._checked) > _REMEMBERED:
                self._checked.clear()

    def _check_unchanged(self, path: str, stop: int) -> int:
        """The object's size now. Raises `DataError` where it isn't what the listing said and that matters here."""
        known = self._remembered(path)
        now = self.facts(path, fresh=True)
        if known is not None and known.size != now.size and stop > min(now.size, known.size):
            raise self._changed(path, known, now)
        return now.size

    def _changed(self, path: str, known: Facts | None, now: Facts | None = None) -> DataError:
        """The error for an object that is another one than was listed. It stays what was listed: the next read of it fails, too."""
        now = now or self.facts(path, fresh=True)
        if known is not None:
            self._remember(path, known)
        was = "" if known is None else f": it had {known.size} bytes when it was listed, and has {now.size} now"
        if known is not None and known.size == now.size:
            was = f" since it was listed; it has {now.size} bytes still"
        return DataError(
            f"{path!r} has changed{was}", where=Where(shard=path), hint="data must not be replaced while a run reads it"
        )

    # --------------------------------------------------------------------------------------------------- helpers

    def _asked(self, path: str, ask: Callable[[Any], T]) -> T:
        used: list[Any] = [None]

        def attempt() -> T:
            used[0] = self.client.fs
            return ask(used[0])

        return retrying(path, attempt, self.options, lambda: self.client.renew(used[0]))

    def _failure(self, path: str, error: FailedError, what: str) -> DataError:
        tries = "1 try" if error.tries == 1 else f"{error.tries} tries"
        hints = {
            Fault.DENIED: "credentials were refreshed and denied again; check them, storage_options, and who may read it",
            Fault.BUSY: "the store asks for fewer requests: fewer workers, longer reads, or more retries",
            Fault.PASSING: "the network or the store is in trouble; StoreOptions has retries and time-outs",
        }
        return DataError(
            f"{path!r} {what} after {tries}: {error}",
            where=Where(shard=path),
            hint=hints.get(error.fault),
            trace=trace_of(error),
        )

    def _inner(self, path: str) -> str:
        return str(self.client.kind._strip_protocol(path))  # type: ignore[attr-defined]

    def _url(self, inner: str) -> str:
        if self.scheme is None:
            return str(self.fs.unstrip_protocol(inner))
        return inner if inner.startswith(f"{self.scheme}://") else f"{self.scheme}://{inner}"

    def _info(self, info: Mapping[str, Any]) -> FileInfo:
        facts, path = self._told(info), self._url(info["name"])
        self._remember(path, facts)
        return FileInfo(path, facts.size, facts.etag)

    def _remembered(self, path: str) -> Facts | None:
        with self._facts_guard:
            return self._facts.get(path)

    def _remember(self, path: str, facts: Facts) -> None:
        with self._facts_guard:
            self._facts[path] = facts
            self._facts.move_to_end(path)
            if len(self._facts) > _REMEMBERED:
                self._facts.popitem(last=False)

    def _told(self, info: Mapping[str, Any]) -> Facts:
        etag = str(info.get("ETag") or info.get("etag") or info.get("version_id") or info.get("blob_id") or "").strip('"')
        times = ("LastModified", "last_modified", "Last-Modified", "mtime", "modified", "updated", "created")
        found = next((info[name] for name in times if info.get(name)), "")
        # memory: a look-up gives a datetime, a listing the same as a number
        time_of_change = str(found.timestamp() if self.scheme == "memory" and hasattr(found, "timestamp") else found)
        generation = str(info.get("generation") or "")
        return Facts(int(info.get("size") or 0), etag, etag or time_of_change, generation, _checksum(info, etag))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_facts", "_facts_guard", "_checked")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _facts=OrderedDict(), _facts_guard=threading.Lock(), _checked={})

    def __repr__(self) -> str:
        return f"FsspecStore({self.client.kind.__name__})"


def write_fully(fd: int, data: bytes, at_byte: int) -> None:
    """All of `data` at this place of an open file; one system call may take less (2 GiB at most)."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at_byte)
        view, at_byte = view[count:], at_byte + count


def _checksum(info: Mapping[str, Any], etag: str) -> tuple[str, str] | None:
    """A checksum of the whole object, where the store gives one (GCS, Azure, Hugging Face), or its tag where that is 32 digits."""
    lfs = info.get("lfs")
    sha256 = lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)
    if sha256:
        return "sha256", str(sha256)
    settings = info.get("content_settings")
    md5 = info.get("md5Hash") or (settings.get("content_md5") if isinstance(settings, Mapping) else None)
    if isinstance(md5, str):
        return "md5", base64.b64decode(md5).hex()
    if isinstance(md5, bytes | bytearray):
        return "md5", bytes(md5).hex()
    if len(etag) == 32 and all(c in "0123456789abcdef" for c in etag):
        return "md5?", etag
    return None

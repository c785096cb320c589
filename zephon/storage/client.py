"""One fsspec file system per process and set of options, made anew after a fork and when credentials ran out."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from zephon.storage.options import StoreOptions


class Client:
    """A file system of fsspec that stores share. It is made at the first use, and knows how to be made again.

    fsspec's own table of instances has one per *thread*; sixteen readers would have sixteen connection pools.
    """

    def __init__(self, kind: type, args: tuple[Any, ...], given: Mapping[str, Any], options: StoreOptions) -> None:
        self.kind = kind
        self.args = args
        self.given = dict(given)
        self.options = options
        self.deadline: dict[str, float] = {}
        """Keyword arguments that bound a call of the file system."""
        self.listing = threading.RLock()
        """For file systems whose listings are not safe in several threads."""
        self._fs: Any = None
        self._making = threading.Lock()

    @property
    def fs(self) -> Any:
        """The file system."""
        made = self._fs
        if made is None:
            with self._making:
                if self._fs is None:
                    self._fs = self._make()
                made = self._fs
        return made

    def renew(self, old: Any) -> None:
        """Replace `old`, whose credentials ran out; of many threads that ask, the first one does it."""
        with self._making:
            if self._fs is old:
                self._fs = self._make()

    def _make(self) -> Any:
        family = _family(self.kind)
        given = self.given if family is None else {**_LISTINGS, **_TUNED[family](self.given, self.options)}
        fs = self.kind(*self.args, **given, skip_instance_cache=True)
        if family is not None and family != "hf":
            self.deadline = {"timeout": self.options.timeout_s}  # fsspec cancels the coroutine then
        _keep_to_one_try(family, fs)
        return fs

    def __reduce__(self) -> tuple[Any, ...]:
        return shared_client, (self.kind, self.args, self.given, self.options)


_LISTINGS = {"use_listings_cache": False}
"""A listing of 10**6 objects takes a gigabyte in fsspec's cache, and hides what changed since."""

_clients: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()
_clients_guard = threading.Lock()
_abandoned: list[Any] = []
# The one table of this process: without it there is one connection pool per data set, and one refresh of credentials each.


def shared_client(kind: type, args: tuple[Any, ...], given: Mapping[str, Any], options: StoreOptions) -> Client:
    """The process's client for this class of file system and these arguments."""
    from fsspec.utils import tokenize  # noqa: PLC0415 - local paths never come here

    if "fo" in given:  # an archive inside of another store: it keeps its table of contents, and costs nothing to open
        return Client(kind, args, given, options)
    times = (options.connect_timeout_s, options.read_timeout_s, options.timeout_s)
    name = tokenize(f"{kind.__module__}.{kind.__qualname__}", times, *args, **given)
    with _clients_guard:
        found = _clients.get(name)
        if found is None:
            found = _clients[name] = Client(kind, args, given, options)
        return found


def _after_fork() -> None:
    """In a forked child: the parent's event loop is not there, and its locks may be held for ever.

    The parent's file systems are kept, not dropped: their finalizers would close sockets that the parent listens on.
    """
    global _clients_guard
    _clients_guard = threading.Lock()
    for client in list(_clients.values()):
        _abandoned.append(client._fs)
        client._fs = None
        client._making = threading.Lock()
        client.listing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ------------------------------------------------------------------------------------------- what each client needs


def _family(kind: type) -> str | None:
    """Which of the known clients it is."""
    module = kind.__module__
    names = {"s3fs": "s3", "gcsfs": "gs", "adlfs": "az", "fsspec.implementations.http": "http", "huggingface_hub": "hf"}
    return next((family for start, family in names.items() if module == start or module.startswith(start + ".")), None)


def _s3(given: Mapping[str, Any], options: StoreOptions) -> dict[str, Any]:
    config = {
        "connect_timeout": options.connect_timeout_s,
        "read_timeout": options.read_timeout_s,
        "max_pool_connections": 64,  # all threads of a process share the client; botocore's default is 10
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    return {**given, "config_kwargs": {**config, **(given.get("config_kwargs") or {})}}


def _aio_timeout(options: StoreOptions) -> Any:
    import aiohttp  # noqa: PLC0415 - comes with the client that asks

    return aiohttp.ClientTimeout(total=None, sock_connect=options.connect_timeout_s, sock_read=options.read_timeout_s)


def _http(given: Mapping[str, Any], options: StoreOptions) -> dict[str, Any]:
    client = {"timeout": _aio_timeout(options), **(given.get("client_kwargs") or {})}
    # a server that compresses on the way makes ranges of the compressed bytes
    headers = {"Accept-Encoding": "identity", **(given.get("headers") or {})}
    return {**given, "client_kwargs": client, "headers": headers}


def _gs(given: Mapping[str, Any], options: StoreOptions) -> dict[str, Any]:
    return {"requests_timeout": _aio_timeout(options), **given}


def _az(given: Mapping[str, Any], options: StoreOptions) -> dict[str, Any]:
    return {"connection_timeout": options.connect_timeout_s, "read_timeout": options.read_timeout_s, **given}


def _hf(given: Mapping[str, Any], options: StoreOptions) -> dict[str, Any]:  # noqa: ARG001 - all have the same form
    return dict(given)  # huggingface_hub takes its time-outs from its own settings


_TUNED: dict[str, Callable[[Mapping[str, Any], StoreOptions], dict[str, Any]]] = {
    "s3": _s3,
    "http": _http,
    "gs": _gs,
    "az": _az,
    "hf": _hf,
}


def _keep_to_one_try(family: str | None, fs: Any) -> None:
    """Switch off the client's own retries where that can be done: they multiply with ours (s3fs: 5 × 5 requests), know no
    `Retry-After`, and the number of tries in an error would be a lie. huggingface_hub keeps its own."""
    if family == "s3":
        fs.retries = 1
    elif family == "gs":
        for name in ("_request", "_get_file_request"):
            plain = getattr(getattr(type(fs), name, None), "__wrapped__", None)
            if plain is not None:
                setattr(fs, name, plain.__get__(fs))
    elif family == "az" and isinstance(getattr(fs, "_timeout_kwargs", None), dict):
        fs._timeout_kwargs.setdefault("retry_total", 0)  # what it hands on to each operation of the SDK

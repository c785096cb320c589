"""Where files are: local paths by plain system calls, URLs through fsspec, which is imported for them only.

A store is what a reader is given (`zephon.plugin.Store`). `open_store` chooses one by the look of the address: what has `://` or
`::` in it is a URL; everything else is a local path and is never parsed, so `%`, `#`, `?` and spaces in names mean themselves.

* `local`, `remote` (with `web` and `huggingface`): the stores; `cached` puts the shard cache before a remote one
* `client`, `retry`, `faults`, `ranges`, `conditional`: how remote stores are asked
* `disk`, `prefetch`: the cache's files, and who fills it ahead
* `expand`, `names`, `options`
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zephon.errors import PluginError, RecipeError
from zephon.notes import default_cache_dir
from zephon.storage.expand import expand
from zephon.storage.listed import ListedStore
from zephon.storage.local import LocalStore, absolute
from zephon.storage.names import INDEX_SUFFIX
from zephon.storage.options import CacheOptions, StoreOptions

if TYPE_CHECKING:
    from zephon.storage.remote import FsspecStore

__all__ = [
    "INDEX_SUFFIX",
    "CacheOptions",
    "FsspecStore",
    "ListedStore",
    "LocalStore",
    "StoreOptions",
    "default_cache_dir",
    "expand",
    "open_store",
]

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(://|::)")
_LOCAL_URL = re.compile(r"^(file|local)://")
_CHAINED = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*::|::[A-Za-z][A-Za-z0-9+.\-]*://")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf"}


def __getattr__(name: str) -> Any:
    if name == "FsspecStore":
        from zephon.storage.remote import FsspecStore  # noqa: PLC0415 - local paths need none of it

        return FsspecStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open_store(
    uri: str,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
    *,
    options: StoreOptions | None = None,
) -> tuple[ListedStore, str]:
    """The store that an address belongs to, and the address as that store spells it (an absolute path, or a full URL).

    Args:
        uri: a local path or a URL.
        storage_options: for the file system of fsspec; they win over what `options` would set.
        cache_dir: where indices go that can't be written beside the data, and the shard cache without a root of its own.
        options: retries, time-outs and the shard cache.

    Raises:
        RecipeError: an empty address, a protocol that fsspec doesn't know, or options that don't fit it.
        PluginError: the package for that protocol isn't installed.
    """
    if not uri:
        raise RecipeError("a path is empty")
    if _LOCAL_URL.match(uri):
        return LocalStore(cache_dir), absolute(_LOCAL_URL.sub("", uri))
    if not _URL.match(uri) or ("://" not in uri and os.path.lexists(uri)):
        return LocalStore(cache_dir), absolute(uri)
    return _open_url(uri, dict(storage_options or {}), cache_dir, options or StoreOptions())


def _open_url(uri: str, given: dict[str, Any], cache_dir: str | None, options: StoreOptions) -> tuple[ListedStore, str]:
    from fsspec.core import url_to_fs  # noqa: PLC0415 - 140 ms that local paths need not pay
    from fsspec.registry import get_filesystem_class  # noqa: PLC0415

    from zephon.storage.client import shared_client  # noqa: PLC0415

    scheme = None if _CHAINED.search(uri) else uri.partition("://")[0].lower()
    try:
        if scheme is None:
            fs, inner = url_to_fs(uri, **given)
            kind, args, given = type(fs), fs.storage_args, fs.storage_options
        else:
            uri = scheme + uri[len(scheme) :]
            kind, args = get_filesystem_class(scheme), ()
            given = {**kind._get_kwargs_from_urls(uri), **given}
            inner = kind._strip_protocol(uri)
        client = shared_client(kind, args, given, options)
        made = client.fs
    except ImportError as error:
        extra = _EXTRAS.get(scheme or "")
        how = f"pip install 'zephon[{extra}]'" if extra else "install the package that it names"
        raise PluginError(f"{uri!r} can't be opened: {error}", hint=how) from error
    except (ValueError, TypeError) as error:
        raise RecipeError(f"{uri!r} can't be opened: {error}", hint="check the protocol and storage_options") from error
    store = _store_class(scheme)(client, cache_dir, options=options, scheme=scheme)
    address = store.address(inner) if scheme is not None else str(made.unstrip_protocol(inner))
    if not options.cache.enabled:
        return store, address
    from zephon.storage.cached import CachedStore  # noqa: PLC0415

    return CachedStore(store, options.cache), address


def _store_class(scheme: str | None) -> type[FsspecStore]:
    if scheme in ("http", "https"):
        from zephon.storage.web import HttpStore  # noqa: PLC0415

        return HttpStore
    if scheme == "hf":
        from zephon.storage.huggingface import HubStore  # noqa: PLC0415

        return HubStore
    from zephon.storage.remote import FsspecStore  # noqa: PLC0415

    return FsspecStore

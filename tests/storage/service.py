"""A bucket of a service behind the proxy, for the tests of the stores that have an emulator."""

from __future__ import annotations

from typing import Any

from storage.conftest import QUICK
from storage.servers import Proxy

from zephon.storage import ListedStore, StoreOptions, expand, open_store

DATA = bytes(range(256)) * 400


class Service:
    """`root` is the bucket's address; `options` are for fsspec."""

    def __init__(self, proxy: Proxy, root: str, options: dict[str, Any]) -> None:
        self.proxy, self.root, self.options = proxy, root, options

    def store(self, options: StoreOptions = QUICK) -> ListedStore:
        return open_store(self.root, self.options, options=options)[0]

    def put(self, name: str, data: bytes = DATA) -> str:
        address = f"{self.root}/{name}"
        self.store().fs.pipe_file(address, data)  # type: ignore[attr-defined]
        return address

    def found(self, address: str) -> list[str]:
        return [f.path for f in expand(*open_store(address, self.options, options=QUICK))]

"""One S3 server for the session, and places of three kinds to put the same files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from storage.conftest import QUICK
from storage.servers import moto

from zephon import Dataset
from zephon.storage import ListedStore, open_store

STORES = ("local", "memory", "s3")


@dataclass
class Place:
    """A folder of one store, empty at first."""

    url: str
    fs: Any
    cache: Path
    storage_options: dict[str, Any] = field(default_factory=dict)

    def dataset(self, name: str = "d", path: str = "", **options: Any) -> Dataset:
        """Of what lies here; indices go into the place's own cache directory."""
        options = {"io_options": QUICK, "cache_dir": str(self.cache), **options}
        return Dataset.from_path(name, self.url + path, storage_options=self.storage_options or None, **options)

    def put(self, folder: Path) -> None:
        """Copy all files below a local folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.write(f"/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def write(self, path: str, data: bytes) -> None:
        whole = self.url + path
        self.fs.makedirs(whole.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(whole, data)

    def read(self, path: str) -> bytes:
        return bytes(self.fs.cat_file(self.url + path))

    def remove(self, path: str) -> None:
        self.fs.rm_file(self.url + path)


@dataclass
class Server:
    """S3 in a process of its own."""

    options: dict[str, Any]
    store: ListedStore
    """Keeps the one client of the process alive."""


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    with moto() as port:
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
        server = Server(options, open_store("s3://none", options, options=QUICK)[0])
        server.store.fs.mkdir("stores")  # type: ignore[attr-defined]
        yield server


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new folder on each of the stores."""
    return make_place(request.param, request, tmp_path)


def make_place(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    name, cache = uuid.uuid4().hex, folder / "cache"
    if kind == "s3":
        server: Server = request.getfixturevalue("s3")
        return Place(f"s3://stores/{name}", server.store.fs, cache, server.options)  # type: ignore[attr-defined]
    if kind == "memory":
        return Place(f"memory://stores/{name}", fsspec.filesystem("memory"), cache)
    return Place(str(folder / name), fsspec.filesystem("file"), cache)

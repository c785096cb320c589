"""Servers for the whole session, and what all storage tests read."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from storage.servers import Proxy, folder_server, moto

from zephon.storage import CacheOptions, ListedStore, StoreOptions, open_store

QUICK = StoreOptions(retries=3, first_wait_s=0.01, longest_wait_s=0.05, read_timeout_s=0.5, connect_timeout_s=2, timeout_s=20)


@dataclass
class Bucket:
    """A bucket of its own for one test, behind the proxy."""

    name: str
    proxy: Proxy
    client: Any

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{self.proxy.port}"}

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"s3://{self.name}/{key}"

    def store(self, options: StoreOptions = QUICK, cache_dir: str | None = None, **more: Any) -> ListedStore:
        return open_store(f"s3://{self.name}", {**self.storage_options, **more}, cache_dir, options=options)[0]


_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[tuple[Proxy, Any]]:
    """A proxy before a server, and a client of the server itself; making either takes half a second."""
    import boto3
    from botocore.config import Config

    with moto() as port:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id="k",
            aws_secret_access_key="s",
            region_name="us-east-1",
            config=Config(request_checksum_calculation="when_required"),  # as objects of older writers: without a CRC
        )
        proxy = Proxy(port)
        kept = Bucket("none", proxy, client).store()  # keeps the shared file system alive from test to test
        yield proxy, client
        del kept
        proxy.close()
        client.close()


@pytest.fixture
def bucket(s3: tuple[Proxy, Any]) -> Bucket:
    proxy, client = s3
    name = f"bucket{next(_numbers)}"
    client.create_bucket(Bucket=name)
    proxy.fresh()
    return Bucket(name, proxy, client)


SIZE = 1 << 20


def body(name: str, size: int = SIZE) -> bytes:
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


class Web:
    """Files behind a web server and the proxy."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self.folder = folder
        self.proxy = Proxy(upstream)

    def put(self, name: str, data: bytes | None = None) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body(name) if data is None else data)
        return f"http://127.0.0.1:{self.proxy.port}/{name}"

    def store(self, root: Path, limit: int | str = 100 * SIZE, **settings: Any) -> ListedStore:
        cache = CacheOptions(root=str(root), limit_bytes=limit, **settings)  # type: ignore[arg-type]
        return open_store(f"http://127.0.0.1:{self.proxy.port}/", options=replace(QUICK, part_bytes=SIZE // 2, cache=cache))[0]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    folder = tmp_path / "served"
    folder.mkdir()
    with folder_server(folder) as port:
        made = Web(folder, port)
        yield made
        made.proxy.close()

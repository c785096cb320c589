"""Real servers as separate processes, and a proxy before them that misbehaves on demand."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(command: Sequence[str], port: int, *, patience_s: float = 60, cwd: Path | None = None) -> Iterator[None]:
    """A server in a process of its own, from when its port answers."""
    with (  # a pipe that nobody reads is full after a thousand requests, and the server stands still
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, cwd=cwd, start_new_session=True, stdout=subprocess.DEVNULL, stderr=said) as made,
    ):
        try:
            give_up = time.monotonic() + patience_s
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if made.poll() is not None or time.monotonic() > give_up:
                    said.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {said.read().decode()[-2000:]}")
                time.sleep(0.05)
            yield
        finally:
            os.killpg(made.pid, signal.SIGKILL)  # npx has children


@contextlib.contextmanager
def moto() -> Iterator[int]:
    port = free_port()
    with process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        yield port


@dataclass
class Fault:
    """What to do to the next `times` requests whose method and path fit."""

    kind: str
    """status, stall, cut, reset, slow, short, flip"""
    path: str = ""
    times: int = 1_000_000
    method: str = "GET"
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: int = 10
    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    """How fast the body comes, where the kind is "slow"."""
    seen: int = 0


Reply = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


class Proxy:
    """Forwards to a port of this machine, counts, and does what the faults say."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, str]] = []
        self.guard = threading.Lock()
        self.closing = threading.Event()
        self.amend: Callable[[str, Reply], Reply] = lambda path, reply: reply
        """What the real service says and the emulator doesn't, given the request's path and the emulator's answer."""
        self.server = _serve(lambda *args: _Forward(self, *args))
        self.port = int(self.server.server_address[1])

    def take(self, method: str, path: str) -> Fault | None:
        with self.guard:
            for fault in self.faults:
                if fault.seen < fault.times and fault.method == method and fault.path in unquote(path):
                    fault.seen += 1
                    return fault
        return None

    def asked(self, path: str, method: str = "GET") -> list[str]:
        """The `Range` headers of the requests for this path so far."""
        with self.guard:
            return [r for m, p, r in self.requests if m == method and path in unquote(p)]

    def fresh(self, *faults: Fault) -> None:
        with self.guard:
            self.faults, self.requests = list(faults), []

    def close(self) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()


def _serve(handler: Callable[..., BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that hang up are part of the tests."""

    server = Server(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="test-server", daemon=True).start()
    return server


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, proxy: Proxy, *args: object) -> None:
        self.proxy = proxy
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, *args: object) -> None:
        pass

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.proxy.guard:
            self.proxy.requests.append((self.command, self.path, self.headers.get("Range", "")))
        fault = self.proxy.take(self.command, self.path)
        if fault is not None and fault.kind == "status":
            return self._send(fault.status, fault.headers, fault.body)
        if fault is not None and fault.kind == "reset":
            self.close_connection = True
            return None
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.delay_s)
        status, headers, data = self.proxy.amend(self.path, self._upstream(body))
        if fault is not None and fault.kind == "slow":
            time.sleep(len(data) / fault.bytes_per_s)
        if fault is None or fault.kind == "slow":
            return self._send(status, headers, data)
        if fault.kind == "short":  # a well-formed answer with less than what was asked
            return self._send(status, headers, data[: fault.after])
        if fault.kind == "flip":
            return self._send(status, headers, bytes([data[0] ^ 1]) + data[1:])
        self._send(status, headers, data, promise=len(data), count=fault.after)
        if fault.kind == "stall":
            self.proxy.closing.wait(60)
        self.close_connection = True
        return None

    def _upstream(self, body: bytes) -> Reply:
        made = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "expect")}
        made.request(self.command, self.path, body, headers)
        answer = made.getresponse()
        data = answer.read()
        kept = {k: v for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection")}
        made.close()
        return answer.status, kept, data

    def _send(
        self, status: int, headers: dict[str, str], data: bytes, promise: int | None = None, count: int | None = None
    ) -> None:
        self.send_response_only(status)
        length = len(data) if promise is None else promise
        for name, value in headers.items():
            if self.command == "HEAD" or name.lower() != "content-length":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(length))
        elif "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if count is None else data[:count])
        self.wfile.flush()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any  # noqa: N815 - http.server's names


class RangeHandler(SimpleHTTPRequestHandler):
    """A folder over HTTP, with byte ranges, listings, times of change, and (with `tags`) entity tags and (`heeds`) `If-Match`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    ranges = True
    tags = False
    heeds = True

    def end_headers(self) -> None:
        path = self.translate_path(self.path)
        if self.tags and os.path.isfile(path):
            self.send_header("ETag", self.tag_of(path))
        super().end_headers()

    def tag_of(self, path: str) -> str:
        return f'"{hashlib.md5(Path(path).read_bytes()).hexdigest()[:8]}"'

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.translate_path(self.path)
        asked = self.headers.get("Range", "")
        wanted = self.headers.get("If-Match", "")
        if self.tags and self.heeds and wanted and os.path.isfile(path) and wanted != self.tag_of(path):
            self.send_response(412)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if not self.ranges or not asked.startswith("bytes=") or not os.path.isfile(path):
            return super().do_GET()
        data = Path(path).read_bytes()
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
        if start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Last-Modified", self.date_time_string(os.stat(path).st_mtime))
        self.end_headers()
        self.wfile.write(data[start:stop])
        return None


@contextlib.contextmanager
def folder_server(folder: Path, *, ranges: bool = True, tags: bool = False, heeds: bool = True) -> Iterator[int]:
    handler = type("Handler", (RangeHandler,), {"ranges": ranges, "tags": tags, "heeds": heeds})
    server = _serve(lambda *args: handler(*args, directory=str(folder)))
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def handler_server(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    server = _serve(handler)
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def query_of(path: str) -> str:
    return urlsplit(path).query
